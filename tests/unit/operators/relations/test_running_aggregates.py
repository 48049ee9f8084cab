"""Running aggregates: whatever comes in whatever batches, the last change of each key is the recomputed result."""

from collections.abc import Callable
from typing import Any

import polars as pl
from hypothesis import given, settings
from hypothesis import strategies as st

from penstock.model import schemas, specs
from penstock.operators.running import RunningAggregate

INPUT = {"key": pl.String(), "value": pl.Int64(), "at": pl.Int64()}


def expression(text: str) -> specs.Expression:
    return specs.Expression(name=text, text=text, polars=pl.col(text).meta.serialize())


AGGREGATES = (
    specs.Aggregate(name="rows", function="count", output_type="Int64"),
    specs.Aggregate(name="total", function="sum", input=expression("value"), output_type="Int64"),
    specs.Aggregate(name="last", function="last", input=expression("value"), output_type="Int64"),
    specs.Aggregate(name="mean", function="mean", input=expression("value"), output_type="Float64"),
)


def running(*, keyed: bool = True, ttl: specs.TimeToLive | None = None) -> RunningAggregate:
    output = {"key": pl.String()} if keyed else {}
    output |= {each.name: schemas.type_from_text(each.output_type) for each in AGGREGATES}
    keys = ("key",) if keyed else ()
    spec = specs.RunningAggregate(keys=keys, aggregates=AGGREGATES, ttl=ttl, output=schemas.fields(output))
    return RunningAggregate(spec)


def frame(rows: list[tuple[str | None, int | None, int]]) -> pl.DataFrame:
    return pl.DataFrame(rows, schema=INPUT, orient="row")


ROWS = st.tuples(st.sampled_from(["a", "b", "c", "d", None]), st.integers(-9, 9) | st.none(), st.integers(0, 9))
BATCHES = st.lists(st.lists(ROWS, min_size=1, max_size=8), max_size=6)


def recomputed(rows: list[tuple[str | None, int | None, int]], *, keyed: bool) -> dict[Any, tuple[Any, ...]]:
    results: dict[Any, tuple[Any, ...]] = {}
    for key in {row[0] if keyed else () for row in rows}:
        values = [value for other, value, _ in rows if not keyed or other == key]
        numbers = [value for value in values if value is not None]
        mean = sum(numbers) / len(numbers) if numbers else None
        results[key] = (len(values), sum(numbers), values[-1], mean)
    return results


@settings(deadline=None)
@given(st.lists(st.tuples(BATCHES, st.integers(1, 3)), min_size=1, max_size=3), st.booleans())
def test_the_last_change_of_each_key_is_the_result_over_all_rows(
    run_phases: Callable[..., list[pl.DataFrame]], phases: list[tuple[Any, int]], keyed: bool
) -> None:
    steps = [([(0, frame(rows)) for rows in batches], parallelism if keyed else 1) for batches, parallelism in phases]
    emitted = run_phases(lambda: running(keyed=keyed), steps, {0: ("key",) if keyed else None})
    rows = [row for batches, _ in phases for batch in batches for row in batch]
    seen: dict[Any, tuple[Any, ...]] = {}
    for change, *values in (row for each in emitted for row in each.rows()):
        key, result = (values[0], values[1:]) if keyed else ((), values)
        assert change == (2 if key in seen else 1)
        seen[key] = tuple(result)
    assert seen == recomputed(rows, keyed=keyed)


def test_a_key_that_was_quiet_for_its_time_to_live_begins_anew(start: Callable[..., Any]) -> None:
    operator = running(ttl=specs.TimeToLive(us=10, event_time=specs.EventTime(column="at")))
    collected = start(operator)
    operator.on_batch(frame([("a", 1, 0), ("b", 1, 5)]))
    operator.on_watermark(9)
    operator.on_batch(frame([("b", 1, 10)]))
    operator.on_watermark(10)
    operator.on_batch(frame([("a", 1, 20), ("b", 1, 12)]))
    operator.on_watermark(29)
    assert operator.context.counters.state_rows == 1
    assert sorted(row[:3] for row in collected.frame.rows()) == [
        (1, "a", 1),
        (1, "a", 1),
        (1, "b", 1),
        (2, "b", 2),
        (2, "b", 3),
    ]


def test_by_the_clock_a_key_expires_without_a_watermark(start: Callable[..., Any], clock: Any) -> None:
    operator = running(ttl=specs.TimeToLive(us=10))
    collected = start(operator, clock=clock)
    operator.on_batch(frame([("a", 1, 0)]))
    clock.now = 9
    operator.on_batch(frame([("a", 1, 0)]))
    clock.now = 19
    operator.on_batch(frame([("a", 1, 0)]))
    assert [row[:3] for row in collected.frame.rows()] == [(1, "a", 1), (2, "a", 2), (1, "a", 1)]
