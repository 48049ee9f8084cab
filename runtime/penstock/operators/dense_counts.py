"""Counting rows by one whole-number key whose values lie close together: an array instead of a hash table.

Ids are mostly given out in order, so the rows of a window hold few distinct ones from a narrow range. Then a key is
an index, and counting is one pass: a fifth to a tenth of the time of a group-by (92 K rows, 3 K keys: 0.15 ms to
1.0 ms). Several groups of rows, each with a range of its own, lie one behind the other in the same array. Where keys
are far apart, or one is null, both functions give None, and the caller groups as usual.
"""

from collections.abc import Callable, Sequence
from typing import Final

import numpy as np
import numpy.typing as npt
import polars as pl

Groups = Sequence[Sequence[pl.DataFrame]]
"""Groups of rows, each in one or more frames."""
Lengths = npt.NDArray[np.intp]
Count = Callable[[Groups, str, str], tuple[pl.DataFrame, Lengths] | None]

_ROOM: Final = 4
"""Array entries per row that are worth it: above, most of the array is empty, and it falls out of the cache."""


def count(groups: Groups, key: str, name: str) -> tuple[pl.DataFrame, Lengths] | None:
    """For each group of rows: each key once, with how often it comes as column `name`; and how long each is."""
    indices = _Indices.of([[rows.get_column(key) for rows in group] for group in groups])
    return None if indices is None else indices.table(key, name, np.bincount(indices.values))


def add_up(groups: Groups, key: str, name: str) -> tuple[pl.DataFrame, Lengths] | None:
    """For each group of counts: each key once, with the sum of its counts; and how long each is."""
    indices = _Indices.of([[counts.get_column(key) for counts in group] for group in groups])
    if indices is None:
        return None
    counts = _joined([counts.get_column(name).to_numpy() for group in groups for counts in group])
    # Sums of doubles are exact up to 2**53, which is more rows than a window can hold.
    return indices.table(key, name, np.bincount(indices.values, weights=counts).astype(np.int64))


class _Indices:
    """Columns of whole numbers as places in one array: the distance from the smallest of their own column."""

    def __init__(
        self,
        values: npt.NDArray[np.int64],
        least: npt.NDArray[np.int64],
        bases: npt.NDArray[np.int64],
        dtype: pl.DataType,
    ) -> None:
        self.values, self._least, self._bases, self._dtype = values, least, bases, dtype

    @classmethod
    def of(cls, groups: Sequence[Sequence[pl.Series]]) -> "_Indices | None":
        columns = [column for group in groups for column in group]
        dtype = columns[0].dtype
        # A difference of signed numbers may overflow in their own type, and UInt64 does not fit into ours.
        if not dtype.is_integer() or dtype in (pl.UInt64, pl.Int128, pl.UInt128):
            return None
        if any(column.null_count() or not len(column) for column in columns):
            return None
        numbers = _joined([column.to_numpy() for column in columns]).astype(np.int64, copy=False)
        if len(groups) == 1:
            least, most = numbers.min(), numbers.max()
            if int(most) - int(least) >= _ROOM * len(numbers):
                return None
            return cls(numbers - least, np.array([least]), np.array([0, int(most) - int(least) + 1]), dtype)
        lengths = np.array([sum(map(len, group)) for group in groups])
        starts = np.concatenate([[0], np.cumsum(lengths)[:-1]])
        least, most = np.minimum.reduceat(numbers, starts), np.maximum.reduceat(numbers, starts)
        # As doubles: the distance between two numbers may be more than an integer holds.
        if (most.astype(float) - least).sum() >= _ROOM * len(numbers):
            return None
        bases = np.concatenate([[0], np.cumsum(most - least + 1)])
        return cls(numbers - np.repeat(least - bases[:-1], lengths), least, bases, dtype)

    def table(self, key: str, name: str, counts: npt.NDArray[np.int64]) -> tuple[pl.DataFrame, Lengths]:
        found = np.flatnonzero(counts)
        lengths = np.diff(np.searchsorted(found, self._bases))
        keys = pl.Series(key, found + np.repeat(self._least - self._bases[:-1], lengths)).cast(self._dtype)
        return pl.DataFrame([keys, pl.Series(name, counts[found].astype(np.int64, copy=False))]), lengths


def _joined(arrays: list[npt.NDArray[np.int64]]) -> npt.NDArray[np.int64]:
    return arrays[0] if len(arrays) == 1 else np.concatenate(arrays)
