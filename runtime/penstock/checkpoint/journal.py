"""The journal of a job: what happened to it, in order, as objects that are created once.

`journal/<sequence>.json`, each written by conditional create right after the last one that its writer knows.
Whoever loses that race has been replaced, and stops: there is no other fence, and none is needed.

  submitted   the graph
  attempt     a region starts; written before it is deployed, so that no older attempt can complete a checkpoint
  checkpoint  the manifest of a completed checkpoint; sinks commit after it is written
  ended       finished, stopped, cancelled or failed

Each entry names the SHA-256 of the one before. Checkpoint entries that are no longer retained are deleted;
all others stay. That keeps the fence whole: whatever follows the last entry of a replaced writer is an
attempt, and attempts are never deleted, so its next create always fails.
"""

import msgspec

from penstock.model.handles import Manifest
from penstock.model.ids import Attempt, CheckpointId


class Entry(msgspec.Struct, frozen=True, kw_only=True, tag=True):
    """One object of the journal."""

    sequence: int
    parent: str
    """SHA-256 of the entry before, hex; empty for the first."""
    writer: str
    """Unique per JobManager process: a create whose answer was lost is recognised by it."""
    time_us: int


class Submitted(Entry, frozen=True, kw_only=True):
    """The job exists. The graph lies in `graph.json` beside the journal."""

    name: str
    graph_sha256: str
    restored_from: str = ""
    """URI of the checkpoint or savepoint that the job was started from, with its manifest below."""
    initial: Manifest | None = None


class AttemptStarted(Entry, frozen=True, kw_only=True):
    """A region is about to be deployed."""

    attempt: Attempt
    region: int
    restored: CheckpointId | None
    """None: from the beginning."""
    cause: str = ""
    """Why it had to be started again, for people."""


class CheckpointCompleted(Entry, frozen=True, kw_only=True):
    """A restore may start here; sinks commit it."""

    manifest: Manifest


class Ended(Entry, frozen=True, kw_only=True):
    """Nothing follows."""

    outcome: str
    """finished | stopped | cancelled | failed."""
    reason: str = ""


JournalEntry = Submitted | AttemptStarted | CheckpointCompleted | Ended
