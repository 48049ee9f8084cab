"""Keyed tables: one row for each key, the last that was put there.

Owns: the rows, when each was written, and the index that finds them by key.
Does not own what a row means, nor the clock: whoever asks says what has expired.

A key has a slot, found by its hash and checked by its value; the slot names the key's row in an append-only payload.
A new row for a key is appended and the slot is pointed at it. When too many rows are dead, those that live are
gathered and everything is numbered anew.
"""

from collections.abc import Callable, Sequence

import numpy as np
import numpy.typing as npt
import polars as pl

from penstock.state.key_index import NULL_HASH, KeyIndex, key_hashes, stands_for_itself
from penstock.state.payloads import Payload

NONE = -1
"""No slot, no row."""

NEVER = np.iinfo(np.int64).min
"""Nothing expires before this."""

_SPARE_ROWS = 65_536
"""Dead rows that are kept anyway: compacting a small table often costs more than the rows."""

Slots = npt.NDArray[np.int64]


class KeyedTable:
    """Rows by key. Frames that are given have each key at most once."""

    def __init__(self, keys: Sequence[str]) -> None:
        self.keys = list(keys)
        self._clear()

    def _clear(self) -> None:
        self._payload, self._index = Payload(), KeyIndex()
        self._rows = np.empty(1024, np.int64)
        self._written = np.empty(1024, np.int64)
        self._slots = 0
        self._live = 0

    def __len__(self) -> int:
        return self._live

    def find(self, frame: pl.DataFrame, *, expired: int = NEVER) -> Slots:
        """The slot of each row's key; NONE where there is none, or it was written up to `expired`.

        Slots mean something until the next `find`, which may number them anew.
        """
        self._compact_if_sparse()
        slots = np.full(frame.height, NONE, np.int64)
        keys = [frame.get_column(key) for key in self.keys]
        hashes = key_hashes(keys, rows=frame.height)
        positions, found = self._index.find(hashes)
        alive = (self._rows[found] != NONE) & (self._written[found] > expired)
        if not alive.all():
            positions, found = positions[alive], found[alive]
        if not self._hashes_decide(keys, hashes):
            same = self._have_keys(found, frame, positions)
            positions, found = positions[same], found[same]
        slots[positions] = found
        return slots

    def rows(self, slots: Slots, columns: Sequence[str] | None = None) -> pl.DataFrame:
        """The rows of these slots."""
        return self._payload.gather(self._rows[slots], columns)

    def written(self, slots: Slots) -> npt.NDArray[np.int64]:
        """When the rows of these slots were written."""
        return self._written[slots]

    def put(self, frame: pl.DataFrame, slots: Slots, written: npt.NDArray[np.int64] | int = 0) -> None:
        """Rows for these slots, as `find` gave them; a key without one gets one."""
        if not frame.height:
            return
        numbers = self._payload.append(frame)
        fresh = np.flatnonzero(slots == NONE)
        if len(fresh):
            slots = slots.copy()
            slots[fresh] = self._new_slots(len(fresh))
            keys = [frame.get_column(key) for key in self.keys]
            self._index.add(key_hashes(keys, rows=frame.height)[fresh], slots[fresh])
        self._rows[slots] = numbers
        self._written[slots] = written
        self._live += len(fresh)

    def remove(self, slots: Slots) -> None:
        """Forget these slots, each of which is there."""
        self._rows[slots] = NONE
        self._live -= len(slots)

    def expire(self, expired: int) -> pl.DataFrame | None:
        """Forget, and give, the rows that were written up to `expired`."""
        rows = self._rows[: self._slots]
        old = np.flatnonzero((rows != NONE) & (self._written[: self._slots] <= expired))
        if not len(old):
            return None
        given = self.rows(old)
        self.remove(old)
        return given

    def keep_latest(self, count: int) -> None:
        """Forget all but about so many that were written last."""
        written = self._written[self._living()]
        if len(written) > count:
            self.expire(int(np.partition(written, len(written) - count - 1)[len(written) - count - 1]))

    def freeze(self) -> "Callable[[], tuple[pl.DataFrame, npt.NDArray[np.int64]] | None]":
        """The table as it is now: a function that gives its rows and when they were written; None: there are none.

        It may be called later and on another thread.
        """
        slots = self._living()
        if not len(slots):
            return lambda: None
        whole, numbers, written = self._payload.whole(), self._rows[slots], self._written[slots]
        return lambda: (whole[numbers], written)

    def _living(self) -> Slots:
        return np.flatnonzero(self._rows[: self._slots] != NONE)

    def _hashes_decide(self, keys: Sequence[pl.Series], hashes: npt.NDArray[np.int64]) -> bool:
        if not keys:
            return True
        return stands_for_itself([key.dtype for key in keys]) and not (hashes == NULL_HASH).any()

    def _have_keys(self, slots: Slots, frame: pl.DataFrame, positions: Slots) -> npt.NDArray[np.bool_]:
        if not len(slots):
            return np.empty(0, np.bool_)
        return same_rows(self.rows(slots, self.keys), frame[self.keys][positions])

    def _new_slots(self, count: int) -> Slots:
        first, self._slots = self._slots, self._slots + count
        if self._slots > len(self._rows):
            size = max(self._slots, 2 * len(self._rows))
            self._rows, self._written = _grown(self._rows, size), _grown(self._written, size)
        return np.arange(first, self._slots, dtype=np.int64)

    def _compact_if_sparse(self) -> None:
        if max(self._payload.height, self._slots) <= 2 * self._live + _SPARE_ROWS:
            return
        slots = self._living()
        rows = self.rows(slots) if len(slots) else None
        written = self._written[slots]
        self._clear()
        if rows is not None:
            self.put(rows, np.full(rows.height, NONE, np.int64), written)


def same_rows(left: pl.DataFrame, right: pl.DataFrame) -> npt.NDArray[np.bool_]:
    """Which rows of two frames of equal height and columns are equal; null equals null."""
    equal = np.ones(left.height, np.bool_)
    for one, other in zip(left.get_columns(), right.get_columns(), strict=True):
        equal &= one.eq_missing(other).to_numpy()
    return equal


def _grown(array: npt.NDArray[np.int64], size: int) -> npt.NDArray[np.int64]:
    larger = np.empty(size, np.int64)
    larger[: len(array)] = array
    return larger
