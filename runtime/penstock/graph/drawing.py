"""A job graph as SVG, and as a page that holds it.

Layout by hand. All text of the user is escaped.
"""

from dataclasses import dataclass
from html import escape

from penstock.graph._data import JobGraph
from penstock.graph.outlines import outline
from penstock.model.views import PlanVertex, PlanView

_CHAR_WIDTH = 6.7
"""Of the monospace font at 11 px; the widest line sets a box's width."""
_LINE_HEIGHT = 17
_PADDING = 12
_COLUMN_GAP = 130
_ROW_GAP = 28
_STYLE = """
.box { fill: #f7f9fb; stroke: #4a6785; stroke-width: 1.2 }
.title { font-weight: 600; fill: #14283c }
.operator { fill: #14283c }
.detail { fill: #5a6b7b }
.edge { fill: none; stroke: #4a6785; stroke-width: 1.4; marker-end: url(#arrow) }
.back { stroke-dasharray: 5 4 }
.label { fill: #8a4b08 }
text { font: 11px ui-monospace, Menlo, Consolas, monospace }
"""


@dataclass(frozen=True, slots=True)
class _Box:
    x: float
    y: float
    width: float
    height: float
    lines: list[tuple[str, str]]

    @property
    def middle(self) -> float:
        return self.y + self.height / 2


def as_svg(graph: JobGraph) -> str:
    """The graph as one SVG element, sources on the left."""
    plan = outline(graph)
    boxes = _layout(plan)
    width = max((box.x + box.width for box in boxes.values()), default=0) + _PADDING
    height = max((box.y + box.height for box in boxes.values()), default=0) + _PADDING
    height += _ROW_GAP if any(edge.is_feedback for edge in plan.edges) else 0
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width:.0f} {height:.0f}" '
        f'width="{width:.0f}" height="{height:.0f}" role="img">',
        f"<title>{escape(graph.name)}</title>",
        f"<style>{_STYLE}</style>",
        '<defs><marker id="arrow" viewBox="0 0 8 8" refX="8" refY="4" markerWidth="8" markerHeight="8" '
        'orient="auto"><path d="M0 0 L8 4 L0 8 z" fill="#4a6785"/></marker></defs>',
    ]
    for vertex in plan.vertices:
        # Edges into the same vertex enter it at different heights, so that their labels do not lie on each other.
        inward = [edge for edge in plan.edges if edge.target == vertex.id and not edge.is_feedback]
        parts += [
            _draw_edge(boxes[edge.source], boxes[vertex.id], edge.label, (n + 1) / (len(inward) + 1))
            for n, edge in enumerate(inward)
        ]
    parts += [_draw_feedback(boxes[edge.source], boxes[edge.target]) for edge in plan.edges if edge.is_feedback]
    parts += [_draw_box(box) for box in boxes.values()]
    return "\n".join([*parts, "</svg>"]) + "\n"


def as_html(graph: JobGraph) -> str:
    """A page that needs nothing else."""
    kind = "bounded" if graph.bounded else "unbounded"
    warnings = "".join(f"<p>warning: {escape(warning)}</p>\n" for warning in graph.warnings)
    return (
        '<!doctype html>\n<html lang="en">\n<head>\n<meta charset="utf-8">\n'
        f"<title>{escape(graph.name)}</title>\n"
        "<style>body { font: 14px system-ui, sans-serif; margin: 2em; color: #14283c }</style>\n"
        f"</head>\n<body>\n<h1>{escape(graph.name)}</h1>\n"
        f"<p>{kind}, max parallelism {graph.max_parallelism}</p>\n{warnings}{as_svg(graph)}</body>\n</html>\n"
    )


def _layout(plan: PlanView) -> dict[str, _Box]:
    lines = {vertex.id: _lines(vertex) for vertex in plan.vertices}
    boxes: dict[str, _Box] = {}
    x = float(_PADDING)
    for column in range(max((vertex.column for vertex in plan.vertices), default=-1) + 1):
        members = [vertex.id for vertex in plan.vertices if vertex.column == column]
        width = max(_width(lines[member]) for member in members)
        y = float(_PADDING)
        for member in members:
            height = len(lines[member]) * _LINE_HEIGHT + 2 * _PADDING
            boxes[member] = _Box(x, y, width, height, lines[member])
            y += height + _ROW_GAP
        x += width + _COLUMN_GAP
    return boxes


def _lines(vertex: PlanVertex) -> list[tuple[str, str]]:
    """Text and class of each line in a vertex's box."""
    lines = [(f"{'  ' * line.depth}{line.text}", "detail" if line.is_detail else "operator") for line in vertex.lines]
    return [(f"{vertex.id}  x{vertex.parallelism}", "title"), *lines]


def _width(lines: list[tuple[str, str]]) -> float:
    return max(len(text) for text, _ in lines) * _CHAR_WIDTH + 2 * _PADDING


def _draw_box(box: _Box) -> str:
    texts = "".join(
        f'<text class="{kind}" x="{box.x + _PADDING:.0f}" '
        f'y="{box.y + _PADDING + (index + 0.75) * _LINE_HEIGHT:.0f}" xml:space="preserve">{escape(text)}</text>'
        for index, (text, kind) in enumerate(box.lines)
    )
    return (
        f'<g><rect class="box" x="{box.x:.0f}" y="{box.y:.0f}" width="{box.width:.0f}" '
        f'height="{box.height:.0f}" rx="6"/>{texts}</g>'
    )


def _draw_edge(source: _Box, target: _Box, label: str, share: float) -> str:
    start_x, start_y = source.x + source.width, source.middle
    end_x, end_y = target.x, target.y + target.height * share
    bend = (end_x - start_x) / 2
    return (
        f'<path class="edge" d="M{start_x:.0f} {start_y:.0f} C{start_x + bend:.0f} {start_y:.0f} '
        f'{end_x - bend:.0f} {end_y:.0f} {end_x:.0f} {end_y:.0f}"/>'
        f'<text class="label" x="{end_x - 8:.0f}" y="{end_y - 6:.0f}" text-anchor="end">{escape(label)}</text>'
    )


def _draw_feedback(tail: _Box, head: _Box) -> str:
    """Underneath both boxes, back to the left."""
    start_x, start_y = tail.x + tail.width / 2, tail.y + tail.height
    end_x, end_y = head.x + head.width / 2, head.y + head.height
    low = max(start_y, end_y) + _ROW_GAP / 2
    return (
        f'<path class="edge back" d="M{start_x:.0f} {start_y:.0f} C{start_x:.0f} {low:.0f} '
        f'{end_x - _PADDING:.0f} {low:.0f} {end_x - _PADDING:.0f} {end_y:.0f}"/>'
        f'<text class="label" x="{end_x:.0f}" y="{low:.0f}" text-anchor="start">feedback</text>'
    )
