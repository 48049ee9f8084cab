"""Types of state values: a Python type, a dataclass or a Polars type, as a column type with its conversions."""

import copy
import dataclasses
import datetime
import types
import typing
from collections.abc import Callable
from typing import Any

import polars as pl

from penstock.model import schemas
from penstock.model.errors import UserError

_PYTHON_TYPES: dict[object, pl.DataType] = {
    bool: pl.Boolean(),
    int: pl.Int64(),
    float: pl.Float64(),
    str: pl.String(),
    bytes: pl.Binary(),
    datetime.datetime: pl.Datetime("us"),
    datetime.date: pl.Date(),
    datetime.timedelta: pl.Duration("us"),
}

Convert = Callable[[Any], Any]


@dataclasses.dataclass(frozen=True, slots=True)
class ValueType:
    """How values of one state are stored. A conversion of None means: as they are."""

    dtype: pl.DataType
    encode: Convert | None = None
    """From what the user holds to what a column takes."""
    decode: Convert | None = None
    copy: Convert | None = None
    """For values that can be changed in place."""


def value_type(declared: Any, *, where: str) -> ValueType:
    """What a declaration such as `int`, `list[float]`, a dataclass or `pl.Decimal(10, 2)` stands for."""
    if isinstance(declared, type) and issubclass(declared, pl.DataType):
        declared = declared()
    if isinstance(declared, pl.DataType):
        schemas.type_to_text(declared)  # raises when the type has no place in state
        return ValueType(declared, copy=_copier(declared))
    dtype, decode = _convert(declared, where)
    return ValueType(dtype, _encode if decode else None, decode, _copier(dtype))


def _convert(declared: Any, where: str) -> tuple[pl.DataType, Convert | None]:
    """The column type, and how to make the declared type again where it is not what a column gives."""
    if declared in _PYTHON_TYPES:
        return _PYTHON_TYPES[declared], None
    if isinstance(declared, type) and dataclasses.is_dataclass(declared):
        return _convert_dataclass(declared, where)
    origin, arguments = typing.get_origin(declared), typing.get_args(declared)
    if origin in (typing.Union, types.UnionType):
        kinds = [kind for kind in arguments if kind is not type(None)]
        if len(kinds) == 1:
            return _convert(kinds[0], where)
    if origin is list:
        inner, decode = _convert(arguments[0], where)
        return pl.List(inner), None if decode is None else _decode_list(decode)
    raise UserError(
        "P017",
        f"state of type {declared!r} has no column type",
        where=where,
        fix="declare bool, int, float, str, bytes, datetime, date, timedelta, list[...], a dataclass or a Polars type",
    )


def _convert_dataclass(declared: Any, where: str) -> tuple[pl.DataType, Convert | None]:
    hints = typing.get_type_hints(declared)
    fields = {field.name: _convert(hints[field.name], where) for field in dataclasses.fields(declared)}
    inner = [(name, decode) for name, (_, decode) in fields.items() if decode is not None]

    def decode_dataclass(value: dict[str, Any] | None) -> Any:
        if value is None:
            return None
        return declared(**{**value, **{name: decode(value[name]) for name, decode in inner}})

    return pl.Struct({name: dtype for name, (dtype, _) in fields.items()}), decode_dataclass


def _decode_list(decode: Convert) -> Convert:
    return lambda values: None if values is None else [decode(value) for value in values]


def _encode(value: Any) -> Any:
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        return dataclasses.asdict(value)
    return [_encode(item) for item in value] if isinstance(value, list) else value


def _copier(dtype: pl.DataType) -> Convert | None:
    match dtype:
        case pl.List():
            flat = not _instance(dtype.inner).is_nested()
        case pl.Struct():
            flat = not any(_instance(field.dtype).is_nested() for field in dtype.fields)
        case _:
            return None
    return copy.copy if flat else copy.deepcopy


def _instance(kind: Any) -> pl.DataType:
    dtype: pl.DataType = kind() if isinstance(kind, type) else kind
    return dtype
