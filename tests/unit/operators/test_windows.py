"""The window operator, case by case."""

from collections.abc import Callable
from datetime import datetime
from functools import partial
from typing import Any

import polars as pl
import pytest

from penstock.model import schemas, specs
from penstock.model.clocks import MAX_WATERMARK
from penstock.model.errors import UserError
from penstock.model.handles import Redistribution
from penstock.model.ids import CheckpointId
from penstock.operators import side_by_side
from penstock.operators.windows import WindowAggregate
from penstock.state.key_groups import group_range, key_groups, owner, slice_groups

SECOND = 1_000_000
COUNT = specs.Aggregate(name="rows", function="count", output_type="Int64")
TEN = specs.Tumbling(size_us=10)


def counting(
    assigner: specs.Tumbling | specs.Sliding = TEN,
    *,
    event_time: specs.EventTime | None = specs.EventTime(column="at"),  # noqa: B008
    time: pl.DataType | None = None,
    keys: tuple[str, ...] = ("key",),
) -> WindowAggregate:
    bound = time or (pl.Int64() if event_time else pl.Datetime("us"))
    columns = dict.fromkeys(keys, pl.String()) | {"window_start": bound, "window_end": bound, "rows": pl.Int64()}
    spec = specs.WindowAggregate(
        keys=keys, assigner=assigner, aggregates=(COUNT,), event_time=event_time, output=schemas.fields(columns)
    )
    return WindowAggregate(spec)


def rows(*times: int, key: str = "a") -> pl.DataFrame:
    return pl.DataFrame({"key": [key] * len(times), "at": pl.Series(times, dtype=pl.Int64)})


def test_a_window_fires_when_no_row_of_it_can_come_any_more(start: Callable[..., Any]) -> None:
    operator = counting()
    collected = start(operator)
    operator.on_batch(rows(0, 9, 10))
    assert operator.on_watermark(8) == 8
    assert collected.frames == []
    assert operator.on_watermark(9) == 9
    assert collected.frame.rows() == [("a", 0, 10, 2)]


def test_late_rows_are_dropped_and_counted(start: Callable[..., Any]) -> None:
    operator = counting()
    collected = start(operator)
    operator.on_batch(rows(5))
    operator.on_watermark(9)
    operator.on_batch(rows(1, 2, 11))
    operator.on_watermark(MAX_WATERMARK)
    assert collected.frame.rows() == [("a", 0, 10, 1), ("a", 10, 20, 1)]
    assert operator.context.counters.late_rows == 2


def test_a_row_late_for_some_windows_counts_in_the_others(start: Callable[..., Any]) -> None:
    operator = counting(specs.Sliding(size_us=20, slide_us=10))
    collected = start(operator)
    operator.on_batch(rows(5))
    operator.on_watermark(9)
    operator.on_batch(rows(6))
    operator.on_watermark(MAX_WATERMARK)
    assert collected.frame.rows() == [("a", -10, 10, 1), ("a", 0, 20, 2)]
    assert operator.context.counters.late_rows == 0


def test_rows_between_windows_are_in_none_and_not_late(start: Callable[..., Any]) -> None:
    operator = counting(specs.Sliding(size_us=10, slide_us=30))
    collected = start(operator)
    operator.on_batch(rows(5, 15, 25, 35))
    operator.on_watermark(MAX_WATERMARK)
    assert collected.frame.rows() == [("a", 0, 10, 1), ("a", 30, 40, 1)]
    assert operator.context.counters.late_rows == 0


@pytest.mark.parametrize(
    ("column", "event_time", "bounds"),
    [
        (pl.Datetime("ms"), specs.EventTime(column="at"), (datetime(1970, 1, 1), datetime(1970, 1, 1, 0, 0, 10))),  # noqa: DTZ001
        (pl.Datetime("ns"), specs.EventTime(column="at"), (datetime(1970, 1, 1), datetime(1970, 1, 1, 0, 0, 10))),  # noqa: DTZ001
        (pl.Int64(), specs.EventTime(column="at", unit="ms"), (0, 10_000)),
        (pl.Int32(), specs.EventTime(column="at", unit="s"), (0, 10)),
    ],
)
def test_bounds_have_the_type_of_the_time_column(
    start: Callable[..., Any], column: pl.DataType, event_time: specs.EventTime, bounds: tuple[Any, Any]
) -> None:
    units = {"ms": 1_000, "ns": 1_000_000_000, "s": 1}
    per_second = units[column.time_unit if isinstance(column, pl.Datetime) else event_time.unit]
    operator = counting(specs.Tumbling(size_us=10 * SECOND), event_time=event_time, time=column)
    collected = start(operator)
    operator.on_batch(rows(0, 9 * per_second).cast({"at": column}))
    operator.on_watermark(10 * SECOND - 1)
    assert collected.frame.schema["window_start"] == collected.frame.schema["window_end"] == column
    assert collected.frame.rows() == [("a", *bounds, 2)]


def test_results_of_a_window_fall_into_the_same_window_downstream(start: Callable[..., Any]) -> None:
    ends = specs.EventTime(column="window_end", offset_us=-1)
    first, second = counting(), counting(event_time=ends)
    between, collected = start(first), start(second)
    first.on_batch(rows(3, 12))
    for watermark in (9, MAX_WATERMARK):
        first.on_watermark(watermark)
        for frame in between.frames:
            second.on_batch(frame)
        between.frames.clear()
        second.on_watermark(watermark)
    assert collected.frame.rows() == [("a", 0, 10, 1), ("a", 10, 20, 1)]
    assert second.context.counters.late_rows == 0


def test_a_row_without_a_time_is_refused(start: Callable[..., Any]) -> None:
    operator = counting()
    start(operator)
    with pytest.raises(UserError, match="R004") as caught:
        operator.on_batch(pl.DataFrame({"key": ["a", "b"], "at": [1, None]}))
    assert '"at"' in caught.value.what


def test_large_results_leave_in_slices(start: Callable[..., Any]) -> None:
    operator = counting()
    collected = start(operator)
    operator.on_batch(pl.DataFrame({"key": [str(number) for number in range(150_000)], "at": [1] * 150_000}))
    operator.on_watermark(MAX_WATERMARK)
    assert [frame.height for frame in collected.frames] == [65_536, 65_536, 18_928]


def test_clock_windows_fire_by_the_clock(start: Callable[..., Any], clock: Any) -> None:
    operator = counting(event_time=None)
    collected = start(operator, clock=clock)
    assert operator.next_processing_time() is None
    clock.now = 7
    operator.on_batch(rows(0, 0))
    assert operator.next_processing_time() == 10
    assert operator.on_watermark(50) == 50
    operator.on_processing_time(9)
    assert collected.frames == []
    operator.on_processing_time(10)
    assert collected.frame["rows"].to_list() == [2]
    assert collected.frame.schema["window_end"] == pl.Datetime("us")
    assert operator.next_processing_time() is None


def test_a_clock_that_jumps_back_changes_no_window_that_has_fired(start: Callable[..., Any], clock: Any) -> None:
    operator = counting(event_time=None, time=pl.Int64())
    collected = start(operator, clock=clock)
    clock.now = 15
    operator.on_batch(rows(0))
    operator.on_processing_time(20)
    clock.now = 3
    operator.on_batch(rows(0))
    operator.on_end()
    assert collected.frame.rows() == [("a", 10, 20, 1), ("a", 20, 30, 1)]
    assert operator.context.counters.late_rows == 0


def test_clock_windows_of_subtasks_that_fired_unequally_fire_once_after_a_restore(
    start: Callable[..., Any], clock: Any
) -> None:
    assigner, keys = specs.Sliding(size_us=20, slide_us=10), [str(number) for number in range(8)]
    frame = pl.DataFrame({"key": keys})
    emitted, written = [], []
    clock.now = 5
    for index in range(2):
        operator = counting(assigner, event_time=None, time=pl.Int64())
        collected = start(operator, index=index, parallelism=2, clock=clock)
        operator.on_batch(frame.filter(owned_by(frame, index, 2)))
        if index == 0:
            operator.on_processing_time(10)
        operator.on_barrier()
        written.append(operator.snapshot(CheckpointId(1))())
        emitted.extend(collected.frames)
    whole = counting(assigner, event_time=None, time=pl.Int64())
    collected = start(whole, clock=clock)
    sections: dict[str, list[pl.DataFrame]] = {}
    for section in (section for sections_of_one in written for section in sections_of_one):
        sections.setdefault(section.state, []).append(section.frame)
    make = partial(counting, assigner, event_time=None, time=pl.Int64())
    restored = side_by_side.restored(whole, whole._spec, make, sections)
    restored.on_restored()
    clock.now = 12
    restored.on_batch(frame)
    assert restored.next_processing_time() is not None
    restored.on_barrier()
    restored.on_end()
    found = pl.concat([*emitted, *collected.frames])
    expected = [(key, *window) for key in keys for window in ((-10, 10, 1), (0, 20, 2), (10, 30, 1))]
    assert sorted(found.rows()) == sorted(expected)


def owned_by(frame: pl.DataFrame, index: int, parallelism: int) -> pl.Series:
    groups = key_groups(frame, ["key"], 16)
    return pl.Series([owner(int(group), parallelism, 16) == index for group in groups])


def test_a_snapshot_is_sorted_by_key_group_and_names_its_panes(start: Callable[..., Any]) -> None:
    operator = counting(specs.Sliding(size_us=20, slide_us=10))
    start(operator)
    for key in "abcdef":
        operator.on_batch(rows(1, 2, 11, key=key))
    progress, panes = operator.snapshot(CheckpointId(1))()
    assert (panes.state, panes.redistribution) == ("panes", Redistribution.KEYED)
    assert panes.frame.columns == ["key_group", "key", "__pane", "__rows.count"]
    assert panes.frame["key_group"].is_sorted()
    assert sorted(panes.frame.select("__pane", "__rows.count").rows()) == [(0, 2)] * 6 + [(10, 1)] * 6
    assert (progress.state, progress.redistribution) == ("progress", Redistribution.UNION)
    parts = [slice_groups(panes.frame, group_range(index, 3, 16)) for index in range(3)]
    assert sum(part.height for part in parts) == 12


def test_lateness_is_the_same_after_a_restore(start: Callable[..., Any]) -> None:
    operator = counting()
    start(operator)
    operator.on_batch(rows(5))
    operator.on_watermark(9)
    sections = operator.snapshot(CheckpointId(1))()
    restored = counting()
    collected = start(restored)
    restored.restore({section.state: [section.frame] for section in sections})
    restored.on_batch(rows(5, 15))
    restored.on_watermark(MAX_WATERMARK)
    assert collected.frame.rows() == [("a", 10, 20, 1)]
    assert restored.context.counters.late_rows == 1
