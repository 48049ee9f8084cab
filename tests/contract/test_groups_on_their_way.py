"""Keyed operators whose key groups move while they run do what one does that nobody disturbs.

Rows, watermarks, barriers at which the parallelism changes, and the moments at which each group arrives are drawn. The
oracle is the operator itself, whole, in one subtask.
"""

import shutil
import sys
import tempfile
from collections import Counter
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import Any

import cloudpickle
import polars as pl
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

sys.path.insert(0, str(Path(__file__).parent))
from test_state_in_parts import ROWS, SPECS, TIME, UID, M, Subtasks, outcome, play, whole

import penstock as ps
from penstock.checkpoint import state_objects
from penstock.graph.live import common, handovers
from penstock.model import schemas, specs
from penstock.model.clocks import MIN_WATERMARK
from penstock.model.ids import CheckpointId, SubtaskId, VertexId
from penstock.operators.base import Operator, OperatorContext
from penstock.operators.divided import Divided
from penstock.operators.factory import make_operator
from penstock.state.key_groups import group_range
from penstock.taskmanager.parcels import Leaving, Parcel, parcel_of


class Remember(ps.KeyedProcessFunction):
    """How many rows of a key there were, and again when its timers run."""

    seen = ps.ValueState(int, default=0)

    def process(self, ctx: ps.KeyedContext, at: int) -> Any:
        self.seen.value += 1
        ctx.set_timer(at + 7)
        return ctx.key, self.seen.value, -1

    def on_timer(self, ctx: ps.KeyedContext, time: int) -> Any:
        return ctx.key, self.seen.value, time


EVERY = {
    **SPECS,
    "process": specs.Process(
        keys=("key",),
        function=specs.Function(name="Remember", pickled=cloudpickle.dumps(Remember()), columns=("at",)),
        event_time=TIME,
        output=schemas.fields({"key": pl.String(), "seen": pl.Int64(), "time": pl.Int64()}),
    ),
}
STEPS = st.lists(
    st.tuples(st.just("rows"), st.integers(0, 1), ROWS)
    | st.tuples(st.just("rows"), st.integers(0, 1), ROWS)
    | st.tuples(st.just("watermark"), st.integers(0, 12))
    | st.tuples(st.just("move"), st.integers(1, 4))
    | st.tuples(st.just("arrive"), st.integers(0, 9)),
    max_size=25,
)


class Moving(Subtasks):
    """Subtasks that become more and fewer without an end."""

    def __init__(self, spec: specs.OperatorSpec, folder: Path) -> None:
        super().__init__(spec, folder)
        self._time = MIN_WATERMARK
        self._on_the_way: list[Parcel] = []
        self._born = 0

    def watermark(self, time: int) -> None:
        self._time = max(self._time, time)
        super().watermark(time)

    def move(self, parallelism: int) -> None:
        """The barrier has passed all of them; state of groups that move is frozen, and arrives later."""
        self.arrive_all()
        before = len(self.operators)
        self._checkpoint += 1
        for operator in self.operators:
            operator.on_barrier()
        frozen = [operator.snapshot(CheckpointId(self._checkpoint)) for operator in self.operators]
        divided = [self._divided(operator) for operator in self.operators]
        useless: list[Operator] = []
        away: list[list[tuple[int, range]]] = []
        for index, each in enumerate(divided):
            own = range(0)
            if index < parallelism:
                own = common(group_range(index, before, M), group_range(index, parallelism, M))
            anew, left = each.keep(own)
            useless += left
            away.append([(index, groups) for groups in anew])
            for groups in anew:
                each.expect(groups)
        for index in range(before, parallelism):
            context = self._context(index)
            divided.append(Divided(partial(self._make, context), self._spec, self._by_port))
            divided[-1].open(context, self.output)
        for handover in handovers(before, parallelism, M):
            away[handover.sender].append((handover.receiver, handover.groups))
            divided[handover.receiver].expect(handover.groups)
        for index in range(before, parallelism):
            if self._time != MIN_WATERMARK:
                divided[index].on_watermark(self._time)
        for index, (snapshot, ranges) in enumerate(zip(frozen, away, strict=True)):
            sections, sender = list(snapshot()), SubtaskId(VertexId("v"), index)
            leaving = Leaving(UID, (), (), 0)
            for receiver, groups in ranges:
                to = SubtaskId(VertexId("v"), receiver)
                self._on_the_way.append(parcel_of(leaving, 1, sender, to, groups, sections))
        for operator in (*useless, *divided[parallelism:]):
            self.late_rows += operator.context.counters.late_rows
            operator.close()
        self.operators = list(divided[:parallelism])

    def arrive(self, number: int) -> None:
        """One of those that are on their way is there."""
        if not self._on_the_way:
            return
        parcel = self._on_the_way.pop(number % len(self._on_the_way))
        restored = state_objects.read(
            self._store, (parcel.handle,), groups=parcel.groups, index=0, parallelism=1, uids=[UID]
        )
        receiver = self.operators[parcel.receiver.index]
        assert isinstance(receiver, Divided)
        receiver.arrive(parcel.groups, restored.get(UID, {}), ())

    def arrive_all(self) -> None:
        while self._on_the_way:
            self.arrive(0)

    @property
    def _by_port(self) -> dict[int, tuple[str, ...]]:
        return dict(enumerate(self._keys))

    def _divided(self, operator: Operator) -> Divided:
        if isinstance(operator, Divided):
            return operator
        divided = Divided(partial(self._make, operator.context), self._spec, self._by_port)
        divided.open(operator.context, self.output)
        divided.adopt(operator, watermark=self._time, passed=self._time)
        return divided

    def _make(self, context: OperatorContext) -> Operator:
        return make_operator(specs.Operator(uid=UID, name="x", spec=self._spec), context)

    def _context(self, index: int) -> OperatorContext:
        self._born += 1
        found = self.operators[0].context
        return OperatorContext(
            job=found.job,
            attempt=found.attempt,
            uid=UID,
            subtask=SubtaskId(VertexId("v"), index),
            parallelism=index + 1,
            max_parallelism=M,
            clock=found.clock,
            settings=found.settings,
            state=whole(self._folder / f"born-{self._born}"),
        )


def play_moving(moving: Moving, steps: Sequence[tuple[Any, ...]], *, ports: int) -> None:
    now = 0
    for step in steps:
        match step:
            case ("rows", port, rows):
                values = [(key, value, now + at) for key, value, at in rows]
                frame = pl.DataFrame(values, schema={"key": str, "value": pl.Int64, "at": pl.Int64}, orient="row")
                moving.rows(port % ports, frame)
            case ("watermark", ahead):
                now += ahead
                moving.watermark(now - 3)
            case ("move", parallelism):
                moving.move(parallelism)
            case ("arrive", number):
                moving.arrive(number)
    moving.arrive_all()
    moving.end()


@pytest.mark.parametrize("name", EVERY)
def test_groups_that_move_lose_and_double_nothing(name: str) -> None:
    spec = EVERY[name]
    ports = 2 if isinstance(spec, specs.Join) else 1

    @settings(max_examples=15, database=None, deadline=None)
    @given(STEPS, st.integers(1, 3))
    def hold(steps: list[tuple[Any, ...]], parallelism: int) -> None:
        folder = Path(tempfile.mkdtemp())
        try:
            expected, found = Subtasks(spec, folder / "whole"), Moving(spec, folder / "moving")
            expected.start(whole, 1)
            play(expected, steps, ports=ports, restores=False)
            found.start(whole, parallelism)
            play_moving(found, steps, ports=ports)
            assert outcome(name, found.output) == outcome(name, expected.output)
            late = [Counter(row for frame in each.output.late for row in frame.rows()) for each in (found, expected)]
            assert late[0] == late[1]
        finally:
            shutil.rmtree(folder, ignore_errors=True)

    hold()
