"""Schemas as users write them, all turned into one Polars schema.

A dataclass, TypedDict or pydantic model, a mapping of names to types, an Arrow or a Polars schema.
"""

import dataclasses
import datetime
import decimal
import types
import typing
from collections.abc import Mapping
from typing import Annotated, Any

import polars as pl
import pyarrow as pa

from penstock.model.errors import UserError

_PYTHON_TYPES: dict[Any, pl.DataType] = {
    bool: pl.Boolean(),
    int: pl.Int64(),
    float: pl.Float64(),
    str: pl.String(),
    bytes: pl.Binary(),
    datetime.datetime: pl.Datetime("us"),
    datetime.date: pl.Date(),
    datetime.time: pl.Time(),
    datetime.timedelta: pl.Duration("us"),
    decimal.Decimal: pl.Decimal(38, 9),
}


def declared_schema(declared: Any) -> pl.Schema:
    """The Polars schema of anything that users may give as one."""
    match declared:
        case pl.Schema():
            return declared
        case pa.Schema():
            return pl.Schema(declared)
        case Mapping():
            return pl.Schema({name: column_type(kind, str(name)) for name, kind in declared.items()})
        case type() if hints := _fields_of(declared):
            return pl.Schema({name: column_type(kind, name) for name, kind in hints.items()})
    raise UserError(
        "P022",
        f"cannot read a schema from {declared!r}",
        fix="give a dataclass, a TypedDict, a pydantic model, a dict of column types, or an Arrow or Polars schema",
    )


def column_type(kind: Any, column: str) -> pl.DataType:
    """The column type for a Python annotation; Polars types pass unchanged."""
    if isinstance(kind, pl.DataType):
        return kind
    if isinstance(kind, type) and issubclass(kind, pl.DataType):
        return kind()
    if kind in _PYTHON_TYPES:
        return _PYTHON_TYPES[kind]
    origin, inside = typing.get_origin(kind), typing.get_args(kind)
    if origin is Annotated:
        chosen = [extra for extra in inside[1:] if _is_polars_type(extra)]
        return column_type(chosen[0] if chosen else inside[0], column)
    if origin in (types.UnionType, typing.Union):
        present = [option for option in inside if option is not type(None)]
        if len(present) == 1:
            return column_type(present[0], column)
    if origin in (typing.Required, typing.NotRequired):
        return column_type(inside[0], column)
    if origin is list and inside:
        return pl.List(column_type(inside[0], column))
    if isinstance(kind, type) and (hints := _fields_of(kind)):
        return pl.Struct({name: column_type(hint, f"{column}.{name}") for name, hint in hints.items()})
    allowed = ", ".join(known.__name__ for known in _PYTHON_TYPES)
    raise UserError(
        "P022",
        f"column {column}: no column type for {kind!r}",
        fix=f"use one of {allowed}, list[...], a nested class, X | None, or a Polars type",
    )


def _is_polars_type(candidate: Any) -> bool:
    return isinstance(candidate, pl.DataType) or (isinstance(candidate, type) and issubclass(candidate, pl.DataType))


def _fields_of(kind: type) -> dict[str, Any]:
    """The annotated fields of a class that is made of fields, in order; empty for any other."""
    has_fields = dataclasses.is_dataclass(kind) or typing.is_typeddict(kind) or hasattr(kind, "model_fields")
    if not has_fields:
        return {}
    hints = typing.get_type_hints(kind, include_extras=True)
    return {name: hint for name, hint in hints.items() if typing.get_origin(hint) is not typing.ClassVar}
