"""A job graph as what is drawn of it: boxes with lines in columns, and arrows. Drawn as SVG, and by the dashboard."""

from collections.abc import Iterator

from penstock.graph import describing
from penstock.graph._data import Edge, JobGraph, Vertex
from penstock.model.ids import VertexId
from penstock.model.views import PlanEdge, PlanLine, PlanVertex, PlanView


def outline(graph: JobGraph) -> PlanView:
    """Sources are in column 0."""
    columns: dict[VertexId, int] = {}
    for vertex in graph.vertices:  # inputs come first
        inputs = [columns[e.source] for e in graph.edges if e.target == vertex.id and not e.is_feedback]
        columns[vertex.id] = max(inputs, default=-1) + 1
    return PlanView(
        name=graph.name,
        vertices=tuple(
            PlanVertex(
                id=vertex.id, parallelism=vertex.parallelism, column=columns[vertex.id], lines=tuple(_lines(vertex))
            )
            for vertex in graph.vertices
        ),
        edges=tuple(
            PlanEdge(source=edge.source, target=edge.target, label=_label(edge), is_feedback=edge.is_feedback)
            for edge in graph.edges
        ),
    )


def _label(edge: Edge) -> str:
    if edge.is_feedback:
        return "feedback"
    spread = describing.partitioning(edge.partitioning)
    return f"{edge.output}: {spread}" if edge.output else spread


def _lines(vertex: Vertex) -> Iterator[PlanLine]:
    depths: list[int] = []
    for link in vertex.chain:
        depth = 0 if link.parent is None else depths[link.parent] + 1
        depths.append(depth)
        if link.output:
            yield PlanLine(text=f"of{describing.output(link.output)}:", depth=depth - 1, is_detail=True)
        name = describing.own_name(link.operator)
        steps = describing.describe(link.operator)
        first, *others = [name, *steps] if name else steps
        yield PlanLine(text=first, uid=link.operator.uid, depth=depth, is_detail=not name)
        yield from (PlanLine(text=step, depth=depth + bool(name), is_detail=True) for step in others)
