"""Regular, temporal and broadcast joins against nested loops, with restores in between."""

from collections import Counter
from collections.abc import Callable, Sequence
from typing import Any

import polars as pl
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from penstock.model import schemas, specs
from penstock.model.clocks import MIN_WATERMARK
from penstock.operators.joins import make_join

HOWS = ["inner", "left", "right", "full", "semi", "anti"]
KEYS = st.sampled_from(["a", "b", None])
ROWS = st.tuples(KEYS, st.integers(0, 3))
LEFT = {"key": pl.String(), "l": pl.Int64()}
RIGHT = {"key": pl.String(), "r": pl.Int64()}
CHANGE = {"__change": pl.Int8()}


def join(how: str, match: Any, *, left: Sequence[str] = ("l",), right: Sequence[str] = ("r",)) -> specs.Join:
    one_sided = how in ("semi", "anti")
    columns = [specs.JoinColumn(name="key", left="key", right=None if one_sided else "key")]
    columns += [specs.JoinColumn(name=name, left=name) for name in left]
    columns += [] if one_sided else [specs.JoinColumn(name=name, right=name) for name in right]
    types = {column.name: pl.String() if column.name == "key" else pl.Int64() for column in columns}
    timed = isinstance(match, specs.AsOfMatch)
    return specs.Join(
        left_on=("key",),
        right_on=("key",),
        how=how,
        match=match,
        columns=tuple(columns),
        left_time=specs.EventTime(column="at") if timed else None,
        right_time=specs.EventTime(column="when") if timed else None,
        output=schemas.fields(types),
    )


def combined(how: str, left: list[Any], right: list[Any]) -> "Counter[tuple[Any, ...]]":
    keyed = [(i, one) for i, one in enumerate(left) if one[0] is not None]
    pairs = [(i, j) for i, one in keyed for j, other in enumerate(right) if one[0] == other[0]]
    lefts, rights = {i for i, _ in pairs}, {j for _, j in pairs}
    if how == "semi":
        return Counter(left[i] for i in lefts)
    if how == "anti":
        return Counter(one for i, one in enumerate(left) if i not in lefts)
    found = [(*left[i], *right[j][1:]) for i, j in pairs]
    if how in ("left", "full"):
        found += [(*one, None) for i, one in enumerate(left) if i not in lefts]
    if how in ("right", "full"):
        found += [(other[0], None, *other[1:]) for j, other in enumerate(right) if j not in rights]
    return Counter(found)


def as_bag(emitted: Sequence[pl.DataFrame]) -> "Counter[tuple[Any, ...]]":
    """What inserts and deletes come to; nothing is taken back that was not there."""
    bag: Counter[tuple[Any, ...]] = Counter()
    for frame in emitted:
        has_changes = "__change" in frame.columns
        for row in frame.rows():
            change, values = (row[0], row[1:]) if has_changes else (1, row)
            bag[values] += change
            assert bag[values] >= 0
    return +bag


INSERTS = st.lists(st.tuples(st.integers(0, 1), st.lists(ROWS, min_size=1, max_size=5)), max_size=6)


@settings(deadline=None)
@given(st.lists(st.tuples(INSERTS, st.integers(1, 3)), min_size=1, max_size=3), st.sampled_from(HOWS))
def test_regular_joins_of_rows_that_stay_equal_nested_loops(
    run_phases: Callable[..., list[pl.DataFrame]], phases: Any, how: str
) -> None:
    spec = join(how, specs.EverMatch(changes=how not in ("inner", "semi")))
    sides: tuple[list[Any], list[Any]] = ([], [])
    steps = []
    for batches, parallelism in phases:
        for port, rows in batches:
            sides[port].extend(rows)
        frames = [(port, pl.DataFrame(rows, schema=(LEFT, RIGHT)[port], orient="row")) for port, rows in batches]
        steps.append((frames, parallelism))
    emitted = run_phases(lambda: make_join(spec), steps, {0: ("key",), 1: ("key",)})
    assert as_bag(emitted) == combined(how, *sides)


CHANGES = st.lists(
    st.tuples(st.integers(0, 1), st.lists(st.tuples(st.booleans(), ROWS), min_size=1, max_size=5)), max_size=8
)


@settings(deadline=None, max_examples=200)
@given(st.lists(st.tuples(CHANGES, st.integers(1, 3)), min_size=1, max_size=3), st.sampled_from(HOWS))
def test_regular_joins_take_back_what_their_sides_take_back(
    run_phases: Callable[..., list[pl.DataFrame]], phases: Any, how: str
) -> None:
    spec = join(how, specs.EverMatch(left_changes=True, right_changes=True, changes=True))
    sides: tuple[Counter[Any], Counter[Any]] = (Counter(), Counter())
    steps = []
    for batches, parallelism in phases:
        frames = []
        for port, wanted in batches:
            rows = []
            for inserts, row in wanted:
                if inserts or sides[port][row]:  # only what is there can go
                    sides[port][row] += 1 if inserts else -1
                    rows.append((1 if inserts else -1, *row))
            if rows:
                frames.append((port, pl.DataFrame(rows, schema=CHANGE | (LEFT, RIGHT)[port], orient="row")))
        steps.append((frames, parallelism))
    emitted = run_phases(lambda: make_join(spec), steps, {0: ("key",), 1: ("key",)})
    assert as_bag(emitted) == combined(how, list(sides[0].elements()), list(sides[1].elements()))


def test_expired_rows_match_nothing(start: Callable[..., Any]) -> None:
    ttl = specs.TimeToLive(us=10, event_time=specs.EventTime(column="l"))
    spec = join("left", specs.EverMatch(left_ttl=ttl, changes=True))
    operator = make_join(spec)
    collected = start(operator)
    operator.on_batch(pl.DataFrame([("a", 0), ("a", 5)], schema=LEFT, orient="row"), 0)
    operator.on_watermark(10)
    operator.on_batch(pl.DataFrame([("a", 7)], schema=RIGHT, orient="row"), 1)
    assert [frame.rows() for frame in collected.frames] == [
        [(1, "a", 0, None), (1, "a", 5, None)],
        [(-1, "a", 5, None)],
        [(1, "a", 5, 7)],
    ]


TIMED_LEFT = {"key": pl.String(), "at": pl.Int64(), "l": pl.Int64()}
TIMED_RIGHT = {"key": pl.String(), "when": pl.Int64(), "r": pl.Int64()}
TIMED = st.lists(st.tuples(KEYS, st.integers(0, 30), st.integers(0, 99)), min_size=1, max_size=6)
STEPS = st.lists(st.tuples(st.integers(0, 1), TIMED) | st.integers(0, 30), max_size=10)


@settings(deadline=None, max_examples=150)
@given(
    st.lists(st.tuples(STEPS, st.integers(1, 3)), min_size=1, max_size=3),
    st.sampled_from(["inner", "left"]),
    st.none() | st.integers(0, 15),
    st.booleans(),
)
def test_temporal_joins_take_the_version_that_was_valid(
    run_phases: Callable[..., list[pl.DataFrame]], phases: Any, how: str, max_age: int | None, prunes: bool
) -> None:
    spec = join(how, specs.AsOfMatch(max_age_us=max_age), left=("at", "l"), right=("when", "r"))
    steps, rows = [], []
    versions: dict[str | None, list[tuple[int, int, int]]] = {}
    watermark = MIN_WATERMARK
    waiting: list[Any] = []
    expected: list[Any] = []

    def valid(key: str | None, at: int) -> tuple[Any, Any]:
        held = [
            each for each in versions.get(key, ()) if each[0] <= at and (max_age is None or at - each[0] <= max_age)
        ]
        when, _, value = max(held, default=(None, None, None)) if key is not None else (None, None, None)
        return when, value

    def join_due(until: float) -> None:
        for row in [row for row in waiting if row[1] <= until]:
            waiting.remove(row)
            when, value = valid(row[0], row[1])
            if when is not None or how == "left":
                expected.append((*row, when, value))

    for batches, parallelism in phases:
        frames: list[Any] = []
        for step in batches:
            if isinstance(step, int):
                frames.append(step)
                watermark = max(watermark, step)
                join_due(watermark)
                continue
            port, rows = step
            frames.append((port, pl.DataFrame(rows, schema=(TIMED_LEFT, TIMED_RIGHT)[port], orient="row")))
            if port == 0:
                waiting += [row for row in rows if row[1] > watermark]
            else:
                for key, when, value in rows:
                    held = versions.setdefault(key, [])
                    held.append((when, len(held), value))
        steps.append((frames, parallelism))
    join_due(float("inf"))
    with pytest.MonkeyPatch.context() as patch:
        if prunes:
            patch.setattr("penstock.operators.temporal_join._PRUNE_ROWS", 1)
        emitted = run_phases(lambda: make_join(spec), steps, {0: ("key",), 1: ("key",)})
    found = [row for frame in emitted for row in frame.rows()]
    assert sorted(found, key=str) == sorted(expected, key=str)


@settings(deadline=None)
@given(
    st.lists(st.tuples(INSERTS, st.integers(1, 3)), min_size=1, max_size=3),
    st.sampled_from(["inner", "left", "semi", "anti"]),
)
def test_broadcast_joins_see_what_came_before(
    run_phases: Callable[..., list[pl.DataFrame]], phases: Any, how: str
) -> None:
    spec = join(how, specs.BroadcastMatch())
    known: list[Any] = []
    expected: Counter[tuple[Any, ...]] = Counter()
    steps = []
    for batches, parallelism in phases:
        frames = []
        for port, rows in batches:
            frames.append((port, pl.DataFrame(rows, schema=(LEFT, RIGHT)[port], orient="row")))
            if port == 1:
                known += rows
            else:
                expected += combined(how, rows, known)
        steps.append((frames, parallelism))
    emitted = run_phases(lambda: make_join(spec), steps, {0: ("key",), 1: None})
    assert as_bag(emitted) == expected
