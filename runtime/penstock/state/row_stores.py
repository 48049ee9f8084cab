"""Rows by key, any number for each: what joins and top-n remember.

Owns: the rows, the time of each, whether it is still there, one mark per row, and the index that finds rows by key.
Rows are append-only; one that is removed or has expired is not found any more, and is dropped when most are like it.
Numbers of rows mean something until the next `add`, which may number them anew.
"""

from collections.abc import Sequence
from typing import TypeVar

import numpy as np
import numpy.typing as npt
import polars as pl

from penstock.state.frozen_rows import FrozenRows
from penstock.state.key_index import NULL_HASH, KeyIndex, key_hashes, stands_for_itself
from penstock.state.payloads import Payload
from penstock.state.tables import NEVER, same_rows

Numbers = npt.NDArray[np.int64]
Scalar = TypeVar("Scalar", bound=np.generic)

_UNINDEXED_ROWS = 1 << 20
"""More are not left to the next search, which has to wait for their sort."""

_SPARE_ROWS = 65_536
"""Dead rows that are kept anyway: compacting a small store often costs more than the rows."""

TIME, MARK = "__time", "__mark"
"""Beside the columns of a row that is written."""


class RowStore:
    """Rows by their key columns. A null in a key equals a null, unless the caller leaves such rows out."""

    def __init__(self, keys: Sequence[str]) -> None:
        self.keys = list(keys)
        self._clear()

    def _clear(self) -> None:
        self._payload, self._index = Payload(), KeyIndex()
        self._indexed = 0
        """Rows in front of this one are in the index."""
        self._times = np.empty(0, np.int64)
        self._there = np.empty(0, np.bool_)
        self._marks = np.empty(0, np.bool_)
        self._live = 0
        self._tracked = 0
        self._touched: list[Numbers] | None = None
        """Rows in front of `_tracked` that were removed or marked; None: nobody has asked to know."""

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
        self._live += frame.height
        if end - self._indexed >= _UNINDEXED_ROWS:
            self._index_rows()
        return numbers

    def find(
        self, keys: Sequence[pl.Series], rows: int, *, expired: int = NEVER
    ) -> tuple[npt.NDArray[np.int64], Numbers]:
        """Pairs (position in the keys, row number) of all rows with these keys that are there and have not expired.

        `keys` may be called otherwise than the store's own. Pairs are ordered by position, then by number.
        """
        self._index_rows()
        hashes = key_hashes(keys, rows=rows)
        positions, found = self._index.find(hashes)
        alive = self._there[found] & (self._times[found] > expired)
        if not alive.all():
            positions, found = positions[alive], found[alive]
        if keys and len(found) and not self._hashes_decide(keys, hashes):
            named = pl.DataFrame([key.alias(own) for key, own in zip(keys, self.keys, strict=True)])
            same = same_rows(self.rows(found, self.keys), named[positions])
            positions, found = positions[same], found[same]
        return by_position(positions, found, rows)

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
        self._touch(numbers)
        self._marks[numbers] = mark

    def remove(self, numbers: Numbers) -> None:
        """Forget these rows, each of which is there, and named once."""
        self._touch(numbers)
        self._there[numbers] = False
        self._live -= len(numbers)

    def until(self, time: int) -> Numbers:
        """The rows that are there and have a time up to this one, in the order they came."""
        end = self._payload.height
        return np.flatnonzero(self._there[:end] & (self._times[:end] <= time))

    def freeze(self) -> FrozenRows | None:
        """The store as it is now."""
        numbers = np.flatnonzero(self._there[: self._payload.height])
        return self._frozen(numbers) if len(numbers) else None

    def freeze_changes(self) -> FrozenRows | None:
        """What is otherwise than it was at the last `track`; None: that is not known."""
        if self._touched is None:
            return None
        fresh = np.flatnonzero(self._there[self._tracked : self._payload.height]) + self._tracked
        numbers = np.concatenate([*(np.unique(each) for each in _joined(self._touched)), fresh])
        return self._frozen(numbers, ~self._there[numbers])

    def track(self, on: bool) -> None:
        """From now on remember what changes, or do not."""
        self._tracked, self._touched = self._payload.height, [] if on else None

    def take(self, frame: pl.DataFrame) -> None:
        """Rows that were frozen, here or elsewhere."""
        self.add(frame.drop(TIME, MARK), frame.get_column(TIME).to_numpy(), frame.get_column(MARK).to_numpy())

    def _frozen(self, numbers: Numbers, gone: npt.NDArray[np.bool_] | None = None) -> FrozenRows:
        beside = (pl.Series(TIME, self._times[numbers]), pl.Series(MARK, self._marks[numbers]))
        return FrozenRows(self._payload.whole(), numbers, numbers, beside, gone)

    def _touch(self, numbers: Numbers) -> None:
        if self._touched is not None and len(old := numbers[numbers < self._tracked]):
            self._touched.append(old)

    def _index_rows(self) -> None:
        """Rows that came since the last search. Many are never searched for, or are gone by then."""
        first, self._indexed = self._indexed, self._payload.height
        numbers = first + np.flatnonzero(self._there[first : self._indexed])
        if len(numbers):
            keys = self._payload.since(first, self.keys)
            hashes = key_hashes(keys.get_columns(), rows=self._indexed - first)
            self._index.add(hashes if len(numbers) == len(hashes) else hashes[numbers - first], numbers)

    def _hashes_decide(self, keys: Sequence[pl.Series], hashes: npt.NDArray[np.int64]) -> bool:
        return stands_for_itself([key.dtype for key in keys]) and not (hashes == NULL_HASH).any()

    def _compact_if_sparse(self) -> None:
        if self._payload.height <= 2 * self._live + _SPARE_ROWS:
            return
        frozen = self.freeze()
        self._clear()
        if frozen is not None:
            self.take(frozen.frame())


def _grown(array: npt.NDArray[Scalar], size: int) -> npt.NDArray[Scalar]:
    larger = np.empty(size, array.dtype)
    larger[: len(array)] = array
    return larger


def _joined(parts: list[Numbers]) -> list[Numbers]:
    return [np.concatenate(parts)] if parts else []


def by_position(positions: Numbers, found: Numbers, rows: int) -> tuple[Numbers, Numbers]:
    """Pairs ordered by position, then by number. Mostly a position has one at most, and nothing is sorted."""
    at = np.full(rows, -1, np.int64)
    at[positions] = found
    once = np.flatnonzero(at >= 0)
    if len(once) == len(positions):
        return once, at[once]
    bits = int(found.max()).bit_length()
    if bits + rows.bit_length() < 63:
        packed = (positions << bits) | found
        packed.sort()
        return packed >> bits, packed & ((1 << bits) - 1)
    order = np.lexsort((found, positions))
    return positions[order], found[order]
