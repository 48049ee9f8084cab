"""`collect` sinks: where their rows go on this machine, and how they come back as frames.

    <state-dir>/collected/<run>/<uid>/part-*.arrow

A run that goes on from a checkpoint goes on in the directories of the run before: what that one has committed is
part of the result.
"""

from collections.abc import Iterator
from pathlib import Path

import msgspec
import polars as pl

from penstock.connectors import read_collected
from penstock.graph import JobGraph, Vertex
from penstock.model.specs import Connector, Operator, Sink
from penstock.model.tasks import ChainLink

KIND = "collect"


def place_collected(graph: JobGraph, state_dir: Path, *, resumed: bool) -> JobGraph:
    """The same graph, with a directory for each collect sink that has none yet."""
    runs = [int(path.name) for path in (state_dir / "collected").glob("*") if path.name.isdigit()]
    last = max(runs, default=0)
    folder = state_dir.absolute() / "collected" / str(max(last, 1) if resumed else last + 1)
    vertices = tuple(_placed(vertex, folder) for vertex in graph.vertices)
    return msgspec.structs.replace(graph, vertices=vertices)


def read_frames(graph: JobGraph) -> dict[str, pl.DataFrame]:
    """Uid of each collect sink -> its committed rows."""
    return {
        operator.uid: read_collected(connector.options["directory"], operator.output)
        for operator, connector in _collect_sinks(graph)
    }


def _collect_sinks(graph: JobGraph) -> Iterator[tuple[Operator, Connector]]:
    for vertex in graph.vertices:
        for link in vertex.chain:
            spec = link.operator.spec
            if isinstance(spec, Sink) and spec.connector.kind == KIND:
                yield link.operator, spec.connector


def _placed(vertex: Vertex, folder: Path) -> Vertex:
    return msgspec.structs.replace(vertex, chain=tuple(_placed_link(link, folder) for link in vertex.chain))


def _placed_link(link: ChainLink, folder: Path) -> ChainLink:
    spec = link.operator.spec
    if not isinstance(spec, Sink) or spec.connector.kind != KIND or spec.connector.options.get("directory"):
        return link
    options = {**spec.connector.options, "directory": str(folder / link.operator.uid)}
    connector = msgspec.structs.replace(spec.connector, options=options)
    operator = msgspec.structs.replace(link.operator, spec=msgspec.structs.replace(spec, connector=connector))
    return msgspec.structs.replace(link, operator=operator)
