"""Rows by key, any number for each: what joins and top-n remember.

Owns: the rows, the time of each, whether it is still there, one mark per row, and the index that finds rows by key.
Rows are append-only; one that is removed or has expired is not found any more, and is dropped when most are like it.
Numbers of rows mean something until the next `add`, which may number them anew.
"""

from collections.abc import Callable, Sequence
from typing import TypeVar

import numpy as np
import numpy.typing as npt
import polars as pl

from penstock.state.key_index import NULL_HASH, KeyIndex, key_hashes, stands_for_itself
from penstock.state.payloads import Payload
from penstock.state.tables import NEVER, same_rows

Numbers = npt.NDArray[np.int64]
Scalar = TypeVar("Scalar", bound=np.generic)

_SPARE_ROWS = 65_536
"""Dead rows that are kept anyway: compacting a small store often costs more than the rows."""

Frozen = Callable[[], tuple[pl.DataFrame, npt.NDArray[np.int64], npt.NDArray[np.bool_]] | None]
"""Gives rows, their times and their marks; None: there are no rows."""


class RowStore:
    """Rows by their key columns. A null in a key equals a null, unless the caller leaves such rows out."""

    def __init__(self, keys: Sequence[str]) -> None:
        self.keys = list(keys)
        self._clear()

    def _clear(self) -> None:
        self._payload, self._index = Payload(), KeyIndex()
        self._times = np.empty(0, np.int64)
        self._there = np.empty(0, np.bool_)
        self._marks = np.empty(0, np.bool_)
        self._live = 0

    def __len__(self) -> int:
        return self._live

    def add(
        self,
        frame: pl.DataFrame,
        times: npt.NDArray[np.int64] | int = 0,
        marks: npt.NDArray[np.bool_] | bool = False,
    ) -> Numbers:
        """Take rows; gives their numbers."""
        self._compact_if_sparse()
        numbers = self._payload.append(frame)
        end = self._payload.height
        if end > len(self._times):
            size = max(end, 2 * len(self._times), 1024)
            self._times = _grown(self._times, size)
            self._there, self._marks = _grown(self._there, size), _grown(self._marks, size)
        self._times[numbers], self._there[numbers], self._marks[numbers] = times, True, marks
        self._index.add(self._hashes(frame), numbers)
        self._live += frame.height
        return numbers

    def find(
        self, keys: Sequence[pl.Series], rows: int, *, expired: int = NEVER
    ) -> tuple[npt.NDArray[np.int64], Numbers]:
        """Pairs (position in the keys, row number) of all rows with these keys that are there and have not expired.

        `keys` may be called otherwise than the store's own. Pairs are ordered by position, then by number.
        """
        hashes = key_hashes(keys, rows=rows)
        positions, found = self._index.find(hashes)
        alive = self._there[found] & (self._times[found] > expired)
        if not alive.all():
            positions, found = positions[alive], found[alive]
        if keys and len(found) and not self._hashes_decide(keys, hashes):
            named = pl.DataFrame([key.alias(own) for key, own in zip(keys, self.keys, strict=True)])
            same = same_rows(self.rows(found, self.keys), named[positions])
            positions, found = positions[same], found[same]
        order = np.lexsort((found, positions))
        return positions[order], found[order]

    def rows(self, numbers: Numbers, columns: Sequence[str] | None = None) -> pl.DataFrame:
        """The rows with these numbers."""
        return self._payload.gather(numbers, columns)

    def times(self, numbers: Numbers) -> npt.NDArray[np.int64]:
        """The times of these rows."""
        return self._times[numbers]

    def marks(self, numbers: Numbers) -> npt.NDArray[np.bool_]:
        """Which of these rows are marked."""
        return self._marks[numbers]

    def mark(self, numbers: Numbers, mark: bool = True) -> None:
        """Mark these rows, or take their mark away."""
        self._marks[numbers] = mark

    def remove(self, numbers: Numbers) -> None:
        """Forget these rows, each of which is there, and named once."""
        self._there[numbers] = False
        self._live -= len(numbers)

    def until(self, time: int) -> Numbers:
        """The rows that are there and have a time up to this one, in the order they came."""
        end = self._payload.height
        return np.flatnonzero(self._there[:end] & (self._times[:end] <= time))

    def freeze(self) -> Frozen:
        """The store as it is now: a function that may be called later and on another thread."""
        numbers = np.flatnonzero(self._there[: self._payload.height])
        if not len(numbers):
            return lambda: None
        whole, times, marks = self._payload.whole(), self._times[numbers], self._marks[numbers]
        return lambda: (whole[numbers], times, marks)

    def _hashes(self, frame: pl.DataFrame) -> npt.NDArray[np.int64]:
        return key_hashes([frame.get_column(key) for key in self.keys], rows=frame.height)

    def _hashes_decide(self, keys: Sequence[pl.Series], hashes: npt.NDArray[np.int64]) -> bool:
        return stands_for_itself([key.dtype for key in keys]) and not (hashes == NULL_HASH).any()

    def _compact_if_sparse(self) -> None:
        if self._payload.height <= 2 * self._live + _SPARE_ROWS:
            return
        frozen = self.freeze()()
        self._clear()
        if frozen is not None:
            self.add(*frozen)


def _grown(array: npt.NDArray[Scalar], size: int) -> npt.NDArray[Scalar]:
    larger = np.empty(size, array.dtype)
    larger[: len(array)] = array
    return larger
