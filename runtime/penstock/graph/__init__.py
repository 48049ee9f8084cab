"""Logical graph -> fused, chained job graph -> execution graph. Plain data and pure functions."""

from penstock.graph._data import (
    Edge,
    JobGraph,
    LogicalEdge,
    LogicalGraph,
    LogicalNode,
    Region,
    Vertex,
)
from penstock.graph.execution import execution, place, slots_wanted, vertex_parallelism
from penstock.graph.outlines import outline
from penstock.graph.planning import narrowed, plan
from penstock.graph.render import as_html, as_svg, as_text
from penstock.graph.resizing import Size, moved_groups, moves, operator_sizes, resized, size_of

__all__ = [
    "Edge",
    "JobGraph",
    "LogicalEdge",
    "LogicalGraph",
    "LogicalNode",
    "Region",
    "Size",
    "Vertex",
    "as_html",
    "as_svg",
    "as_text",
    "execution",
    "moved_groups",
    "moves",
    "narrowed",
    "operator_sizes",
    "outline",
    "place",
    "plan",
    "resized",
    "size_of",
    "slots_wanted",
    "vertex_parallelism",
]
