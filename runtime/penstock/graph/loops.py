"""Loops: the feedback edges that close them, and which edges are part of one.

A program has no cycles: the tail of a loop is an operator without consumers that names its head. Only here, when
everything else is planned, is the loop closed. Marks that find out whether a loop is empty travel on the edges that
lead from its head to its tail, so each edge has to know.
"""

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence

import msgspec

from penstock.graph._data import Edge, Vertex
from penstock.model.errors import UserError
from penstock.model.ids import Uid, VertexId
from penstock.model.specs import Feedback, LoopTail

FEEDBACK_PORT = 1


def close_loops(vertices: Sequence[Vertex], edges: Sequence[Edge]) -> tuple[Edge, ...]:
    """All edges, with those that lead back; each inside a loop with the head of it."""
    forward: dict[VertexId, list[VertexId]] = defaultdict(list)
    backward: dict[VertexId, list[VertexId]] = defaultdict(list)
    for edge in edges:
        forward[edge.source].append(edge.target)
        backward[edge.target].append(edge.source)
    closing: list[Edge] = []
    loop_of: dict[VertexId, Uid] = {}
    for vertex in vertices:
        for index, link in enumerate(vertex.chain):
            if not isinstance(link.operator.spec, LoopTail):
                continue
            head = link.operator.spec.head
            for member in _reached(VertexId(head), forward) & _reached(vertex.id, backward):
                if member in loop_of:
                    raise _crossing(loop_of[member], head, link.operator.place)
                loop_of[member] = head
            closing.append(
                Edge(
                    source=vertex.id,
                    producer=index,
                    target=VertexId(head),
                    port=FEEDBACK_PORT,
                    partitioning=Feedback(),
                    loop=head,
                )
            )
    return (*(msgspec.structs.replace(edge, loop=_shared(edge, loop_of)) for edge in edges), *closing)


def _shared(edge: Edge, loop_of: Mapping[VertexId, Uid]) -> Uid | None:
    """The loop that both ends are part of."""
    loop = loop_of.get(edge.source)
    return loop if loop == loop_of.get(edge.target) else None


def _reached(start: VertexId, neighbours: Mapping[VertexId, Iterable[VertexId]]) -> set[VertexId]:
    reached, waiting = {start}, [start]
    while waiting:
        found = [vertex for vertex in neighbours.get(waiting.pop(), ()) if vertex not in reached]
        reached.update(found)
        waiting += found
    return reached


def _crossing(first: Uid, second: Uid, place: str) -> UserError:
    return UserError(
        "P025",
        f'loops "{first}" and "{second}" share operators: a loop cannot be inside another',
        where=place or None,
        fix="end the first loop before the second begins, or make one loop of both, with a column that says which",
    )
