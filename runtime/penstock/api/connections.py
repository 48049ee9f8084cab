"""What a program reads from and writes to: connectors, seen from the program."""

import dataclasses
from typing import TYPE_CHECKING, Any, Protocol, runtime_checkable

import polars as pl

from penstock.model import specs
from penstock.model.errors import UserError
from penstock.model.settings import SourceSettings

if TYPE_CHECKING:
    from penstock.api.streams import DataStream


class SourceDefinition(Protocol):
    """A source as a program names it."""

    @property
    def connector(self) -> specs.Connector:
        """What the slots open."""
        ...

    @property
    def schema(self) -> pl.Schema | None:
        """Its columns; None until it is resolved, when the input itself tells them."""
        ...

    @property
    def bounded(self) -> bool:
        """It ends by itself."""
        ...

    def resolve(self, settings: SourceSettings) -> "SourceDefinition":
        """Look at the input: list files, find the columns."""
        ...


class SinkDefinition(Protocol):
    """A sink as a program names it."""

    @property
    def takes_changelog(self) -> bool:
        """Rows that stay as they are written are enough for it: updates come as a changelog."""
        ...

    @property
    def connector(self) -> specs.Connector:
        """What the slots open."""
        ...

    def check(self, schema: pl.Schema) -> None:
        """Refuse columns that cannot be written there."""
        ...


@runtime_checkable
class Readable(Protocol):
    """`ps.parquet(...)` and its like, when read."""

    def as_source(self) -> SourceDefinition:
        """The source."""
        ...


@runtime_checkable
class Writable(Protocol):
    """`ps.parquet(...)` and its like, when written."""

    def as_sink(self) -> SinkDefinition:
        """The sink."""
        ...


def resolved_source(
    source: Any, schema: pl.Schema | None, settings: SourceSettings, *, where: str
) -> tuple[SourceDefinition, pl.Schema]:
    """The source with its columns: the given ones, or those of the input."""
    if not isinstance(source, Readable):
        raise UserError(
            "P018",
            f"read: {_shown(source)} cannot be read from",
            where=where,
            fix='flow.read(ps.parquet("data/*.parquet")), ps.csv, ps.json_lines, ps.socket_lines, ps.items, ...',
        )
    with_place = _Placed(where)
    definition: SourceDefinition = with_place(source.as_source)
    if schema is not None:
        definition = _with_schema(definition, schema, where)
    resolved: SourceDefinition = with_place(definition.resolve, settings)
    columns = resolved.schema if resolved.schema is not None else schema
    if not columns:
        raise UserError(
            "P022",
            f"read: the columns of {resolved.connector.kind} are not known",
            where=where,
            fix="give schema=: a dataclass, a TypedDict, a pydantic model, or a dict of column types",
        )
    return resolved, columns


def writable(stream: "DataStream", sink: Any, *, where: str) -> "DataStream":
    """The stream in a form that the sink takes: updates as a changelog, or refused."""
    if stream.changes is None or not isinstance(sink, Writable):
        return stream
    definition: SinkDefinition = _Placed(where)(sink.as_sink)
    if definition.takes_changelog:
        return stream.as_changelog()
    kind = definition.connector.kind
    raise UserError(
        "P030",
        f"write: the stream updates earlier rows, and {kind} keeps every row as it was written",
        where=where,
        fix=f"as_changelog().write(...) writes each change as a row of its own to {kind}",
    )


def checked_sink(sink: Any, schema: pl.Schema, *, where: str) -> SinkDefinition:
    """The sink, which takes rows of this schema."""
    if not isinstance(sink, Writable):
        raise UserError(
            "P018",
            f"write: {_shown(sink)} cannot be written to",
            where=where,
            fix='.write(ps.parquet("results")), ps.csv, ps.json_lines, ps.print(), ps.discard(), ps.collect()',
        )
    with_place = _Placed(where)
    definition: SinkDefinition = with_place(sink.as_sink)
    with_place(definition.check, schema)
    return definition


@dataclasses.dataclass(frozen=True, slots=True)
class _Placed:
    """Calls a connector, and adds the user's place to its complaints."""

    where: str

    def __call__(self, function: Any, *arguments: Any) -> Any:
        try:
            return function(*arguments)
        except UserError as error:
            raise UserError(error.code, error.what, where=error.where or self.where, fix=error.fix) from None


def _with_schema(definition: SourceDefinition, schema: pl.Schema, where: str) -> SourceDefinition:
    if definition.schema is None:
        return dataclasses.replace(definition, schema=schema)  # type: ignore[type-var]
    if definition.schema == schema:
        return definition
    raise UserError(
        "P022",
        f"read: schema= differs from the columns that {definition.connector.kind} has: {definition.schema}",
        where=where,
        fix="leave out schema=, and change columns with select",
    )


def _shown(value: object) -> str:
    return f'"{value}"' if isinstance(value, str) else f"a {type(value).__name__}"
