"""A job graph for people: as text, as SVG, as a page of its own."""

from collections.abc import Iterator

from penstock.graph import describing, drawing
from penstock.graph._data import Edge, JobGraph, Vertex

as_svg = drawing.as_svg
as_html = drawing.as_html


def as_text(graph: JobGraph) -> str:
    """The graph as an indented outline: vertices in order, each with its inputs and its tree of operators."""
    widest = max((vertex.parallelism for vertex in graph.vertices), default=0)
    kind = "bounded" if graph.bounded else "unbounded"
    lines = [f"{graph.name}: {kind}, parallelism {widest}, max parallelism {graph.max_parallelism}"]
    for vertex in graph.vertices:
        lines += ["", f"{vertex.id}  x{vertex.parallelism}"]
        lines += [f"  <- {_input(edge, graph)}" for edge in graph.edges if edge.target == vertex.id]
        lines += _operators(vertex, 0, "  ")
    lines += [line for warning in graph.warnings for line in ("", f"warning: {warning}")]
    return "\n".join(lines) + "\n"


def _input(edge: Edge, graph: JobGraph) -> str:
    source = next(vertex for vertex in graph.vertices if vertex.id == edge.source)
    producer = source.chain[edge.producer].operator
    inside = "" if edge.producer == 0 else f" / {producer.uid}"
    side = describing.output(edge.output)
    port = f" into port {edge.port}" if edge.port else ""
    return f"{describing.partitioning(edge.partitioning)} from {edge.source}{inside}{side}{port}"


def _operators(vertex: Vertex, index: int, indent: str) -> Iterator[str]:
    operator = vertex.chain[index].operator
    if side := vertex.chain[index].output:
        yield f"{indent[2:]}of{describing.output(side)}:"
    name = describing.own_name(operator)
    label = f"{name}: " if name else ""
    for number, step in enumerate(describing.describe(operator)):
        yield f"{indent}{label if number == 0 else ' ' * len(label)}{step}"
    children = [child for child, link in enumerate(vertex.chain) if link.parent == index]
    if len(children) != 1:
        yield f"{indent}  ({describing.columns(operator.output)})"
    for child in children:
        yield from _operators(vertex, child, indent + "  ")
