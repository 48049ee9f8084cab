"""Counting rows by one whole-number key whose values lie close together: an array instead of a hash table.

Ids are mostly given out in order, so the rows of a window hold few distinct ones from a narrow range. Then a key is
an index, and counting is one pass: a fifth to a tenth of the time of a group-by (92 K rows, 3 K keys: 0.15 ms to
1.0 ms). Where keys are far apart, or one is null, both functions give None, and the caller groups as usual.
"""

from typing import Final

import numpy as np
import numpy.typing as npt
import polars as pl

_ROOM: Final = 4
"""Array entries per row that are worth it: above, most of the array is empty, and it falls out of the cache."""


def count(rows: pl.DataFrame, key: str, name: str) -> pl.DataFrame | None:
    """Each key once, with how often it comes as column `name`."""
    indices = _Indices.of(rows.get_column(key))
    return None if indices is None else indices.table(key, name, np.bincount(indices.values))


def add_up(counts: pl.DataFrame, key: str, name: str) -> pl.DataFrame | None:
    """Each key once, with the sum of its counts."""
    indices = _Indices.of(counts.get_column(key))
    if indices is None:
        return None
    # Sums of doubles are exact up to 2**53, which is more rows than a window can hold.
    sums = np.bincount(indices.values, weights=counts.get_column(name).to_numpy()).astype(np.int64)
    return indices.table(key, name, sums)


class _Indices:
    """A column of whole numbers as distances from its smallest."""

    def __init__(self, values: npt.NDArray[np.int64], least: int, dtype: pl.DataType) -> None:
        self.values, self._least, self._dtype = values, least, dtype

    @classmethod
    def of(cls, column: pl.Series) -> "_Indices | None":
        if not column.dtype.is_integer() or column.null_count() or not len(column):
            return None
        numbers = column.to_numpy()
        least, most = int(numbers.min()), int(numbers.max())
        if most - least >= _ROOM * len(numbers):
            return None
        # In the type of the column a difference may overflow (signed), or the numbers may not fit into ours (UInt64).
        if numbers.dtype.kind == "i":
            return cls(numbers.astype(np.int64, copy=False) - least, least, column.dtype)
        return cls((numbers - numbers.dtype.type(least)).astype(np.int64), least, column.dtype)

    def table(self, key: str, name: str, counts: npt.NDArray[np.int64]) -> pl.DataFrame:
        found = np.flatnonzero(counts)
        numpy_type = np.uint64 if self._dtype == pl.UInt64 else np.int64
        keys = pl.Series(key, found.astype(numpy_type) + numpy_type(self._least))
        return pl.DataFrame([keys.cast(self._dtype), pl.Series(name, counts[found].astype(np.int64, copy=False))])
