"""Connectors: what programs read from and write to, and the task side of each."""

from penstock.connectors.columns import choice, now, sequence, timestamps, uniform
from penstock.connectors.declared import declared_schema
from penstock.connectors.definitions import (
    Endpoint,
    SinkDefinition,
    SourceDefinition,
    collect,
    csv,
    discard,
    generate,
    items,
    json_lines,
    nexmark,
    parquet,
    print,  # noqa: A004 - ps.print for users
    socket_lines,
)
from penstock.connectors.other_sinks import read_collected
from penstock.connectors.registry import make_sink, make_source

__all__ = [
    "Endpoint",
    "SinkDefinition",
    "SourceDefinition",
    "choice",
    "collect",
    "csv",
    "declared_schema",
    "discard",
    "generate",
    "items",
    "json_lines",
    "make_sink",
    "make_source",
    "nexmark",
    "now",
    "parquet",
    "print",
    "read_collected",
    "sequence",
    "socket_lines",
    "timestamps",
    "uniform",
]
