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

__all__ = ["Edge", "JobGraph", "LogicalEdge", "LogicalGraph", "LogicalNode", "Region", "Vertex"]
