"""A barrier that overtakes: each row in front of it is worked on before the cut, or captured, and never both."""

from collections import deque

import polars as pl
from hypothesis import given
from hypothesis import strategies as st

from penstock.exchange.channels import ReceiveChannel, SendChannel
from penstock.model.elements import Barrier, Batch, Element, Watermark
from penstock.model.ids import ChannelId, CheckpointId
from penstock.model.settings import ExchangeSettings

CHANNEL = ChannelId(7)
ONE, TWO = CheckpointId(1), CheckpointId(2)


def rows(*values: int) -> pl.DataFrame:
    return pl.DataFrame({"x": list(values)}, schema={"x": pl.Int64})


def values(frames: list[pl.DataFrame]) -> list[int]:
    return [value for frame in frames for value in frame["x"].to_list()]


class Pair:
    """Both ends and the wire between them."""

    def __init__(self, budget: int) -> None:
        settings = ExchangeSettings(batch_rows=3, channel_bytes=budget)
        self.receiver = ReceiveChannel(CHANNEL, 0, settings)
        self.wire: deque[tuple[int, Element, int]] = deque()
        self.sender = SendChannel(CHANNEL, settings, deliver=self._deliver, writable=lambda: True)
        self.receiver.grant = self.sender.add_credit
        self.receiver.open()

    def _deliver(self, sequence: int, element: Element, size: int) -> int:
        self.wire.append((sequence, element, size))
        return size


def test_the_sender_lets_the_barrier_pass_and_captures_what_waits() -> None:
    pair = Pair(budget=1)
    pair.sender.add(rows(1, 2, 3), now=0.0)
    pair.sender.pump()
    pair.sender.add(rows(4, 5, 6), now=0.0)
    pair.sender.add_watermark(9)
    pair.sender.add_control(Barrier(ONE))
    pair.sender.add(rows(7, 8, 9), now=0.0)
    assert pair.sender.holds(ONE)
    assert values(pair.sender.overtake(ONE)) == [4, 5, 6]
    assert pair.sender.overtake(TWO) == []
    pair.sender.pump()
    assert not pair.sender.holds(ONE)
    assert [element for _, element, _ in pair.wire][1:] == [Barrier(ONE, overtakes=True)], "rows wait for credit"


def test_the_receiver_records_until_the_barrier_comes() -> None:
    receiver = ReceiveChannel(CHANNEL, 0, ExchangeSettings())
    receiver.put(0, Batch(rows(1)), 8)
    receiver.capture(ONE)
    receiver.put(1, Batch(rows(2)), 8)
    assert receiver.recording
    receiver.put(2, Barrier(ONE, overtakes=True), 0)
    receiver.put(3, Batch(rows(3)), 8)
    assert not receiver.recording
    assert values(receiver.release()) == [1, 2]
    taken = receiver.take(100)
    assert isinstance(taken, Batch)
    assert values([taken.frame]) == [1, 2, 3], "what was captured is still to be worked on"
    assert receiver.announced is None


def test_a_newer_barrier_ends_a_recording_that_is_in_vain() -> None:
    receiver = ReceiveChannel(CHANNEL, 0, ExchangeSettings())
    receiver.capture(ONE)
    receiver.put(0, Batch(rows(1)), 8)
    receiver.put(1, Barrier(TWO, overtakes=True), 0)
    assert not receiver.recording
    assert receiver.announced == Barrier(TWO, overtakes=True)
    receiver.capture(TWO)
    assert values(receiver.release()) == [1]


def test_older_barriers_are_dropped_where_a_newer_one_passes() -> None:
    pair = Pair(budget=1)
    pair.sender.add_control(Barrier(ONE))
    pair.sender.add(rows(1, 2, 3), now=0.0)
    pair.sender.add_control(Barrier(TWO))
    assert values(pair.sender.overtake(TWO)) == [1, 2, 3]
    assert not pair.sender.holds(ONE)
    receiver = ReceiveChannel(CHANNEL, 0, ExchangeSettings())
    for sequence, element in enumerate((Barrier(ONE), Batch(rows(1)), Barrier(TWO), Batch(rows(2)))):
        receiver.put(sequence, element, 0)
    receiver.capture(TWO)
    assert values(receiver.release()) == [1]
    assert not receiver.holds(ONE)
    assert not receiver.holds(TWO)


ACTIONS = st.lists(
    st.sampled_from(["rows", "rows", "rows", "watermark", "pause", "pump", "arrive", "take", "cut", "passes"]),
    max_size=60,
)


@given(ACTIONS, st.integers(1, 100), st.booleans(), st.booleans())
def test_every_row_in_front_of_the_barrier_is_done_or_captured(
    actions: list[str], budget: int, overtakes: bool, patient: bool
) -> None:
    """The receiver's task cuts when it likes: before the barrier is there, or when it sees it, or in its turn."""
    pair = Pair(budget)
    counter = 0
    in_front: list[int] | None = None
    done_at_cut: list[int] | None = None
    captured_by_sender: list[int] = []
    done: list[int] = []

    def cut() -> None:
        nonlocal done_at_cut
        if done_at_cut is None:
            done_at_cut = list(done)
            pair.receiver.capture(ONE)

    def take() -> None:
        nonlocal done_at_cut
        match pair.receiver.take(1000):
            case Batch(frame):
                done.extend(frame["x"].to_list())
            case Barrier():
                assert done_at_cut is None, "a barrier that was passed does not come again"
                done_at_cut = list(done)

    for action in [*actions, "passes", *["pump", "arrive"] * 3, "cut", *["pump", "arrive", "take"] * 80]:
        match action:
            case "rows":
                pair.sender.add(rows(counter, counter + 1), now=0.0)
                counter += 2
            case "watermark":
                pair.sender.add_watermark(counter)
            case "pause":
                pair.sender.flush(0.0, input_paused=True)
            case "passes" if in_front is None:
                in_front = list(range(counter))
                pair.sender.add_control(Barrier(ONE, overtakes=overtakes))
                captured_by_sender = values(pair.sender.overtake(ONE)) if overtakes else []
            case "pump":
                pair.sender.pump()
            case "arrive":
                while pair.wire:
                    pair.receiver.put(*pair.wire.popleft())
            case "take" if pair.receiver:
                take()
            case "cut" if in_front is not None or not patient:
                cut()
    assert in_front is not None
    assert done_at_cut is not None
    assert not pair.receiver.recording
    captured = values(pair.receiver.release())
    assert [*done_at_cut, *captured, *captured_by_sender] == in_front
    pair.sender.flush(0.0, input_paused=True)
    while pair.sender.pump() or pair.wire or pair.receiver:
        while pair.wire:
            pair.receiver.put(*pair.wire.popleft())
        while pair.receiver:
            take()
    assert done == list(range(counter)), "what was captured is worked on all the same, in its place"


def test_a_watermark_is_not_captured() -> None:
    receiver = ReceiveChannel(CHANNEL, 0, ExchangeSettings())
    receiver.put(0, Watermark(5), 0)
    receiver.capture(ONE)
    assert receiver.release() == []
    assert receiver.take(1) == Watermark(5)
