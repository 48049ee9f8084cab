"""Drives the checkpoints of a job through its regions: barriers out, commits out, what was given up undone. No I/O.

Owns: what people have asked for (a checkpoint, savepoints, a stop) and when a last Commit is said again.
Does not own: when a checkpoint is due and when it is complete (`checkpoint.coordinator`), the journal (`jobs`).
Invariant: a barrier is sent only while every region runs, a Commit only for a checkpoint that is in the journal.
"""

from collections.abc import Collection

from penstock.checkpoint import journal
from penstock.checkpoint.coordinator import Coordinator, GivenUp, Pending
from penstock.jobmanager.outbox import Outbox
from penstock.jobmanager.regions import Regions, RegionState
from penstock.jobmanager.rescaling import Rescaling
from penstock.jobmanager.savepoint_requests import Savepoints
from penstock.jobmanager.timing import Moment
from penstock.model import messages
from penstock.model.counters import OperatorMetrics
from penstock.model.elements import BarrierKind
from penstock.model.handles import Manifest
from penstock.model.ids import CheckpointId, SlotId


class Checkpointing:
    """The checkpoints of one job, as they happen."""

    def __init__(
        self,
        *,
        coordinator: Coordinator,
        regions: Regions,
        rescaling: Rescaling,
        outbox: Outbox,
        commit_repeat: float,
    ) -> None:
        self._coordinator, self._regions, self._rescaling, self._outbox = coordinator, regions, rescaling, outbox
        self._commit_repeat = commit_repeat
        self._commit_repeat_at = float("inf")
        self._requested = False
        self.savepoints = Savepoints()
        self.stopping = False
        """The next checkpoint is the last."""

    # ------------------------------------------------------------ what is asked for

    def request(self) -> None:
        """Take a checkpoint as soon as one is possible."""
        self._requested = True

    def request_savepoint(self, uri: str, at: Moment) -> None:
        """Take a savepoint there as soon as one is possible."""
        self.savepoints.request(uri, at, kind=BarrierKind.SAVEPOINT)

    def request_stop(self, at: Moment, savepoint: str = "") -> None:
        """Take a last one, after which sources emit nothing; as a savepoint there, when a place is given."""
        if savepoint:
            self.savepoints.request(savepoint, at, kind=BarrierKind.STOP)
        self.stopping = True

    # ------------------------------------------------------------ progress

    def wakes(self) -> list[float]:
        """When `drive` or `give_up_late` may have something to do."""
        due = (self._coordinator.next_trigger(), self._coordinator.overtaking_due(), self._coordinator.deadline())
        times = [*due, self._commit_repeat_at]
        return [time for time in times if time is not None]

    def drive(self, at: Moment) -> None:
        """Start what is due. Every region runs."""
        if self._rescaling.switching:
            return
        self._overtake(at)
        due, pending = self._coordinator.next_trigger(), self._coordinator.pending
        last_one = pending is not None and pending.barrier.kind in (BarrierKind.STOP, BarrierKind.FINAL)
        savepoint, stop_savepoint = map(self.savepoints.wanted, (BarrierKind.SAVEPOINT, BarrierKind.STOP))
        if savepoint and not last_one:
            self._trigger(BarrierKind.SAVEPOINT, at, savepoint)
        elif self._regions.all_ended and not stop_savepoint:
            self._drive_last(BarrierKind.FINAL, at)
        elif self.stopping:
            self._drive_last(BarrierKind.STOP, at, stop_savepoint)
        elif (kind := self._rescaling.wanted_barrier) is not None:
            self._trigger(kind, at)
        elif self._requested or (due is not None and due <= at.monotonic):
            self._trigger(BarrierKind.CHECKPOINT, at)

    def completable(self) -> Pending | None:
        """A savepoint whose tables are all written, to be made complete. Given out only once."""
        return self._coordinator.tables()

    def completed(self, checkpoint: CheckpointId, size: int, sha256: str) -> None:
        """That savepoint is complete."""
        pending = self._coordinator.pending
        if pending is not None and pending.barrier.checkpoint == checkpoint:
            self.savepoints.written(pending.barrier.savepoint, size, sha256)
            self._coordinator.tables_written(checkpoint)

    def collected(self, at: Moment) -> Manifest | None:
        """Once all subtasks have acknowledged: what the journal is to say. Given out only once."""
        return self._coordinator.collected(
            counted_before=self.counted_before(),
            parallelism={vertex.id: vertex.parallelism for vertex in self._regions.graph.vertices},
            max_parallelism=self._regions.graph.max_parallelism,
            now_us=at.now_us,
        )

    def counted_before(self) -> list[OperatorMetrics]:
        """What operators had counted in the checkpoint that their region was restored from, or will be."""
        starts = [(run.uids, run.restored if run.alive else self._coordinator.latest) for run in self._regions.runs]
        restored = [
            each.without_present()
            for uids, manifest in starts
            if manifest is not None
            for each in manifest.counters
            if each.uid in uids
        ]
        return restored + [each.without_present() for run in self._regions.runs for each in run.counted]

    def written(self, entry: journal.CheckpointCompleted, at: Moment, *, ending: bool) -> None:
        """It is in the journal: its output may be shown, unless the job ends without it."""
        running = [run for run in self._regions.runs if run.state is RegionState.RUNNING]
        slots = [slot for run in running for slot in run.placement]
        # Only together can they make it the last one: a region that restarts goes on from here instead.
        awaited = slots if self._regions.all_running and not ending else ()
        self._outbox.delete(self._coordinator.journaled(entry, commit_by=awaited, monotonic=at.monotonic))
        manifest = entry.manifest
        self.savepoints.completed(manifest, at)
        if manifest.kind == BarrierKind.RESCALE.value:
            self._rescaling.on_checkpoint(manifest)
        if manifest.kind == BarrierKind.RESTART.value and not self._rescaling.on_checkpoint(manifest):
            self.let_go_on(manifest.checkpoint)
        if not ending:
            self.commit(manifest.checkpoint, slots, at)
        self._outbox.note("debug", "checkpoint completed", checkpoint=manifest.checkpoint, size=manifest.size)

    def commit(self, checkpoint: CheckpointId, slots: Collection[SlotId], at: Moment) -> None:
        """Let the sinks in these slots make its output visible."""
        self._commit_repeat_at = at.monotonic + self._commit_repeat
        for run in self._regions.runs:
            for slot in run.placement:
                if slot in slots:
                    commit = messages.Commit(job=self._outbox.job, attempt=run.number, checkpoint=checkpoint)
                    self._outbox.send(slot, commit)

    # ------------------------------------------------------------ what goes wrong

    def give_up_late(self, at: Moment) -> str:
        """One that is not complete in time fails. Returns why the job must restart, mostly nothing."""
        pending, deadline = self._coordinator.pending, self._coordinator.deadline()
        if pending is None or deadline is None or deadline > at.monotonic:
            return ""
        missing = ", ".join(str(subtask) for subtask in list(pending.waiting)[:5])
        late = (
            f"not complete after {self._regions.graph.settings.checkpoint.timeout_us / 1e6:g} s, waits for {missing}"
        )
        return self.fail(pending.barrier.checkpoint, late, at)

    def fail(self, checkpoint: CheckpointId, reason: str, at: Moment) -> str:
        """Declined, late, or refused by the store. Returns why the job must restart, mostly nothing."""
        pending = self._coordinator.pending
        given_up = self._coordinator.fail(checkpoint, reason, monotonic=at.monotonic)
        if given_up is None or pending is None:
            return ""
        if uri := pending.barrier.savepoint:
            self.savepoints.failed(uri, reason, at)
            # Whoever wants to stop with a savepoint wants the savepoint.
            self.stopping = self.stopping and pending.barrier.kind is not BarrierKind.STOP
        if pending.barrier.kind is BarrierKind.RESTART:
            self._rescaling.give_up(f"checkpoint {checkpoint} has failed: {reason}", at)
        self._outbox.note("warning", "checkpoint failed", checkpoint=checkpoint, why=reason)
        self._abort(given_up)
        return given_up.restart

    def interrupt(self, reason: str, at: Moment) -> None:
        """Part of the job stopped running: no failure of the checkpoint's own."""
        given_up = self._coordinator.interrupt(reason, monotonic=at.monotonic)
        if given_up is not None:
            self._abort(given_up)

    # ------------------------------------------------------------ inside

    def _drive_last(self, kind: BarrierKind, at: Moment, savepoint: str = "") -> None:
        """The last checkpoint does not wait for an ordinary one; its Commit is repeated until all have answered."""
        self._rescaling.give_up("the job ends", at)
        pending = self._coordinator.pending
        if pending is not None and pending.barrier.kind in (BarrierKind.CHECKPOINT, BarrierKind.RESTART):
            self.interrupt(f"the {kind.value} checkpoint takes its place", at)
        self._trigger(kind, at, savepoint)
        pending = self._coordinator.pending
        if pending is not None and pending.uncommitted and self._commit_repeat_at <= at.monotonic:
            self.commit(pending.barrier.checkpoint, pending.uncommitted, at)

    def _trigger(self, kind: BarrierKind, at: Moment, savepoint: str = "") -> None:
        if self._coordinator.pending is not None:
            return
        if kind is BarrierKind.CHECKPOINT:
            self._requested = False
        subtasks = [subtask for run in self._regions.runs for subtask in run.region.subtasks]
        barrier = self._coordinator.trigger(
            kind, subtasks, now_us=at.now_us, monotonic=at.monotonic, savepoint=savepoint
        )
        if kind in (BarrierKind.RESTART, BarrierKind.RESCALE):
            self._rescaling.on_barrier(barrier.checkpoint, at)
        for run in self._regions.runs:
            for slot in run.source_slots():
                trigger = messages.Trigger(
                    job=self._outbox.job,
                    attempt=run.number,
                    checkpoint=barrier.checkpoint,
                    kind=kind,
                    overtakes=barrier.overtakes,
                    savepoint=savepoint,
                )
                self._outbox.send(slot, trigger)

    def _overtake(self, at: Moment) -> None:
        """Alignment has had its time: let barriers pass by the rows that they wait behind."""
        pending, due = self._coordinator.pending, self._coordinator.overtaking_due()
        if pending is None or due is None or due > at.monotonic:
            return
        self._coordinator.overtake()
        checkpoint = pending.barrier.checkpoint
        self._outbox.note("debug", "checkpoint goes on unaligned", checkpoint=checkpoint)
        for run in self._regions.runs:
            for slot in run.placement:
                self._outbox.send(
                    slot, messages.Overtake(job=self._outbox.job, attempt=run.number, checkpoint=checkpoint)
                )

    def let_go_on(self, checkpoint: CheckpointId) -> None:
        """Nothing follows from a RESTART that is complete: sources emit again."""
        self._tell_abort(checkpoint)

    def _abort(self, given_up: GivenUp) -> None:
        self._outbox.delete(given_up.garbage)
        self._tell_abort(given_up.checkpoint)

    def _tell_abort(self, checkpoint: CheckpointId) -> None:
        for run in self._regions.runs:
            if run.state is RegionState.RUNNING:
                for slot in run.placement:
                    abort = messages.Abort(job=self._outbox.job, attempt=run.number, checkpoint=checkpoint)
                    self._outbox.send(slot, abort)
