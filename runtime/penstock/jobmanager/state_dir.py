"""The state directory of a JobManager on a disk.

jobmanager.lock         held by the JobManager that owns the directory
jobmanager.json         where it listens; for clients
jobs/<id>/graph.json    what was submitted
jobs/<id>/journal/...   what happened to it (`checkpoint.journal`)
jobs/<id>/...           its state objects
"""

import contextlib
import fcntl
import os
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import msgspec

from penstock.checkpoint import journal
from penstock.graph import JobGraph
from penstock.model.errors import UserError
from penstock.model.ids import JobId
from penstock.storage import ObjectStore, open_store

GRAPH = "graph.json"


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
    """Paths and files; no job logic."""

    def __init__(self, root: Path) -> None:
        self.root = root

    @contextlib.contextmanager
    def locked(self) -> Iterator[None]:
        """Own the directory. C001 names the process that does, when it is not us."""
        try:
            self.root.mkdir(parents=True, exist_ok=True)
            descriptor = os.open(self.root / "jobmanager.lock", os.O_RDWR | os.O_CREAT, 0o644)
        except OSError as error:
            raise UserError(
                "C001",
                f"cannot use the state directory {self.root}: {error.strerror}",
                fix="give a --state-dir that this user may write to",
            ) from error
        try:
            try:
                fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError as error:
                holder = os.pread(descriptor, 32, 0).decode() or "unknown"
                raise UserError(
                    "C001",
                    f"the state directory {self.root} belongs to a running JobManager, pid {holder}",
                    fix=f"stop that one (kill {holder}), or give another --state-dir",
                ) from error
            os.ftruncate(descriptor, 0)
            os.pwrite(descriptor, str(os.getpid()).encode(), 0)
            yield
        finally:
            os.close(descriptor)  # and with it the lock, also when the process is killed

    def publish(self, addresses: Addresses) -> None:
        """Tell clients where the JobManager listens; whole or not at all."""
        draft = self.root / f".jobmanager.{os.getpid()}.json"
        draft.write_bytes(msgspec.json.format(msgspec.json.encode(addresses)))
        draft.rename(self.root / "jobmanager.json")

    def unpublish(self) -> None:
        """Nobody listens any more."""
        (self.root / "jobmanager.json").unlink(missing_ok=True)

    def addresses(self) -> Addresses | None:
        """What `publish` wrote, or None."""
        try:
            data = (self.root / "jobmanager.json").read_bytes()
        except FileNotFoundError:
            return None
        return msgspec.json.decode(data, type=Addresses)

    def store(self, job: JobId) -> ObjectStore:
        """The job's own store, with its journal at the top."""
        return open_store(str(self.root.absolute() / "jobs" / job))

    def job_ids(self) -> list[JobId]:
        """Everything that has a graph."""
        return sorted(JobId(path.parent.name) for path in self.root.glob(f"jobs/*/{GRAPH}"))

    def load(self, job: JobId) -> StoredJob | None:
        """Graph and journal; None when the submission was cut short: nobody was told of this job."""
        store = self.store(job)
        recorded = tuple(journal.read_journal(store))
        data = store.get(GRAPH)
        if data is None or not recorded:
            return None
        return StoredJob(job, store, msgspec.json.decode(data, type=JobGraph), recorded)
