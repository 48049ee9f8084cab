"""A directory as an object store.

An object is written as a draft in a hidden folder, flushed to disk, and only then given its name: `create`
by a hard link (fails when the name is taken, by whichever process), `put` by a rename. Both are atomic, so
that a reader sees a whole object or none, however its writer ends. Names are flushed too: an object that was
acknowledged survives the loss of power. Drafts of writers that died are removed when they are an hour old.
"""

import contextlib
import itertools
import os
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from urllib.parse import quote

from penstock.model.clocks import Clock, SystemClock
from penstock.model.errors import RetryableError
from penstock.storage._folders import flush_folder, make_folders
from penstock.storage._paths import DRAFTS, check_folder, check_path, check_prefix
from penstock.storage._port import ObjectInfo, UnknownResultError

STALE_DRAFT_SECONDS = 3600
"""No write takes this long: whoever began the draft is dead."""


class LocalStore:
    """Safe for several threads and several processes; for hosts only if they share a POSIX file system."""

    def __init__(self, root: Path | str, clock: Clock | None = None) -> None:
        self._root = Path(os.path.abspath(root))  # noqa: PTH100 - resolve() would follow links and change the uri
        self._drafts = self._root / DRAFTS
        self._draft_numbers = itertools.count()
        make_folders(self._drafts)
        self._sweep(clock or SystemClock())

    @property
    def uri(self) -> str:
        """Opens the same directory in another process."""
        return f"file://{quote(str(self._root))}"

    def create(self, path: str, data: bytes) -> bool:
        """Write once; see the port."""
        target = self._target(path)
        if target.exists():
            return False
        draft = self._write_draft(path, data)
        try:
            return self._give_name(draft, target, os.link)
        except FileExistsError:
            return False
        finally:
            draft.unlink(missing_ok=True)

    def put(self, path: str, data: bytes) -> None:
        """Write, whole or not at all; see the port."""
        draft = self._write_draft(path, data)
        try:
            self._give_name(draft, self._target(path), os.replace)
        finally:
            draft.unlink(missing_ok=True)

    def get(self, path: str) -> bytes | None:
        """The object, or None."""
        try:
            return self._target(path).read_bytes()
        except (FileNotFoundError, NotADirectoryError, IsADirectoryError):
            return None

    def get_range(self, path: str, offset: int, length: int) -> bytes:
        """Part of an object."""
        with self._target(path).open("rb") as file:
            file.seek(offset)
            return file.read(length)

    def list(self, prefix: str) -> Iterator[ObjectInfo]:
        """Objects below the prefix, as of now."""
        folder = check_prefix(prefix).rpartition("/")[0]
        found = [info for info in self._walk(self._root / folder) if info.path.startswith(prefix)]
        return iter(sorted(found))

    def folders(self, prefix: str) -> Iterator[str]:
        """Folders right below the prefix, as of now."""
        folder = self._root / check_folder(prefix)
        try:
            names = [entry.name for entry in os.scandir(folder) if entry.name != DRAFTS and entry.is_dir()]
        except (FileNotFoundError, NotADirectoryError):
            return iter(())
        # Folders that hold folders only may be left behind by whoever was killed while it removed them.
        return iter(sorted(name for name in names if any(self._walk(folder / name))))

    def delete(self, path: str) -> None:
        """Remove, if there; folders that become empty go with it."""
        target = self._target(path)
        with contextlib.suppress(FileNotFoundError, NotADirectoryError):
            target.unlink()
        for folder in target.relative_to(self._root).parents[:-1]:
            try:
                (self._root / folder).rmdir()
            except OSError:  # not empty, or another deleter was faster
                return

    def _target(self, path: str) -> Path:
        return self._root / check_path(path)

    def _write_draft(self, path: str, data: bytes) -> Path:
        """The data on disk under a name that nobody looks at."""
        check_path(path)
        try:
            draft, file = self._open_draft()
        except OSError as error:
            raise self._not_written(path, error) from error
        try:
            with open(file, "wb") as stream:  # noqa: PTH123 - an open descriptor
                stream.write(data)
                stream.flush()
                os.fsync(file)
        except OSError as error:
            draft.unlink(missing_ok=True)
            raise self._not_written(path, error) from error
        return draft

    def _open_draft(self) -> tuple[Path, int]:
        while True:
            # The thread is part of the name for processes of different hosts that share a pid.
            name = f"{os.getpid()}-{threading.get_ident()}-{next(self._draft_numbers)}"
            with contextlib.suppress(FileExistsError):
                draft = self._drafts / name
                return draft, os.open(draft, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o644)

    def _give_name(self, draft: Path, target: Path, name: Callable[[Path, Path], None]) -> bool:
        """True when the name is durable. FileExistsError passes through."""
        while True:
            try:
                make_folders(target.parent)
                name(draft, target)
                break
            except FileNotFoundError:
                # A deleter was faster: the folder is gone again. (A draft that is gone is another matter.)
                if not draft.exists():
                    raise
            except FileExistsError:
                raise
            except OSError as error:
                raise self._not_written(str(target), error) from error
        try:
            flush_folder(target.parent)
        except OSError as error:
            raise UnknownResultError("S012", f"{target} is written, but may not survive a crash: {error}") from error
        return True

    def _not_written(self, path: str, error: OSError) -> RetryableError:
        return RetryableError(
            "S011", f"cannot write {path}: {error}", where=self.uri, fix="free space, or allow writing"
        )

    def _walk(self, folder: Path) -> Iterator[ObjectInfo]:
        try:
            entries = list(os.scandir(folder))
        except (FileNotFoundError, NotADirectoryError):
            return
        for entry in entries:
            if entry.name == DRAFTS:
                continue
            if entry.is_dir():
                yield from self._walk(Path(entry.path))
                continue
            with contextlib.suppress(FileNotFoundError):  # deleted since the folder was read
                status = entry.stat()
                path = Path(entry.path).relative_to(self._root).as_posix()
                yield ObjectInfo(path, status.st_size, status.st_mtime_ns // 1000)

    def _sweep(self, clock: Clock) -> None:
        oldest = clock.now_us() / 1_000_000 - STALE_DRAFT_SECONDS
        for draft in os.scandir(self._drafts):
            with contextlib.suppress(FileNotFoundError):
                if draft.stat().st_mtime < oldest:
                    Path(draft.path).unlink()
