"""Over rows that come and go, in whatever batches: what was emitted comes to the result of what is there."""

from collections import Counter, defaultdict
from collections.abc import Callable
from statistics import mean, variance
from typing import Any

import polars as pl
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from penstock.model import schemas, specs
from penstock.model.changes import CHANGE, DELETE, INSERT, UPDATE
from penstock.operators.updating_aggregate import UpdatingAggregate
from penstock.operators.updating_top_n import UpdatingTopN

Row = tuple[str | None, int | None, int]
INPUT = {CHANGE: pl.Int8(), "key": pl.String(), "value": pl.Int64(), "id": pl.Int64()}


def expression(text: str) -> specs.Expression:
    return specs.Expression(name=text, text=text, polars=pl.col(text).meta.serialize())


def aggregate(function: str, kind: str = "Int64", by: str | None = None, share: float = 0.0) -> specs.Aggregate:
    return specs.Aggregate(
        name=function,
        function=function,
        input=None if function == "count" else expression("value"),
        by=None if by is None else expression(by),
        share=share,
        output_type=kind,
    )


SUMS = (aggregate("count"), aggregate("sum"), aggregate("mean", "Float64"), aggregate("var", "Float64"))
EXTREMES = (aggregate("min"), aggregate("max"))
OTHERS = (aggregate("count_distinct"), aggregate("max_by", by="id"), aggregate("quantile", "Float64", share=0.5))
CHOICES = st.sampled_from([SUMS, EXTREMES, (*SUMS, *EXTREMES), OTHERS, (*EXTREMES, *OTHERS, *SUMS)])


def expected(rows: list[Row], chosen: tuple[specs.Aggregate, ...]) -> tuple[Any, ...]:
    values = sorted(value for _, value, _ in rows if value is not None)
    half = None
    if values:
        middle = 0.5 * (len(values) - 1)
        low, high = values[int(middle)], values[-int(-middle // 1)]
        half = low + (high - low) * (middle % 1)
    found = {
        "count": len(rows),
        "sum": sum(values),
        "mean": mean(values) if values else None,
        "var": variance(values) if len(values) > 1 else None,
        "min": min(values, default=None),
        "max": max(values, default=None),
        "count_distinct": len(set(values)),
        "max_by": min(
            (value for _, value, other in rows if other == max(row[2] for row in rows) and value is not None),
            default=None,
        ),
        "quantile": half,
    }
    return tuple(found[each.name] for each in chosen)


def running(chosen: tuple[specs.Aggregate, ...], *, keyed: bool) -> UpdatingAggregate:
    output = {"key": pl.String()} if keyed else {}
    output |= {each.name: schemas.type_from_text(each.output_type) for each in chosen}
    keys = ("key",) if keyed else ()
    return UpdatingAggregate(
        specs.RunningAggregate(keys=keys, aggregates=chosen, updating=True, output=schemas.fields(output))
    )


@st.composite
def histories(draw: st.DrawFn) -> tuple[list[tuple[list[list[tuple[int, Row]]], int]], list[Row]]:
    """Phases of batches of changes, where only what is there goes; and what is there in the end."""
    there: list[Row] = []
    phases = []
    for _ in range(draw(st.integers(1, 3))):
        batches = []
        for _ in range(draw(st.integers(0, 4))):
            batch: list[tuple[int, Row]] = []
            for _ in range(draw(st.integers(1, 8))):
                if there and draw(st.integers(0, 2)):
                    batch.append((DELETE, there.pop(draw(st.integers(0, len(there) - 1)))))
                else:
                    key = draw(st.sampled_from(["a", "b", None]))
                    row = (key, draw(st.integers(-3, 3) | st.none()), draw(st.integers(0, 3)))
                    there.append(row)
                    batch.append((INSERT, row))
            batches.append(batch)
        phases.append((batches, draw(st.integers(1, 3))))
    return phases, there


def frame(batch: list[tuple[int, Row]]) -> pl.DataFrame:
    return pl.DataFrame([(change, *row) for change, row in batch], schema=INPUT, orient="row")


def phases_of(phases: Any, *, keyed: bool) -> list[Any]:
    return [([(0, frame(batch)) for batch in batches], parallelism if keyed else 1) for batches, parallelism in phases]


@settings(deadline=None, max_examples=60)
@given(histories(), CHOICES, st.booleans())
def test_aggregates_of_what_is_there(
    run_phases: Callable[..., list[pl.DataFrame]], history: Any, chosen: tuple[specs.Aggregate, ...], keyed: bool
) -> None:
    phases, there = history
    steps = phases_of(phases, keyed=keyed)
    emitted = run_phases(lambda: running(chosen, keyed=keyed), steps, {0: ("key",) if keyed else None})
    seen: dict[Any, tuple[Any, ...]] = {}
    for change, *values in (row for each in emitted for row in each.rows()):
        key, result = (values[0], tuple(values[1:])) if keyed else ((), tuple(values))
        assert (change != INSERT) == (key in seen)
        if change == DELETE:
            assert seen.pop(key) == result
        else:
            seen[key] = result
    groups: dict[Any, list[Row]] = defaultdict(list)
    for row in there:
        groups[row[0] if keyed else ()].append(row)
    assert seen.keys() == groups.keys()
    for key, rows in groups.items():
        assert seen[key] == pytest.approx(expected(rows, chosen), abs=1e-9)


@settings(deadline=None, max_examples=60)
@given(histories(), st.integers(1, 3), st.booleans(), st.booleans())
def test_the_first_rows_of_what_is_there(
    run_phases: Callable[..., list[pl.DataFrame]], history: Any, n: int, ranked: bool, keyed: bool
) -> None:
    phases, there = history
    keys = ("key",) if keyed else ()
    output = {name: kind for name, kind in INPUT.items() if name != CHANGE} | ({"rank": pl.Int64()} if ranked else {})
    spec = specs.TopN(
        keys=keys,
        n=n,
        by=("value", "id"),
        descending=(True, False),
        rank="rank" if ranked else None,
        updating=True,
        output=schemas.fields({CHANGE: pl.Int8(), **output}),
    )
    steps = phases_of(phases, keyed=keyed)
    emitted = run_phases(lambda: UpdatingTopN(spec), steps, {0: ("key",) if keyed else None})
    left: Counter[Any] = Counter()
    held: dict[Any, Any] = {}
    for change, *row in (row for each in emitted for row in each.rows()):
        if ranked:
            place = (row[0] if keyed else (), row[3])
            assert (change != INSERT) == (place in held)
            if change == DELETE:
                assert held.pop(place) == tuple(row[:3])
            else:
                held[place] = tuple(row[:3])
        else:
            assert change != UPDATE
            left[tuple(row)] += 1 if change == INSERT else -1
            assert left[tuple(row)] >= 0
    wanted: dict[Any, Any] = {}
    for key in {row[0] if keyed else () for row in there}:
        rows = [row for row in there if not keyed or row[0] == key]
        best = sorted(rows, key=lambda row: (row[1] is None, -(row[1] or 0), row[2]))[:n]
        wanted |= {(key, rank): row for rank, row in enumerate(best, 1)}
    order = lambda row: (str(row[0]), row[1] is None, row[1] or 0, row[2])  # noqa: E731
    if not ranked:
        assert sorted(left.elements(), key=order) == sorted(wanted.values(), key=order)
    elif keyed:
        assert held == wanted
    else:  # of rows that are equal but for their key any may be first
        assert {place: row[1:] for place, row in held.items()} == {place: row[1:] for place, row in wanted.items()}


def test_a_number_as_key_goes_with_its_last_row(start: Callable[..., Any]) -> None:
    chosen = (aggregate("max"),)
    output = schemas.fields({"id": pl.Int64(), "max": pl.Int64()})
    operator = UpdatingAggregate(specs.RunningAggregate(keys=("id",), aggregates=chosen, updating=True, output=output))
    collected = start(operator)
    operator.on_batch(frame([(INSERT, ("a", 1, 7))]))
    operator.on_batch(frame([(DELETE, ("a", 1, 7)), (INSERT, ("a", 1, 8))]))
    assert collected.frame.rows() == [(INSERT, 7, 1), (DELETE, 7, 1), (INSERT, 8, 1)]
