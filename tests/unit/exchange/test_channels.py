"""A channel keeps order, never exceeds its credit by more than one batch, and batches what it can."""

from collections import deque

import polars as pl
import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.exchange.channels import ChannelBroken, ReceiveChannel, SendChannel
from penstock.model.elements import Barrier, Batch, Element, EndOfInput, Watermark
from penstock.model.ids import ChannelId, CheckpointId
from penstock.model.settings import ExchangeSettings

CHANNEL = ChannelId(7)


class Pair:
    """Both ends, with a network in between that delivers when it is told to."""

    def __init__(self, settings: ExchangeSettings) -> None:
        self.receiver = ReceiveChannel(CHANNEL, 0, settings)
        self.wire: deque[tuple[int, Element, int]] = deque()
        self.writable = True
        self.sender = SendChannel(CHANNEL, settings, deliver=self._deliver, writable=lambda: self.writable)
        self.receiver.grant = self.sender.add_credit

    def _deliver(self, sequence: int, element: Element, size: int) -> int:
        self.wire.append((sequence, element, size))
        return size

    def arrive(self) -> None:
        while self.wire:
            self.receiver.put(*self.wire.popleft())

    def take_all(self) -> list[Element]:
        taken = []
        while self.receiver:
            taken.append(self.receiver.take(1_000_000))
        return taken


def rows(*values: int) -> pl.DataFrame:
    return pl.DataFrame({"x": list(values)}, schema={"x": pl.Int64})


def test_rows_wait_until_the_batch_is_full() -> None:
    pair = Pair(ExchangeSettings(batch_rows=3))
    pair.receiver.open()
    pair.sender.add(rows(1, 2), now=0.0)
    pair.sender.pump()
    assert not pair.wire
    pair.sender.add(rows(3), now=0.0)
    pair.sender.pump()
    assert [element.frame["x"].to_list() for _, element, _ in pair.wire if isinstance(element, Batch)] == [[1, 2, 3]]


def test_rows_leave_at_their_time_out() -> None:
    pair = Pair(ExchangeSettings(batch_timeout_us=10_000))
    pair.receiver.open()
    pair.sender.add(rows(1), now=1.0)
    assert pair.sender.flush(1.004, input_paused=False) == pytest.approx(0.006)
    assert pair.sender.flush(1.0101, input_paused=False) is None
    assert pair.sender.pump()


def test_rows_leave_at_once_when_input_pauses() -> None:
    pair = Pair(ExchangeSettings())
    pair.receiver.open()
    pair.sender.add(rows(1), now=1.0)
    pair.sender.flush(1.0, input_paused=True)
    assert pair.sender.pump()


def test_nothing_leaves_before_the_receiver_is_there() -> None:
    pair = Pair(ExchangeSettings())
    pair.sender.add_control(Barrier(CheckpointId(1)))
    assert not pair.sender.pump()
    pair.receiver.open()
    assert pair.sender.pump()


def test_a_batch_larger_than_the_budget_still_gets_through() -> None:
    pair = Pair(ExchangeSettings(channel_bytes=8))
    pair.receiver.open()
    pair.sender.add(rows(*range(100)), now=0.0)
    pair.sender.flush(0.0, input_paused=True)
    assert pair.sender.pump()
    pair.sender.add(rows(1), now=0.0)
    pair.sender.flush(0.0, input_paused=True)
    assert not pair.sender.pump()
    assert pair.sender.full
    pair.arrive()
    pair.take_all()
    assert pair.sender.pump()


def test_a_newer_watermark_replaces_one_that_waits() -> None:
    pair = Pair(ExchangeSettings())
    pair.receiver.open()
    pair.writable = False
    for time in (1, 2, 3):
        pair.sender.add_watermark(time)
        pair.sender.flush(0.0, input_paused=True)
    pair.writable = True
    pair.sender.pump()
    assert [element for _, element, _ in pair.wire] == [Watermark(3)]


def test_a_gap_in_the_sequence_is_an_error() -> None:
    receiver = ReceiveChannel(CHANNEL, 0, ExchangeSettings())
    receiver.put(0, Watermark(1), 0)
    with pytest.raises(ChannelBroken, match="got element 2 where 1 was due"):
        receiver.put(2, Watermark(2), 0)


ACTIONS = st.lists(
    st.one_of(
        st.tuples(st.just("rows"), st.integers(1, 9)),
        st.tuples(st.just("watermark"), st.integers(0, 99)),
        st.tuples(st.just("barrier"), st.integers(0, 99)),
        st.tuples(st.sampled_from(["flush", "pause", "pump", "arrive", "take", "jam", "unjam"]), st.just(0)),
    ),
    max_size=60,
)


@given(ACTIONS, st.integers(1, 8), st.integers(1, 200))
def test_order_is_kept_and_memory_is_bounded(actions: list[tuple[str, int]], batch_rows: int, budget: int) -> None:
    settings = ExchangeSettings(batch_rows=batch_rows, channel_bytes=budget)
    pair = Pair(settings)
    pair.receiver.open()
    sent: list[object] = []
    got: list[object] = []
    largest = 0
    counter = 0

    def collect() -> None:
        for element in pair.take_all():
            match element:
                case Batch(frame):
                    got.extend(frame["x"].to_list())
                case Barrier(checkpoint=checkpoint):
                    got.append(("barrier", checkpoint))
                case Watermark(time):
                    got.append(("watermark", time))
                case EndOfInput():
                    got.append("end")

    for action, argument in actions:
        match action:
            case "rows":
                values = list(range(counter, counter + argument))
                counter += argument
                sent.extend(values)
                largest = max(largest, 8 * (argument + batch_rows))
                pair.sender.add(rows(*values), now=0.0)
            case "watermark":
                sent.append(("watermark", argument))
                pair.sender.add_watermark(argument)
            case "barrier":
                sent.append(("barrier", argument))
                pair.sender.add_control(Barrier(CheckpointId(argument)))
            case "flush" | "pause":
                pair.sender.flush(0.0, input_paused=action == "pause")
            case "pump":
                pair.sender.pump()
            case "arrive":
                pair.arrive()
            case "take":
                collect()
            case "jam" | "unjam":
                pair.writable = action == "unjam"
        on_the_way = sum(size for _, _, size in pair.wire)
        assert on_the_way <= budget + largest
    pair.sender.add_control(EndOfInput())
    pair.writable = True
    while not pair.sender.drained or pair.wire or pair.receiver:
        pair.sender.pump()
        pair.arrive()
        collect()

    assert got[-1] == "end"
    assert [item for item in got if isinstance(item, int)] == [item for item in sent if isinstance(item, int)]
    assert without_watermarks(got[:-1]) == without_watermarks(sent)
    assert_watermarks_are_late_at_most(sent, got)


def without_watermarks(items: list[object]) -> list[object]:
    return [item for item in items if not (isinstance(item, tuple) and item[0] == "watermark")]


def assert_watermarks_are_late_at_most(sent: list[object], got: list[object]) -> None:
    """A watermark may be replaced by a newer one or stand further back, never further in front."""
    rows_before: dict[object, int] = {}
    count = 0
    for item in sent:
        if isinstance(item, tuple) and item[0] == "watermark":
            rows_before.setdefault(item, count)
        else:
            count += 1
    count = 0
    for item in got:
        if isinstance(item, tuple) and item[0] == "watermark":
            assert count >= rows_before[item]
        else:
            count += 1


# ---------------------------------------------------------------- parts of large batches


def test_of_a_large_batch_comes_a_part_and_the_rest_stays_in_front() -> None:
    receiver = ReceiveChannel(CHANNEL, 0, ExchangeSettings(channel_bytes=70))
    granted: list[int] = []
    receiver.grant = granted.append
    receiver.put(0, Batch(rows(*range(7))), 70)
    receiver.put(1, Watermark(5), 0)
    taken = [receiver.take(3)]
    assert (receiver.queued_bytes, sum(granted)) == (40, 30)
    while receiver:
        taken.append(receiver.take(3))
    assert [each.frame["x"].to_list() for each in taken if isinstance(each, Batch)] == [[0, 1, 2], [3, 4, 5], [6]]
    assert taken[-1] == Watermark(5)
    assert (receiver.queued_bytes, sum(granted)) == (0, 70)


@given(st.lists(st.integers(0, 9), min_size=1, max_size=6), st.lists(st.integers(1, 12), min_size=1))
def test_however_batches_are_cut_rows_keep_their_order_and_all_credit_comes_back(
    heights: list[int], takes: list[int]
) -> None:
    receiver = ReceiveChannel(CHANNEL, 0, ExchangeSettings(channel_bytes=40))
    granted: list[int] = []
    receiver.grant = granted.append
    number, expected = 0, list[int]()
    for sequence, height in enumerate(heights):
        receiver.put(sequence, Batch(rows(*range(number, number + height))), 8 * height + 1)
        expected += range(number, number + height)
        number += height
    found: list[int] = []
    turn = 0
    while receiver:
        most = takes[turn % len(takes)]
        element = receiver.take(most)
        assert isinstance(element, Batch)
        assert element.frame.height <= most
        found += element.frame["x"].to_list()
        turn += 1
    assert found == expected
    assert sum(granted) == sum(8 * height + 1 for height in heights)
    assert receiver.queued_bytes == 0
