"""Where files lie: on a disk, or in a bucket.

Formats read by path and ask a place for what is there. A path on a disk is what it is anywhere; one in a bucket is
`s3://bucket/a/b.parquet`, without the options of the store (endpoint, region): positions in a checkpoint name files,
and a store may move.
"""

import glob
import io
import os
import re
import stat
from collections.abc import Iterator
from functools import lru_cache
from pathlib import Path
from typing import Final, Protocol

from penstock.storage import ObjectInfo, ObjectStore, open_store

HIDDEN: Final = ("_", ".")
"""First letters of names that writers use for what is not data: staging, markers, checksums."""

WINDOW_BYTES: Final = 8 * 1024 * 1024
"""Read of an object at once: a request costs tens of milliseconds, however little it brings."""

_GLOB: Final = re.compile(r"[*\[]")


class RandomAccess(Protocol):
    """Bytes of a file by offset."""

    def read_at(self, offset: int, size: int) -> bytes:
        """Fewer than `size` only at the end of the file."""
        ...

    def close(self) -> None:
        """Release the file."""
        ...


class Place(Protocol):
    """Files by path."""

    def list(self, path: str, suffixes: tuple[str, ...]) -> Iterator[tuple[str, int]]:
        """Path and size of the files below a directory, of a glob, or of the one file, in order of their paths."""
        ...

    def size(self, path: str) -> int:
        """OSError when there is no such file."""
        ...

    def open(self, path: str) -> RandomAccess:
        """The bytes as they are."""
        ...

    def file(self, path: str) -> str | io.RawIOBase:
        """What Arrow reads it from: its path, or a file of Python's kind."""
        ...


def in_store(path: str) -> bool:
    """Whether it lies in an object store; else it is a path of this machine."""
    return "://" in path


def place_of(path: str) -> Place:
    """Where the files of `path` lie, which may be a directory, a glob or a file, with the options of a store."""
    return _StorePlace(*_split(path)[:2]) if in_store(path) else _DISK


class _Disk:
    """Paths of this machine."""

    def list(self, path: str, suffixes: tuple[str, ...]) -> Iterator[tuple[str, int]]:
        root = Path(path)
        if root.is_file():
            found = [root]
        elif root.is_dir():
            found = [file for file in root.rglob("*") if _is_data(file.relative_to(root).as_posix(), suffixes)]
        else:
            found = [Path(name) for name in glob.glob(path, recursive=True)]  # noqa: PTH207 - absolute patterns too
            found = [file for file in found if not file.name.startswith(HIDDEN)]
        for file in sorted(found):
            try:
                status = file.stat()
            except FileNotFoundError:  # removed since it was listed
                continue
            if stat.S_ISREG(status.st_mode):
                yield str(file), status.st_size

    def size(self, path: str) -> int:
        return Path(path).stat().st_size

    def open(self, path: str) -> RandomAccess:
        return _DiskFile(path)

    def file(self, path: str) -> str:
        return path


_DISK: Final = _Disk()


class _DiskFile:
    """A file as it is."""

    def __init__(self, path: str) -> None:
        self._descriptor = os.open(path, os.O_RDONLY)

    def read_at(self, offset: int, size: int) -> bytes:
        """One system call in most cases; a regular file may still answer with less than was asked."""
        data = os.pread(self._descriptor, size, offset)
        while len(data) < size and (more := os.pread(self._descriptor, size - len(data), offset + len(data))):
            data += more
        return data

    def close(self) -> None:
        """Release the file."""
        if self._descriptor >= 0:
            os.close(self._descriptor)
        self._descriptor = -1


class _StorePlace:
    """Objects of a bucket."""

    def __init__(self, bucket: str, options: str) -> None:
        self._bucket = bucket
        self._store = _bucket(bucket + options)

    def list(self, path: str, suffixes: tuple[str, ...]) -> Iterator[tuple[str, int]]:
        _, _, key = _split(path)
        if _GLOB.search(key):
            pattern = _pattern(key)
            folder = key[: _GLOB.search(key).start()].rpartition("/")[0]  # type: ignore[union-attr]
            found = [
                each
                for each in self._store.list(f"{folder}/" if folder else "")
                if pattern.fullmatch(each.path) and not each.path.rpartition("/")[2].startswith(HIDDEN)
            ]
        else:
            prefix = f"{key}/" if key else ""
            one = self._find(key)
            found = (
                [one]
                if one
                else [each for each in self._store.list(prefix) if _is_data(each.path.removeprefix(prefix), suffixes)]
            )
        for each in found:
            yield f"{self._bucket}/{each.path}", each.size

    def size(self, path: str) -> int:
        found = self._find(self._key(path))
        if found is None:
            raise FileNotFoundError(2, "there is no such object", path)
        return found.size

    def open(self, path: str) -> RandomAccess:
        return _Object(self._store, self._key(path))

    def file(self, path: str) -> io.RawIOBase:
        return _ObjectFile(_Object(self._store, self._key(path)), self.size(path))

    def _find(self, key: str) -> ObjectInfo | None:
        # Paths come in order, so that none that only begins with it stands in front.
        first = next(iter(self._store.list(key)), None) if key else None
        return first if first is not None and first.path == key else None

    def _key(self, path: str) -> str:
        return path.removeprefix(f"{self._bucket}/")


class _Object:
    """Reads a window at a time, so that whoever goes forwards makes few requests."""

    def __init__(self, store: ObjectStore, path: str) -> None:
        self._store, self._path = store, path
        self._window, self._start = b"", 0

    def read_at(self, offset: int, size: int) -> bytes:
        inside = offset - self._start
        if not 0 <= inside <= len(self._window) - size:
            # What is held already is not asked for again.
            kept = self._window[inside:] if 0 <= inside < len(self._window) else b""
            wanted = max(size, WINDOW_BYTES) - len(kept)
            more = self._store.get_range(self._path, offset + len(kept), wanted)
            self._window, self._start, inside = kept + more, offset, 0
        return self._window[inside : inside + size]

    def close(self) -> None:
        self._window = b""


class _ObjectFile(io.RawIOBase):
    """An object as a file, for Arrow."""

    def __init__(self, content: RandomAccess, size: int) -> None:
        super().__init__()
        self._content, self._size, self._at = content, size, 0

    def readable(self) -> bool:
        return True

    def seekable(self) -> bool:
        return True

    def tell(self) -> int:
        return self._at

    def seek(self, offset: int, whence: int = os.SEEK_SET) -> int:
        base = {os.SEEK_SET: 0, os.SEEK_CUR: self._at, os.SEEK_END: self._size}[whence]
        self._at = base + offset
        return self._at

    def read(self, size: int | None = -1) -> bytes:
        left = max(0, self._size - self._at)
        data = self._content.read_at(self._at, left if size is None or size < 0 else min(size, left)) if left else b""
        self._at += len(data)
        return data

    def readall(self) -> bytes:
        return self.read()

    def readinto(self, buffer: bytearray | memoryview) -> int:  # type: ignore[override] # typeshed names a private type
        data = self.read(len(buffer))
        buffer[: len(data)] = data
        return len(data)


@lru_cache(maxsize=64)
def _bucket(uri: str) -> ObjectStore:
    """Opened once: a file per split, and a store per file, would be many."""
    return open_store(uri)


def _split(path: str) -> tuple[str, str, str]:
    """Bucket, options with their question mark, key."""
    place, mark, options = path.partition("?")
    scheme, _, rest = place.partition("://")
    bucket, _, key = rest.partition("/")
    return f"{scheme}://{bucket}", mark + options, key.strip("/")


def _is_data(relative: str, suffixes: tuple[str, ...]) -> bool:
    return relative.endswith(suffixes) and not any(part.startswith(HIDDEN) for part in relative.split("/"))


def _pattern(key: str) -> re.Pattern[str]:
    """A glob as the file system reads one: `*` stays within a name, `**/` is any number of folders."""
    found, at = "", 0
    while at < len(key):
        if key.startswith("**/", at):
            found, at = found + "(?:[^/]+/)*", at + 3
        elif key.startswith("**", at):
            found, at = found + ".*", at + 2
        elif key[at] == "*":
            found, at = found + "[^/]*", at + 1
        elif key[at] == "[" and (end := key.find("]", at + 2)) > 0:
            inside = key[at + 1 : end].replace("\\", "\\\\")
            found, at = found + f"[{'^' + inside[1:] if inside[0] == '!' else inside}]", end + 1
        else:
            found, at = found + re.escape(key[at]), at + 1
    return re.compile(found)
