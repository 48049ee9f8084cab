"""What users read from and write to: `ps.parquet(...)`, `ps.generate(...)`, `ps.print()` and so on.

Each function gives an `Endpoint`: what it is as a source, as a sink, or why it is not one of them. A definition
holds plain options only; files are looked at when a source is resolved, at the end of building a program.
"""

import dataclasses
import os
from collections.abc import Mapping, Sequence
from datetime import datetime
from difflib import get_close_matches
from pathlib import Path
from typing import Any, Literal
from urllib.parse import unquote

import msgspec
import polars as pl

from penstock.connectors import files, item_list, socket_source
from penstock.connectors.columns import instant_us
from penstock.connectors.declared import declared_schema
from penstock.connectors.file_formats import OUTPUT_FORMATS
from penstock.connectors.gathering import ROLL_BYTES
from penstock.connectors.generated import AnyColumn
from penstock.connectors.nexmark import SCHEMAS as NEXMARK_SCHEMAS
from penstock.connectors.registry import FILE_FORMATS
from penstock.model import schemas
from penstock.model.durations import parse_duration
from penstock.model.errors import UserError
from penstock.model.settings import SourceSettings
from penstock.model.specs import Connector
from penstock.storage import open_store

Compression = Literal["zstd", "lz4", "snappy", "gzip", "uncompressed"]


@dataclasses.dataclass(frozen=True, slots=True)
class SourceDefinition:
    """A source as the program names it; `schema` is None as long as nobody looked."""

    connector: Connector
    schema: pl.Schema | None
    bounded: bool

    def resolve(self, settings: SourceSettings) -> "SourceDefinition":
        """List files and find out columns; nothing changes for other sources."""
        file_format = FILE_FORMATS.get(self.connector.kind)
        if file_format is None:
            return self
        connector, schema = files.resolve(self.connector, self.schema, settings, file_format)
        return dataclasses.replace(self, connector=connector, schema=schema)


@dataclasses.dataclass(frozen=True, slots=True)
class SinkDefinition:
    """A sink as the program names it."""

    connector: Connector

    @property
    def takes_changelog(self) -> bool:
        """Whoever reads what it shows sees changes as what they are; files would be taken for tables."""
        return self.connector.kind in ("collect", "discard", "print")

    def check(self, schema: pl.Schema) -> None:
        """Refuse columns that cannot be written, and partition columns that are not there."""
        output = OUTPUT_FORMATS.get(self.connector.kind)
        for name, kind in schema.items():
            if output and (fix := output.cannot_hold(kind)):
                raise UserError(
                    "P019",
                    f"column {name} of type {schemas.type_to_text(kind)} does not fit into {self.connector.kind}",
                    fix=fix,
                )
        for name in self.connector.options.get("partition_by", ()):
            if name not in schema:
                near = get_close_matches(name, list(schema), n=1)
                raise UserError(
                    "P020",
                    f"partition_by: there is no column {name!r}; there are {', '.join(schema)}",
                    fix=f"did you mean {near[0]!r}?" if near else "choose one of these",
                )


@dataclasses.dataclass(frozen=True, slots=True)
class Endpoint:
    """Something to read from, to write to, or both."""

    name: str
    source: SourceDefinition | None = None
    sink: SinkDefinition | None = None
    only_for_reading: tuple[str, ...] = ()
    """Arguments that were given and make no sense for writing, and the other way round."""
    only_for_writing: tuple[str, ...] = ()

    def as_source(self) -> SourceDefinition:
        """For `flow.read(...)`."""
        if self.source is None:
            raise UserError("P018", f"{self.name} can only be written to", fix=f"use stream.write({self.name}(...))")
        self._refuse(self.only_for_writing, "writing", "reading")
        return self.source

    def as_sink(self) -> SinkDefinition:
        """For `stream.write(...)`."""
        if self.sink is None:
            raise UserError("P018", f"{self.name} can only be read from", fix=f"use flow.read({self.name}(...))")
        self._refuse(self.only_for_reading, "reading", "writing")
        return self.sink

    def _refuse(self, arguments: tuple[str, ...], meant_for: str, used_for: str) -> None:
        if arguments:
            names = ", ".join(f"{name}=" for name in arguments)
            raise UserError(
                "P018", f"{self.name}: {names} is for {meant_for}, not {used_for}", fix=f"leave out {names}"
            )


# ---------------------------------------------------------------- files


def parquet(
    path: str | os.PathLike[str],
    *,
    schema: Any = None,
    watch: bool = False,
    partition_by: str | Sequence[str] = (),
    compression: Compression | None = None,
    roll_bytes: int | None = None,
) -> Endpoint:
    """Parquet files: a file, a directory with all below it, or a glob; for writing, a directory.

    On disks that all processes share, or in a bucket: `s3://bucket/folder?endpoint=https://host:9000`.

    Reading: `schema`, if it is not that of the first file; `watch`, to wait for new files for ever.
    Writing: `partition_by`, columns that become folders; `compression` (default zstd); `roll_bytes`, how much
    is gathered in memory before a file is written.
    """
    return _files(
        "parquet",
        path,
        reading={"schema": schema, "watch": watch},
        writing={"partition_by": partition_by, "compression": compression, "roll_bytes": roll_bytes},
    )


def csv(
    path: str | os.PathLike[str],
    *,
    separator: str = ",",
    schema: Any = None,
    header: bool = True,
    splittable: bool = False,
    watch: bool = False,
    partition_by: str | Sequence[str] = (),
    roll_bytes: int | None = None,
) -> Endpoint:
    """CSV files, as for `parquet`.

    Reading: `header=False`, if there is none; `splittable`, if no value holds a newline, so that one large
    file can have several readers.
    """
    return _files(
        "csv",
        path,
        reading={"schema": schema, "no_header": not header, "splittable": splittable, "watch": watch},
        writing={"partition_by": partition_by, "roll_bytes": roll_bytes},
        both={"separator": separator},
    )


def json_lines(
    path: str | os.PathLike[str],
    *,
    schema: Any = None,
    watch: bool = False,
    partition_by: str | Sequence[str] = (),
    roll_bytes: int | None = None,
) -> Endpoint:
    """Files of one JSON object per line, as for `parquet`."""
    return _files(
        "json-lines",
        path,
        reading={"schema": schema, "watch": watch},
        writing={"partition_by": partition_by, "roll_bytes": roll_bytes},
    )


def _files(
    kind: str,
    path: str | os.PathLike[str],
    *,
    reading: dict[str, Any],
    writing: dict[str, Any],
    both: dict[str, Any] | None = None,
) -> Endpoint:
    """Options that are not given are falsy, and left out."""
    given_reading = {name: value for name, value in reading.items() if value}
    given_writing = {name: value for name, value in writing.items() if value}
    where, shared = _path(path), both or {}
    schema = given_reading.pop("schema", None)
    source = SourceDefinition(
        Connector(kind=kind, options={"path": where, **shared, **given_reading}),
        None if schema is None else declared_schema(schema),
        bounded=not reading["watch"],
    )
    columns = writing["partition_by"]
    options = {
        "directory": where,
        **shared,
        "roll_bytes": ROLL_BYTES,
        "compression": "zstd",
        **given_writing,
        "partition_by": [columns] if isinstance(columns, str) else list(columns),
    }
    only_for_reading = (*given_reading, *(["schema"] if schema is not None else []))
    return Endpoint(
        kind.replace("-", "_"),
        source,
        SinkDefinition(Connector(kind=kind, options=options)),
        only_for_reading=tuple(only_for_reading),
        only_for_writing=tuple(given_writing),
    )


def _path(path: str | os.PathLike[str]) -> str:
    """A path of this machine, or the address of a folder in a store."""
    text = os.fspath(path)
    scheme, separator, _ = text.partition("://")
    if not separator or scheme == "file":
        return _local_path(path)
    open_store(text)  # for what it says of an address that cannot be right; nothing is asked of the store
    return text


def _local_path(path: str | os.PathLike[str]) -> str:
    """Absolute, since tasks run in other directories."""
    text = os.fspath(path)
    scheme, separator, _ = text.partition("://")
    if separator and scheme != "file":
        raise UserError(
            "P017",
            f"not a directory of this machine: {text}",
            fix="use a plain path, or ps.parquet(...) to write there",
        )
    plain = unquote(text.removeprefix("file://")) if separator else text
    return os.path.abspath(Path(plain).expanduser())  # noqa: PTH100 - resolve() would follow links


# ---------------------------------------------------------------- rows that are made


def items(rows: Any, schema: Any = None, *, batch_rows: int | None = None) -> Endpoint:
    """Rows of the program itself: a DataFrame, dicts, dataclass instances, tuples with a schema, plain values.

    Plain values make a column `value`. They are read in order, `batch_rows` at a time.
    """
    frame = _frame_of(rows, None if schema is None else declared_schema(schema))
    schemas.fields(frame.schema)
    options = {"rows": item_list.encode(frame), "batch_rows": batch_rows}
    return Endpoint("items", SourceDefinition(Connector(kind="items", options=options), frame.schema, bounded=True))


def _frame_of(rows: Any, schema: pl.Schema | None) -> pl.DataFrame:
    try:
        if isinstance(rows, pl.DataFrame):
            return rows if schema is None else rows.select(pl.col(name).cast(kind) for name, kind in schema.items())
        listed = list(rows)
        if listed and isinstance(listed[0], str | bytes | int | float | bool | datetime):
            name = next(iter(schema)) if schema else "value"
            return pl.DataFrame({name: listed}, schema=schema)
        return pl.DataFrame(listed, schema=schema, infer_schema_length=None, orient="row" if listed else None)
    except (pl.exceptions.PolarsError, TypeError, ValueError) as error:
        raise UserError(
            "P022",
            f"items: these are no rows of one schema: {error}",
            fix='pass a DataFrame, or a list of dicts with the same fields: [{"user": "ann", "n": 1}, ...]',
        ) from error


def generate(
    columns: Mapping[str, AnyColumn],
    *,
    rows: int | None = None,
    rate: float | None = None,
    seed: int = 0,
    splits: int = 4,
) -> Endpoint:
    """Rows made up from a seed: `ps.generate({"id": ps.sequence(), "n": ps.uniform(1, 6)}, rate=1000)`.

    `rows` over all splits, or without end; `rate` in rows a second over all splits, or as fast as they are
    taken. The same seed gives the same rows, whatever `splits` and batch sizes are.
    """
    _check_numbers("generate", rows=rows, rate=rate, splits=splits)
    if not columns:
        raise UserError("P018", "generate: no columns", fix='write generate({"id": ps.sequence()}, ...)')
    options = {
        "columns": msgspec.to_builtins(dict(columns)),
        "rows": rows,
        "rate": rate,
        "seed": seed,
        "splits": splits,
    }
    schema = pl.Schema({name: column.dtype for name, column in columns.items()})
    definition = SourceDefinition(Connector(kind="generate", options=options), schema, bounded=rows is not None)
    return Endpoint("generate", definition)


def nexmark(
    *,
    events: int | None = None,
    kind: Literal["persons", "auctions", "bids", "all"] = "bids",
    rate: float | None = None,
    seed: int = 0,
    splits: int = 4,
    start: datetime | str = "2026-01-01T00:00:00",
    events_per_second: float = 10_000,
) -> Endpoint:
    """The Nexmark auction site: of every 50 events 1 is a person, 3 are auctions, 46 are bids.

    `events` counts events of all kinds, of which those of one `kind` are read. `events_per_second` is how
    dense they are in event time; `rate` is how many rows a second are read, as fast as possible if None.
    """
    _check_numbers("nexmark", events=events, rate=rate, splits=splits, events_per_second=events_per_second)
    if kind not in NEXMARK_SCHEMAS:
        raise UserError(
            "P018", f"nexmark: no kind {kind!r}", fix=f"use one of {', '.join(map(repr, NEXMARK_SCHEMAS))}"
        )
    options = {
        "events": events,
        "kind": kind,
        "rate": rate,
        "seed": seed,
        "splits": splits,
        "start_ms": instant_us(start) // 1000,
        "events_per_second": events_per_second,
    }
    connector = Connector(kind="nexmark", options=options)
    return Endpoint("nexmark", SourceDefinition(connector, NEXMARK_SCHEMAS[kind], bounded=events is not None))


def _check_numbers(who: str, **numbers: float | None) -> None:
    for name, value in numbers.items():
        least_is_zero = name in ("rows", "events")
        if value is not None and (value < 0 or (value == 0 and not least_is_zero)):
            raise UserError("P018", f"{who}: {name} is {value}", fix=f"use {0 if least_is_zero else 1} or more")


def socket_lines(host: str, port: int, *, wait: str | float = "30s") -> Endpoint:
    """Lines of text that a TCP server sends, as column `line`, until it closes the connection.

    Waits for the server to come up. Not replayable: after a failure, lines since the last checkpoint are lost.
    """
    if not 0 < port < 65536:
        raise UserError("P018", f"socket_lines: port is {port}", fix="use 1 to 65535")
    options = {"host": host, "port": port, "wait_seconds": parse_duration(wait, what="wait") / 1_000_000}
    definition = SourceDefinition(Connector(kind="socket-lines", options=options), socket_source.SCHEMA, bounded=False)
    return Endpoint("socket_lines", definition)


# ---------------------------------------------------------------- where rows end


def print(*, prefix: str = "", limit: int | None = None) -> Endpoint:  # noqa: A001 - it is ps.print for users
    """A line of JSON on standard output for each row, as it comes; `limit` per subtask."""
    return Endpoint("print", sink=SinkDefinition(Connector(kind="print", options={"prefix": prefix, "limit": limit})))


def discard(*, rate: float | None = None) -> Endpoint:
    """Nothing is kept: for measuring. With a `rate`, each subtask takes so many rows a second and no more."""
    _check_numbers("discard", rate=rate)
    options = {} if rate is None else {"rate": rate}
    return Endpoint("discard", sink=SinkDefinition(Connector(kind="discard", options=options)))


def collect(directory: str | os.PathLike[str] | None = None) -> Endpoint:
    """Gather all rows for `read_collected`. Whoever runs the program sets a directory if none is given."""
    options = {} if directory is None else {"directory": _local_path(directory)}
    return Endpoint("collect", sink=SinkDefinition(Connector(kind="collect", options=options)))
