"""The state directory of a JobManager: on a disk, or a folder of an object store.

leader/...              who leads, and where it listens (`leases`)
jobs/<id>/graph.json    what was submitted
jobs/<id>/journal/...   what happened to it (`checkpoint.journal`)
jobs/<id>/...           its state objects
savepoints/...          savepoints that were given no other place
"""

import random
import tempfile
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

import msgspec

from penstock.checkpoint import journal
from penstock.graph import JobGraph
from penstock.jobmanager.leases import Claim, StoreLease
from penstock.model.errors import UserError
from penstock.model.ids import JobId
from penstock.savepoints import manifest
from penstock.storage import ObjectStore, Prefixed, check_conditional_writes, folder_of, open_store

GRAPH = "graph.json"

_START_PATIENCE_US = 10_000_000
"""A mistake in an address should be told at once, not after minutes of patience."""

_LEASE_PATIENCE_US = 1_000_000
"""Less than it takes until a leader counts as silent."""

_SAVEPOINTS = "savepoints"


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

    def check(self) -> None:
        """Refuse a store that cannot be used, soon and by name (S080 to S086). A disk always can."""
        if self.folder is None:
            hasty = open_store(self.root, retry_for_us=_START_PATIENCE_US)
            check_conditional_writes(hasty, random.SystemRandom())

    def prepare(self) -> None:
        """Make the directory, or try the store: C001, S080 to S086 when a JobManager cannot work on it."""
        if self.folder is None:
            self.check()
            return
        try:
            self.folder.mkdir(parents=True, exist_ok=True)
            with tempfile.TemporaryFile(dir=self.folder):
                pass
        except OSError as error:
            raise UserError(
                "C001",
                f"cannot use the state directory {self.folder}: {error.strerror}",
                fix="give a --state-dir that this user may write to",
            ) from error

    @cached_property
    def lease(self) -> StoreLease:
        """Of the JobManagers that work on this directory. Answers or fails soon: it is asked again and again."""
        return StoreLease(open_store(self.root, retry_for_us=_LEASE_PATIENCE_US))

    def addresses(self) -> Claim | None:
        """Of the JobManager that leads, or led last and has not left. None: nobody does, or not yet."""
        if self.folder is not None and not self.folder.exists():
            return None
        lead = StoreLease(self._store).look()
        return None if lead is None or lead.beat is None or not lead.beat.answers else lead.claim

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
