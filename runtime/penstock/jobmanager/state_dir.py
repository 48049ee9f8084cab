"""The state directory of a JobManager: on a disk, or a folder of an object store.

jobmanager.lock         on a disk: held by the JobManager that owns the directory
jobmanager.json         where it listens; for clients
jobs/<id>/graph.json    what was submitted
jobs/<id>/journal/...   what happened to it (`checkpoint.journal`)
jobs/<id>/...           its state objects
savepoints/...          savepoints that were given no other place
"""

import contextlib
import fcntl
import os
import random
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

import msgspec

from penstock.checkpoint import journal
from penstock.graph import JobGraph
from penstock.model.errors import UserError
from penstock.model.ids import JobId
from penstock.savepoints import manifest
from penstock.storage import ObjectStore, Prefixed, check_conditional_writes, folder_of, open_store

GRAPH = "graph.json"
ADDRESSES = "jobmanager.json"

_START_PATIENCE_US = 10_000_000
"""A mistake in an address should be told at once, not after minutes of patience."""

_SAVEPOINTS = "savepoints"


class Addresses(msgspec.Struct, frozen=True, kw_only=True):
    """Content of `jobmanager.json`."""

    pid: int
    grpc: str
    rest: str


@dataclass(frozen=True, slots=True)
class StoredJob:
    """A job as it lies in the directory."""

    job: JobId
    store: ObjectStore
    graph: JobGraph
    recorded: tuple[journal.Recorded, ...]

    @property
    def submitted_us(self) -> int:
        """When the client handed it in."""
        return self.recorded[0].entry.time_us

    @property
    def ended(self) -> journal.Ended | None:
        """How it ended; None: it is to be taken up again."""
        last = self.recorded[-1].entry
        return last if isinstance(last, journal.Ended) else None


class StateDir:
    """Paths and files; no job logic. Looking into it makes nothing."""

    def __init__(self, root: Path | str) -> None:
        self.root = str(root)
        self.folder = folder_of(self.root)
        """On a disk."""

    @property
    def savepoints(self) -> str:
        """Where savepoints go that were given no other place."""
        if self.folder is not None:
            return str(self.folder.absolute() / _SAVEPOINTS)
        return Prefixed(open_store(self.root), _SAVEPOINTS).uri

    @contextlib.contextmanager
    def locked(self) -> Iterator[None]:
        """Own the directory. C001 names the process that does, when it is not us.

        An object store has no such lock, and needs none: whoever comes second fails at the first entry that it
        wants to write into a journal. That stands on the store's conditional writes, so these are tried.
        """
        if self.folder is None:
            self.check()
            yield
        else:
            with _locked(self.folder):
                yield

    def check(self) -> None:
        """Refuse a store that cannot be used, soon and by name (S080 to S086). A disk always can."""
        if self.folder is None:
            hasty = open_store(self.root, retry_for_us=_START_PATIENCE_US)
            check_conditional_writes(hasty, random.SystemRandom())

    def publish(self, addresses: Addresses) -> None:
        """Tell clients where the JobManager listens; whole or not at all."""
        self._store.put(ADDRESSES, msgspec.json.format(msgspec.json.encode(addresses)))

    def unpublish(self) -> None:
        """Nobody listens any more."""
        self._store.delete(ADDRESSES)

    def addresses(self) -> Addresses | None:
        """What `publish` wrote, or None."""
        if self.folder is not None and not (self.folder / ADDRESSES).exists():
            return None
        data = self._store.get(ADDRESSES)
        return None if data is None else msgspec.json.decode(data, type=Addresses)

    def open(self, uri: str) -> ObjectStore:
        """Any other place, for savepoints to go to."""
        return open_store(uri)

    def open_savepoint(self, uri: str) -> ObjectStore:
        """One that is to be read."""
        return manifest.open_savepoint(uri)

    def store(self, job: JobId) -> ObjectStore:
        """The job's own store, with its journal at the top."""
        return Prefixed(self._store, f"jobs/{job}")

    def job_ids(self) -> list[JobId]:
        """Everything that may be a job."""
        return [JobId(name) for name in self._store.folders("jobs/")]

    def load(self, job: JobId) -> StoredJob | None:
        """Graph and journal; None when the submission was cut short: nobody was told of this job."""
        store = self.store(job)
        recorded = tuple(journal.read_journal(store))
        data = store.get(GRAPH)
        if data is None or not recorded:
            return None
        return StoredJob(job, store, msgspec.json.decode(data, type=JobGraph), recorded)

    @cached_property
    def _store(self) -> ObjectStore:
        return open_store(self.root)


@contextlib.contextmanager
def _locked(folder: Path) -> Iterator[None]:
    try:
        folder.mkdir(parents=True, exist_ok=True)
        descriptor = os.open(folder / "jobmanager.lock", os.O_RDWR | os.O_CREAT, 0o644)
    except OSError as error:
        raise UserError(
            "C001",
            f"cannot use the state directory {folder}: {error.strerror}",
            fix="give a --state-dir that this user may write to",
        ) from error
    try:
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError as error:
            holder = os.pread(descriptor, 32, 0).decode() or "unknown"
            raise UserError(
                "C001",
                f"the state directory {folder} belongs to a running JobManager, pid {holder}",
                fix=f"stop that one (kill {holder}), or give another --state-dir",
            ) from error
        os.ftruncate(descriptor, 0)
        os.pwrite(descriptor, str(os.getpid()).encode(), 0)
        yield
    finally:
        os.close(descriptor)  # and with it the lock, also when the process is killed
