"""Keyed tables: one row for each key, the last that was put there.

Owns: the rows, when each was written, and the index that finds them by key.
Does not own what a row means, nor the clock: whoever asks says what has expired.

A key has a slot, found by its hash and checked by its value; the slot names the key's row in an append-only payload.
A new row for a key is appended and the slot is pointed at it. When too many rows are dead, those that live are
gathered and everything is numbered anew.
"""

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt
import polars as pl

from penstock.state.frozen_rows import FrozenRows
from penstock.state.key_index import NULL_HASH, KeyIndex, key_hashes, stands_for_itself
from penstock.state.payloads import Payload

NONE = -1
"""No slot, no row."""

NEVER = np.iinfo(np.int64).min
"""Nothing expires before this."""

_SPARE_ROWS = 65_536
"""Dead rows that are kept anyway: compacting a small table often costs more than the rows."""

WRITTEN = "__written"
"""Beside the columns of a row that is written."""

Slots = npt.NDArray[np.int64]


class KeyedTable:
    """Rows by key. Frames that are given have each key at most once."""

    def __init__(self, keys: Sequence[str], *, groups: Sequence[str] | None = None) -> None:
        self.keys = list(keys)
        self._groups = None if groups is None else list(groups)
        """Some of the keys, by which rows can be found too."""
        self._clear()

    def _clear(self) -> None:
        self._payload, self._index, self._members = Payload(), KeyIndex(), KeyIndex()
        self._rows = np.empty(1024, np.int64)
        self._written = np.empty(1024, np.int64)
        self._slots = 0
        self._live = 0
        self._tracked = 0
        self._removed: list[tuple[Slots, Slots]] | None = None
        """Slots that were forgotten since rows were tracked, and their last rows; None: nobody has asked to know."""

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

    def members(self, groups: pl.DataFrame) -> Slots:
        """The slots of all rows in these groups, each of which is named once; in the order in which they came."""
        assert self._groups is not None, "the table has no groups"
        keys = [groups.get_column(key) for key in self._groups]
        rows = groups.height if keys else 1
        hashes = key_hashes(keys, rows=rows)
        positions, found = self._members.find(hashes)
        alive = self._rows[found] != NONE
        positions, found = positions[alive], found[alive]
        if len(found) and not self._hashes_decide(keys, hashes):
            same = same_rows(self.rows(found, self._groups), groups[self._groups][positions])
            found = found[same]
        return np.sort(found)

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
            if self._groups is not None:
                groups = [frame.get_column(key) for key in self._groups]
                self._members.add(key_hashes(groups, rows=frame.height)[fresh], slots[fresh])
        self._rows[slots] = numbers
        self._written[slots] = written
        self._live += len(fresh)

    def remove(self, slots: Slots) -> None:
        """Forget these slots, each of which is there."""
        if self._removed is not None and len(slots):
            self._removed.append((slots, self._rows[slots]))
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

    def freeze(self) -> FrozenRows | None:
        """The table as it is now."""
        slots = self._living()
        return self._frozen(slots, self._rows[slots]) if len(slots) else None

    def freeze_changes(self) -> FrozenRows | None:
        """What is otherwise than it was at the last `track`; None: that is not known."""
        if self._removed is None:
            return None
        put = np.flatnonzero(self._rows[: self._slots] >= self._tracked)
        removed = [slots for slots, _ in self._removed]
        slots = np.concatenate([*removed, put])
        rows = np.concatenate([*(rows for _, rows in self._removed), self._rows[put]])
        return self._frozen(slots, rows, np.arange(len(slots)) < len(slots) - len(put))

    def track(self, on: bool) -> None:
        """From now on remember what changes, or do not."""
        self._tracked, self._removed = self._payload.height, [] if on else None

    def take(self, frame: pl.DataFrame) -> None:
        """Rows that were frozen, here or elsewhere, whose keys are not there."""
        self.put(frame.drop(WRITTEN), np.full(frame.height, NONE, np.int64), frame.get_column(WRITTEN).to_numpy())

    def _frozen(self, slots: Slots, rows: Slots, gone: npt.NDArray[np.bool_] | None = None) -> FrozenRows:
        written = pl.Series(WRITTEN, self._written[slots])
        return FrozenRows(self._payload.whole(), rows, slots, (written,), gone)

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
