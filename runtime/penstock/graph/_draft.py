"""The graph while it is being planned: operators with their parallelism and inputs, in an order that inputs lead."""

from collections import defaultdict
from dataclasses import dataclass, field, replace

from penstock.graph._data import LogicalGraph
from penstock.model.changes import CHANGE
from penstock.model.ids import Uid
from penstock.model.specs import (
    MAIN_OUTPUT,
    BufferedWindow,
    Forward,
    Hash,
    Operator,
    Partitioning,
    Rebalance,
    Retract,
    RunningAggregate,
    Schema,
    SessionAggregate,
    WindowAggregate,
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Input:
    """Rows that a node takes."""

    source: Uid
    port: int
    partitioning: Partitioning
    output: str = MAIN_OUTPUT
    """Which output of the source."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Node:
    """One operator."""

    operator: Operator
    parallelism: int
    inputs: tuple[Input, ...] = ()


@dataclass(frozen=True, slots=True)
class Draft:
    """A graph between two steps of planning. Steps make a new one."""

    nodes: dict[Uid, Node] = field(default_factory=dict)

    def consumers(self) -> dict[Uid, list[Uid]]:
        """Who reads each node, whichever of its outputs; one that reads it twice is there twice."""
        readers: dict[Uid, list[Uid]] = defaultdict(list)
        for uid, node in self.nodes.items():
            for input_ in node.inputs:
                readers[input_.source].append(uid)
        return readers

    def schema(self, input_: Input) -> Schema:
        """Columns of the rows that an input brings."""
        return self.nodes[input_.source].operator.schema_of(input_.output)

    def is_local(self, node: Node, input_: Input) -> bool:
        """Rows of this input stay in their subtask."""
        return isinstance(input_.partitioning, Forward) and self.nodes[input_.source].parallelism == node.parallelism


def draft(logical: LogicalGraph, *, parallelism: int) -> Draft:
    """The program with every parallelism and partitioning settled."""
    inputs: dict[Uid, list[Input]] = defaultdict(list)
    for edge in logical.edges:
        inputs[edge.target].append(
            Input(source=edge.source, port=edge.port, partitioning=edge.partitioning, output=edge.output)
        )
    nodes: dict[Uid, Node] = {}
    for logical_node in logical.nodes:
        operator = logical_node.operator
        node = Node(
            operator=operator,
            parallelism=1 if _is_global(operator) else logical_node.parallelism or parallelism,
            inputs=tuple(sorted(inputs[operator.uid], key=lambda input_: input_.port)),
        )
        nodes[operator.uid] = replace(node, inputs=tuple(_settled(input_, node, nodes) for input_ in node.inputs))
    return Draft(nodes)


_WITHOUT_KEY_IN_ONE = (WindowAggregate, SessionAggregate, BufferedWindow, RunningAggregate, Retract)


def _is_global(operator: Operator) -> bool:
    """A window or running aggregate without a key has one result, so one subtask makes it."""
    return isinstance(operator.spec, _WITHOUT_KEY_IN_ONE) and not operator.spec.keys


def _settled(input_: Input, node: Node, nodes: dict[Uid, Node]) -> Input:
    sender = nodes[input_.source].parallelism
    if sender == node.parallelism == 1:
        # One sender and one receiver: however rows are spread, they all go there, and need no exchange.
        return replace(input_, partitioning=Forward())
    if isinstance(input_.partitioning, Forward) and sender != node.parallelism:
        return replace(input_, partitioning=_spread(nodes[input_.source].operator, input_.output))
    return input_


def _spread(operator: Operator, output: str) -> Partitioning:
    """Evenly; changes of the same row take the same way, or they would overtake each other."""
    if operator.changes is None or output != MAIN_OUTPUT:
        return Rebalance()
    keys = operator.changes.keys
    if keys is None:
        keys = tuple(field.name for field in operator.output if field.name != CHANGE and "(" not in field.type)
    return Hash(keys=keys)
