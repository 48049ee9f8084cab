"""A chain passes rows, time and barriers down a tree, each operator before those under it."""

from collections.abc import Sequence

import polars as pl

from penstock.checkpoint.state_objects import Restored
from penstock.exchange.channels import SendChannel
from penstock.exchange.gates import Destination, Gate
from penstock.exchange.partitioners import ToOne
from penstock.model import specs
from penstock.model.clocks import SystemClock
from penstock.model.elements import Barrier, Batch, Element, EndOfInput, Watermark
from penstock.model.handles import Redistribution
from penstock.model.ids import Attempt, ChannelId, CheckpointId, JobId, SubtaskId, Uid, VertexId
from penstock.model.settings import ExchangeSettings, JobSettings
from penstock.model.tasks import ChainLink
from penstock.operators.base import Operator, OperatorContext, Section, Snapshot
from penstock.taskmanager.chain import Chain


class Hoarder(Operator):
    """Keeps rows until time, a barrier or the end makes it give them up; remembers all that it saw."""

    def __init__(self, log: list[str]) -> None:
        self.log, self.kept = log, list[pl.DataFrame]()

    def on_batch(self, frame: pl.DataFrame, port: int = 0) -> None:
        self.log.append(f"{self.context.uid} rows {frame['x'].to_list()}")
        self.kept.append(frame)

    def _give_up(self) -> None:
        kept, self.kept = self.kept, []
        for frame in kept:
            self.output.emit(frame)

    def on_watermark(self, watermark: int) -> int | None:
        self._give_up()
        self.log.append(f"{self.context.uid} time {watermark}")
        return watermark - 1

    def on_barrier(self) -> None:
        self._give_up()

    def on_end(self) -> None:
        self._give_up()
        self.log.append(f"{self.context.uid} end")

    def snapshot(self, checkpoint: CheckpointId) -> Snapshot:
        assert not self.kept, "a snapshot comes after everything in front of the barrier has left"
        section = Section("s", Redistribution.UNION, pl.DataFrame({"x": [checkpoint]}))
        return lambda: [section]


class Outside:
    """What left the chain by its gate."""

    def __init__(self) -> None:
        self.elements: list[Element] = []
        self.channel = SendChannel(ChannelId(0), ExchangeSettings(), deliver=self._deliver, writable=lambda: True)
        self.channel.add_credit(1_000_000)
        self.gate = Gate(ToOne(), [self.channel], lambda: 0.0, Destination(operator=Uid("next")))

    def _deliver(self, sequence: int, element: Element, size: int) -> int:
        self.elements.append(element)
        return size

    def shown(self) -> list[object]:
        self.gate.flush(0.0, input_paused=True)
        self.channel.pump()
        return [e.frame["x"].to_list() if isinstance(e, Batch) else e for e in self.elements]


def description(uid: str) -> specs.Operator:
    return specs.Operator(uid=Uid(uid), name=uid, spec=specs.Explode(columns=()))


def context(uid: Uid) -> OperatorContext:
    return OperatorContext(
        job=JobId("j"),
        attempt=Attempt(1),
        uid=uid,
        subtask=SubtaskId(VertexId("v"), 0),
        parallelism=1,
        max_parallelism=128,
        clock=SystemClock(),
        settings=JobSettings(),
    )


def make_chain(parents: Sequence[int | None], outside: Outside, log: list[str]) -> Chain:
    """Operators "a", "b", ... hang under `parents`; rows of the last one leave."""
    links = [ChainLink(operator=description(chr(97 + n)), parent=parent) for n, parent in enumerate(parents)]
    chain = Chain(
        links,
        {(len(parents) - 1, ""): [outside.gate]},
        make_operator=lambda described, context: Hoarder(log),
        make_context=context,
    )
    chain.open(Restored())
    return chain


def rows(*values: int) -> pl.DataFrame:
    return pl.DataFrame({"x": list(values)})


def test_time_makes_every_operator_emit_before_it_goes_on() -> None:
    outside, log = Outside(), list[str]()
    chain = make_chain([None, 0], outside, log)
    chain.head.receive(rows(1))
    chain.head.on_watermark(10)
    assert log == ["a rows [1]", "b rows [1]", "a time 10", "b time 9"]
    assert outside.shown() == [[1], Watermark(8)]


def test_a_barrier_stands_behind_all_rows_that_came_before_it() -> None:
    outside, log = Outside(), list[str]()
    chain = make_chain([None, 0, 1], outside, log)
    chain.head.receive(rows(1, 2))
    snapshots = chain.barrier(Barrier(CheckpointId(5)))
    chain.head.receive(rows(3))
    assert outside.shown() == [[1, 2], Barrier(CheckpointId(5))]
    assert [(uid, snapshot()[0].frame["x"].to_list()) for uid, snapshot in snapshots] == [
        ("a", [5]),
        ("b", [5]),
        ("c", [5]),
    ]


def test_the_end_empties_operators_from_the_top() -> None:
    outside, log = Outside(), list[str]()
    chain = make_chain([None, 0], outside, log)
    chain.head.receive(rows(1))
    chain.end()
    chain.control(EndOfInput())
    assert [line for line in log if line.endswith("end")] == ["a end", "b end"]
    assert outside.shown() == [[1], EndOfInput()]


def test_every_child_of_an_operator_gets_its_rows() -> None:
    outside, log = Outside(), list[str]()
    chain = make_chain([None, 0, 0], outside, log)
    chain.head.receive(rows(7))
    chain.head.on_watermark(1)
    assert [line for line in log if "rows" in line] == ["a rows [7]", "b rows [7]", "c rows [7]"]


class Sorter(Operator):
    """Odd rows leave by the side output "odd", negative ones by one that nobody reads."""

    def on_batch(self, frame: pl.DataFrame, port: int = 0) -> None:
        self.output.emit(frame.filter(pl.col("x") % 2 == 0))
        self.output.emit_side("odd", frame.filter(pl.col("x") % 2 == 1))
        self.output.emit_side("negative", frame.filter(pl.col("x") < 0))


def test_side_outputs_have_readers_of_their_own_and_share_time_and_barriers() -> None:
    main, side, log = Outside(), Outside(), list[str]()
    links = [
        ChainLink(operator=description("a"), parent=None),
        ChainLink(operator=description("even"), parent=0),
        ChainLink(operator=description("odd"), parent=0, output="odd"),
    ]
    chain = Chain(
        links,
        {(1, ""): [main.gate], (0, "odd"): [side.gate]},
        make_operator=lambda described, context: Sorter() if described.uid == "a" else Hoarder(log),
        make_context=context,
    )
    chain.open(Restored())
    chain.head.receive(rows(1, 2, 3, -4))
    chain.head.on_watermark(10)
    chain.barrier(Barrier(CheckpointId(1)))
    assert log == ["even rows [2, -4]", "odd rows [1, 3]", "even time 10", "odd time 10"]
    assert main.shown() == [[2, -4], Watermark(9), Barrier(CheckpointId(1))]
    assert side.shown() == [[1, 3], Watermark(10), Barrier(CheckpointId(1))]


def test_rows_are_counted_in_and_out_of_each_operator() -> None:
    outside, log = Outside(), list[str]()
    chain = make_chain([None, 0], outside, log)
    chain.head.receive(rows(1, 2, 3))
    counted = [(node.counters.rows_in, node.counters.rows_out) for node in chain.nodes]
    assert counted == [(3, 0), (0, 0)]
    chain.head.on_watermark(1)
    counted = [(node.counters.rows_in, node.counters.rows_out) for node in chain.nodes]
    assert counted == [(3, 3), (3, 3)]


def test_one_operator_that_cannot_close_does_not_keep_the_others_open() -> None:
    closed: list[str] = []

    class Closing(Hoarder):
        def close(self) -> None:
            closed.append(self.context.uid)
            if self.context.uid == "a":
                raise OSError("gone")

    outside, log = Outside(), list[str]()
    chain = make_chain([None, 0], outside, log)
    for node in chain.nodes:
        node.operator = Closing(log)
        node.operator.open(node.context, node)
    chain.close()
    assert closed == ["a", "b"]
