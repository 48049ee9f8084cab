"""Types of state values: a Python type, a dataclass or a Polars type, as a column type with its conversions."""

import copy
import dataclasses
import datetime
import types
import typing
from collections.abc import Callable
from typing import Any, Protocol

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


class Codec(Protocol):
    """Turns values that have no column type into bytes and back. Bytes of older versions must stay readable."""

    def encode(self, value: Any) -> bytes:
        """The bytes that are stored."""
        ...

    def decode(self, data: bytes) -> Any:
        """The value again."""
        ...


def value_type(declared: Any, *, where: str, codec: Codec | None = None) -> ValueType:
    """What a declaration such as `int`, `list[float]`, a dataclass or `pl.Decimal(10, 2)` stands for."""
    if codec is not None:
        return ValueType(pl.Binary(), _or_none(codec.encode), _or_none(codec.decode), copy.deepcopy)
    if isinstance(declared, type) and issubclass(declared, pl.DataType):
        declared = declared()
    if isinstance(declared, pl.DataType):
        schemas.type_to_text(declared)  # raises when the type has no place in state
        return ValueType(declared, copy=_copier(declared))
    dtype, decode = _convert(declared, where)
    return ValueType(dtype, _encode if decode else None, decode, _copier(dtype))


def list_type(item: ValueType) -> ValueType:
    """Lists of values."""
    return ValueType(
        pl.List(item.dtype),
        None if item.encode is None else _each(item.encode),
        None if item.decode is None else _each(item.decode),
        copy.copy if item.copy is None else copy.deepcopy,
    )


def map_type(key: ValueType, value: ValueType) -> ValueType:
    """Dictionaries, as lists of their entries."""
    encode_key, encode_value = key.encode or _same, value.encode or _same
    decode_key, decode_value = key.decode or _same, value.decode or _same

    def encode(held: dict[Any, Any]) -> list[dict[str, Any]]:
        return [{"key": encode_key(k), "value": encode_value(v)} for k, v in held.items()]

    def decode(entries: list[dict[str, Any]]) -> dict[Any, Any]:
        return {decode_key(entry["key"]): decode_value(entry["value"]) for entry in entries}

    dtype = pl.List(pl.Struct({"key": key.dtype, "value": value.dtype}))
    copier = copy.copy if value.copy is None else copy.deepcopy
    return ValueType(dtype, _or_none(encode), _or_none(decode), copier)


def _same(value: Any) -> Any:
    return value


def _or_none(convert: Convert) -> Convert:
    return lambda value: None if value is None else convert(value)


def _each(convert: Convert) -> Convert:
    return lambda values: None if values is None else [convert(value) for value in values]


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
        return pl.List(inner), None if decode is None else _each(decode)
    raise UserError(
        "P017",
        f"state of type {declared!r} has no column type",
        where=where,
        fix="declare bool, int, float, str, bytes, datetime, date, timedelta, list[...], a dataclass or a Polars "
        "type, or name a codec=",
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
