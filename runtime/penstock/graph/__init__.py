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
from penstock.graph.planning import plan
from penstock.graph.render import as_html, as_svg, as_text

__all__ = [
    "Edge",
    "JobGraph",
    "LogicalEdge",
    "LogicalGraph",
    "LogicalNode",
    "Region",
    "Vertex",
    "as_html",
    "as_svg",
    "as_text",
    "execution",
    "place",
    "plan",
    "slots_wanted",
    "vertex_parallelism",
]
