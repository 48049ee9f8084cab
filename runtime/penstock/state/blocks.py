"""Blocks: immutable tables of keyed state, sorted by key group, in memory or put away in a database.

Owns: the tables, where each of them is, and that one which nobody can read any more is removed. Does not own which
blocks make up a state, nor when one is put away.

A block is written once and read as a whole; it is never changed, only replaced by others, so whoever holds a reference
(a snapshot that is being uploaded) reads what it saw. In the database its key is the first key group (2 bytes), the
number of the block (8 bytes), and its value an Arrow IPC stream: writing is blind, and costs no read.
"""

import io
import itertools
import weakref
from collections import deque
from collections.abc import Callable, Sequence

import polars as pl

from penstock.model.frames import write_arrow
from penstock.state.chunks import Chunk
from penstock.state.key_groups import KEY_GROUP, slice_groups
from penstock.state.rocks import Database
from penstock.state.rows import group_prefix


class BlockHome:
    """The blocks of one operator in one database."""

    def __init__(self, database: Database) -> None:
        self._database = database
        self._numbers = 0
        self._unread: deque[bytes] = deque()
        self.blocks_written = 0

    def put(self, frame: pl.DataFrame) -> Callable[[], pl.DataFrame]:
        """Take a table that has rows; gives what reads it back, for as long as that is referenced."""
        key = group_prefix(int(frame.item(0, KEY_GROUP))) + self._numbers.to_bytes(8, "big")
        self._numbers += 1
        buffer = io.BytesIO()
        write_arrow(frame, buffer)
        unread = [self._unread.popleft() for _ in range(len(self._unread))]
        self._database.write(iter([(key, buffer.getvalue())]), unread)
        self.blocks_written += 1
        stored = _Stored(self._database, key)
        weakref.finalize(stored, self._unread.append, key).atexit = False
        return stored

    @property
    def held(self) -> int:
        """Blocks that are there, those included that are about to be removed."""
        return sum(1 for _ in self._database.scan(b"", b"\xff\xff\xff"))

    def close(self) -> None:
        """Leave nothing on the disk."""
        self._database.close()


class _Stored:
    """Reads one block; the block is removed some time after this is gone."""

    __slots__ = ("__weakref__", "_database", "_key")

    def __init__(self, database: Database, key: bytes) -> None:
        self._database, self._key = database, key

    def __call__(self) -> pl.DataFrame:
        (data,) = self._database.get([self._key])
        assert data is not None, "a block is there while it is referenced"
        return pl.read_ipc_stream(data)


class Block:
    """Part of one state, with at least one row."""

    def __init__(self, state: str, frame: pl.DataFrame) -> None:
        self.state, self.rows, self.bytes = state, frame.height, int(frame.estimated_size())
        self.chunk = Chunk()
        self._frame: pl.DataFrame | None = frame
        self._read: Callable[[], pl.DataFrame] | None = None

    @property
    def in_memory(self) -> bool:
        """Whether it takes memory."""
        return self._frame is not None

    @property
    def frame(self) -> pl.DataFrame:
        """The table; may be asked for on any thread."""
        frame, read = self._frame, self._read
        if frame is not None:
            return frame
        assert read is not None, "a block is in memory or in its home"
        return read()

    def put_away(self, home: BlockHome) -> None:
        """From now on it is in its home."""
        if self._frame is not None:
            self._read = home.put(self._frame)
            self._frame = None


def cut(frame: pl.DataFrame, ranges: Sequence[range]) -> list[pl.DataFrame]:
    """The rows of each of these ranges of key groups. Slices, not copies."""
    return [slice_groups(frame, groups) for groups in ranges]


def cut_range(groups: range, count: int) -> list[range]:
    """The key groups in at most so many ranges, of like size and none of them empty."""
    count = max(1, min(count, len(groups)))
    bounds = [groups.start + len(groups) * number // count for number in range(count + 1)]
    return [range(start, stop) for start, stop in itertools.pairwise(bounds)]
