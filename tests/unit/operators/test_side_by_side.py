"""Windows whose subtasks had come differently far when a barrier overtook rows, restored at another parallelism.

The oracle: the same subtasks with the same rows, that nobody has interrupted.
"""

from collections.abc import Callable, Sequence
from typing import Any

import cloudpickle
import polars as pl
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from penstock.model import schemas, specs
from penstock.model.clocks import MAX_WATERMARK
from penstock.model.handles import Redistribution
from penstock.model.ids import CheckpointId
from penstock.operators import side_by_side
from penstock.operators.base import Operator
from penstock.operators.buffered_windows import BufferedWindows
from penstock.operators.joins import make_join
from penstock.operators.sessions import SessionAggregate
from penstock.operators.top_n import WindowTopN
from penstock.operators.windows import WindowAggregate
from penstock.state.key_groups import group_range, key_groups, owner, slice_groups

GROUPS = 16
TIME = specs.EventTime(column="at")
ROWS = pl.Schema({"key": pl.Int64(), "at": pl.Int64(), "value": pl.Int64()})
SLIDING = specs.Sliding(size_us=10, slide_us=5)
GAP = 7
"""Times are even: a row that comes exactly a gap later may or may not find the session before it."""
BOUNDS = {"window_start": pl.Int64(), "window_end": pl.Int64()}
COUNT = (specs.Aggregate(name="rows", function="count", output_type="Int64"),)
COUNTED = schemas.fields({"key": pl.Int64(), **BOUNDS, "rows": pl.Int64()})


def aggregate() -> specs.WindowAggregate:
    return specs.WindowAggregate(keys=("key",), assigner=SLIDING, aggregates=COUNT, event_time=TIME, output=COUNTED)


def sessions() -> specs.SessionAggregate:
    return specs.SessionAggregate(keys=("key",), gap_us=GAP, aggregates=COUNT, event_time=TIME, output=COUNTED)


def buffered() -> specs.BufferedWindow:
    return specs.BufferedWindow(
        keys=("key",),
        assigner=SLIDING,
        trigger=specs.Trigger(kind="event_time"),
        aggregates=COUNT,
        event_time=TIME,
        output=COUNTED,
    )


def top() -> specs.TopN:
    return specs.TopN(
        keys=("key",),
        n=2,
        by=("value",),
        descending=(False,),
        within=SLIDING,
        event_time=TIME,
        output=schemas.fields({**ROWS, **BOUNDS}),
    )


def join() -> specs.Join:
    columns = [specs.JoinColumn(name="key", left="key", right="key")]
    columns += [specs.JoinColumn(name="value", left="value"), specs.JoinColumn(name="other", right="value")]
    columns += [specs.JoinColumn(name=name) for name in BOUNDS]
    output = {"key": pl.Int64(), "value": pl.Int64(), "other": pl.Int64(), **BOUNDS}
    return specs.Join(
        left_on=("key",),
        right_on=("key",),
        how="full",
        match=specs.WindowMatch(assigner=SLIDING),
        columns=tuple(columns),
        left_time=TIME,
        right_time=TIME,
        output=schemas.fields(output),
    )


CASES: dict[str, tuple[Callable[[], Any], Callable[[Any], Operator]]] = {
    "windows": (aggregate, WindowAggregate),
    "sessions": (sessions, SessionAggregate),
    "buffered windows": (buffered, lambda spec: BufferedWindows(spec, lambda f: cloudpickle.loads(f.pickled))),
    "top n": (top, lambda spec: WindowTopN(spec, SLIDING)),
    "window join": (join, make_join),
}

Steps = Sequence[tuple[int, list[tuple[int, int]]]]
"""Rows (key, how far ahead) of an input, none of them late, and by how much time moves on behind them."""


class Subtask:
    """One that runs, with what it gives out."""

    def __init__(self, start: Any, case: str, index: int, parallelism: int) -> None:
        make_spec, make = CASES[case]
        self.spec, self.index, self.parallelism = make_spec(), index, parallelism
        self.make = lambda: make(self.spec)
        self.operator = self.make()
        self.output = start(self.operator, index=index, parallelism=parallelism, max_parallelism=GROUPS)

    def take(self, frame: pl.DataFrame, port: int) -> None:
        mine = [owner(group, self.parallelism, GROUPS) == self.index for group in key_groups(frame, ["key"], GROUPS)]
        if (own := frame.filter(pl.Series(mine, dtype=pl.Boolean))).height:
            self.operator.on_batch(own, port)

    def restore(self, written: list[Any]) -> None:
        sections: dict[str, list[pl.DataFrame]] = {}
        for section in written:
            keyed = section.redistribution is Redistribution.KEYED
            groups = group_range(self.index, self.parallelism, GROUPS)
            frame = slice_groups(section.frame, groups) if keyed else section.frame
            sections.setdefault(section.state, []).append(frame)
        self.operator = side_by_side.restored(self.operator, self.spec, self.make, sections)
        self.operator.on_restored()

    @property
    def late(self) -> int:
        return self.operator.context.counters.late_rows


def elements(steps: Steps, ports: int) -> list[tuple[pl.DataFrame, int, int]]:
    """Rows, their input, and the watermark behind them."""
    made, now, number = [], 0, 0
    for index, (step, rows) in enumerate(steps):
        values = [(key, now + 2 + 2 * ahead, number + n) for n, (key, ahead) in enumerate(rows)]
        now, number = now + 2 * step, number + len(rows)
        made.append((pl.DataFrame(values, schema=ROWS, orient="row"), index % ports, now))
    return made


def drive(subtask: Subtask, stream: Sequence[tuple[pl.DataFrame, int, int]]) -> None:
    for frame, port, watermark in stream:
        subtask.take(frame, port)
        subtask.operator.on_watermark(watermark)


def end(subtask: Subtask) -> None:
    subtask.operator.on_watermark(MAX_WATERMARK)
    subtask.operator.on_end()


@pytest.mark.parametrize("case", CASES)
@settings(max_examples=25, deadline=None)
@given(
    steps=st.lists(
        st.tuples(st.integers(0, 4), st.lists(st.tuples(st.integers(0, 7), st.integers(0, 6)), max_size=4)),
        min_size=1,
        max_size=12,
    ),
    before=st.integers(1, 3),
    after=st.lists(st.integers(1, 3), min_size=1, max_size=2),
    reached=st.lists(st.integers(0, 12), min_size=3, max_size=3),
)
def test_every_part_goes_on_from_its_own_time(
    start: Any, case: str, steps: Steps, before: int, after: list[int], reached: list[int]
) -> None:
    """The barrier finds each subtask somewhere else in its input; what is behind that was in flight."""
    stream = elements(steps, 2 if case == "window join" else 1)
    undisturbed = [Subtask(start, case, index, before) for index in range(before)]
    for subtask in undisturbed:
        drive(subtask, stream)
        end(subtask)
    runs = [Subtask(start, case, index, before) for index in range(before)]
    done = list(runs)
    for subtask, place in zip(runs, reached, strict=False):
        drive(subtask, stream[:place])
    for parallelism in after:
        written = []
        for subtask in runs:
            subtask.operator.on_barrier()
            written += subtask.operator.snapshot(CheckpointId(1))()
        runs = [Subtask(start, case, index, parallelism) for index in range(parallelism)]
        done += runs
        for subtask in runs:
            subtask.restore(written)
    for subtask in runs:
        for place, (frame, port, _) in enumerate(stream):
            owners = [owner(group, before, GROUPS) for group in key_groups(frame, ["key"], GROUPS)]
            # Rows in flight come first, all of them in front of the next watermark.
            in_flight = [place >= reached[index] and place < max(reached[:before]) for index in owners]
            subtask.take(frame.filter(pl.Series(in_flight, dtype=pl.Boolean)), port)
        drive(subtask, stream[max(reached[:before]) :])
        end(subtask)
        assert subtask.operator.context.counters.state_rows == 0
    expected = [row for subtask in undisturbed for frame in subtask.output.frames for row in frame.rows()]
    found = [row for subtask in done for frame in subtask.output.frames for row in frame.rows()]
    assert sorted(found, key=repr) == sorted(expected, key=repr)
    assert [subtask.late for subtask in done] == [0] * len(done)


def test_state_of_others_that_is_called_progress_is_theirs(start: Any) -> None:
    """A user may call a state so; its rows look like nothing in particular."""

    class Takes(Operator):
        def restore(self, sections: Any) -> None:
            self.taken = sections

    operator = Takes()
    start(operator)
    sections = {"progress": [pl.DataFrame({"key_group": [3], "key": ["a"], "value": [1]})]}
    spec = specs.Filter(predicate=None)  # type: ignore[arg-type]
    assert side_by_side.restored(operator, spec, Takes, sections) is operator
    assert operator.taken is sections
