"""Barriers at the head of a loop, which may come round from another subtask of the head before its own are there."""

import polars as pl
import pytest

from penstock.checkpoint.state_objects import Restored
from penstock.exchange.channels import ReceiveChannel, SendChannel
from penstock.exchange.gates import Destination, Gate
from penstock.exchange.partitioners import ToSame
from penstock.model import specs
from penstock.model.clocks import SystemClock
from penstock.model.elements import Barrier, Batch, Element
from penstock.model.ids import Attempt, ChannelId, CheckpointId, JobId, SubtaskId, Uid, VertexId
from penstock.model.settings import ExchangeSettings, JobSettings
from penstock.model.tasks import ChainLink
from penstock.operators.base import Operator, OperatorContext
from penstock.taskmanager.chain import Chain
from penstock.taskmanager.in_flight import Snapshots
from penstock.taskmanager.task import Outcome, RunningTask

LOOP = Uid("loop")
ME, OTHER = 1, 0
ONE, TWO = CheckpointId(1), CheckpointId(2)


class Remembers(Operator):
    """Takes rows, and passes none on."""

    def __init__(self) -> None:
        self.seen: list[int] = []

    def on_batch(self, frame: pl.DataFrame, port: int = 0) -> None:
        self.seen += frame["n"].to_list()


class Head:
    """Subtask 1 of two that make up a loop; what would go round is thrown away, the test says what comes round."""

    def __init__(self) -> None:
        self.operator = Remembers()
        self.sent: list[Element] = []
        self.written: list[tuple[CheckpointId, list[int]]] = []
        settings = ExchangeSettings()
        self.forward = ReceiveChannel(ChannelId(0), 0, settings)
        self.feedback = [ReceiveChannel(ChannelId(1 + n), 1, settings, loop=LOOP, feedback=True) for n in range(2)]
        self._numbers = dict.fromkeys([0, 1, 2], 0)
        senders = [
            SendChannel(ChannelId(10 + n), settings, deliver=self._deliver, writable=lambda: True) for n in range(2)
        ]
        for sender in senders:
            sender.add_credit(1_000_000)
        destination = Destination(operator=LOOP, port=1, loop=LOOP)
        self._gate = Gate(ToSame(ME), senders, lambda: 0.0, destination)
        head = specs.Operator(uid=LOOP, name="loop", spec=specs.LoopHead(columns=("n",)))
        chain = Chain(
            [ChainLink(operator=head, parent=None)],
            {(0, specs.MAIN_OUTPUT): [self._gate]},
            make_operator=lambda *_: self.operator,
            make_context=_context,
        )
        chain.open(Restored())
        self.task = RunningTask(
            SubtaskId(VertexId("loop"), ME),
            chain,
            [self.forward, *self.feedback],
            clock=SystemClock(),
            max_rows=100,
            on_snapshot=self._keep,
            on_ended=lambda _: None,
        )

    def gets(self, channel: ReceiveChannel, *elements: Element) -> None:
        for element in elements:
            channel.put(self._numbers[channel.id], element, 1)
            self._numbers[channel.id] += 1
        self.work()

    def work(self) -> None:
        self.task.overtake()
        while self.task.step(0.0) is Outcome.WORKED:
            pass
        for channel in self._gate.channels:
            channel.pump()
        self.task.settle()

    def _deliver(self, sequence: int, element: Element, size: int) -> int:
        self.sent.append(element)
        return size

    def _keep(self, task: RunningTask, barrier: Barrier, snapshots: Snapshots, _: object) -> None:
        sections = [section for _, snapshot in snapshots for section in snapshot()]
        rows = [n for section in sections for n in section.frame["n"].to_list()]  # type: ignore[union-attr]
        self.written.append((barrier.checkpoint, rows))


def _context(uid: Uid) -> OperatorContext:
    return OperatorContext(
        job=JobId("job"),
        attempt=Attempt(1),
        uid=uid,
        subtask=SubtaskId(VertexId("loop"), ME),
        parallelism=2,
        max_parallelism=16,
        clock=SystemClock(),
        settings=JobSettings(),
    )


def rows(*numbers: int) -> Batch:
    return Batch(pl.DataFrame({"n": numbers}))


def test_rows_under_way_are_part_of_the_checkpoint() -> None:
    head = Head()
    head.gets(head.forward, rows(1), Barrier(ONE))
    head.gets(head.feedback[ME], rows(2), Barrier(ONE), rows(3))
    head.gets(head.feedback[OTHER], Barrier(ONE))
    assert head.written == [(ONE, [2])]
    assert head.operator.seen == [1, 2, 3]


def test_a_barrier_that_comes_round_before_our_own_is_not_awaited_again() -> None:
    head = Head()
    head.gets(head.feedback[OTHER], Barrier(ONE))
    head.gets(head.forward, rows(1), Barrier(ONE))
    head.gets(head.feedback[ME], rows(2), Barrier(ONE))
    assert head.written == [(ONE, [2])]


@pytest.mark.parametrize("overtakes", [False, True])
def test_what_comes_behind_a_barrier_waits_until_the_head_has_taken_its_snapshot(overtakes: bool) -> None:
    head = Head()
    head.gets(head.feedback[ME], rows(1), Barrier(ONE), rows(2))
    assert head.operator.seen == [1]
    if overtakes:
        head.task.let_overtake(ONE)
        head.work()
        head.gets(head.forward, rows(3), Barrier(ONE))
    else:
        head.gets(head.forward, rows(3), Barrier(ONE))
    head.gets(head.feedback[OTHER], Barrier(ONE))
    assert head.written == [(ONE, [3] if overtakes else [])]
    assert sorted(head.operator.seen) == [1, 2, 3]


def test_a_checkpoint_that_is_given_up_holds_nothing_back() -> None:
    head = Head()
    head.gets(head.feedback[OTHER], Barrier(ONE))
    head.gets(head.feedback[ME], Barrier(ONE), rows(1))
    assert head.operator.seen == []
    head.task.abort(ONE)
    head.work()
    assert head.operator.seen == [1]
    head.gets(head.forward, Barrier(ONE), Barrier(TWO))
    assert sorted(each.checkpoint for each in head.sent if isinstance(each, Barrier)) == [ONE, ONE, TWO, TWO]
    for channel in head.feedback:
        head.gets(channel, Barrier(TWO))
    assert head.written == [(TWO, [])]


def test_a_newer_barrier_takes_the_place_of_one_that_nobody_waits_for() -> None:
    head = Head()
    head.gets(head.feedback[OTHER], Barrier(ONE), Barrier(TWO))
    head.gets(head.forward, Barrier(TWO))
    head.gets(head.feedback[OTHER], rows(1))
    head.gets(head.feedback[ME], rows(2), Barrier(TWO))
    assert head.written == [(TWO, [2])], "rows of the other channel came behind its barrier"
    assert sorted(head.operator.seen) == [1, 2]
