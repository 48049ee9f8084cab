"""Top-n, running and in windows, against a sort of all rows."""

from collections import Counter
from collections.abc import Callable
from typing import Any

import polars as pl
from hypothesis import given, settings
from hypothesis import strategies as st

from penstock.model import schemas, specs
from penstock.model.clocks import MIN_WATERMARK
from penstock.operators.top_n import RunningTopN, WindowTopN

SCHEMA = {"key": pl.String(), "at": pl.Int64(), "price": pl.Int64()}
ROWS = st.lists(
    st.tuples(st.sampled_from(["a", "b", None]), st.integers(0, 40), st.none() | st.integers(0, 9)),
    min_size=1,
    max_size=7,
)
STEPS = st.lists(ROWS | st.integers(0, 40), max_size=9)
PHASES = st.lists(st.tuples(STEPS, st.integers(1, 3)), min_size=1, max_size=3)


def top(n: int, *, descending: bool, rank: str | None = None, within: Any = None) -> specs.TopN:
    made = SCHEMA | ({"window_start": pl.Int64(), "window_end": pl.Int64()} if within else {})
    made |= {rank: pl.Int64()} if rank else {}
    return specs.TopN(
        keys=("key",),
        n=n,
        by=("price",),
        descending=(descending,),
        rank=rank,
        within=within,
        event_time=specs.EventTime(column="at"),
        output=schemas.fields(made),
    )


def framed(phases: Any) -> Any:
    def step_of(step: Any) -> Any:
        return step if isinstance(step, int) else (0, pl.DataFrame(step, schema=SCHEMA, orient="row"))

    return [([step_of(step) for step in steps], parallelism) for steps, parallelism in phases]


def first_rows(rows: list[Any], n: int, *, descending: bool) -> list[Any]:
    """The first of each key with their rank; null is last, and Python's sort keeps the order of equal rows."""
    found = []
    for key in {row[0] for row in rows}:
        own = [row for row in rows if row[0] == key]
        own.sort(key=lambda row: (row[2] is None, 0 if row[2] is None else -row[2] if descending else row[2]))
        found += [(*row, rank) for rank, row in enumerate(own[:n], start=1)]
    return found


@settings(deadline=None)
@given(PHASES, st.integers(1, 3), st.booleans())
def test_inserts_and_deletes_come_to_the_first_rows(
    run_phases: Callable[..., list[pl.DataFrame]], phases: Any, n: int, descending: bool
) -> None:
    emitted = run_phases(lambda: RunningTopN(top(n, descending=descending)), framed(phases), {0: ("key",)})
    bag: Counter[Any] = Counter()
    for change, *row in (row for frame in emitted for row in frame.rows()):
        bag[tuple(row)] += change
        assert bag[tuple(row)] >= 0
    rows = [row for steps, _ in phases for step in steps if not isinstance(step, int) for row in step]
    assert +bag == Counter(row[:3] for row in first_rows(rows, n, descending=descending))


@settings(deadline=None)
@given(PHASES, st.integers(1, 3), st.booleans())
def test_with_ranks_each_place_has_its_row(
    run_phases: Callable[..., list[pl.DataFrame]], phases: Any, n: int, descending: bool
) -> None:
    spec = top(n, descending=descending, rank="place")
    emitted = run_phases(lambda: RunningTopN(spec), framed(phases), {0: ("key",)})
    table: dict[Any, Any] = {}
    for change, *row in (row for frame in emitted for row in frame.rows()):
        place = (row[0], row[3])
        assert change == (2 if place in table else 1)
        table[place] = tuple(row)
    rows = [row for steps, _ in phases for step in steps if not isinstance(step, int) for row in step]
    assert sorted(table.values(), key=str) == sorted(first_rows(rows, n, descending=descending), key=str)


@settings(deadline=None)
@given(PHASES, st.integers(1, 3), st.booleans(), st.integers(1, 8), st.integers(1, 3))
def test_windows_have_their_first_rows(
    run_phases: Callable[..., list[pl.DataFrame]], phases: Any, n: int, descending: bool, slide: int, panes: int
) -> None:
    size = slide * panes
    window = specs.Sliding(size_us=size, slide_us=slide)
    spec = top(n, descending=descending, rank="place", within=window)
    emitted = run_phases(lambda: WindowTopN(spec, window), framed(phases), {0: ("key",)})
    whole = [step for steps, _ in phases for step in steps]
    expected = []
    for end in range(slide, 120, slide):
        watermark, inside = MIN_WATERMARK, []
        for step in whole:
            if isinstance(step, int):
                watermark = max(watermark, step)
            elif end - 1 > watermark:
                inside += [row for row in step if end - size <= row[1] < end]
        inside.sort(key=lambda row: row[1] // slide)  # of equal rows that of the earlier pane is first
        for *row, rank in first_rows(inside, n, descending=descending):
            expected.append((*row, end - size, end, rank))
    assert sorted((row for frame in emitted for row in frame.rows()), key=str) == sorted(expected, key=str)
