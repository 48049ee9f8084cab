"""The journal of a job: what happened to it, in order, as objects that are created once.

`journal/<sequence>.json`, each written by conditional create right after the last one that its writer knows.
Whoever loses that race has been replaced, and stops: there is no other fence, and none is needed.

  submitted   the graph
  attempt     a region starts; written before it is deployed, so that no older attempt can complete a checkpoint
  resized     the job has another parallelism from here on, whatever its graph says
  checkpoint  the manifest of a completed checkpoint; sinks commit after it is written
  taken over  another JobManager leads, in a later epoch; nothing of the one before counts behind it
  ended       finished, stopped, cancelled or failed

Each entry names the SHA-256 of the one before. Checkpoint entries that are no longer retained are deleted;
all others stay. That keeps the fence whole: whatever follows the last entry of a replaced writer says that it was
taken over, and such entries are never deleted, so its next create always fails. A writer that begins looks behind its
first entry: one that read the journal long ago may have filled the hole of a deleted checkpoint, and has lost.

A journal that cannot be read is never guessed at: a broken entry stops the job that it belongs to.
"""

import hashlib
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Final

import msgspec

from penstock.model.errors import FatalJobError, RetryableError
from penstock.model.handles import Manifest
from penstock.model.ids import NO_EPOCH, Attempt, CheckpointId, Epoch, SlotId
from penstock.storage import ObjectStore, UnknownResultError

PREFIX: Final = "journal/"


class Entry(msgspec.Struct, frozen=True, kw_only=True, tag=True):
    """One object of the journal."""

    sequence: int
    parent: str
    """SHA-256 of the entry before, hex; empty for the first."""
    writer: str
    """Unique per JobManager process: a create whose answer was lost is recognised by it."""
    time_us: int
    epoch: Epoch = NO_EPOCH
    """In which its writer leads."""


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
    slots: tuple[SlotId, ...] = ()
    """Where it runs: another JobManager may find it there."""


class CheckpointCompleted(Entry, frozen=True, kw_only=True):
    """A restore may start here; sinks commit it."""

    manifest: Manifest


class Resized(Entry, frozen=True, kw_only=True):
    """Attempts that follow are of this size. Never deleted, as attempts are not: the last one counts."""

    parallelism: int
    """Of operators that name none."""
    operators: dict[str, int] = {}
    """uid -> parallelism, where somebody has asked for another than the program does."""
    checkpoint: CheckpointId
    """It was taken for this; what holds state finds its new place from there."""
    requested_us: int
    cause: str = ""
    """Why it went back to the size before; empty: somebody asked for it."""
    live: bool = False
    """The attempt goes on: the plan is the one before, with other numbers of subtasks."""


class TakenOver(Entry, frozen=True, kw_only=True):
    """Another JobManager leads. Its first entry: what the one before still writes comes too late. Never deleted."""


class Ended(Entry, frozen=True, kw_only=True):
    """Nothing follows."""

    outcome: str
    """finished | stopped | cancelled | failed."""
    reason: str = ""


JournalEntry = Submitted | AttemptStarted | CheckpointCompleted | Resized | TakenOver | Ended

_decoder: Final[msgspec.json.Decoder[JournalEntry]] = msgspec.json.Decoder(JournalEntry)


@dataclass(frozen=True, slots=True)
class Recorded:
    """An entry as it lies in the store."""

    entry: JournalEntry
    sha256: str


@dataclass(frozen=True, slots=True)
class Appended:
    """The entry is in the journal."""

    sha256: str


@dataclass(frozen=True, slots=True)
class Conflict:
    """Somebody else has written this sequence number: the writer has been replaced."""

    found: JournalEntry | None
    """None: it has been deleted since, as only a later JobManager may."""


def path(sequence: int) -> str:
    """Where the entry lies; paths sort as sequence numbers do."""
    return f"{PREFIX}{sequence:012d}.json"


def encode(entry: JournalEntry) -> bytes:
    """The bytes that are stored and hashed. The same entry always gives the same bytes."""
    return msgspec.json.encode(entry)


def decode(data: bytes, *, where: str) -> JournalEntry:
    """What `encode` wrote. `where` is named when it cannot be read."""
    try:
        return _decoder.decode(data)
    except msgspec.DecodeError as error:
        raise _broken(where, f"it is not a journal entry ({error}; {len(data)} bytes)") from error


def taken_over(last: "Recorded", *, writer: str, epoch: Epoch, now_us: int) -> TakenOver:
    """What a JobManager writes behind the last entry that it has read, before anything else."""
    return TakenOver(sequence=last.entry.sequence + 1, parent=last.sha256, writer=writer, epoch=epoch, time_us=now_us)


def append(store: ObjectStore, entry: JournalEntry) -> Appended | Conflict:
    """Create the entry. When the answer of the store is lost, what lies there decides.

    Raises UnknownResultError when that cannot be told: the create may still be on its way, so the caller
    tries the same entry again until it is answered.
    """
    data, where = encode(entry), path(entry.sequence)
    unknown: UnknownResultError | None = None
    try:
        created = store.create(where, data)
    except UnknownResultError as error:
        created, unknown = False, error
    try:
        found = data if created else store.get(where)
        overtaken = found == data and _is_overtaken(store, entry)
    except RetryableError as error:
        raise UnknownResultError(error.code, f"nobody knows whether {where} was written: {error.what}") from error
    if found == data and not overtaken:
        # Equal bytes name the same writer: an earlier try of ours has arrived.
        return Appended(hashlib.sha256(data).hexdigest())
    if found is None and unknown is not None:
        raise unknown
    return Conflict(None if found is None else decode(found, where=where))


def _is_overtaken(store: ObjectStore, entry: JournalEntry) -> bool:
    """Whether the journal goes on behind an entry that was just written.

    Then its writer has read the journal long ago, and its entry fills the hole of a checkpoint that has been
    deleted since. Only the first entry of a writer can be so late, and a checkpoint never is the first.
    """
    if isinstance(entry, CheckpointCompleted):
        return False
    own = path(entry.sequence)
    return any(info.path > own for info in store.list(PREFIX))


def read_journal(store: ObjectStore) -> list[Recorded]:
    """All entries in order. Raises S002 when one is broken, or missing where none may be."""
    recorded = []
    for info in store.list(PREFIX):
        data = store.get(info.path)
        if data is None:
            # Only checkpoints are deleted, by a JobManager that is about to be replaced; the chain check below
            # sees to it that nothing else was.
            continue
        entry = decode(data, where=info.path)
        if path(entry.sequence) != info.path:
            raise _broken(info.path, f"it holds entry {entry.sequence}")
        recorded.append(Recorded(entry, hashlib.sha256(data).hexdigest()))
    return _checked_chain(recorded)


def latest(entries: Iterable[JournalEntry]) -> Manifest | None:
    """What to restore: the last completed checkpoint, else what the job was started from, else nothing."""
    manifest = None
    for entry in entries:
        match entry:
            case Submitted(initial=initial):
                manifest = initial
            case CheckpointCompleted():
                manifest = entry.manifest
    return manifest


def _checked_chain(recorded: Sequence[Recorded]) -> list[Recorded]:
    """Each entry names the one before; what is missing can only be checkpoints that newer ones replaced.

    In the place of such a checkpoint there may be the entry of a writer that came too late (`_is_overtaken`). The
    one after it names another, so it is left out.
    """
    if not recorded:
        return []
    if not isinstance(recorded[0].entry, Submitted) or recorded[0].entry.sequence != 0:
        raise _broken(path(0), "it is missing, and every journal begins with it")
    newest_checkpoint = max(
        (r.entry.sequence for r in recorded if isinstance(r.entry, CheckpointCompleted)), default=0
    )
    chain = [recorded[-1]]
    for before, after in reversed(list(pairwise(recorded))):
        follows = after.entry.sequence == before.entry.sequence + 1
        if follows and after.entry.parent != before.sha256:
            if isinstance(before.entry, CheckpointCompleted) or after.entry.sequence > newest_checkpoint:
                raise _broken(
                    path(before.entry.sequence),
                    f"its SHA-256 is {before.sha256}, but the next entry follows {after.entry.parent}",
                )
        elif not follows and after.entry.sequence > newest_checkpoint:
            raise _broken(path(before.entry.sequence + 1), "it is missing, and no later checkpoint has replaced it")
        else:
            chain.append(before)
    return chain[::-1]


def _broken(where: str, found: str) -> FatalJobError:
    return FatalJobError(
        "S002",
        f"journal entry {where} cannot be used: {found}",
        fix="put the object back from a copy, or start a new job from one of the retained checkpoints",
    )
