"""Value state of one operator: a dictionary per state, key -> value.

Owns: the values, and how they become a table and come back.
Does not own: which key is current (operators.process).
A snapshot is O(1) (state.layers); its table is made later, on another thread, in chunks that let the slot's own
thread run in between. A value of None means that there is none.
"""

from collections.abc import Callable, Sequence
from typing import Any

import polars as pl

from penstock.model.errors import UserError
from penstock.state.columns import ValueMismatch, cast_lossless, to_column, to_objects
from penstock.state.key_groups import sort_by_group
from penstock.state.keys import KeyCodec
from penstock.state.layers import LayeredDict, View
from penstock.state.value_types import ValueType

MakeTable = Callable[[], pl.DataFrame | None]
"""The slow half of a snapshot; None: nothing to keep."""


class ValueTable:
    """One value state of one operator in one subtask."""

    def __init__(
        self,
        name: str,
        kind: ValueType,
        default: Any,
        keys: KeyCodec,
        *,
        max_parallelism: int,
        where: str = "",
    ) -> None:
        self.name, self.kind, self.keys = name, kind, keys
        self.values: LayeredDict[Any, Any] = LayeredDict(default, kind.copy)
        self._max_parallelism, self._where = max_parallelism, where

    # ------------------------------------------------------------ many keys at once

    def get_many(self, frame: pl.DataFrame) -> pl.Series:
        """The values of the keys of `frame`, row by row; the default where there is none."""
        values = list(map(self.values.front.__getitem__, self.keys.decode(frame)))
        return self._column(values)

    def set_many(self, frame: pl.DataFrame, values: pl.Series | Sequence[Any]) -> None:
        """Set the values of the keys of `frame`, row by row; None removes."""
        objects = self._objects(values) if isinstance(values, pl.Series) else list(values)
        keys = self.keys.decode(frame)
        self.values.front.update(zip(keys, objects, strict=True))
        if None in objects:
            for key, value in zip(keys, objects, strict=True):
                if value is None:
                    self.values.clear(key)

    # ------------------------------------------------------------ snapshot and restore

    def snapshot(self) -> MakeTable:
        """Freeze the state as it is now."""
        view = self.values.freeze()
        return lambda: self._make_table(view)

    def restore(self, frame: pl.DataFrame) -> None:
        """Take the rows of an earlier snapshot: key group, keys, value."""
        columns = frame.get_columns()
        keys = pl.DataFrame(columns[1:-1])
        column = cast_lossless(columns[-1], self.kind.dtype)
        if column is None:
            raise UserError(
                "S005",
                f'state "{self.name}": {columns[-1].dtype} -> {self.kind.dtype} has no migration',
                where=self._where,
                fix="declare the type that the state was written with, or give the state a new name",
            )
        self.values.front.update(zip(self.keys.decode(keys), self._objects(column), strict=True))

    def _make_table(self, view: View[Any, Any]) -> pl.DataFrame | None:
        try:
            parts = [pl.DataFrame([*self.keys.encode(keys), self._column(values)]) for keys, values in view.chunks()]
        finally:
            view.release()
        if not parts:
            return None
        return sort_by_group(pl.concat(parts, rechunk=True), self.keys.names, self._max_parallelism)

    # ------------------------------------------------------------ objects and columns

    def _column(self, values: list[Any]) -> pl.Series:
        encode = self.kind.encode
        try:
            return to_column(
                self._column_name(), values if encode is None else list(map(encode, values)), self.kind.dtype
            )
        except ValueMismatch as mismatch:
            raise UserError(
                "P014",
                f'state "{self.name}": {mismatch}',
                where=self._where,
                fix="store what was declared, or declare another type",
            ) from None

    def _objects(self, column: pl.Series) -> list[Any]:
        values = to_objects(column)
        return values if self.kind.decode is None else list(map(self.kind.decode, values))

    def _column_name(self) -> str:
        return own_name(self.name, self.keys.names)


def own_name(name: str, taken: Sequence[str]) -> str:
    """A column name that no key column has."""
    while name in taken:
        name += "_"
    return name
