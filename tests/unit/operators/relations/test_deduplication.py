"""Deduplication against a plain loop over the rows."""

from collections.abc import Callable
from typing import Any

import polars as pl
from hypothesis import given, settings
from hypothesis import strategies as st

from penstock.model import specs
from penstock.model.clocks import MIN_WATERMARK
from penstock.operators.deduplicate import DeduplicateOperator

SCHEMA = {"key": pl.String(), "at": pl.Int64(), "value": pl.Int64()}
ROWS = st.lists(
    st.tuples(st.sampled_from(["a", "b", "c", None]), st.integers(0, 30), st.integers(0, 99)), min_size=1, max_size=7
)
STEPS = st.lists(ROWS | st.integers(0, 30), max_size=9)
PHASES = st.lists(st.tuples(STEPS, st.integers(1, 3)), min_size=1, max_size=3)


def deduplicate(keep: str, *, by_time: bool, ttl: int | None = None) -> DeduplicateOperator:
    time = specs.EventTime(column="at")
    lives = None if ttl is None else specs.TimeToLive(us=ttl, event_time=time)
    return DeduplicateOperator(
        specs.Deduplicate(keys=("key",), keep=keep, by_event_time=by_time, event_time=time, ttl=lives)
    )


def framed(phases: Any) -> Any:
    def step_of(step: Any) -> Any:
        return step if isinstance(step, int) else (0, pl.DataFrame(step, schema=SCHEMA, orient="row"))

    return [([step_of(step) for step in steps], parallelism) for steps, parallelism in phases]


def rows_in_time(phases: Any) -> list[Any]:
    watermark, rows = MIN_WATERMARK, []
    for step in (step for steps, _ in phases for step in steps):
        if isinstance(step, int):
            watermark = max(watermark, step)
        else:
            rows += [row for row in step if row[1] > watermark]
    return rows


@settings(deadline=None)
@given(PHASES)
def test_the_first_row_of_each_key_passes(run_phases: Callable[..., list[pl.DataFrame]], phases: Any) -> None:
    emitted = run_phases(lambda: deduplicate("first", by_time=False), framed(phases), {0: ("key",)})
    expected: dict[Any, Any] = {}
    for rows in (step for steps, _ in phases for step in steps if not isinstance(step, int)):
        for row in rows:
            expected.setdefault(row[0], row)
    assert sorted((row for frame in emitted for row in frame.rows()), key=str) == sorted(expected.values(), key=str)


@settings(deadline=None)
@given(PHASES)
def test_the_earliest_row_of_each_key_passes(run_phases: Callable[..., list[pl.DataFrame]], phases: Any) -> None:
    emitted = run_phases(lambda: deduplicate("first", by_time=True), framed(phases), {0: ("key",)})
    expected: dict[Any, Any] = {}
    for row in rows_in_time(phases):
        if row[0] not in expected or row[1] < expected[row[0]][1]:
            expected[row[0]] = row
    assert sorted((row for frame in emitted for row in frame.rows()), key=str) == sorted(expected.values(), key=str)


@settings(deadline=None)
@given(PHASES, st.booleans())
def test_the_last_row_of_each_key_is_what_updates_come_to(
    run_phases: Callable[..., list[pl.DataFrame]], phases: Any, by_time: bool
) -> None:
    emitted = run_phases(lambda: deduplicate("last", by_time=by_time), framed(phases), {0: ("key",)})
    expected: dict[Any, Any] = {}
    for rows in (step for steps, _ in phases for step in steps if not isinstance(step, int)):
        for row in rows:
            if not by_time or row[0] not in expected or row[1] >= expected[row[0]][1]:
                expected[row[0]] = row
    table: dict[Any, Any] = {}
    for change, *row in (row for frame in emitted for row in frame.rows()):
        assert change == (2 if row[0] in table else 1)
        table[row[0]] = tuple(row)
    assert table == expected


def test_a_key_passes_again_when_its_time_is_over(start: Callable[..., Any]) -> None:
    operator = deduplicate("first", by_time=False, ttl=10)
    collected = start(operator)
    for at, watermark in ((0, 5), (7, 9), (9, 10), (11, 11)):
        operator.on_batch(pl.DataFrame([("a", at, at)], schema=SCHEMA, orient="row"))
        operator.on_watermark(watermark)
    assert collected.frame["at"].to_list() == [0, 11]
