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
from penstock.graph.execution import execution, place, place_by_index, slots_wanted, vertex_parallelism
from penstock.graph.live import NotLive, changed_vertices, channels_of, resized_live
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
    "NotLive",
    "Region",
    "Size",
    "Vertex",
    "as_html",
    "as_svg",
    "as_text",
    "changed_vertices",
    "channels_of",
    "execution",
    "moved_groups",
    "moves",
    "narrowed",
    "operator_sizes",
    "outline",
    "place",
    "place_by_index",
    "plan",
    "resized",
    "resized_live",
    "size_of",
    "slots_wanted",
    "vertex_parallelism",
]
