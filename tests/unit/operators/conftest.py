"""Running one operator by hand."""

from collections.abc import Callable, Sequence

import polars as pl
import pytest

from penstock.model.changes import DELETE, INSERT
from penstock.model.clocks import MAX_WATERMARK
from penstock.model.handles import Redistribution
from penstock.model.ids import Attempt, CheckpointId, JobId, SubtaskId, Uid, VertexId
from penstock.model.settings import JobSettings
from penstock.operators.base import Operator, OperatorContext, Section
from penstock.state.key_groups import group_range, key_groups, owner, slice_groups


class Collected:
    """What an operator emitted."""

    def __init__(self) -> None:
        self.frames: list[pl.DataFrame] = []
        self.sides: dict[str, list[pl.DataFrame]] = {}

    def emit(self, frame: pl.DataFrame) -> None:
        if frame.height:
            self.frames.append(frame)

    def emit_side(self, name: str, frame: pl.DataFrame) -> None:
        if frame.height:
            self.sides.setdefault(name, []).append(frame)

    @property
    def frame(self) -> pl.DataFrame:
        return pl.concat(self.frames)


class ManualClock:
    """Stands still unless it is told the time."""

    def __init__(self, now_us: int = 0) -> None:
        self.now = now_us

    def now_us(self) -> int:
        return self.now

    def monotonic(self) -> float:
        return self.now / 1_000_000


Start = Callable[..., Collected]


@pytest.fixture(scope="session")
def start() -> Start:
    """Open an operator as subtask `index` of `parallelism`; gives what it will have emitted."""

    def opened(
        operator: Operator,
        *,
        index: int = 0,
        parallelism: int = 1,
        max_parallelism: int = 16,
        clock: ManualClock | None = None,
    ) -> Collected:
        collected = Collected()
        context = OperatorContext(
            job=JobId("job"),
            attempt=Attempt(1),
            uid=Uid("the-operator"),
            subtask=SubtaskId(VertexId("vertex"), index),
            parallelism=parallelism,
            max_parallelism=max_parallelism,
            clock=clock or ManualClock(),
            settings=JobSettings(),
        )
        operator.open(context, collected)
        return collected

    return opened


GROUPS = 16
Step = pl.DataFrame | int
"""Rows, or a watermark."""


class Phases:
    """Runs an operator in phases of any parallelism, with a snapshot, a crash and a restore after each."""

    def __init__(self, start: Start, make: Callable[[], Operator], keys: Sequence[str]) -> None:
        self._start, self._make, self._keys = start, make, keys
        self.frames: list[pl.DataFrame] = []
        self.sides: dict[str, list[pl.DataFrame]] = {}
        self.late_rows = 0
        self._written: list[Sequence[Section]] = []

    def run(self, phases: Sequence[tuple[Sequence[Step], int]], junk: pl.DataFrame) -> None:
        """Each phase is steps and a parallelism. At the end of the last one time is over."""
        for steps, parallelism in phases:
            self._run_phase(steps, parallelism, junk)
        self._run_phase([MAX_WATERMARK], 2, None)

    def _run_phase(self, steps: Sequence[Step], parallelism: int, junk: pl.DataFrame | None) -> None:
        operators, outputs = [], []
        for index in range(parallelism):
            operator = self._make()
            outputs.append(self._start(operator, index=index, parallelism=parallelism, max_parallelism=GROUPS))
            if self._written:
                operator.restore(self._restored(index, parallelism))
            self._drive(operator, steps, index, parallelism)
            operators.append(operator)
        if junk is None:
            for operator in operators:
                operator.on_end()
                assert operator.context.counters.state_rows == 0
        for operator in operators:
            operator.on_barrier()
        snapshots = [operator.snapshot(CheckpointId(1)) for operator in operators]
        for operator, output in zip(operators, outputs, strict=True):
            self.frames += output.frames
            for name, frames in output.sides.items():
                self.sides.setdefault(name, []).extend(frames)
            self.late_rows += operator.context.counters.late_rows
        if junk is not None:
            for operator in operators:  # what happens after the barrier is lost, and must not show in the snapshot
                operator.on_batch(junk)
                operator.on_watermark(MAX_WATERMARK)
        self._written = [snapshot() for snapshot in snapshots]

    def _drive(self, operator: Operator, steps: Sequence[Step], index: int, parallelism: int) -> None:
        for step in steps:
            if isinstance(step, int):
                operator.on_watermark(step)
                continue
            groups = key_groups(step, self._keys, GROUPS).tolist()
            mine = step.filter(pl.Series([owner(group, parallelism, GROUPS) == index for group in groups]))
            if mine.height:
                operator.on_batch(mine)

    def _restored(self, index: int, parallelism: int) -> dict[str, list[pl.DataFrame]]:
        restored: dict[str, list[pl.DataFrame]] = {}
        for section in (section for sections in self._written for section in sections):
            frame = section.frame
            if section.redistribution is Redistribution.KEYED:
                assert frame.columns[0] == "key_group"
                assert frame["key_group"].is_sorted()
                frame = slice_groups(frame, group_range(index, parallelism, GROUPS))
            restored.setdefault(section.state, []).append(frame)
        return restored


def table_of(frames: Sequence[pl.DataFrame], keys: Sequence[str]) -> dict[tuple[object, ...], tuple[object, ...]]:
    """What a stream of changes leaves. Each change must fit what was there before it."""
    table: dict[tuple[object, ...], tuple[object, ...]] = {}
    for frame in frames:
        changes = frame["__change"] if "__change" in frame.columns else [INSERT] * frame.height
        values = frame.drop(*keys, "__change", strict=False).rows()
        for change, key, row in zip(changes, frame.select(keys).rows(), values, strict=True):
            assert (key in table) == (change != INSERT), (change, key, row)
            if change == DELETE:
                assert table.pop(key) == row
            else:
                table[key] = row
    return table


@pytest.fixture(scope="session")
def phases(start: Start) -> Callable[..., Phases]:
    return lambda make, keys: Phases(start, make, keys)


@pytest.fixture(scope="session")
def changed_table() -> Callable[..., dict[tuple[object, ...], tuple[object, ...]]]:
    return table_of


@pytest.fixture
def clock() -> ManualClock:
    return ManualClock()
