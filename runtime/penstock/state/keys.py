"""Keys as Python objects: what a per-record function sees, and what its state is found by.

One key column: the value itself; several: a tuple; none: None.
"""

from collections.abc import Sequence
from typing import Any

import polars as pl

from penstock.model.errors import UserError
from penstock.state import key_groups
from penstock.state.columns import to_column, to_key_objects

_MICROSECONDS = ("us", "ms")


class KeyCodec:
    """Turns the key columns of a frame into objects and back. Learns their types from the first frame."""

    def __init__(self, names: Sequence[str], *, where: str = "") -> None:
        self.names = tuple(names)
        self.asked = self.names
        """What frames call the key columns now: another input of the operator may have other names for them."""
        self._where = where
        self._types: tuple[pl.DataType, ...] = ()

    @property
    def types(self) -> tuple[pl.DataType, ...]:
        """Types of the key columns; empty until a frame was seen."""
        return self._types

    def learn(self, types: Sequence[pl.DataType]) -> None:
        """Take these as the types of the key columns."""
        types = tuple(types)
        if types == self._types:
            return
        for name, dtype in zip(self.names, types, strict=True):
            if name == key_groups.KEY_GROUP or not _can_be_key(dtype):
                raise UserError(
                    "P005",
                    f'column "{name}" of type {dtype} cannot be a key of a process function',
                    where=self._where,
                    fix=f"key by numbers, text, bytes or times in microseconds, not named {key_groups.KEY_GROUP}",
                )
        self._types = types

    def decode(self, frame: pl.DataFrame) -> list[Any]:
        """The key of each row."""
        if not self.names:
            return [None] * frame.height
        columns = [frame.get_column(name) for name in self.asked]
        self.learn([column.dtype for column in columns])
        if len(columns) == 1:
            return to_key_objects(columns[0])
        return list(zip(*map(to_key_objects, columns), strict=True))

    def encode(self, keys: Sequence[Any]) -> list[pl.Series]:
        """The key columns of these keys."""
        if not self.names:
            return []
        if len(self.names) == 1:
            return [to_column(self.names[0], keys, self._types[0])]
        parts = zip(*keys, strict=True) if keys else ((),) * len(self.names)
        return [to_column(name, part, dtype) for name, part, dtype in zip(self.names, parts, self._types, strict=True)]


def _can_be_key(dtype: pl.DataType) -> bool:
    # Python's own times have microseconds: finer ones would fall together.
    match dtype:
        case pl.Datetime() | pl.Duration():
            return dtype.time_unit in _MICROSECONDS
        case pl.Time():
            return False
    return not dtype.is_nested()
