"""What the JobManager's core is told, and what it wants done.

The core (`jobmanager.core`) is a function from events to commands and touches nothing. A shell carries the
commands out and feeds the results back as events: over gRPC and real storage (`jobmanager.shell`), or inside the
simulation (`testing`).
"""

from dataclasses import dataclass

from penstock.checkpoint.journal import JournalEntry
from penstock.graph import JobGraph, Size
from penstock.model.handles import Manifest
from penstock.model.ids import CheckpointId, JobId, TaskManagerId
from penstock.model.messages import Directed, ToJobManager
from penstock.savepoints.completing import Taken

# ---------------------------------------------------------------- events


@dataclass(frozen=True, slots=True, kw_only=True)
class MessageReceived:
    """From a TaskManager, or from one of its slots by way of it."""

    task_manager: TaskManagerId
    message: ToJobManager


@dataclass(frozen=True, slots=True, kw_only=True)
class TaskManagerLost:
    """A send to it failed for good: refused, reset, or its time ran out."""

    task_manager: TaskManagerId
    reason: str


@dataclass(frozen=True, slots=True, kw_only=True)
class JobSubmitted:
    """A client wants a job to run. The shell has stored the graph."""

    job: JobId
    graph: JobGraph
    graph_sha256: str
    store: str
    """URI of the object store with this job's journal and state as its root."""
    restored_from: str = ""
    initial: Manifest | None = None
    """Start from this checkpoint of an earlier run."""


@dataclass(frozen=True, slots=True, kw_only=True)
class JobRecovered:
    """Found in the store when this JobManager started: takes up where the journal ends."""

    job: JobId
    graph: JobGraph
    store: str
    entries: tuple[JournalEntry, ...]
    last_sha256: str


@dataclass(frozen=True, slots=True, kw_only=True)
class CancelRequested:
    """End the job now; its last checkpoint stays."""

    job: JobId


@dataclass(frozen=True, slots=True, kw_only=True)
class StopRequested:
    """Take a last checkpoint, commit it, end."""

    job: JobId
    savepoint: str = ""
    """URI of the savepoint that it is to be, too."""


@dataclass(frozen=True, slots=True, kw_only=True)
class CheckpointRequested:
    """Take a checkpoint now, whatever the interval says."""

    job: JobId


@dataclass(frozen=True, slots=True, kw_only=True)
class SavepointRequested:
    """Take a savepoint now."""

    job: JobId
    uri: str


@dataclass(frozen=True, slots=True, kw_only=True)
class RescaleRequested:
    """Run with this parallelism from now on. Whoever asks has checked that the job can."""

    job: JobId
    size: Size


@dataclass(frozen=True, slots=True, kw_only=True)
class SavepointWritten:
    """The savepoint of the last WriteSavepoint is complete."""

    job: JobId
    checkpoint: CheckpointId
    size: int
    sha256: str = ""
    """Of its manifest."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SavepointFailed:
    """Its store refused for good."""

    job: JobId
    checkpoint: CheckpointId
    reason: str


@dataclass(frozen=True, slots=True, kw_only=True)
class JournalWritten:
    """The entry of the last AppendJournal is in the store."""

    job: JobId
    entry: JournalEntry
    sha256: str


@dataclass(frozen=True, slots=True, kw_only=True)
class JournalConflict:
    """Somebody else has written that sequence number: this JobManager has been replaced for this job."""

    job: JobId
    entry: JournalEntry


@dataclass(frozen=True, slots=True, kw_only=True)
class JournalFailed:
    """The store refused for good (after the shell's retries). Nothing was written."""

    job: JobId
    entry: JournalEntry
    reason: str


@dataclass(frozen=True, slots=True)
class Tick:
    """Time has passed; comes at least when a WakeAt is due."""


Event = (
    MessageReceived
    | TaskManagerLost
    | JobSubmitted
    | JobRecovered
    | CancelRequested
    | StopRequested
    | CheckpointRequested
    | SavepointRequested
    | RescaleRequested
    | SavepointWritten
    | SavepointFailed
    | JournalWritten
    | JournalConflict
    | JournalFailed
    | Tick
)

# ---------------------------------------------------------------- commands


@dataclass(frozen=True, slots=True, kw_only=True)
class Send:
    """To a slot by way of its TaskManager. Lost messages are found by time-outs, never waited for."""

    task_manager: TaskManagerId
    directed: Directed


@dataclass(frozen=True, slots=True, kw_only=True)
class AppendJournal:
    """Create the entry. One at a time per job: the answer comes before the next is asked for."""

    job: JobId
    entry: JournalEntry


@dataclass(frozen=True, slots=True, kw_only=True)
class WriteSavepoint:
    """All tables of a savepoint are written: write its manifest."""

    job: JobId
    taken: Taken


@dataclass(frozen=True, slots=True, kw_only=True)
class DeleteObjects:
    """Best effort: objects that no retained checkpoint needs."""

    job: JobId
    paths: tuple[str, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Forget:
    """The TaskManager counts as lost: answer it that it is not registered, so that it starts anew."""

    task_manager: TaskManagerId


@dataclass(frozen=True, slots=True, kw_only=True)
class WakeAt:
    """Feed a Tick at this monotonic second, or earlier."""

    at: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Note:
    """For the log: what happened, with its facts."""

    level: str
    message: str
    facts: dict[str, object]


Command = Send | AppendJournal | WriteSavepoint | DeleteObjects | Forget | WakeAt | Note
