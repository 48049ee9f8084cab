"""Rows that user functions return, as frames of the declared columns.

Owns: the shapes that a row may have, and the errors about wrong ones (P014).
"""

import types
from collections.abc import Callable, Iterable, Sequence
from itertools import chain
from typing import Any, NoReturn

import polars as pl

from penstock.model import schemas, specs
from penstock.model.errors import UserError
from penstock.state.columns import ValueMismatch, cast_lossless, shorten, to_column

Row = tuple[Any, ...]

_LAZY = (types.GeneratorType, map, filter, zip)
_SCALARS = (bool, int, float, str, bytes)
_FIELD_MARKS = ("__dataclass_fields__", "model_fields", "__struct_fields__", "__attrs_attrs__")
"""What classes have whose instances are rows: dataclasses, pydantic, msgspec, attrs."""


class RowBuilder:
    """Makes frames of one output schema out of one operator's rows."""

    def __init__(self, output: specs.Schema, *, where: str, function: str) -> None:
        self.schema = schemas.polars_schema(output)
        self._names = tuple(self.schema)
        self._types = tuple(self.schema.values())
        self._where, self._function = where, function
        self._converters: dict[type, Callable[[Any], Row]] = {}

    @property
    def width(self) -> int:
        """Columns in a row."""
        return len(self._names)

    @property
    def usual_kind(self) -> type:
        """What most functions return for a row: the value itself when there is one column, else a tuple."""
        kind = self._types[0].to_python() if self.width == 1 else tuple
        return kind if kind in _SCALARS else tuple

    def empty(self) -> list[list[Any]]:
        """Columns to add rows to."""
        return [[] for _ in self._names]

    # ------------------------------------------------------------ rows to columns

    def as_tuple(self, row: Any) -> Row:
        """One row of any shape, with as many values as there are columns."""
        kind = type(row)
        convert = self._converters.get(kind)
        if convert is None:
            convert = self._converters[kind] = self._converter(kind)
        return convert(row)

    def columns(self, rows: Sequence[Any]) -> list[Sequence[Any]]:
        """Rows of any shape, turned on their side."""
        width = self.width
        kinds = set(map(type, rows))
        if width == 1 and kinds <= {*_SCALARS, type(None)}:
            return [rows]
        if kinds != {tuple} or set(map(len, rows)) != {width}:
            rows = list(map(self.as_tuple, rows))
        flat = list(chain.from_iterable(rows))
        return [flat[index::width] for index in range(width)]

    def keep(self, result: Any, columns: Sequence[list[Any]]) -> None:
        """Add what one call returned to the columns: a row, or a list of rows."""
        if isinstance(result, _LAZY):
            self._refuse("returned an iterator", result, fix="write `yield` in the function itself, or return a list")
        for row in result if type(result) is list else (result,):
            for column, value in zip(columns, self.as_tuple(row), strict=True):
                column.append(value)

    def open_results(self, results: Sequence[Any]) -> list[Iterable[Any]]:
        """What a flat function returned per call, each an iterable of rows; None is no rows."""
        for kind in set(map(type, results)):
            if issubclass(kind, str | bytes | dict) or not (issubclass(kind, Iterable) or kind is type(None)):
                example = next(result for result in results if type(result) is kind)
                self._refuse("must return rows in a list, or yield them", example)
        return [() if result is None else result for result in results]

    def _converter(self, kind: type) -> Callable[[Any], Row]:
        if issubclass(kind, tuple):
            return self._checked_tuple
        if issubclass(kind, dict):
            return self._from_dict
        if any(hasattr(kind, mark) for mark in _FIELD_MARKS):
            return self._from_object
        if self.width == 1:
            return lambda value: (value,)
        return lambda value: self._refuse(f"returned a bare value for {self.width} columns", value)

    def _checked_tuple(self, row: Row) -> Row:
        if len(row) != self.width:
            self._refuse(f"returned a row of {len(row)} values for {self.width} columns", row)
        return row

    def _from_dict(self, row: dict[str, Any]) -> Row:
        missing = [name for name in self._names if name not in row]
        if missing:
            self._refuse(f"returned a row without {', '.join(missing)}", row)
        if len(row) != self.width:
            extra = [str(name) for name in row if name not in self.schema]
            self._refuse(f"returned a row with columns that are not declared, {', '.join(extra)}", row)
        return tuple(map(row.__getitem__, self._names))

    def _from_object(self, row: Any) -> Row:
        missing = [name for name in self._names if not hasattr(row, name)]
        if missing:
            self._refuse(f"returned a row without {', '.join(missing)}", row)
        return tuple(getattr(row, name) for name in self._names)

    # ------------------------------------------------------------ columns to frames

    def frame(self, columns: Sequence[Sequence[Any]]) -> pl.DataFrame:
        """The columns with the declared names and types."""
        made = []
        for name, values, dtype in zip(self._names, columns, self._types, strict=True):
            try:
                made.append(to_column(name, values, dtype))
            except ValueMismatch as mismatch:
                row = tuple(column[mismatch.index] for column in columns)
                self._refuse(f'returned a row whose column "{name}" is wrong, {mismatch}', row)
        return pl.DataFrame(made)

    def conform(self, frame: object) -> pl.DataFrame:
        """A frame that a function returned, in the declared columns and types."""
        if not isinstance(frame, pl.DataFrame):
            self._refuse("must return a polars DataFrame", frame)
        missing = [name for name in self._names if name not in frame.columns]
        extra = [name for name in frame.columns if name not in self.schema]
        wrong = [f"{word} {', '.join(names)}" for word, names in (("without", missing), ("with", extra)) if names]
        if wrong:
            raise UserError(
                "P014",
                f"{self._function} returned a frame {' and '.join(wrong)}",
                where=self._where,
                fix=f"return just the declared columns: {self._declared()}",
            )
        return pl.DataFrame([self._conform_column(frame.get_column(name)) for name in self._names])

    def _conform_column(self, column: pl.Series) -> pl.Series:
        dtype = self.schema[column.name]
        cast = cast_lossless(column, dtype)
        if cast is None:
            raise UserError(
                "P014",
                f'{self._function} returned column "{column.name}" as {column.dtype}, declared is {dtype}',
                where=self._where,
                fix=f'cast it, pl.col("{column.name}").cast(pl.{dtype}), or declare what it is',
            )
        return cast

    def _declared(self) -> str:
        return ", ".join(f"{name} {dtype}" for name, dtype in self.schema.items())

    def _refuse(self, what: str, value: object, *, fix: str | None = None) -> NoReturn:
        raise UserError(
            "P014",
            f"{self._function} {what}: {shorten(value)}",
            where=self._where,
            fix=fix or f"return a tuple, dict or dataclass with the declared columns: {self._declared()}",
        )
