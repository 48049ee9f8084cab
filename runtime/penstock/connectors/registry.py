"""From a connector's kind to the class that does its work in a task."""

import functools
from collections.abc import Callable

from penstock.connectors import base
from penstock.connectors.csv_files import CsvFormat
from penstock.connectors.file_formats import OUTPUT_FORMATS, OutputFormat
from penstock.connectors.file_sink import FileSink
from penstock.connectors.files import FileFormat, FileSource
from penstock.connectors.generated import GeneratedSource
from penstock.connectors.item_list import ItemSource
from penstock.connectors.json_files import JsonFormat
from penstock.connectors.nexmark import NexmarkSource
from penstock.connectors.object_sink import ObjectSink
from penstock.connectors.other_sinks import DiscardSink, PrintSink
from penstock.connectors.parquet_files import ParquetFormat
from penstock.connectors.places import in_store
from penstock.connectors.socket_source import SocketSource
from penstock.model.errors import UserError
from penstock.model.specs import Connector, Schema

FILE_FORMATS: dict[str, FileFormat] = {
    "parquet": ParquetFormat(),
    "csv": CsvFormat(),
    "json-lines": JsonFormat(),
}


def _file_sink(output: OutputFormat, connector: Connector, context: base.SinkContext) -> base.Sink:
    """By where the files go."""
    make = ObjectSink if in_store(connector.options.get("directory", "")) else FileSink
    return make(output, connector, context)


_SOURCES: dict[str, Callable[[Connector], base.Source]] = {
    **{kind: functools.partial(FileSource, file_format) for kind, file_format in FILE_FORMATS.items()},
    "generate": GeneratedSource,
    "items": ItemSource,
    "nexmark": NexmarkSource,
    "socket-lines": SocketSource,
}

_SINKS: dict[str, Callable[[Connector, base.SinkContext], base.Sink]] = {
    **{kind: functools.partial(_file_sink, output) for kind, output in OUTPUT_FORMATS.items()},
    "discard": DiscardSink,
    "print": PrintSink,
}


def make_source(connector: Connector) -> base.Source:
    """The task side of a source; its definition must have been resolved."""
    if connector.kind not in _SOURCES:
        raise _unknown("source", connector.kind, sorted(_SOURCES))
    return _SOURCES[connector.kind](connector)


def make_sink(connector: Connector, schema: Schema, context: base.SinkContext) -> base.Sink:
    """The task side of a sink, for one subtask."""
    if connector.kind not in _SINKS:
        raise _unknown("sink", connector.kind, sorted(_SINKS))
    return _SINKS[connector.kind](connector, context)


def _unknown(role: str, kind: str, known: list[str]) -> UserError:
    return UserError("P018", f"no {role} of kind {kind!r}", fix=f"use one of {', '.join(known)}")
