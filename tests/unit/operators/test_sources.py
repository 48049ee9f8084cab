"""The source operator over splits that are lists: positions, watermarks, idleness, the end, restore."""

from collections.abc import Sequence
from typing import Any

import polars as pl
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from penstock.connectors.base import ReadResult, SourceContext, Split
from penstock.model import specs
from penstock.model.clocks import MAX_WATERMARK, MIN_WATERMARK
from penstock.model.errors import RecordError, UserError
from penstock.model.ids import Attempt, CheckpointId, JobId, SubtaskId, Uid, VertexId
from penstock.model.settings import JobSettings, SourceSettings
from penstock.operators.base import OperatorContext
from penstock.operators.sources import PollResult, SourceOperator

NOW_US = 1_700_000_000_000_000
PAUSE = None
"""In a split's items: no row this time."""


class ManualClock:
    def __init__(self) -> None:
        self.seconds = 0.0

    def now_us(self) -> int:
        return NOW_US + round(self.seconds * 1_000_000)

    def monotonic(self) -> float:
        return self.seconds


class ListReader:
    def __init__(self, items: Sequence[Any], start: int, dtype: pl.DataType) -> None:
        self.items, self.at, self.dtype = items, start, dtype
        self.closed = False

    def read(self, max_rows: int) -> ReadResult:
        rows: list[Any] = []
        while self.at < len(self.items) and self.items[self.at] is not PAUSE and len(rows) < max_rows:
            rows.append(self.items[self.at])
            self.at += 1
        if not rows and self.at < len(self.items):
            self.at += 1
            return ReadResult(wait_us=5_000)
        frame = pl.DataFrame({"at": pl.Series([row if row != "null" else None for row in rows], dtype=self.dtype)})
        return ReadResult(frame=frame if rows else None, ended=self.at >= len(self.items))

    def position(self) -> dict[str, Any]:
        return {"item": self.at}

    def close(self) -> None:
        self.closed = True


class ListSource:
    """Splits by name; `later` are discovered by subtask 0 when they are put there."""

    def __init__(
        self, splits: dict[str, list[Any]], *, sequential: bool = False, dtype: pl.DataType | None = None
    ) -> None:
        self.items, self.sequential, self.dtype = dict(splits), sequential, dtype or pl.Int64()
        self.listed = list(splits)
        self.later: dict[str, list[Any]] | None = None
        self.readers: list[ListReader] = []

    @property
    def discovers(self) -> bool:
        return self.later is not None

    def splits(self) -> Sequence[Split]:
        return [Split(id=name, options={"name": name}) for name in self.listed]

    def discover(self, seen: frozenset[str], context: SourceContext) -> Sequence[Split]:
        new = {name: items for name, items in (self.later or {}).items() if name not in seen}
        self.items |= new
        return [Split(id=name, options={"name": name}) for name in new] if context.subtask_index == 0 else []

    def open(self, split: Split, position: dict[str, Any] | None, context: SourceContext) -> ListReader:
        items = (self.items | (self.later or {}))[split.options["name"]]
        reader = ListReader(items, position["item"] if position else 0, self.dtype)
        self.readers.append(reader)
        return reader


class Collected:
    def __init__(self) -> None:
        self.frames: list[pl.DataFrame] = []

    def emit(self, frame: pl.DataFrame) -> None:
        if frame.height:
            self.frames.append(frame)

    def values(self) -> list[Any]:
        return [value for frame in self.frames for value in frame["at"].to_list()]


def start(
    source: ListSource,
    *,
    subtask: int = 0,
    parallelism: int = 1,
    batch_rows: int = 1,
    on_bad_record: str = "stop",
    unit: str = "us",
    **spec: Any,
) -> tuple[SourceOperator, Collected, ManualClock]:
    clock, collected = ManualClock(), Collected()
    event_time = specs.EventTime(column="at", unit=unit)
    described = {"event_time": event_time, "time_kind": "event", **spec}
    operator = SourceOperator(specs.Source(connector=specs.Connector(kind="list"), **described), source)
    operator.open(
        OperatorContext(
            job=JobId("job"),
            attempt=Attempt(1),
            uid=Uid("bids"),
            subtask=SubtaskId(VertexId("bids"), subtask),
            parallelism=parallelism,
            max_parallelism=8,
            clock=clock,
            settings=JobSettings(source=SourceSettings(batch_rows=batch_rows, on_bad_record=on_bad_record)),
        ),
        collected,
    )
    return operator, collected, clock


def poll_to_end(operator: SourceOperator) -> list[PollResult]:
    results = [operator.poll()]
    while not results[-1].ended:
        results.append(operator.poll())
        assert len(results) < 1_000
    return results


def test_splits_in_turns_advance_time_by_the_slowest() -> None:
    operator, collected, _ = start(ListSource({"a": [10, 30], "b": [20, 40]}), max_delay_us=2)
    results = poll_to_end(operator)
    assert collected.values() == [10, 20, 30, 40]
    assert [result.watermark for result in results if result.watermark is not None] == [7, 17, MAX_WATERMARK]
    assert operator.current_watermark == MAX_WATERMARK
    assert not any(result.idle for result in results)
    assert operator.poll().ended


def test_one_batch_per_poll_of_the_size_that_is_set() -> None:
    operator, collected, _ = start(ListSource({"a": list(range(1, 8))}), batch_rows=3)
    poll_to_end(operator)
    assert [frame.height for frame in collected.frames] == [3, 3, 1]


def test_sequential_splits_are_read_one_after_the_other_and_unread_ones_hold_nothing_back() -> None:
    source = ListSource({"a": [10, 20], "b": [15, 30]}, sequential=True)
    operator, collected, _ = start(source)
    watermarks = [result.watermark for result in poll_to_end(operator)]
    assert collected.values() == [10, 20, 15, 30]
    assert watermarks == [9, 19, None, MAX_WATERMARK]
    assert [reader.closed for reader in source.readers] == [True, True]


def test_a_subtask_without_splits_ends_at_once() -> None:
    operator, _, _ = start(ListSource({"a": [1]}), subtask=1, parallelism=2)
    assert operator.poll() == PollResult(watermark=MAX_WATERMARK, ended=True, wait_us=operator.poll().wait_us)


def test_time_stays_unknown_until_something_was_read() -> None:
    operator, _, _ = start(ListSource({"a": [PAUSE, 10, 20]}, sequential=True))
    result = operator.poll()
    assert (result.emitted, result.watermark, result.idle, result.wait_us) == (False, None, None, 5_000)
    assert operator.current_watermark == MIN_WATERMARK


def test_a_split_without_rows_for_long_is_idle_and_wakes_up() -> None:
    source = ListSource({"a": [10, 20, 30, PAUSE], "b": [PAUSE, PAUSE, PAUSE, PAUSE, 15, 40]})
    operator, _, clock = start(source, idle_after_us=1_000_000)
    assert operator.poll().watermark is None
    clock.seconds = 2.0
    assert operator.poll().watermark == 19  # b has been silent for two seconds
    operator.poll()
    assert operator.current_watermark == 29
    while source.readers[1].at < 5:
        operator.poll()
    assert operator.current_watermark == 29  # awake again with an older time: nothing goes back


def test_a_source_whose_splits_are_all_idle_says_so_once_and_waits_no_longer_than_until_then() -> None:
    operator, _, clock = start(ListSource({"a": [10, *[PAUSE] * 9, 20, PAUSE]}), idle_after_us=8_000)
    operator.poll()
    assert operator.poll().wait_us == 5_000
    clock.seconds = 0.005
    assert operator.poll().wait_us == 3_000
    clock.seconds = 0.008
    assert operator.poll().idle is True
    assert operator.poll().idle is None
    while not (result := operator.poll()).emitted:
        assert result.idle is None
    assert result.idle is False


def test_splits_are_dealt_out_by_their_number() -> None:
    splits = {name: [index + 1] for index, name in enumerate("abcde")}
    outputs = []
    for subtask in range(2):
        operator, collected, _ = start(ListSource(splits), subtask=subtask, parallelism=2)
        poll_to_end(operator)
        outputs.append(sorted(collected.values()))
    assert outputs == [[1, 3, 5], [2, 4]]


@settings(deadline=None)
@given(
    st.lists(st.lists(st.integers(1, 99) | st.just(PAUSE), max_size=6), max_size=5),
    st.integers(1, 3),
    st.integers(1, 3),
    st.integers(0, 12),
    st.booleans(),
)
def test_every_row_is_read_once_over_a_restore_at_any_parallelism(
    contents: list[list[Any]], old: int, new: int, polls: int, sequential: bool
) -> None:
    splits = {f"s{number}": items for number, items in enumerate(contents)}
    output: list[int] = []
    sections: list[pl.DataFrame] = []
    for subtask in range(old):
        operator, collected, _ = start(ListSource(splits, sequential=sequential), subtask=subtask, parallelism=old)
        for _ in range(polls):
            operator.poll()
        snapshot = operator.snapshot(CheckpointId(1))
        output += collected.values()
        for _ in range(2):
            operator.poll()
        sections += [section.frame for section in snapshot()]
    for subtask in range(new):
        source = ListSource(splits, sequential=sequential)
        operator, collected, _ = start(source, subtask=subtask, parallelism=new)
        operator.restore({"splits": sections})
        poll_to_end(operator)
        output += collected.values()
    assert sorted(output) == sorted(item for items in contents for item in items if item is not PAUSE)


def test_the_watermark_of_a_split_survives_a_restore() -> None:
    operator, _, _ = start(ListSource({"a": [100, 50, 60]}))
    operator.poll()
    frames = [section.frame for section in operator.snapshot(CheckpointId(1))()]
    again, collected, _ = start(ListSource({"a": [100, 50, 60]}))
    again.restore({"splits": frames})
    assert again.poll().watermark == 99
    assert collected.values() == [50]


# ---------------------------------------------------------------- discovery and stop


def test_new_splits_are_discovered_at_their_interval_and_never_twice() -> None:
    source = ListSource({}, sequential=True)
    source.later = {"x": [10]}
    operator, collected, clock = start(source)
    assert operator.poll().emitted
    source.later |= {"y": [20]}
    result = operator.poll()
    assert (result.emitted, result.ended, result.idle) == (False, False, None)
    assert result.wait_us == 1_000_000
    clock.seconds = 1.0
    assert operator.poll().emitted
    assert collected.values() == [10, 20]
    frames = [section.frame for section in operator.snapshot(CheckpointId(1))()]
    again, more, later = start(source)
    again.restore({"splits": frames})
    later.seconds = 5.0
    assert not again.poll().emitted
    assert more.values() == []


def test_a_subtask_that_only_waits_for_new_splits_holds_nobody_back() -> None:
    source = ListSource({})
    source.later = {}
    operator, _, clock = start(source)
    assert operator.poll().idle is True
    source.later = {"x": [10, 20]}
    clock.seconds = 1.0
    result = operator.poll()
    assert (result.emitted, result.idle, result.watermark) == (True, False, 9)


def test_a_discovered_split_is_read_on_by_exactly_one_subtask_after_a_restore() -> None:
    source = ListSource({"a": [1]})
    source.later = {"x": [10, 20], "y": [30, 40]}
    operator, _, _ = start(source)
    for _ in range(3):
        operator.poll()
    frames = [section.frame for section in operator.snapshot(CheckpointId(1))()]
    output = []
    for subtask in range(2):
        again = ListSource({"a": [1]})
        again.later = dict(source.later)
        restored, collected, _ = start(again, subtask=subtask, parallelism=2)
        restored.restore({"splits": frames})
        for _ in range(4):
            restored.poll()
        output += collected.values()
    assert sorted(output) == [20, 40]


def test_nothing_is_emitted_after_a_stop() -> None:
    operator, collected, _ = start(ListSource({"a": [1, 2, 3]}))
    operator.poll()
    operator.stop_emitting()
    result = operator.poll()
    assert (result.emitted, result.ended, collected.values()) == (False, False, [1])
    assert result.wait_us > 0


def test_closing_closes_open_readers() -> None:
    source = ListSource({"a": [1, 2, 3], "b": [1, 2]})
    operator, _, _ = start(source)
    operator.poll()
    operator.close()
    assert all(reader.closed for reader in source.readers)


# ---------------------------------------------------------------- kinds of time


def test_ingestion_time_is_a_column_and_follows_the_clock_without_rows() -> None:
    operator, collected, clock = start(
        ListSource({"a": [1, PAUSE, PAUSE]}), event_time=None, time_kind="ingestion", ingestion_column="arrived"
    )
    assert operator.poll().watermark == NOW_US - 1
    assert collected.frames[0].schema["arrived"] == pl.Datetime("us")
    assert collected.frames[0]["arrived"].to_physical().to_list() == [NOW_US]
    clock.seconds = 2.0
    assert operator.poll().watermark == NOW_US + 2_000_000 - 1
    clock.seconds = 1.0
    assert operator.poll().watermark in (None, MAX_WATERMARK)


def test_without_event_time_there_is_no_watermark_but_the_last() -> None:
    operator, _, _ = start(ListSource({"a": [1, 2]}), event_time=None, time_kind="none")
    assert [result.watermark for result in poll_to_end(operator)] == [None, MAX_WATERMARK]


@pytest.mark.parametrize(
    ("unit", "value", "microseconds"), [("s", 1_700, 1_700_000_000), ("ms", 17, 17_000), ("ns", 17_999, 17)]
)
def test_integer_times_count_in_their_unit(unit: str, value: int, microseconds: int) -> None:
    operator, _, _ = start(ListSource({"a": [value, PAUSE]}), unit=unit)
    assert operator.poll().watermark == microseconds - 1


@pytest.mark.parametrize("bad", ["null", -5])
def test_a_row_without_event_time_stops_the_job_or_is_dropped_and_counted(bad: Any) -> None:
    operator, _, _ = start(ListSource({"a": [10, bad, 20]}), batch_rows=3)
    with pytest.raises(RecordError, match=r"R004 bids\[0\]: row 1 .*at="):
        operator.poll()
    operator, collected, _ = start(ListSource({"a": [10, bad, 20]}), batch_rows=3, on_bad_record="drop")
    poll_to_end(operator)
    assert collected.values() == [10, 20]
    assert operator.context.counters.bad_rows == 1


def test_times_before_1970_are_fine_in_a_datetime_column() -> None:
    operator, collected, _ = start(ListSource({"a": [-5, PAUSE]}, dtype=pl.Datetime("us")))
    assert operator.poll().watermark == -6
    assert len(collected.values()) == 1


@pytest.mark.parametrize(
    ("unit", "value", "year", "guess"),
    [
        ("s", NOW_US // 1_000, "55840", 'look like milliseconds.*\n.*unit="ms"'),
        ("ms", NOW_US, "55840", 'look like microseconds.*\n.*unit="us"'),
        ("s", NOW_US * 1_000, "", 'look like nanoseconds.*\n.*unit="ns"'),
        ("us", NOW_US * 1_000, "", 'look like nanoseconds.*\n.*unit="ns"'),
    ],
)
def test_a_wrong_unit_is_found_before_it_carries_time_away(unit: str, value: int, year: str, guess: str) -> None:
    operator, collected, _ = start(ListSource({"a": [value]}), unit=unit)
    with pytest.raises(UserError, match=f"P010 bids\\[0\\]: watermark is in year {year}.*{guess}"):
        operator.poll()
    assert collected.values() == []


def test_a_single_row_from_the_far_future_can_be_dropped_but_not_all_of_them() -> None:
    operator, collected, _ = start(
        ListSource({"a": [10, NOW_US * 9, 20, PAUSE, NOW_US * 9]}), batch_rows=3, on_bad_record="drop"
    )
    assert operator.poll().watermark == 19
    assert collected.values() == [10, 20]
    operator.poll()
    with pytest.raises(UserError, match="P010"):
        operator.poll()


def test_a_time_column_of_text_is_refused() -> None:
    operator, _, _ = start(ListSource({"a": ["x"]}, dtype=pl.String()))
    with pytest.raises(UserError, match=r"P010 bids\[0\]: event time \"at\" is of type String"):
        operator.poll()
