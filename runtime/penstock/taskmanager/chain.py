"""The chained operators of one subtask: a tree of direct calls.

Rows go down the tree as they are emitted. Time, barriers and the end go down in pre-order, each operator before
those that hang under it, so that what an operator emits because of them is in front of them everywhere.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial

import polars as pl

from penstock.checkpoint.state_objects import Restored
from penstock.exchange.gates import Gate
from penstock.model.clocks import MIN_WATERMARK
from penstock.model.elements import Barrier, Element, LoopMark
from penstock.model.errors import PenstockError
from penstock.model.ids import CheckpointId, Uid
from penstock.model.specs import MAIN_OUTPUT
from penstock.model.specs import Operator as OperatorDescription
from penstock.model.tasks import ChainLink
from penstock.operators import side_by_side
from penstock.operators.base import Operator, OperatorContext, Output, Snapshot
from penstock.operators.divided import Divided

MakeOperator = Callable[[OperatorDescription, OperatorContext], Operator]


@dataclass(frozen=True, slots=True)
class Readers:
    """Where the rows of one output go: operators of the same chain, and gates."""

    children: "list[Node]" = field(default_factory=list)
    gates: list[Gate] = field(default_factory=list)

    def emit(self, frame: pl.DataFrame) -> None:
        """Rows, to all of them."""
        for child in self.children:
            child.receive(frame)
        for gate in self.gates:
            gate.emit(frame)


class Node:
    """One operator, and who reads each of its outputs. Is its own `Output`."""

    def __init__(self, description: OperatorDescription, operator: Operator, context: OperatorContext) -> None:
        self.description, self.operator, self.context = description, operator, context
        self.counters = context.counters
        self._main = Readers()
        self.outputs = {MAIN_OUTPUT: self._main}
        self.passed = MIN_WATERMARK
        """How far event time is behind this operator, as it was told last."""
        self.divided: Divided | None = None
        """In front of an operator that ran before: only what it makes of event time counts."""

    def readers(self, output: str) -> Readers:
        """Who reads that output."""
        return self.outputs.setdefault(output, Readers())

    def receive(self, frame: pl.DataFrame, port: int = 0) -> None:
        """Rows for the operator."""
        self.counters.rows_in += frame.height
        self.operator.on_batch(frame, port)

    def emit(self, frame: pl.DataFrame) -> None:
        """Rows from the operator."""
        if frame.height:
            self.counters.rows_out += frame.height
            self._main.emit(frame)

    def emit_side(self, name: str, frame: pl.DataFrame) -> None:
        """Rows from the operator, beside its main output."""
        if frame.height and name in self.outputs:
            self.outputs[name].emit(frame)

    def pass_watermark(self, time: int) -> None:
        """Event time has advanced behind this operator."""
        if self.divided is not None:
            self.divided.adopted_passed(time)
        else:
            self.release_watermark(time)

    def release_watermark(self, time: int) -> None:
        """Pass it on."""
        self.passed = time
        for readers in self.outputs.values():
            for child in readers.children:
                child.on_watermark(time)
            for gate in readers.gates:
                gate.watermark(time)

    def on_watermark(self, time: int) -> None:
        """Event time has advanced in front of this operator."""
        passed = self.operator.on_watermark(time)
        if passed is not None:
            self.pass_watermark(passed)

    def divide(self, divided: Divided, *, watermark: int) -> None:
        """The operator becomes the first part of `divided`."""
        operator, self.operator, self.divided = self.operator, divided, divided
        divided.open(self.context, _BehindDivided(self))
        divided.adopt(operator, watermark=watermark, passed=self.passed)

    def walk(self) -> "Iterator[Node]":
        """This operator and all under it, in pre-order."""
        yield self
        for readers in self.outputs.values():
            for child in readers.children:
                yield from child.walk()


class _BehindDivided(Output):
    """What a divided operator says itself, not one of its parts."""

    def __init__(self, node: Node) -> None:
        self._node = node

    def emit(self, frame: pl.DataFrame) -> None:
        """As it is."""
        self._node.emit(frame)

    def emit_side(self, name: str, frame: pl.DataFrame) -> None:
        """As it is."""
        self._node.emit_side(name, frame)

    def pass_watermark(self, time: int) -> None:
        """Really."""
        self._node.release_watermark(time)


class Chain:
    """All operators of a subtask."""

    def __init__(
        self,
        links: Sequence[ChainLink],
        gates: Mapping[tuple[int, str], Sequence[Gate]],
        *,
        make_operator: MakeOperator,
        make_context: Callable[[Uid], OperatorContext],
    ) -> None:
        self._make_operator = make_operator
        nodes: list[Node] = []
        for link in links:
            context = make_context(link.operator.uid)
            node = Node(link.operator, make_operator(link.operator, context), context)
            if link.parent is not None:
                nodes[link.parent].readers(link.output).children.append(node)
            nodes.append(node)
        for (producer, output), leaving in gates.items():
            nodes[producer].readers(output).gates.extend(leaving)
        self.head = nodes[0]
        self.nodes = tuple(self.head.walk())
        self._by_uid = {node.description.uid: node for node in self.nodes}
        self.gates = tuple(gate for node in self.nodes for readers in node.outputs.values() for gate in readers.gates)
        self.find_askable()

    def find_askable(self) -> None:
        """Operators are asked at every turn, and most have nothing to say."""
        self._paced = self._overriding("ready_in_us")
        self._timed = self._overriding("next_processing_time")
        self._holding = self._overriding("in_flight")

    def node(self, uid: Uid) -> Node:
        """An operator of the chain."""
        return self._by_uid[uid]

    @property
    def full(self) -> bool:
        """Some output has no room."""
        return any(gate.full for gate in self.gates)

    @property
    def in_flight(self) -> bool:
        """Some operator has taken rows that will leave later."""
        return any(operator.in_flight for operator in self._holding)

    @property
    def ready_in_us(self) -> int:
        """How long until every operator takes rows."""
        return max((operator.ready_in_us() for operator in self._paced), default=0)

    def open(self, restored: Restored) -> None:
        """Open every operator, the last ones first: an operator may emit as soon as it is open."""
        for node in reversed(self.nodes):
            node.operator.open(node.context, node)
        for node in reversed(self.nodes):
            if files := restored.files.get(node.description.uid):
                node.operator.restore_files(files)
            if sections := restored.get(node.description.uid):
                make = partial(self._make_operator, node.description, node.context)
                node.operator = side_by_side.restored(node.operator, node.description.spec, make, sections)
        for node in reversed(self.nodes):
            node.operator.on_restored()
        self.find_askable()

    def barrier(self, barrier: Barrier) -> list[tuple[Uid, Snapshot]]:
        """Cut here: operators empty what must be in front, remember their state, and the barrier goes on."""
        for node in self.nodes:
            node.operator.on_barrier()
        snapshots = [(node.description.uid, node.operator.snapshot(barrier.checkpoint)) for node in self.nodes]
        self.control(barrier)
        return snapshots

    def control(self, element: Element) -> None:
        """To all gates."""
        for gate in self.gates:
            gate.control(element)

    def mark(self, mark: LoopMark) -> None:
        """Behind all rows of a loop, and only where it goes on; dirty when rows went there, or may yet go, unasked."""
        leading = [gate for gate in self.gates if gate.destination.loop == mark.loop]
        owes_rows = self.in_flight or self.next_processing_time() is not None
        dirty = mark.dirty or owes_rows or any(gate.carried_rows for gate in leading)
        for gate in leading:
            gate.mark(LoopMark(mark.loop, mark.round, dirty))

    def end(self) -> None:
        """All input has ended and the last watermark is through."""
        for node in self.nodes:
            node.operator.on_end()

    def committed(self, checkpoint: CheckpointId) -> None:
        """The checkpoint is in the journal."""
        for node in self.nodes:
            node.operator.on_committed(checkpoint)

    def next_processing_time(self) -> int | None:
        """The earliest wall-clock time that an operator waits for."""
        times = [time for operator in self._timed if (time := operator.next_processing_time()) is not None]
        return min(times, default=None)

    def on_processing_time(self, now_us: int) -> None:
        """Wall-clock time that somebody waited for has come."""
        for operator in self._timed:
            due = operator.next_processing_time()
            if due is not None and due <= now_us:
                operator.on_processing_time(now_us)

    def flush(self, now: float, *, input_paused: bool) -> float | None:
        """Let batches leave that are due; the seconds until the next one is."""
        waits = [wait for gate in self.gates if (wait := gate.flush(now, input_paused=input_paused)) is not None]
        return min(waits, default=None)

    def _overriding(self, method: str) -> tuple[Operator, ...]:
        operators = (node.operator for node in self.nodes)
        return tuple(each for each in operators if getattr(type(each), method) is not getattr(Operator, method))

    def close(self) -> None:
        """Release everything, whatever happens on the way."""
        for node in self.nodes:
            try:
                node.operator.close()
            except (PenstockError, OSError):
                continue
