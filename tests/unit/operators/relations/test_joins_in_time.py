"""Window and interval joins equal nested loops over the rows that were in time."""

from collections.abc import Callable, Sequence
from typing import Any

import polars as pl
from hypothesis import given, settings
from hypothesis import strategies as st

from penstock.model import schemas, specs
from penstock.model.clocks import MAX_WATERMARK, MIN_WATERMARK
from penstock.operators.joins import make_join

LEFT = {"key": pl.String(), "at": pl.Int64(), "l": pl.Int64()}
RIGHT = {"key": pl.String(), "when": pl.Int64(), "r": pl.Int64()}
HOWS = st.sampled_from(["inner", "left", "right", "full", "semi", "anti"])
ROWS = st.lists(
    st.tuples(st.sampled_from(["a", "b", None]), st.integers(-10, 40), st.integers(0, 99)), min_size=1, max_size=6
)
STEPS = st.lists(st.tuples(st.integers(0, 1), ROWS) | st.integers(-20, 60), max_size=10)
PHASES = st.lists(st.tuples(STEPS, st.integers(1, 3)), min_size=1, max_size=3)

Steps = Sequence[int | tuple[int, list[tuple[str | None, int, int]]]]


def join(how: str, match: Any) -> specs.Join:
    one_sided = how in ("semi", "anti")
    columns = [specs.JoinColumn(name="key", left="key", right=None if one_sided else "key")]
    columns += [specs.JoinColumn(name=name, left=name) for name in ("at", "l")]
    types = {"key": pl.String(), "at": pl.Int64(), "l": pl.Int64()}
    if not one_sided:
        columns += [specs.JoinColumn(name=name, right=name) for name in ("when", "r")]
        types |= {"when": pl.Int64(), "r": pl.Int64()}
    if isinstance(match, specs.WindowMatch):
        columns += [specs.JoinColumn(name=name) for name in ("window_start", "window_end")]
        types |= {"window_start": pl.Int64(), "window_end": pl.Int64()}
    return specs.Join(
        left_on=("key",),
        right_on=("key",),
        how=how,
        match=match,
        columns=tuple(columns),
        left_time=specs.EventTime(column="at"),
        right_time=specs.EventTime(column="when"),
        output=schemas.fields(types),
    )


def framed(step: Any) -> Any:
    return (
        step
        if isinstance(step, int)
        else (step[0], pl.DataFrame(step[1], schema=(LEFT, RIGHT)[step[0]], orient="row"))
    )


def combined(how: str, left: list[Any], right: list[Any], fits: Callable[[Any, Any], bool]) -> list[tuple[Any, ...]]:
    """The rows of a join of two lists, by nested loops."""
    pairs = [
        (i, j)
        for i, one in enumerate(left)
        for j, other in enumerate(right)
        if one[0] is not None and fits(one, other)
    ]
    lefts, rights = {i for i, _ in pairs}, {j for _, j in pairs}
    found: list[tuple[Any, ...]] = []
    if how == "semi":
        return [left[i] for i in sorted(lefts)]
    if how == "anti":
        return [one for i, one in enumerate(left) if i not in lefts]
    found += [(*left[i], *right[j][1:]) for i, j in pairs]
    if how in ("left", "full"):
        found += [(*one, None, None) for i, one in enumerate(left) if i not in lefts]
    if how in ("right", "full"):
        found += [(other[0], None, None, *other[1:]) for j, other in enumerate(right) if j not in rights]
    return found


def in_time(steps: Steps, late: Callable[[int, int], bool]) -> tuple[list[Any], list[Any]]:
    watermark, sides = MIN_WATERMARK, ([], [])
    for step in steps:
        if isinstance(step, int):
            watermark = max(watermark, step)
        else:
            sides[step[0]].extend(row for row in step[1] if not late(row[1], watermark))
    return sides


def rows_of(frames: Sequence[pl.DataFrame]) -> list[tuple[Any, ...]]:
    return sorted((row for frame in frames for row in frame.rows()), key=str)


@settings(deadline=None, max_examples=150)
@given(PHASES, HOWS, st.integers(1, 12), st.integers(1, 3), st.integers(0, 5))
def test_window_joins_equal_nested_loops_per_window(
    run_phases: Callable[..., list[pl.DataFrame]], phases: Any, how: str, slide: int, panes: int, offset: int
) -> None:
    size = slide * panes
    assigner = specs.Sliding(size_us=size, slide_us=slide, offset_us=offset)
    spec = join(how, specs.WindowMatch(assigner=assigner))
    steps = [([framed(step) for step in steps], parallelism) for steps, parallelism in phases]
    emitted = run_phases(lambda: make_join(spec), steps, {0: ("key",), 1: ("key",)})
    whole = [step for steps, _ in phases for step in steps]
    expected = []
    for end in range(-30 + offset - (-30) % slide, 100, 1):
        if (end - offset - size) % slide:
            continue
        watermark, sides = MIN_WATERMARK, ([], [])
        for step in whole:
            if isinstance(step, int):
                watermark = max(watermark, step)
            elif end - 1 > watermark:
                sides[step[0]].extend(row for row in step[1] if end - size <= row[1] < end)
        made = combined(how, *sides, lambda one, other: one[0] == other[0])
        expected += [(*row, end - size, end) for row in made]
    assert rows_of(emitted) == sorted(expected, key=str)


@settings(deadline=None, max_examples=200)
@given(PHASES, HOWS, st.integers(-12, 12), st.integers(0, 15))
def test_interval_joins_equal_nested_loops(
    run_phases: Callable[..., list[pl.DataFrame]], phases: Any, how: str, lower: int, width: int
) -> None:
    spec = join(how, specs.IntervalMatch(lower_us=lower, upper_us=lower + width))
    steps = [([framed(step) for step in steps], parallelism) for steps, parallelism in phases]
    emitted = run_phases(lambda: make_join(spec), steps, {0: ("key",), 1: ("key",)})
    whole = [step for steps, _ in phases for step in steps]
    left, right = in_time(whole, lambda time, watermark: time <= watermark)
    expected = combined(
        how, left, right, lambda one, other: one[0] == other[0] and lower <= other[1] - one[1] <= lower + width
    )
    assert rows_of(emitted) == sorted(expected, key=str)


@settings(deadline=None)
@given(STEPS, HOWS, st.integers(-12, 12), st.integers(0, 15))
def test_no_result_of_an_interval_join_is_late_by_its_own_time(
    start: Callable[..., Any], steps: Any, how: str, lower: int, width: int
) -> None:
    if how == "full":
        return  # has no event time
    operator = make_join(join(how, specs.IntervalMatch(lower_us=lower, upper_us=lower + width)))
    collected = start(operator)
    column, passed, reached = "when" if how == "right" else "at", MIN_WATERMARK, MIN_WATERMARK
    for step in [*steps, MAX_WATERMARK]:
        before = len(collected.frames)
        if isinstance(step, int):
            reached = max(reached, step)
            following = operator.on_watermark(reached)
        else:
            operator.on_batch(framed(step)[1], step[0])
            following = passed
        for frame in collected.frames[before:]:
            assert frame[column].min() > passed
        assert following >= passed
        passed = following
    assert operator.context.counters.state_rows == 0
