"""Running one operator by hand."""

from collections.abc import Callable

import polars as pl
import pytest

from penstock.model.ids import Attempt, JobId, SubtaskId, Uid, VertexId
from penstock.model.settings import JobSettings
from penstock.operators.base import Operator, OperatorContext


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


@pytest.fixture
def clock() -> ManualClock:
    return ManualClock()
