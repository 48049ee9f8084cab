"""RocksDB of one operator in one subtask: rows of bytes in a folder, by key group.

Owns: the database, its folder, and which of its files are in the store already.
Two threads use it: the slot's own reads and writes rows, the background thread writes what a barrier has frozen,
flushes and links; `state.stored` sees to it that they never write at the same time.
"""

import shutil
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from penstock.model.errors import UserError
from penstock.model.handles import FileHandle
from penstock.state.rows import group_prefix

_GROUPS_END = b"\xff\xff\xff"
_COPY_ROWS = 20_000
_BLOCK_CACHE_SHARE = 8
_WRITE_BUFFER_SHARE = 32
_WRITE_BUFFERS = 3
_WRITE_BUFFER_FILTER = 0.05
_NEVER = 1 << 30
_SMALLEST_WRITE_BUFFER = 4 * 1024 * 1024
_FILE_BYTES = 16 * 1024 * 1024
"""Files are read whole when they are uploaded: small ones take little memory."""

_MOST_RUNS = 64
"""Sorted runs before some are merged: each checkpoint adds one, and what is merged is uploaded again. A look-up asks
the filter of each. With 8, in levels, six times the bytes changed were uploaded in the long run, with 64 1.6 times,
and look-ups took a tenth longer. With 128 it would be 1.4 times, and look-ups half as long again."""


@dataclass(frozen=True, slots=True)
class LinkedFiles:
    """A consistent copy of a database, as hard links; whoever stores it removes the folder."""

    folder: Path
    groups: range
    stored: dict[str, FileHandle]
    """Files of this database that are in the store, by name; grows with each snapshot."""
    rows: int


@dataclass(frozen=True, slots=True)
class RestoredFiles:
    """A database out of a checkpoint, brought to this machine."""

    folder: Path
    groups: range
    files: tuple[FileHandle, ...]


class Database:
    """Open while it exists; `close` removes its folder."""

    def __init__(
        self, folder: Path, *, groups: range, budget: int, restored: Sequence[RestoredFiles] = (), where: str = ""
    ) -> None:
        self._rocks = _library(where)
        self._folder, self._groups = folder, groups
        self.stored: dict[str, FileHandle] = {}
        self._snapshots = 0
        self._budget = budget
        shutil.rmtree(folder, ignore_errors=True)
        folder.parent.mkdir(parents=True, exist_ok=True)
        largest_first = sorted(restored, key=lambda files: -sum(file.size for file in files.files))
        for first in largest_first[:1]:
            first.folder.rename(folder)
            self.stored = {file.name: file for file in first.files if is_immutable(file.name)}
        self._db = self._open(folder)
        for first in largest_first[:1]:
            self._clip(first.groups)
        for other in largest_first[1:]:
            self._copy(other)

    # ------------------------------------------------------------ rows

    def get(self, keys: list[bytes]) -> list[bytes | None]:
        """One look-up for all of them."""
        found: list[bytes | None] = self._db.get(keys)
        return found

    def write(self, puts: Iterator[tuple[bytes, bytes]], deletes: Sequence[bytes] = ()) -> None:
        """All of it at once."""
        batch = self._rocks.WriteBatch(raw_mode=True)
        for key, value in puts:
            batch.put(key, value)
        for key in deletes:
            batch.delete(key)
        self._db.write(batch, self._write_options)

    def scan(self, start: bytes, end: bytes) -> Iterator[tuple[bytes, bytes]]:
        """Rows from `start` up to `end`, in order."""
        for key, value in self._db.items(from_key=start):
            if key >= end:
                return
            yield key, value

    def delete(self, start: bytes, end: bytes) -> None:
        """Remove all rows from `start` up to `end`."""
        self._db.delete_range(start, end, self._write_options)

    @property
    def size(self) -> int:
        """Bytes of live rows, as far as the database knows."""
        return int(self._db.property_int_value("rocksdb.estimate-live-data-size") or 0)

    @property
    def rows(self) -> int:
        """How many rows there are, as far as the database knows."""
        return int(self._db.property_int_value("rocksdb.estimate-num-keys") or 0)

    # ------------------------------------------------------------ snapshot and end

    def link(self) -> LinkedFiles:
        """Flush, and link the files as they are now. Both leave the interpreter to others."""
        self._snapshots += 1
        folder = self._folder.with_name(f"{self._folder.name}.{self._snapshots}")
        shutil.rmtree(folder, ignore_errors=True)
        self._db.flush()
        self._rocks.Checkpoint(self._db).create_checkpoint(str(folder))
        return LinkedFiles(folder, self._groups, self.stored, self.rows)

    def close(self) -> None:
        """Let go, and leave nothing on the disk."""
        self._db.close()
        for folder in self._folder.parent.glob(f"{self._folder.name}*"):
            shutil.rmtree(folder, ignore_errors=True)

    # ------------------------------------------------------------ inside

    def _open(self, folder: Path) -> Any:
        rocks = self._rocks
        options = rocks.Options(raw_mode=True)
        options.create_if_missing(True)
        options.set_write_buffer_size(max(_SMALLEST_WRITE_BUFFER, self._budget // _WRITE_BUFFER_SHARE))
        options.set_max_write_buffer_number(_WRITE_BUFFERS)
        # Most rows that are asked for are in no write buffer: its filter says so for a tenth of a look-up.
        options.set_memtable_prefix_bloom_ratio(_WRITE_BUFFER_FILTER)
        options.set_memtable_whole_key_filtering(True)
        options.set_level_zero_file_num_compaction_trigger(_MOST_RUNS)
        options.set_compaction_style(rocks.DBCompactionStyle.universal())
        # A write that waits for compaction would hold the interpreter, and with it the whole slot.
        options.set_level_zero_slowdown_writes_trigger(_NEVER)
        options.set_level_zero_stop_writes_trigger(_NEVER)
        options.set_compression_type(rocks.DBCompressionType.lz4())
        options.set_max_background_jobs(2)
        options.set_keep_log_file_num(1)
        table = rocks.BlockBasedOptions()
        table.set_block_cache(rocks.Cache(self._budget // _BLOCK_CACHE_SHARE))
        table.set_bloom_filter(10.0, block_based=False)
        table.set_cache_index_and_filter_blocks(True)
        table.set_pin_l0_filter_and_index_blocks_in_cache(True)
        options.set_block_based_table_factory(table)
        self._write_options = rocks.WriteOptions()
        # A checkpoint flushes first, and what came after the last one is replayed from the sources.
        self._write_options.disable_wal = True
        options.set_target_file_size_base(_FILE_BYTES)
        return rocks.Rdict(str(folder), options)

    def _clip(self, held: range) -> None:
        """Remove the rows of groups that went to others: by range, whatever their number."""
        if held.start < self._groups.start:
            self.delete(b"", group_prefix(self._groups.start))
        if held.stop > self._groups.stop:
            self.delete(group_prefix(self._groups.stop), _GROUPS_END)

    def _copy(self, other: RestoredFiles) -> None:
        source = self._open(other.folder)
        end = group_prefix(self._groups.stop) if self._groups.stop <= 0xFFFF else _GROUPS_END
        rows: list[tuple[bytes, bytes]] = []
        for key, value in source.items(from_key=group_prefix(self._groups.start)):
            if key >= end:
                break
            rows.append((key, value))
            if len(rows) >= _COPY_ROWS:
                self.write(iter(rows))
                rows.clear()
        self.write(iter(rows))
        source.close()
        shutil.rmtree(other.folder, ignore_errors=True)


class LinkedRows:
    """The rows of linked files, to be read. Leaves the files as they were."""

    def __init__(self, linked: LinkedFiles) -> None:
        rocks = _library("")
        self._folder = linked.folder
        self._files = {file.name for file in linked.folder.iterdir()}
        self._db = rocks.Rdict(
            str(linked.folder), rocks.Options(raw_mode=True), access_type=rocks.AccessType.read_only()
        )

    def get(self, keys: list[bytes]) -> list[bytes | None]:
        """As `Database.get`."""
        found: list[bytes | None] = self._db.get(keys)
        return found

    def scan(self, start: bytes, end: bytes) -> Iterator[tuple[bytes, bytes]]:
        """As `Database.scan`."""
        for key, value in self._db.items(from_key=start):
            if key >= end:
                return
            yield key, value

    def close(self) -> None:
        """Let go."""
        self._db.close()
        for file in self._folder.iterdir():
            if file.name not in self._files:
                file.unlink()


def is_immutable(name: str) -> bool:
    """Whether a file of a database never changes while it has this name."""
    return name.endswith(".sst")


def _library(where: str) -> Any:
    try:
        import rocksdict
    except ImportError:
        raise UserError(
            "P040",
            'state.backend = "rocksdb" needs a library that is not installed here',
            where=where or None,
            fix="pip install 'penstock[rocksdb]' where TaskManagers run",
        ) from None
    return rocksdict
