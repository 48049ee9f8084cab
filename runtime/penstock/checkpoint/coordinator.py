"""When to take a checkpoint, when it is complete, which ones are kept. One coordinator per job; no I/O.

    trigger -> COLLECTING -- all acknowledged --> JOURNALING -- written --> completed
                   |                                  |                (STOP, FINAL: COMMITTING until every
                   +-- declined, late, aborted        +-- refused       slot has committed, then completed)
                   v                                  v
                 failed                             failed

A savepoint is a checkpoint for which subtasks also write tables; it goes on into the journal when those are complete.

Owns: the pending checkpoint, ids, the retained manifests, the history that people see.
Does not own: messages, slots and the journal. `jobmanager` carries out what is decided here.
Invariants: one checkpoint at a time. A manifest that is on its way into the journal is never given up, since it
may already be there. Ids only grow. After a JobManager has been replaced they go on above every id in the
journal, which may use again the id of a checkpoint that never got that far: its messages and objects carry an
older attempt, and nothing of an older attempt is ever looked at.
"""

import enum
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final

import msgspec

from penstock.checkpoint import journal
from penstock.model import counters
from penstock.model.counters import OperatorMetrics
from penstock.model.elements import Barrier, BarrierKind
from penstock.model.handles import Manifest, StateHandle
from penstock.model.ids import CheckpointId, SlotId, SubtaskId
from penstock.model.settings import CheckpointSettings
from penstock.model.views import CheckpointView

HISTORY: Final = 50
"""Checkpoints that are shown."""


class Phase(enum.Enum):
    """How far the pending checkpoint is."""

    COLLECTING = "collecting"
    JOURNALING = "journaling"
    COMMITTING = "committing"


class Answer(enum.Enum):
    """What an acknowledgement was worth."""

    ACCEPTED = "accepted"
    DUPLICATE = "duplicate"
    STALE = "stale"


@dataclass(slots=True)
class Pending:
    """The checkpoint that is under way. Dictionaries stand for ordered sets."""

    barrier: Barrier
    triggered_us: int
    started: float
    waiting: dict[SubtaskId, None]
    handles: dict[SubtaskId, StateHandle] = field(default_factory=dict)
    phase: Phase = Phase.COLLECTING
    unaligned: bool = False
    uncommitted: dict[SlotId, None] = field(default_factory=dict)
    tables_asked_for: bool = False
    tables_complete: bool = False
    """Of a savepoint: its own manifest is written."""


@dataclass(frozen=True, slots=True)
class GivenUp:
    """A checkpoint failed. Its objects are of no use any more."""

    checkpoint: CheckpointId
    garbage: tuple[str, ...]
    restart: str = ""
    """Why the job must restart; empty: it goes on."""


@dataclass(frozen=True, slots=True)
class Retained:
    """A completed checkpoint that can be restored, and its entry in the journal."""

    sequence: int
    manifest: Manifest


class Coordinator:
    """The checkpoints of one job."""

    def __init__(
        self,
        settings: CheckpointSettings,
        *,
        last_id: int = 0,
        initial: Manifest | None = None,
        retained: Sequence[Retained] = (),
    ) -> None:
        self._settings = settings
        self._last_id = last_id
        self._initial = initial
        self._retained = list(retained)
        self._inherited = len(retained)
        """May be too many, when an earlier JobManager ended before it dropped one; the next checkpoint does."""
        self._armed_at: float | None = None
        self._last_start = self._last_end = float("-inf")
        self._failures_in_a_row = 0
        self._history: dict[CheckpointId, CheckpointView] = {}
        self._orphans: set[str] = set()
        """Shared objects of checkpoints that were given up. The next one may still name them: subtasks do not know
        what became of the last. Once one is complete, what it does not name is never named again."""
        self.pending: Pending | None = None
        self.completed_count = 0
        self.failed_count = 0
        for kept in retained:
            self._show_completed(kept.manifest)

    # ------------------------------------------------------------ what is known

    @property
    def has_completed(self) -> bool:
        """A checkpoint of this job, under this JobManager or an earlier one."""
        return bool(self._retained)

    @property
    def latest(self) -> Manifest | None:
        """Where a restore starts."""
        return self._retained[-1].manifest if self._retained else self._initial

    def next_trigger(self) -> float | None:
        """When the interval asks for the next checkpoint; None: not before something else happens."""
        if self._armed_at is None or self.pending is not None or not self._settings.interval_us:
            return None
        after_start = max(self._last_start, self._armed_at) + self._settings.interval_us / 1e6
        return max(after_start, self._last_end + self._settings.min_pause_us / 1e6)

    def deadline(self) -> float | None:
        """When the pending checkpoint is too late."""
        if self.pending is None or self.pending.phase is not Phase.COLLECTING:
            return None
        return self.pending.started + self._settings.timeout_us / 1e6

    def overtaking_due(self) -> float | None:
        """When the barriers of the pending checkpoint have waited long enough behind rows.

        Never for the last checkpoint of a job: after it, rows in flight would be worked on in vain.
        """
        pending, patience_us = self.pending, self._settings.alignment_timeout_us
        if pending is None or pending.phase is not Phase.COLLECTING or pending.unaligned or patience_us is None:
            return None
        if pending.barrier.kind is not BarrierKind.CHECKPOINT:
            return None
        return pending.started + patience_us / 1e6

    def views(self) -> list[CheckpointView]:
        """The last checkpoints, oldest first."""
        kept = {entry.manifest.checkpoint for entry in self._retained}
        views = [msgspec.structs.replace(v, retained=key in kept) for key, v in self._history.items()]
        if self.pending is not None and self.pending.phase is not Phase.COMMITTING:
            views.append(self._view(self.pending, "pending"))
        return views

    # ------------------------------------------------------------ what happens

    def arm(self, monotonic: float) -> None:
        """Everything runs: the interval counts from now."""
        self._armed_at = monotonic

    def disarm(self) -> None:
        """Not everything runs: no checkpoint could complete."""
        self._armed_at = None

    def trigger(
        self,
        kind: BarrierKind,
        subtasks: Iterable[SubtaskId],
        *,
        now_us: int,
        monotonic: float,
        savepoint: str = "",
    ) -> Barrier:
        """Start a checkpoint of these subtasks; `savepoint`: where they write tables, too."""
        assert self.pending is None, f"checkpoint {self.pending.barrier.checkpoint} is under way"
        self._last_id += 1
        overtakes = kind is BarrierKind.CHECKPOINT and self._settings.alignment_timeout_us == 0
        barrier = Barrier(CheckpointId(self._last_id), kind, overtakes, savepoint)
        self.pending = Pending(barrier, now_us, monotonic, dict.fromkeys(subtasks), unaligned=overtakes)
        self._last_start = monotonic
        return barrier

    def skip(self, newest: CheckpointId) -> None:
        """Slots that run have been asked for checkpoints up to this one: their ids are not used again."""
        self._last_id = max(self._last_id, newest)

    def overtake(self) -> None:
        """Barriers of the pending checkpoint pass by rows that wait, from now on."""
        assert self.pending is not None
        self.pending.unaligned = True

    def acknowledge(self, checkpoint: CheckpointId, subtask: SubtaskId, handle: StateHandle) -> Answer:
        """The subtask's snapshot is durable."""
        pending = self.pending
        if pending is None or pending.barrier.checkpoint != checkpoint:
            return Answer.STALE
        if subtask in pending.handles:
            return Answer.DUPLICATE
        if subtask not in pending.waiting:
            return Answer.STALE
        del pending.waiting[subtask]
        pending.handles[subtask] = handle
        return Answer.ACCEPTED

    def tables(self) -> Pending | None:
        """Once all have acknowledged a savepoint: it, to be made complete. Given out only once."""
        pending = self.pending
        if pending is None or pending.waiting or not pending.barrier.savepoint or pending.tables_asked_for:
            return None
        pending.tables_asked_for = True
        return pending

    def tables_written(self, checkpoint: CheckpointId) -> None:
        """The savepoint is complete; it is a checkpoint once that is in the journal."""
        if self.pending is not None and self.pending.barrier.checkpoint == checkpoint:
            self.pending.tables_complete = True

    def collected(
        self,
        *,
        parallelism: Mapping[str, int],
        max_parallelism: int,
        now_us: int,
        counted_before: Iterable[OperatorMetrics] = (),
    ) -> Manifest | None:
        """Once all have acknowledged: the manifest, to be journaled. Given out only once.

        `counted_before`: what operators had counted in the checkpoints that their subtasks were restored from.
        """
        pending = self.pending
        if pending is None or pending.phase is not Phase.COLLECTING or pending.waiting:
            return None
        if pending.barrier.savepoint and not pending.tables_complete:
            return None
        pending.phase = Phase.JOURNALING
        before = tuple(counted_before)
        counted = (each for handle in pending.handles.values() for each in handle.counters)
        return Manifest(
            checkpoint=pending.barrier.checkpoint,
            kind=pending.barrier.kind.value,
            parallelism=dict(parallelism),
            max_parallelism=max_parallelism,
            triggered_us=pending.triggered_us,
            completed_us=now_us,
            handles=tuple(
                msgspec.structs.replace(handle, tables=())
                for _, handle in sorted(pending.handles.items())
                if handle.path or handle.sections
            ),
            unaligned=pending.unaligned,
            counters=tuple(counters.total((*before, *counted)).values()),
            counted_before=before,
            savepoint=pending.barrier.savepoint,
        )

    def journaled(
        self, entry: journal.CheckpointCompleted, *, commit_by: Sequence[SlotId], monotonic: float
    ) -> tuple[str, ...]:
        """The manifest is in the journal. Returns what may be deleted now, entries before their objects.

        `commit_by`: the slots whose commit is awaited before a STOP or FINAL checkpoint is over.
        """
        pending = self.pending
        assert pending is not None
        assert pending.phase is Phase.JOURNALING
        self._last_end = monotonic
        self._failures_in_a_row = 0
        self.completed_count += 1
        self._show_completed(entry.manifest)
        self._retained.append(Retained(entry.sequence, entry.manifest))
        if pending.barrier.kind not in (BarrierKind.STOP, BarrierKind.FINAL) or not commit_by:
            self.pending = None
        else:
            pending.phase = Phase.COMMITTING
            pending.uncommitted = dict.fromkeys(commit_by)
        return self._drop_unretained()

    def committed(self, checkpoint: CheckpointId, slot: SlotId) -> BarrierKind | None:
        """A slot has committed. Returns the kind when that was the last one that a STOP or FINAL waited for."""
        pending = self.pending
        if pending is None or pending.phase is not Phase.COMMITTING or pending.barrier.checkpoint != checkpoint:
            return None
        pending.uncommitted.pop(slot, None)
        if pending.uncommitted:
            return None
        self.pending = None
        return pending.barrier.kind

    def interrupt(self, reason: str, *, monotonic: float) -> GivenUp | None:
        """Part of the job stopped running, or something more urgent came: no failure of the checkpoint's own.

        A checkpoint that is already in the journal, or on its way, stays what it is.
        """
        if self.pending is None or self.pending.phase is Phase.JOURNALING:
            return None
        if self.pending.phase is Phase.COMMITTING:
            self.pending = None
            return None
        return self._give_up("aborted", reason, monotonic)

    def fail(self, checkpoint: CheckpointId, reason: str, *, monotonic: float) -> GivenUp | None:
        """Declined, too late, or refused by the store. None when that checkpoint is not under way."""
        pending = self.pending
        if pending is None or pending.barrier.checkpoint != checkpoint or pending.phase is Phase.COMMITTING:
            return None
        given_up = self._give_up("failed", reason, monotonic)
        self.failed_count += 1
        if pending.barrier.savepoint or pending.barrier.kind is BarrierKind.RESTART:
            # Somebody has asked for it, who hears of it: no reason to restart the job.
            return given_up
        if pending.barrier.kind is BarrierKind.RESCALE:
            # Behind its barrier the job has another size, and nothing to go on from.
            restart = f"the checkpoint of a rescale failed: {reason}"
            return GivenUp(given_up.checkpoint, given_up.garbage, restart)
        self._failures_in_a_row += 1
        if self._failures_in_a_row <= self._settings.tolerated_failures:
            return given_up
        restart = f"{self._failures_in_a_row} checkpoints in a row failed, the last one: {reason}"
        self._failures_in_a_row = 0
        return GivenUp(given_up.checkpoint, given_up.garbage, restart)

    def useless(self, handle: StateHandle) -> bool:
        """Whether the object of a stale acknowledgement can be deleted: nothing refers to it."""
        self._orphans.update(handle.shared_paths)
        return bool(handle.path) and handle.path not in self._referenced()

    def check_invariants(self) -> None:
        """For tests: what always holds."""
        ids = [kept.manifest.checkpoint for kept in self._retained]
        assert ids == sorted(set(ids)), ids
        assert len(ids) <= max(1, self._settings.retained, self._inherited)
        assert all(number <= self._last_id for number in ids)
        if self.pending is not None:
            assert self.pending.barrier.checkpoint == self._last_id
            assert self.pending.waiting.keys().isdisjoint(self.pending.handles)
            assert not (self.pending.waiting and self.pending.phase is not Phase.COLLECTING)
            assert bool(self.pending.uncommitted) == (self.pending.phase is Phase.COMMITTING)

    # ------------------------------------------------------------ inside

    def _give_up(self, status: str, reason: str, monotonic: float) -> GivenUp:
        pending = self.pending
        assert pending is not None
        self.pending = None
        self._last_end = monotonic
        view = self._view(pending, status)
        self._remember(pending.barrier.checkpoint, msgspec.structs.replace(view, reason=reason))
        referenced = self._referenced()
        for handle in pending.handles.values():
            self._orphans.update(handle.shared_paths)
        paths = (handle.path for handle in pending.handles.values() if handle.path)
        return GivenUp(pending.barrier.checkpoint, tuple(path for path in paths if path not in referenced))

    def _drop_unretained(self) -> tuple[str, ...]:
        excess = len(self._retained) - max(1, self._settings.retained)
        dropped, self._retained = self._retained[: max(0, excess)], self._retained[max(0, excess) :]
        referenced = self._referenced()
        entries = [journal.path(old.sequence) for old in dropped]
        paths = dict.fromkeys(path for old in dropped for handle in old.manifest.handles for path in handle.paths)
        orphans, self._orphans = self._orphans, set()
        return (*entries, *(path for path in (*paths, *sorted(orphans - paths.keys())) if path not in referenced))

    def _referenced(self) -> set[str]:
        manifests = [kept.manifest for kept in self._retained]
        if self._initial is not None:
            manifests.append(self._initial)
        handles = [handle for manifest in manifests for handle in manifest.handles]
        if self.pending:
            handles += self.pending.handles.values()
        return {path for handle in handles for path in handle.paths}

    def _show_completed(self, manifest: Manifest) -> None:
        subtasks = sum(manifest.parallelism.values())
        self._remember(
            manifest.checkpoint,
            CheckpointView(
                id=manifest.checkpoint,
                kind=manifest.kind,
                status="completed",
                triggered_us=manifest.triggered_us,
                duration_us=manifest.completed_us - manifest.triggered_us,
                size=manifest.size,
                uploaded=manifest.uploaded,
                acknowledged=subtasks,
                subtasks=subtasks,
                unaligned=manifest.unaligned,
            ),
        )

    def _remember(self, checkpoint: CheckpointId, view: CheckpointView) -> None:
        self._history[checkpoint] = view
        while len(self._history) > HISTORY:
            del self._history[next(iter(self._history))]

    @staticmethod
    def _view(pending: Pending, status: str) -> CheckpointView:
        return CheckpointView(
            id=pending.barrier.checkpoint,
            kind=pending.barrier.kind.value,
            status=status,
            triggered_us=pending.triggered_us,
            size=sum(handle.total_size for handle in pending.handles.values()),
            uploaded=sum(handle.uploaded_size for handle in pending.handles.values()),
            acknowledged=len(pending.handles),
            subtasks=len(pending.handles) + len(pending.waiting),
            unaligned=pending.unaligned,
        )


def from_journal(settings: CheckpointSettings, entries: Iterable[journal.JournalEntry]) -> Coordinator:
    """A coordinator that goes on where the journal ends."""
    ids, initial, retained = [0], None, []
    for entry in entries:
        match entry:
            case journal.Submitted():
                initial = entry.initial
                ids += [initial.checkpoint] if initial else []
            case journal.AttemptStarted(restored=restored):
                ids += [restored] if restored is not None else []
            case journal.CheckpointCompleted(manifest=manifest):
                ids.append(manifest.checkpoint)
                retained.append(Retained(entry.sequence, manifest))
    return Coordinator(settings, last_id=max(ids), initial=initial, retained=retained)
