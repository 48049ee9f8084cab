"""What a logical graph must be like before it is planned. Refusals name the operator, its place and the fix."""

from penstock.graph._data import LogicalGraph, LogicalNode
from penstock.model import specs
from penstock.model.errors import UserError
from penstock.model.ids import Uid
from penstock.state.key_groups import MAX_MAX_PARALLELISM


def validate(logical: LogicalGraph, *, parallelism: int, max_parallelism: int) -> None:
    """Refuse a program that reads nothing, writes nothing, names two operators alike or asks for too much."""
    _require_names_of_their_own(logical)
    _require_inputs_first(logical)
    _require_consumers(logical)
    if not 1 <= max_parallelism <= MAX_MAX_PARALLELISM:
        raise UserError(
            "P013",
            f"max parallelism must be from 1 to {MAX_MAX_PARALLELISM}; got {max_parallelism}",
            fix="128 suits most jobs; it is the number of key groups, and stays with the state for ever",
        )
    for node in logical.nodes:
        wanted = node.parallelism if node.parallelism is not None else parallelism
        if not 1 <= wanted <= max_parallelism:
            raise UserError(
                "P013",
                f'operator "{node.operator.uid}" has parallelism {wanted}; allowed is 1 to {max_parallelism}, '
                "the max parallelism",
                where=node.operator.place or None,
                fix="lower the parallelism, or raise max parallelism before the job has state",
            )


def _require_names_of_their_own(logical: LogicalGraph) -> None:
    seen: dict[Uid, LogicalNode] = {}
    for node in logical.nodes:
        uid = node.operator.uid
        if uid in seen:
            raise UserError(
                "P003",
                f'uid "{uid}" used by 2 operators: here and at {seen[uid].operator.place}',
                where=node.operator.place or None,
                fix="state is found by uid: give each operator its own",
            )
        seen[uid] = node


def _require_inputs_first(logical: LogicalGraph) -> None:
    """Nodes are listed after their inputs; with that, there are no cycles."""
    position = {node.operator.uid: index for index, node in enumerate(logical.nodes)}
    for edge in logical.edges:
        if edge.source not in position or edge.target not in position:
            raise UserError("P002", f'edge "{edge.source}" -> "{edge.target}" leads to no operator')
        if position[edge.source] >= position[edge.target]:
            raise UserError("P002", f'operators "{edge.source}" and "{edge.target}" read each other in a cycle')


def _require_consumers(logical: LogicalGraph) -> None:
    if not logical.nodes:
        raise UserError(
            "P002",
            f'program "{logical.name}" reads nothing',
            fix="begin with flow.read(...), end with .write(...)",
        )
    outputs = {node.operator.uid: {side.name for side in node.operator.side_outputs} for node in logical.nodes}
    for edge in logical.edges:
        if edge.output and edge.output not in outputs[edge.source]:
            raise UserError("P002", f'operator "{edge.source}" has no side output "{edge.output}" for "{edge.target}"')
    read = {edge.source for edge in logical.edges}
    for node in logical.nodes:
        if node.operator.uid not in read and not isinstance(node.operator.spec, specs.Sink | specs.LoopTail):
            raise UserError(
                "P002",
                f'operator "{node.operator.uid}" has no consumer',
                where=node.operator.place or None,
                fix="write it somewhere: .write(ps.print()), or remove it",
            )
