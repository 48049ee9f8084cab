"""A task whose sink takes nothing just now leaves its input where it is, and knows when to come back."""

import polars as pl

from penstock.checkpoint.state_objects import Restored
from penstock.exchange.channels import ReceiveChannel
from penstock.model import specs
from penstock.model.elements import Batch
from penstock.model.ids import Attempt, ChannelId, JobId, SubtaskId, Uid, VertexId
from penstock.model.settings import ExchangeSettings, JobSettings
from penstock.model.tasks import ChainLink
from penstock.operators.base import Operator, OperatorContext
from penstock.taskmanager.chain import Chain
from penstock.taskmanager.task import Outcome, RunningTask

SUBTASK = SubtaskId(VertexId("out"), 0)


class Clock:
    def __init__(self) -> None:
        self.seconds = 50.0

    def now_us(self) -> int:
        return round(self.seconds * 1_000_000)

    def monotonic(self) -> float:
        return self.seconds


class Slow(Operator):
    """Takes a batch each second."""

    def __init__(self, clock: Clock) -> None:
        self._clock, self._ready_at = clock, 0.0
        self.taken = 0

    def on_batch(self, frame: pl.DataFrame, port: int = 0) -> None:
        self.taken += frame.height
        self._ready_at = self._clock.seconds + 1.0

    def ready_in_us(self) -> int:
        return max(0, round((self._ready_at - self._clock.seconds) * 1_000_000))


def test_a_held_task_is_blocked_until_its_sink_is_ready() -> None:
    clock = Clock()
    slow = Slow(clock)
    operator = specs.Operator(
        uid=Uid("out"), name="out", spec=specs.Sink(connector=specs.Connector(kind="none")), output=(), place=""
    )
    chain = Chain(
        [ChainLink(operator=operator, parent=None)],
        {},
        make_operator=lambda *_: slow,
        make_context=lambda uid: OperatorContext(
            job=JobId("job"),
            attempt=Attempt(1),
            uid=uid,
            subtask=SUBTASK,
            parallelism=1,
            max_parallelism=128,
            clock=clock,
            settings=JobSettings(),
        ),
    )
    chain.open(Restored())
    channel = ReceiveChannel(ChannelId(0), 0, ExchangeSettings())
    task = RunningTask(
        SUBTASK,
        chain,
        [channel],
        clock=clock,
        max_rows=10_000,
        on_snapshot=lambda *_: None,
        on_ended=lambda _: None,
    )
    for sequence in range(2):
        channel.put(sequence, Batch(pl.DataFrame({"n": range(5_000)})), 1)
    assert task.step(clock.seconds) is Outcome.WORKED
    assert task.step(clock.seconds) is Outcome.BLOCKED
    first = slow.taken
    assert 0 < first < 10_000
    assert task.wait(clock.seconds) == 1.0
    clock.seconds += 0.75
    assert task.step(clock.seconds) is Outcome.BLOCKED
    assert task.wait(clock.seconds) == 0.25
    clock.seconds += 0.25
    assert task.step(clock.seconds) is Outcome.WORKED
    assert slow.taken > first
