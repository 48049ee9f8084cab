"""Another size for a job: the plan for it, and which key groups have another owner then. Pure.

A plan depends on the parallelism: at one subtask there is nothing to exchange, and what is chained at equal
parallelism is cut where it differs. So the program is planned again. State does not mind, it is found by uid.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field

import msgspec

from penstock.graph._data import JobGraph, LogicalGraph
from penstock.graph.planning import plan
from penstock.model.errors import UserError
from penstock.model.ids import Uid
from penstock.model.specs import Hash
from penstock.state.key_groups import owners


@dataclass(frozen=True, slots=True)
class Size:
    """The parallelism of a job."""

    parallelism: int
    """Of operators that name none."""
    operators: Mapping[str, int] = field(default_factory=dict)
    """Of those for which somebody has asked for another than the program does."""

    def changed(self, parallelism: int | None, operators: Mapping[str, int]) -> "Size":
        """With what is asked for; the rest stays."""
        return Size(self.parallelism if parallelism is None else parallelism, {**self.operators, **operators})


def size_of(graph: JobGraph) -> Size:
    """As it was submitted."""
    return Size(graph.parallelism)


def resized(graph: JobGraph, size: Size) -> JobGraph:
    """The same job, submitted at another size. UserError when it cannot have that."""
    program = graph.program
    if program is None:
        raise UserError(
            "S060",
            f'"{graph.name}" was submitted without its program, by an older version: it cannot be planned anew',
            fix="stop it with a savepoint, and start it from there with the parallelism that it is to have",
        )
    known = {node.operator.uid for node in program.nodes}
    for uid in size.operators:
        if uid not in known:
            raise UserError(
                "S061", f'there is no operator "{uid}"', fix=f"operators of the job: {', '.join(sorted(known))}"
            )
    planned = plan(
        _with_operators(program, size.operators),
        parallelism=size.parallelism,
        max_parallelism=graph.max_parallelism,
        settings=graph.settings,
        bounded=graph.bounded,
        versions=graph.versions,
    )
    sizes = operator_sizes(planned)
    for uid, wanted in size.operators.items():
        if sizes.get(uid, wanted) != wanted:
            raise UserError(
                "S061",
                f'operator "{uid}" has no key: it has one result, which one subtask makes',
                fix="leave its parallelism at 1",
            )
    return msgspec.structs.replace(planned, program=program, warnings=graph.warnings)


def operator_sizes(graph: JobGraph) -> dict[str, int]:
    """Parallelism by operator, of those that the program names."""
    named = {node.operator.uid for node in graph.program.nodes} if graph.program else None
    return {
        link.operator.uid: vertex.parallelism
        for vertex in graph.vertices
        for link in vertex.chain
        if named is None or link.operator.uid in named
    }


def moved_groups(before: JobGraph, after: JobGraph) -> int:
    """How many key groups get another owner, over all operators that take rows by key."""
    sizes = [
        {link.operator.uid: v.parallelism for v in graph.vertices for link in v.chain} for graph in (before, after)
    ]
    keyed = {edge.target for graph in (before, after) for edge in graph.edges if isinstance(edge.partitioning, Hash)}
    tables = [tuple(owners(size.get(Uid(head), 1), after.max_parallelism) for size in sizes) for head in sorted(keyed)]
    return sum(1 for old, new in tables for _ in moves(old, new))


def moves(before: Sequence[int], after: Sequence[int]) -> Iterator[tuple[int, int, int]]:
    """Key groups that get another owner, of two tables group -> subtask: (group, from, to)."""
    for group, (old, new) in enumerate(zip(before, after, strict=True)):
        if old != new:
            yield group, old, new


def _with_operators(program: LogicalGraph, operators: Mapping[str, int]) -> LogicalGraph:
    return msgspec.structs.replace(
        program,
        nodes=tuple(
            msgspec.structs.replace(node, parallelism=operators.get(Uid(node.operator.uid), node.parallelism))
            for node in program.nodes
        ),
    )
