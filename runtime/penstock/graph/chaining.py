"""Chaining: operators whose rows stay in their subtask run in one task, as a tree of calls."""

from collections import defaultdict

from penstock.graph._data import Edge, Vertex
from penstock.graph._draft import Draft
from penstock.graph.loops import close_loops
from penstock.model.ids import Uid, VertexId
from penstock.model.specs import LoopHead
from penstock.model.tasks import ChainLink


def chain(draft: Draft) -> tuple[tuple[Vertex, ...], tuple[Edge, ...]]:
    """Vertices and the edges between them.

    An operator hangs under another when it has no other input and their rows stay in place. A union has several
    inputs, so it heads a vertex of its own; so does a loop, since rows come back to it.
    """
    home: dict[Uid, tuple[VertexId, int]] = {}
    links: dict[VertexId, list[ChainLink]] = defaultdict(list)
    parallelism: dict[VertexId, int] = {}
    edges: list[Edge] = []
    for uid, node in draft.nodes.items():
        alone = len(node.inputs) == 1 and not isinstance(node.operator.spec, LoopHead)
        if alone and draft.is_local(node, node.inputs[0]):
            (input_,) = node.inputs
            vertex, parent = home[input_.source]
            links[vertex].append(ChainLink(operator=node.operator, parent=parent, output=input_.output))
        else:
            vertex = VertexId(uid)
            links[vertex].append(ChainLink(operator=node.operator, parent=None))
            parallelism[vertex] = node.parallelism
            for input_ in node.inputs:
                source, producer = home[input_.source]
                edges.append(
                    Edge(
                        source=source,
                        producer=producer,
                        output=input_.output,
                        target=vertex,
                        port=input_.port,
                        partitioning=input_.partitioning,
                    )
                )
        home[uid] = vertex, len(links[vertex]) - 1
    vertices = tuple(
        Vertex(id=vertex, chain=tuple(chained), parallelism=parallelism[vertex]) for vertex, chained in links.items()
    )
    return vertices, close_loops(vertices, edges)
