"""Allowed lateness: whatever comes late, in whatever batches and restarts, the changes add up to a recomputation."""

from collections import defaultdict

import polars as pl
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from penstock.model import schemas, specs
from penstock.model.changes import CHANGE, INSERT, UPDATE
from penstock.model.clocks import MIN_WATERMARK
from penstock.operators.windows import WindowAggregate

INPUT = pl.Schema({"key": pl.String(), "at": pl.Int64(), "value": pl.Int64()})
VALUE = specs.Expression(name="value", text="value", polars=pl.col("value").meta.serialize())
AGGREGATES = (
    specs.Aggregate(name="rows", function="count", output_type="Int64"),
    specs.Aggregate(name="most", function="max", input=VALUE, output_type="Int64"),
)
ROWS = st.tuples(st.sampled_from(["a", "b", "c", None]), st.integers(0, 60), st.integers(-9, 9))
BATCHES = st.lists(ROWS, min_size=1, max_size=8).map(lambda rows: pl.DataFrame(rows, schema=INPUT, orient="row"))
STEPS = st.lists(BATCHES | st.integers(0, 70), max_size=10)
ASSIGNERS = st.builds(specs.Tumbling, size_us=st.integers(1, 25)) | st.builds(
    specs.Sliding, size_us=st.integers(1, 25), slide_us=st.integers(1, 25), offset_us=st.integers(0, 5)
)


def late_window(assigner, lateness, *, keyed, late_to="late"):
    columns = {CHANGE: pl.Int8()} if lateness else {}
    columns |= {"key": pl.String()} if keyed else {}
    columns |= {"window_start": pl.Int64(), "window_end": pl.Int64(), "rows": pl.Int64(), "most": pl.Int64()}
    return specs.WindowAggregate(
        keys=("key",) if keyed else (),
        assigner=assigner,
        aggregates=AGGREGATES,
        event_time=specs.EventTime(column="at"),
        allowed_lateness_us=lateness,
        late_to=late_to,
        output=schemas.fields(columns),
    )


def recompute(steps, spec):
    """Final results by window, and the rows that no window took."""
    size, offset = spec.assigner.size_us, spec.assigner.offset_us
    slide = getattr(spec.assigner, "slide_us", size)
    watermark, found, late = MIN_WATERMARK, defaultdict(list), []
    for step in steps:
        if isinstance(step, int):
            watermark = max(watermark, step)
            continue
        for key, at, value in step.rows():
            windows, start = [], (at - offset) // slide * slide + offset
            while start + size > at:
                windows.append((start, start + size))
                start -= slide
            open_windows = [each for each in windows if each[1] - 1 + spec.allowed_lateness_us > watermark]
            if windows and not open_windows:
                late.append((key, at, value))
            for window in open_windows:
                found[(key, *window) if spec.keys else window].append(value)
    return {window: (len(values), max(values)) for window, values in found.items()}, late


@settings(deadline=None, max_examples=150)
@given(
    st.lists(st.tuples(STEPS, st.sampled_from([1, 3])), min_size=1, max_size=3),
    ASSIGNERS,
    st.integers(0, 30),
    st.booleans(),
)
def test_changes_add_up_to_a_recomputation_of_what_was_not_too_late(
    phases, changed_table, parts, assigner, lateness, keyed
):
    spec = late_window(assigner, lateness, keyed=keyed)
    ran = phases(lambda: WindowAggregate(spec), spec.keys)
    ran.run(parts, pl.DataFrame([("a", 5, 5)], schema=INPUT, orient="row"))
    expected, late = recompute([step for steps, _ in parts for step in steps], spec)
    assert changed_table(ran.frames, [*spec.keys, "window_start", "window_end"]) == expected
    found = [row for frame in ran.sides.get("late", []) for row in frame.rows()]
    assert sorted(found, key=repr) == sorted(late, key=repr)
    assert ran.late_rows == len(late)


def rows(*times, key="a", value=1):
    return pl.DataFrame([(key, at, value) for at in times], schema=INPUT, orient="row")


def test_a_late_row_updates_its_key_and_no_other(start):
    operator = WindowAggregate(late_window(specs.Tumbling(size_us=10), 5, keyed=True))
    collected = start(operator)
    operator.on_batch(pl.concat([rows(1, 2), rows(3, key="b")]))
    operator.on_watermark(12)
    assert sorted(collected.frame.rows()) == [(INSERT, "a", 0, 10, 2, 1), (INSERT, "b", 0, 10, 1, 1)]
    collected.frames.clear()
    operator.on_batch(pl.concat([rows(9, value=7), rows(9, key="new")]))
    assert sorted(collected.frame.rows()) == [(INSERT, "new", 0, 10, 1, 1), (UPDATE, "a", 0, 10, 3, 7)]
    operator.on_watermark(14)
    operator.on_batch(rows(8))
    assert operator.context.counters.late_rows == 1
    assert [frame.rows() for frame in collected.sides["late"]] == [[("a", 8, 1)]]
    assert operator.context.counters.state_rows == 0


def test_without_lateness_results_stay_and_late_rows_leave_as_they_came(start):
    operator = WindowAggregate(late_window(specs.Tumbling(size_us=10), 0, keyed=True))
    collected = start(operator)
    operator.on_batch(rows(1))
    operator.on_watermark(20)
    operator.on_batch(rows(25, 2, 3))
    assert collected.frame.rows() == [("a", 0, 10, 1, 1)]
    assert collected.sides["late"][0].rows() == [("a", 2, 1), ("a", 3, 1)]


@pytest.mark.parametrize("late_to", ["", "late"])
def test_late_rows_are_counted_in_any_case(start, late_to):
    operator = WindowAggregate(late_window(specs.Sliding(size_us=10, slide_us=5), 0, keyed=False, late_to=late_to))
    start(operator)
    operator.on_watermark(20)
    operator.on_batch(rows(2, 3, 30))
    assert operator.context.counters.late_rows == 2
