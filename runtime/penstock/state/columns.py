"""Python objects to columns and back, without loss: what per-record functions and their state need."""

import math
import reprlib
from collections.abc import Sequence
from typing import Any

import polars as pl

_CANONICAL_NAN = math.nan
_SHORT = reprlib.Repr()
_SHORT.maxstring = _SHORT.maxother = 80


class ValueMismatch(Exception):
    """A value that its column cannot take."""

    def __init__(self, index: int, value: object, dtype: pl.DataType) -> None:
        self.index, self.value, self.dtype = index, value, dtype
        super().__init__(f"{shorten(value)} ({type(value).__name__}) is not a value of type {dtype}")


def shorten(value: object) -> str:
    """The `repr` of a value of unknown size, for a message."""
    return _SHORT.repr(value)


def to_objects(column: pl.Series) -> list[Any]:
    """The values as Python objects."""
    if column.dtype.is_numeric() and not column.dtype.is_decimal() and not column.null_count():
        values: list[Any] = column.to_numpy().tolist()
        return values
    return column.to_list()


def to_key_objects(column: pl.Series) -> list[Any]:
    """Like `to_objects`, for dictionary keys: equal keys are equal objects, NaN too."""
    match column.dtype:
        case pl.Datetime(time_zone=str()):
            # Wall-clock times of one zone compare equal across the end of summer time.
            column = column.dt.convert_time_zone("UTC")
        case pl.Float32() | pl.Float64() if column.is_nan().any():
            # A dict finds a NaN only by identity.
            return [_CANONICAL_NAN if value != value else value for value in column.to_list()]
    return to_objects(column)


def to_column(name: str, values: Sequence[Any], dtype: pl.DataType) -> pl.Series:
    """A column of just this type; ValueMismatch names the first value that does not fit."""
    try:
        column = pl.Series(name, values, dtype=dtype)
        if column.dtype == dtype:
            return column
    except (TypeError, ValueError, OverflowError, pl.exceptions.PolarsError):
        pass
    for index, value in enumerate(values):
        if not _fits(value, dtype):
            raise ValueMismatch(index, value, dtype)
    raise ValueMismatch(0, values[0] if values else None, dtype)


def _fits(value: object, dtype: pl.DataType) -> bool:
    try:
        return pl.Series([value], dtype=dtype).dtype == dtype
    except (TypeError, ValueError, OverflowError, pl.exceptions.PolarsError):
        return False


def cast_lossless(column: pl.Series, dtype: pl.DataType) -> pl.Series | None:
    """The column as another type of the same kind, or None when a value would change."""
    if column.dtype == dtype:
        return column
    if not _same_kind(column.dtype, dtype):
        return None
    try:
        cast = column.cast(dtype, strict=True)
        back = cast.cast(column.dtype, strict=True)
    except pl.exceptions.PolarsError:
        return None
    return cast if back.equals(column, null_equal=True) else None


def _same_kind(old: pl.DataType, new: pl.DataType) -> bool:
    if old == pl.Null:
        return True
    if old.is_nested() or new.is_nested():
        return type(old) is type(new)
    return (old.is_numeric() and new.is_numeric()) or (old.is_temporal() and new.is_temporal())
