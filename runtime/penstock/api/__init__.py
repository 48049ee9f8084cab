"""What programs are written with: flows, streams, windows, aggregates. Builds a graph, runs nothing."""

from penstock.api import evictors as evictor
from penstock.api import triggers as trigger
from penstock.api.aggregates import AggregateCall
from penstock.api.building import GraphBuilder
from penstock.api.flows import Flow
from penstock.api.keyed_streams import KeyedStream
from penstock.api.programs import build, load_program
from penstock.api.streams import DataStream
from penstock.api.watermarks import bounded, punctuated
from penstock.api.windowed import WindowedStream
from penstock.api.windows import WindowAssigner, count_window, global_window, session, sliding, tumbling

__all__ = [
    "AggregateCall",
    "DataStream",
    "Flow",
    "GraphBuilder",
    "KeyedStream",
    "WindowAssigner",
    "WindowedStream",
    "bounded",
    "build",
    "count_window",
    "evictor",
    "global_window",
    "load_program",
    "punctuated",
    "session",
    "sliding",
    "trigger",
    "tumbling",
]
