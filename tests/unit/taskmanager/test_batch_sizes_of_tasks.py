"""A task takes as much at once as it is through with soon, from channels and from sources."""

import math

import polars as pl
import pytest

from penstock.checkpoint.state_objects import Restored
from penstock.connectors.base import ReadResult, SourceContext, Split
from penstock.exchange.channels import ReceiveChannel
from penstock.model import specs
from penstock.model.elements import Barrier, Batch
from penstock.model.ids import Attempt, ChannelId, CheckpointId, JobId, SubtaskId, Uid, VertexId
from penstock.model.settings import ExchangeSettings, JobSettings, SourceSettings
from penstock.model.tasks import ChainLink
from penstock.operators.base import Operator, OperatorContext
from penstock.operators.factory import load_function
from penstock.operators.sources import SourceOperator
from penstock.taskmanager.chain import Chain
from penstock.taskmanager.task import Outcome, RunningTask

SUBTASK = SubtaskId(VertexId("v"), 0)
ROWS = 20_000


class Clock:
    seconds = 50.0

    def now_us(self) -> int:
        return round(self.seconds * 1_000_000)

    def monotonic(self) -> float:
        return self.seconds


class Worker(Operator):
    """Takes its time for each row; is not ready again at once when `rests`."""

    def __init__(self, clock: Clock, seconds_per_row: float, *, rests: bool = False) -> None:
        self.clock, self.seconds_per_row, self.rests = clock, seconds_per_row, rests
        self.batches: list[int] = []
        self.ready_at = 0.0

    def on_batch(self, frame: pl.DataFrame, port: int = 0) -> None:
        self.batches.append(frame.height)
        if self.rests:
            self.ready_at = self.clock.seconds + frame.height * self.seconds_per_row
        else:
            self.clock.seconds += frame.height * self.seconds_per_row

    def ready_in_us(self) -> int:
        return max(0, math.ceil((self.ready_at - self.clock.seconds) * 1_000_000))


class Endless:
    """A source with as many rows as are asked for."""

    sequential, discovers = True, False

    def splits(self) -> list[Split]:
        return [Split(id="all")]

    def open(self, split: Split, position: object, context: SourceContext) -> "Endless":
        return self

    def read(self, max_rows: int) -> ReadResult:
        return ReadResult(frame=pl.DataFrame({"n": range(max_rows)}))

    def close(self) -> None: ...


def running(clock: Clock, operators: list[Operator], inputs: list[ReceiveChannel]) -> RunningTask:
    left = list(operators)
    spec = specs.Sink(connector=specs.Connector(kind="none"))
    links = [
        ChainLink(
            operator=specs.Operator(uid=Uid(f"o{number}"), name="o", spec=spec, output=()),
            parent=number - 1 if number else None,
        )
        for number in range(len(operators))
    ]

    def context(uid: Uid) -> OperatorContext:
        return OperatorContext(
            job=JobId("job"),
            attempt=Attempt(1),
            uid=uid,
            subtask=SUBTASK,
            parallelism=1,
            max_parallelism=128,
            clock=clock,
            settings=JobSettings(source=SourceSettings(batch_rows=8_192)),
        )

    chain = Chain(links, {}, make_operator=lambda *_: left.pop(0), make_context=context)
    chain.open(Restored())
    return RunningTask(
        SUBTASK,
        chain,
        inputs,
        clock=clock,
        max_rows=8_192,
        on_snapshot=lambda *_: None,
        on_ended=lambda _: None,
    )


@pytest.mark.parametrize(
    ("seconds_per_row", "low", "high"), [(1e-3, 20, 140), (1e-5, 2_000, 8_192), (1e-8, 8_192, 8_192)]
)
def test_a_large_batch_is_taken_in_parts_that_are_done_soon(seconds_per_row: float, low: int, high: int) -> None:
    clock = Clock()
    worker = Worker(clock, seconds_per_row)
    channel = ReceiveChannel(ChannelId(0), 0, ExchangeSettings())
    task = running(clock, [worker], [channel])
    for sequence in range(3):
        channel.put(sequence, Batch(pl.DataFrame({"n": range(ROWS)})), 1)
    while task.step(clock.seconds) is Outcome.WORKED:
        pass
    assert sum(worker.batches) == 3 * ROWS
    assert low <= max(worker.batches[4:]) <= high


def test_an_unaligned_barrier_does_not_wait_for_the_rest_of_a_batch() -> None:
    clock = Clock()
    worker = Worker(clock, 1e-3)
    channel = ReceiveChannel(ChannelId(0), 0, ExchangeSettings())
    task = running(clock, [worker], [channel])
    channel.put(0, Batch(pl.DataFrame({"n": range(ROWS)})), 1)
    task.step(clock.seconds)
    channel.put(1, Barrier(CheckpointId(1), overtakes=True), 0)
    task.overtake()
    assert task._cut is not None
    assert sum(worker.batches) + sum(frame.height for frame in channel.release()) == ROWS


@pytest.mark.parametrize("rests", [False, True])
@pytest.mark.parametrize(("seconds_per_row", "low", "high"), [(1e-3, 20, 140), (1e-8, 8_192, 8_192)])
def test_a_source_reads_less_when_what_follows_is_slow(
    seconds_per_row: float, low: int, high: int, rests: bool
) -> None:
    clock = Clock()
    worker = Worker(clock, seconds_per_row, rests=rests)
    spec = specs.Source(connector=specs.Connector(kind="endless"))
    task = running(clock, [SourceOperator(spec, Endless(), load_function), worker], [])  # type: ignore[arg-type]
    for _ in range(200):
        task.step(clock.seconds)
        clock.seconds += task.wait(clock.seconds) or 0.0
    assert len(worker.batches) > 20
    assert all(low <= rows <= high for rows in worker.batches[10:]), worker.batches
