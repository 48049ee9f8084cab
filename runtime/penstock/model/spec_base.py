"""What the descriptions of operators are made of: columns, expressions, functions, connectors."""

from typing import Any

import msgspec


class Spec(msgspec.Struct, frozen=True, kw_only=True, tag=True, omit_defaults=True):
    """Base of everything in a job graph: frozen, tagged with its class name in JSON."""


class Field(msgspec.Struct, frozen=True):
    """A column: name and type, the type in the text form of `model.schemas`."""

    name: str
    type: str


Schema = tuple[Field, ...]


class EventTime(msgspec.Struct, frozen=True, kw_only=True):
    """Which column is the time of a row. Integer columns count `unit`s since 1970."""

    column: str
    unit: str = "us"
    offset_us: int = 0
    """Added to the column; a window's result has the time of its end minus one microsecond."""


class Expression(msgspec.Struct, frozen=True, kw_only=True):
    """One expression over the columns of a batch."""

    name: str
    """The column that it makes."""
    text: str
    """For people: graph, explain, errors."""
    polars: bytes
    """`pl.Expr.meta.serialize()`."""


class Function(msgspec.Struct, frozen=True, kw_only=True):
    """A user's function or class: by import path, or pickled by value with the submission."""

    name: str
    """For people and errors."""
    pickled: bytes
    """cloudpickle; opened only inside a slot."""
    columns: tuple[str, ...] | None = None
    """Columns that are passed by name; None: the function takes whole rows or whole batches."""


class Connector(msgspec.Struct, frozen=True, kw_only=True):
    """A source or sink by kind, with its options as plain JSON values."""

    kind: str
    options: dict[str, Any] = {}
