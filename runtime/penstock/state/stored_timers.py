"""Timers in a database: rows sorted by key group and time, of which only the next stretch is in memory.

Owns: the rows, what has changed of them since they were last written, and the next stretch of time.
Does not own: timers that were set lately, which `state.timers` holds until they are in the database.

A row is a key without a value: key group, name, time, key. The timers of all groups that come first are read at once,
a few per group, and merged by time. A stretch stands until its timers are gone, or rows have been written; what is set
or deleted meanwhile counts more than what was read.
"""

import heapq
from collections import deque
from collections.abc import Iterator, Sequence
from itertools import islice
from typing import Any

from penstock.state.keys import KeyCodec
from penstock.state.rocks import Database, LinkedRows
from penstock.state.rows import KeyBytes
from penstock.state.stored import StoredDict, StoredView

_STRETCH = 16_384
"""Timers that are read at once."""

_GROUP_STRETCH = 256
_TIME_BYTES = 8
_ZERO = 1 << 63
_FIRST, _LAST = -_ZERO, _ZERO - 1

Timer = tuple[int, Any]
"""Time and key."""


class TimerBytes:
    """Timers as the keys of rows."""

    def __init__(self, name: str, keys: KeyCodec, max_parallelism: int) -> None:
        self._keys = KeyBytes(name, keys, max_parallelism)
        self.state = self._keys.state
        self._prefix = 2 + len(self.state)

    def encode(self, timers: Sequence[Timer]) -> list[bytes]:
        """The row keys of these timers."""
        prefix = self._prefix
        rows = self._keys.encode([key for _, key in timers])
        return [row[:prefix] + stamp(time) + row[prefix:] for row, (time, _) in zip(rows, timers, strict=True)]

    def decode(self, rows: Sequence[bytes]) -> list[Timer]:
        """The timers of these row keys."""
        prefix, end = self._prefix, self._prefix + _TIME_BYTES
        times = [int.from_bytes(row[prefix:end], "big") - _ZERO for row in rows]
        return list(zip(times, self._keys.decode([row[:prefix] + row[end:] for row in rows]), strict=True))

    def range(self, group: int, first: int = _FIRST) -> tuple[bytes, bytes]:
        """Between which row keys the timers of a group lie, from a time on."""
        prefix = group.to_bytes(2, "big") + self.state
        return prefix + stamp(first), prefix + b"\xff" * (_TIME_BYTES + 2)


def stamp(time: int) -> bytes:
    """A time as bytes that sort as times do."""
    return (time + _ZERO).to_bytes(_TIME_BYTES, "big")


class StoredTimers:
    """All timers of one kind; those that were set since the last `merge` that wrote are in its `recent`, too."""

    def __init__(
        self, database: Database, name: str, keys: KeyCodec, groups: range, *, max_parallelism: int, budget: int
    ) -> None:
        self._groups = groups
        self._bytes = TimerBytes(name, keys, max_parallelism)
        self._rows = StoredDict(
            database,
            encode=self._encode,
            encode_keys=self._bytes.encode,
            decode=lambda rows: [True] * len(rows),
            budget=budget,
            keeps_written=False,
        )
        self._start = _FIRST
        """Timers in the database that are neither in the stretch nor gone are not earlier than this."""
        self._readers: Iterator[tuple[bytes, bytes]] | None = None
        self._stretch: deque[Timer] = deque()
        self._overruled: set[Timer] = set()
        """Timers that were set or deleted since the stretch was read: its own word on them does not count."""

    # ------------------------------------------------------------ one timer

    def set(self, time: int, key: Any) -> None:
        """There is such a timer."""
        self._rows.front[time, key] = True
        self._overruled.add((time, key))

    def delete(self, time: int, key: Any) -> None:
        """There is none."""
        self._rows.clear((time, key))
        self._overruled.add((time, key))

    def head(self) -> Timer | None:
        """The first of those that are in the database."""
        while True:
            while self._stretch:
                if self._stretch[0] not in self._overruled:
                    return self._stretch[0]
                self._stretch.popleft()
            if not self._read():
                return None

    def upcoming(self, until: int, limit: int) -> list[Any]:
        """Keys of the first of them."""
        self.head()
        return [key for time, key in islice(self._stretch, limit) if time <= until]

    # ------------------------------------------------------------ layers

    def merge(self, first_recent: int | None) -> bool:
        """Write what has to be written. True when timers have gone into the database, and `recent` holds the others.

        `first_recent`: none of those that were not in the database was earlier.
        """
        before = self._rows.folds
        self._rows.merge()
        if self._rows.folds == before:
            return False
        if self._stretch:
            self._start = self._stretch[0][0]
        if first_recent is not None:
            self._start = min(self._start, first_recent)
        self._stretch.clear()
        self._overruled.clear()
        if self._start < _LAST:
            self._readers = None  # else there is none, and a checkpoint need not ask every group again
        return True

    def recent(self) -> list[Timer]:
        """Timers that are not in the database yet."""
        return list(self._rows.front)

    @property
    def is_full(self) -> bool:
        """Whether timers in memory have to go to the database."""
        return self._rows.is_full

    def freeze(self) -> StoredView:
        """The timers as they are now."""
        return self._rows.freeze()

    # ------------------------------------------------------------ the next stretch

    def _read(self) -> bool:
        """Read on. False when there is no more."""
        if self._readers is None:
            self._readers = self._merged(self._start)
        rows = [row for _, row in islice(self._readers, _STRETCH)]
        if not rows:
            self._start = _LAST
            return False
        timers = self._bytes.decode(rows)
        self._stretch.extend(timer for timer in timers if not self._rows.is_unwritten(timer))
        self._start = timers[-1][0]
        return True

    def _merged(self, start: int) -> Iterator[tuple[bytes, bytes]]:
        """Rows of all groups by time."""
        return heapq.merge(*(self._group(group, start) for group in self._groups))

    def _group(self, group: int, start: int) -> Iterator[tuple[bytes, bytes]]:
        """Rows of one group, each behind its time. No iterator stays open in between: that would hold blocks."""
        first, end = self._bytes.range(group, start)
        prefix = len(first) - _TIME_BYTES
        while True:
            some = [row for row, _ in islice(self._rows.scan(first, end), _GROUP_STRETCH)]
            for row in some:
                yield row[prefix : prefix + _TIME_BYTES], row
            if len(some) < _GROUP_STRETCH:
                return
            first = some[-1] + b"\0"

    def _encode(self, timers: Sequence[Timer], values: Sequence[Any]) -> tuple[list[bytes], list[bytes]]:
        return self._bytes.encode(timers), [b""] * len(timers)


def stored_timers(
    database: Database | LinkedRows, name: str, keys: KeyCodec, groups: range, max_parallelism: int
) -> Iterator[list[Timer]]:
    """All timers of a database, in parts: for those who keep them elsewhere."""
    timer_bytes = TimerBytes(name, keys, max_parallelism)
    for group in groups:
        rows = (row for row, _ in database.scan(*timer_bytes.range(group)))
        while some := list(islice(rows, _STRETCH)):
            yield timer_bytes.decode(some)
