"""One job: its state, its failures and its journal, from submission to its end. No I/O.

Owns: what the job is doing and what its journal says next. Its slots are given by `placing`, its checkpoints driven
by `checkpointing`.

Facts come in through the `on_...` methods, which note them and react to failures; `advance` then takes every step
that is possible now. It is called after each event, so little depends on the order of facts.

Invariants:
  nothing is done that an unwritten journal entry would have to allow: an attempt is deployed after its
  AttemptStarted, output is committed after its CheckpointCompleted, a job has ended after its Ended;
  attempts only grow, and what belongs to an attempt that is not the present one of a region is ignored;
  after a conflict in the journal the job belongs to somebody else, and nothing more is done or sent for it.
"""

from collections.abc import Iterable
from dataclasses import dataclass

from penstock import graph as graphs
from penstock.checkpoint import coordinator, journal
from penstock.graph import JobGraph, Size
from penstock.jobmanager import failures, packing
from penstock.jobmanager.adopting import Adopting
from penstock.jobmanager.aligning import Aligning
from penstock.jobmanager.checkpointing import Checkpointing
from penstock.jobmanager.events import Command, JobSubmitted
from penstock.jobmanager.failures import Failure
from penstock.jobmanager.journal_writer import JournalWriter
from penstock.jobmanager.lifecycle import TERMINAL, JobState, move
from penstock.jobmanager.moving import Moving
from penstock.jobmanager.outbox import Outbox
from penstock.jobmanager.placing import PACKED, Placing
from penstock.jobmanager.regions import RegionRun, Regions, RegionState
from penstock.jobmanager.rescaling import Rescaling
from penstock.jobmanager.restarts import Restarts
from penstock.jobmanager.slots import LostSlot, SlotPool
from penstock.jobmanager.timing import Moment, Timing
from penstock.model import messages
from penstock.model.elements import BarrierKind
from penstock.model.errors import UserError
from penstock.model.ids import Attempt, CheckpointId, JobId, SlotId, TaskManagerId
from penstock.savepoints.completing import Taken

TAKEN_UP = "C026 taken up by a new JobManager"


@dataclass(frozen=True, slots=True)
class Ending:
    """How the job will have ended, once that is written."""

    state: JobState
    reason: str


class Job:
    """Made by `starting.submitted` and `starting.recovered`."""

    def __init__(
        self,
        job: JobId,
        graph: JobGraph,
        store: str,
        *,
        checkpoints: coordinator.Coordinator,
        restarts: Restarts,
        writer: JournalWriter,
        pool: SlotPool,
        timing: Timing,
        at: Moment,
    ) -> None:
        self.id, self.checkpoints, self.restarts = job, checkpoints, restarts
        self._journal, self._timing, self._at = writer, timing, at
        self._outbox = Outbox(job)
        self.regions = Regions(graph, since=at.monotonic)
        self.moving = Moving(graph, store, regions=self.regions, pool=pool, outbox=self._outbox, repeat=timing.repeat)
        self.rescaling = Rescaling(job, self.regions, pool, graph, graphs.size_of(graph), self.moving)
        self._placing = Placing(graph, store, regions=self.regions, pool=pool, outbox=self._outbox)
        self.checkpointing = Checkpointing(
            coordinator=checkpoints,
            regions=self.regions,
            rescaling=self.rescaling,
            outbox=self._outbox,
            commit_repeat=timing.repeat,
        )
        self._aligning = Aligning(self.regions, self._outbox)
        self.adopting = Adopting(self.regions)
        self.state, self.reason = JobState.CREATED, ""
        self.failures = failures.FailureLog()
        self.submitted_us = at.now_us
        self.running_us: int | None = None
        self.ended_us: int | None = None
        self.ignored = 0
        """Messages of attempts that are over."""
        self.restored_from = ""
        """Where the state came from that it was started with."""
        self.submission: JobSubmitted | None = None
        """Until it is in the journal."""
        self._ending: Ending | None = None
        self._replaced = False

    @property
    def graph(self) -> JobGraph:
        """As it is run, at the present parallelism."""
        return self.regions.graph

    # ------------------------------------------------------------ facts: people

    def on_stop(self, savepoint: str = "") -> None:
        """Take a last checkpoint and end; at once when nothing runs that could take one.

        With a savepoint the job does not end without it.
        """
        self._give_up_rescale("the job is to stop")
        if savepoint or self.state in (JobState.RUNNING, JobState.STOPPING):
            self.checkpointing.request_stop(self._at, savepoint)
            return
        last = self.checkpoints.latest
        goes_on = f"goes on from checkpoint {last.checkpoint}" if last else "starts from the beginning"
        self.end(JobState.STOPPED, f"was {self.state.value} when it was stopped: started again, it {goes_on}")

    def on_cancel(self) -> None:
        """End now; the last checkpoint stays."""
        self.end(JobState.CANCELLED, "")

    def on_checkpoint_request(self) -> None:
        """Take a checkpoint as soon as one is possible."""
        self.checkpointing.request()

    def on_savepoint_request(self, uri: str) -> None:
        """Take a savepoint as soon as one is possible."""
        self.checkpointing.request_savepoint(uri, self._at)

    def on_rescale(self, size: Size) -> None:
        """Run at this size as soon as that is possible; whoever asks has looked whether it is."""
        self.rescaling.request(size, self._at)

    # ------------------------------------------------------------ facts: savepoints

    def on_savepoint_written(self, checkpoint: CheckpointId, size: int, sha256: str) -> None:
        """The manifest of the savepoint that is under way is in its store."""
        self.checkpointing.completed(checkpoint, size, sha256)

    def on_savepoint_failed(self, checkpoint: CheckpointId, reason: str) -> None:
        """Its store has refused for good."""
        self._restart_all(self.checkpointing.fail(checkpoint, reason, self._at))

    # ------------------------------------------------------------ facts: slots

    def on_message(self, message: messages.FromSlot) -> None:
        """From a slot that works for this job, or did."""
        run = self.regions.of(message.attempt)
        if run is None:
            self.ignored += 1
            self._on_stale(message)
            return
        self.moving.on_message(message)
        match message:
            case messages.Running(slot=slot) if slot in run.placement:
                run.reported[slot] = None
                if run.state is RegionState.DEPLOYING and len(run.reported) == len(run.placement):
                    run.enter(RegionState.RUNNING, self._at.monotonic)
            case messages.Acknowledged(checkpoint=checkpoint, subtask=subtask, handle=handle):
                answer = self.checkpoints.acknowledge(checkpoint, subtask, handle)
                if answer is coordinator.Answer.STALE:
                    self._on_stale(message)
                elif answer is coordinator.Answer.ACCEPTED:
                    self.moving.on_acknowledged(checkpoint, subtask, handle)
            case messages.Declined(checkpoint=checkpoint, subtask=subtask, reason=reason):
                self._restart_all(self.checkpointing.fail(checkpoint, f"{subtask} declined: {reason}", self._at))
            case messages.Committed(checkpoint=checkpoint, slot=slot):
                if kind := self.checkpoints.committed(checkpoint, slot):
                    self.end(JobState.FINISHED if kind is BarrierKind.FINAL else JobState.STOPPED, "")
            case messages.InputEnded(subtask=subtask) if subtask in run.region.subtasks:
                run.ended[subtask] = None
            case messages.Failed(slot=slot) if self.moving.joins(slot):
                self._give_up_rescale(str(failures.from_message(message)))
            case messages.Failed():
                self._on_failure(run, failures.from_message(message))
            case messages.Reached() if not self._over:
                self._aligning.heard(run, message)
            case messages.SlotReport(tasks=tasks, rescale=rescale):
                known = [metrics for metrics in tasks if metrics.subtask in run.region.subtasks]
                run.metrics |= {metrics.subtask: metrics for metrics in known}
                if rescale >= run.rescale:
                    run.ended |= {metrics.subtask: None for metrics in known if metrics.ended}

    def on_runs(self, slot: SlotId, runs: messages.Runs) -> bool:
        """A TaskManager that has registered says what a slot runs of this job. False: that is to end."""
        if self._over or self._ending is not None:
            return False
        run = self.regions.of(runs.attempt)
        if run is None or run.state is RegionState.ADOPTING:
            return self.adopting.take(slot, runs)
        return run.alive and (slot in run.placement or self.moving.joins(slot))

    def take_up_stop(self, entries: Iterable[journal.JournalEntry]) -> None:
        """Somebody wanted an earlier JobManager to stop the job, which came as far as the last checkpoint."""
        completed = [entry for entry in entries if isinstance(entry, journal.CheckpointCompleted)]
        if completed and completed[-1].manifest.kind == BarrierKind.STOP.value:
            self.checkpointing.request_stop(self._at)

    def on_registered(self, task_manager: TaskManagerId) -> None:
        """It has said all that it runs."""
        for run in self.adopting.missing(task_manager):
            self._placing.end_attempt(run, self._at, TAKEN_UP)

    def on_slot_lost(self, lost: LostSlot) -> None:
        """The process is gone."""
        failure = Failure(lost.code, lost.reason, str(lost.slot), lost.secondary)
        run = self.regions.of(lost.usage.attempt)
        if run is None:
            self._explain(failure, lost.usage.attempt)
        elif self.moving.joins(lost.slot):
            self._give_up_rescale(str(failure))
        elif run.state is RegionState.JOURNALING:
            # Nothing was deployed: other slots will do, and no failure is counted.
            self._placing.end_attempt(run, self._at, run.cause)
        else:
            self._on_failure(run, failure)

    # ------------------------------------------------------------ facts: journal

    def on_written(self, entry: journal.JournalEntry, sha256: str) -> None:
        """The outstanding entry is in the store."""
        if self._replaced or not self._journal.written(entry, sha256):
            return
        match entry:
            case journal.Submitted():
                self.submission = None
            case journal.AttemptStarted(attempt=attempt):
                run = self.regions.of(attempt)
                if run is not None and self._ending is None:
                    self._placing.deploy(run, self._at)
            case journal.CheckpointCompleted():
                self.checkpointing.written(entry, self._at, ending=self._ending is not None)
            case journal.Resized():
                self._resize(entry)
            case journal.Ended(outcome=outcome, reason=reason):
                self._placing.release_all(self._at)
                self.ended_us = self._at.now_us
                self._move(JobState(outcome), reason)

    def on_journal_failed(self, entry: journal.JournalEntry, reason: str) -> None:
        """The store refused; nothing was written."""
        if self._replaced or not self._journal.refused(entry, self._at.monotonic):
            return
        what = f"the journal cannot be written: {reason}"
        match entry:
            case journal.Submitted():
                fix = "make the state directory writable and submit the job again"
                self.ended_us = self._at.now_us
                self._move(JobState.FAILED, f"C024 {what}\n  fix: {fix}")
            case journal.AttemptStarted(attempt=attempt):
                if run := self.regions.of(attempt):
                    self._fail_region(run, Failure("C024", what))
            case journal.CheckpointCompleted(manifest=manifest):
                self._restart_all(self.checkpointing.fail(manifest.checkpoint, what, self._at))
            case journal.Resized(live=True):
                self._restart_all(self.rescaling.on_live_refused(what))
            case journal.Resized():
                if (checkpoint := self.rescaling.on_refused(what, self._at)) is not None:
                    self.checkpointing.let_go_on(checkpoint)
            case journal.Ended():
                self._outbox.note("warning", "end of job not written yet", why=reason)

    def on_conflict(self, entry: journal.JournalEntry) -> None:
        """Somebody else writes this journal now."""
        if self.state in TERMINAL or not self._journal.refused(entry, self._at.monotonic):
            return
        self._replaced = True
        self._outbox.take()
        self._placing.abandon()
        self.ended_us = self._at.now_us
        self._move(JobState.FAILED, "C025 taken over by another JobManager: ask that one")

    # ------------------------------------------------------------ progress

    def begin(self, at: Moment) -> None:
        """Before any fact of an event is told."""
        self._at = at

    def advance(self) -> list[Command]:
        """Take every step that is possible now; returns what has to be done for it."""
        if not self._over:
            if self._ending is None and self.submission is None:
                self._adopt()
                self._settle_failures()
                self._place_regions()
                self._show_state()
                self._restart_all(self.checkpointing.give_up_late(self._at))
                self._restart_all(self.rescaling.late(self._at))
                if self._all_running:
                    if reason := self.rescaling.drive(self._at):
                        self._give_up_rescale(reason)
                    self.checkpointing.drive(self._at)
                if (taken := self.checkpointing.completable()) is not None:
                    self._outbox.write_savepoint(self._taken(taken))
            if self._journal.ready(self._at.monotonic) and (entry := self._next_entry()):
                self._outbox.append(entry)
        return self._outbox.take()

    def next_wakes(self) -> list[float]:
        """When `advance` may have something new to do."""
        if self._over:
            return []
        waits = {
            RegionState.FAILING: self._timing.cause_grace,
            RegionState.DEPLOYING: self._timing.deploy_timeout,
        }
        patience = [run.since + waits[run.state] for run in self.regions.runs if run.state in waits]
        own = [self._journal.not_before, self.restarts.resume_at, *patience]
        own += self.adopting.wakes(self._timing.heartbeat_timeout)
        return own + self.checkpointing.wakes() + self._placing.wakes() + self.rescaling.wakes()

    def end(self, state: JobState, reason: str) -> None:
        """Decide the end; it counts once it is in the journal."""
        if self._ending is not None or self._over:
            return
        self._ending = Ending(state, reason)
        self.checkpointing.savepoints.give_up(f"the job is {state.value}", self._at)
        self.rescaling.give_up(f"the job is {state.value}", self._at, always=True)
        self.checkpointing.interrupt(f"the job is {state.value}", self._at)
        self.checkpoints.disarm()
        if state in (JobState.CANCELLED, JobState.FAILED):
            self._placing.release_all(self._at)

    def show_ended(self, state: JobState, reason: str, ended_us: int) -> None:
        """The journal says so: nothing is left to be done."""
        self.ended_us = ended_us
        self._move(state, reason)

    def check_invariants(self) -> None:
        """For tests: what always holds."""
        self.checkpoints.check_invariants()
        self.regions.check_invariants()
        if self._over or self._ending is not None:
            return
        pending = self.checkpoints.pending
        collecting = pending is not None and pending.phase is coordinator.Phase.COLLECTING
        if collecting or self.state in (JobState.RUNNING, JobState.STOPPING):
            assert self._all_running
        for run in self.regions.runs:
            if run.state is not RegionState.ADOPTING:
                assert bool(run.placement) == (run.state is not RegionState.WAITING)

    # ------------------------------------------------------------ failures

    def _on_failure(self, run: RegionRun, failure: Failure) -> None:
        if self._ending is not None or self._over:
            return
        if not failure.secondary:
            self._fail_region(run, failure)
        elif run.state is not RegionState.FAILING:
            run.failure = failure
            run.enter(RegionState.FAILING, self._at.monotonic)
            self._placing.probe(run)
            self.checkpointing.interrupt(f"{failure.place} failed", self._at)
            self._move(JobState.RESTARTING, str(failure))

    def _settle_failures(self) -> None:
        """Failures whose cause was waited for long enough, and deployments that do not get ready."""
        for run in self.regions.runs:
            waited = self._at.monotonic - run.since
            if run.state is RegionState.FAILING and run.failure and waited >= self._timing.cause_grace:
                self._fail_region(run, run.failure)
            elif run.state is RegionState.DEPLOYING and waited >= self._timing.deploy_timeout:
                missing = ", ".join(str(slot) for slot in run.placement if slot not in run.reported)
                self._fail_region(run, Failure("C022", f"not running {waited:.0f} s after its start", missing))

    def _fail_region(self, run: RegionRun, failure: Failure) -> None:
        """End the attempt everywhere; start the region again later, or give the job up."""
        attempt = run.attempt or self.regions.last_attempt
        self.failures.add(failure, attempt, self._at.now_us)
        self._outbox.note("warning", "region failed", attempt=attempt, why=str(failure))
        self._placing.end_attempt(run, self._at, str(failure))
        self.checkpointing.interrupt(f"{failure.place or 'a region'} failed", self._at)
        self._move(JobState.RESTARTING, str(failure))
        goes_back = self.rescaling.on_failure(str(failure), self._at)
        if failure.fatal and not goes_back:
            self.end(JobState.FAILED, str(failure))
        elif not goes_back and self._never_works(failure):
            fix = 'mend the function, or have it put such rows aside: on_error="dead_letter" or "drop"'
            self.end(
                JobState.FAILED, f"{failure}\n  the same at each of {self.restarts.count + 1} starts\n  fix: {fix}"
            )
        elif not self.restarts.on_failure(self._at.monotonic):
            fix = "remove the cause and start the job again from its last checkpoint, or raise restart.budget"
            times = self.restarts.in_a_row
            self.end(JobState.FAILED, f"failed {times} times in a row, at last with {failure}\n  fix: {fix}")

    def _never_works(self, failure: Failure) -> bool:
        """Nothing but the program itself can be the cause, and it is as it was."""
        if failure.code != "P007" or self.checkpoints.has_completed:
            return False
        return self.restarts.same_again(str(failure)) >= self.restarts.settings.same_failures

    def _restart_all(self, reason: str) -> None:
        """Too many checkpoints have failed, when there is a reason."""
        if reason and self._ending is None:
            for run in [run for run in self.regions.runs if run.alive]:
                self._fail_region(run, Failure("C023", reason))

    def _on_stale(self, message: messages.FromSlot) -> None:
        """Nothing of an older attempt counts; but its garbage is removed, and a late cause is told to people."""
        if self._replaced:
            return
        match message:
            case messages.Acknowledged(handle=handle) if self.checkpoints.useless(handle):
                self._outbox.delete((handle.path,))
            case messages.Failed():
                self._explain(failures.from_message(message), message.attempt)

    def _explain(self, failure: Failure, attempt: Attempt) -> None:
        """The cause of a failure that is over: wherever its effect was named, the cause is from now on."""
        if (effect := self.failures.explain(failure, attempt)) is None:
            return
        for run in self.regions.runs:
            run.cause = str(failure) if run.cause == effect else run.cause
        self.reason = str(failure) if self.reason == effect else self.reason
        if failure.fatal:
            self.end(JobState.FAILED, str(failure))

    # ------------------------------------------------------------ taken over

    def _adopt(self) -> None:
        """Regions of an earlier JobManager go on as they are, once it is known that all of their slots still run."""
        for adopted in self.adopting.settle(self._at):
            run, newest = adopted.run, self.adopting.newest
            self._outbox.note("info", "region taken over", attempt=run.number, slots=len(run.placement))
            self.checkpoints.skip(newest)
            commit = adopted.commit
            for slot in run.placement:
                # Both may have been said before. What was completed is shown; what was not is given up.
                if commit is not None:
                    self._outbox.send(slot, messages.Commit(job=self.id, attempt=run.number, checkpoint=commit))
                if newest > (commit or 0):
                    self._outbox.send(slot, messages.Abort(job=self.id, attempt=run.number, checkpoint=newest))
        for run in self.adopting.late(self._at, self._timing.heartbeat_timeout):
            self._placing.end_attempt(run, self._at, TAKEN_UP)

    # ------------------------------------------------------------ another size

    def _resize(self, entry: journal.Resized) -> None:
        """The journal says so: all regions start again at once, from the checkpoint that was taken for this."""
        if self._ending is not None:
            return
        goes_on = entry.live and self._all_running
        graph = self.rescaling.on_written(entry, self._at, goes_on=goes_on)
        if goes_on:
            self._outbox.note("info", "job rescaled", parallelism=entry.parallelism, operators=entry.operators)
            return
        self._placing.replan(graph, self._at)
        self.checkpointing.interrupt("the job starts again at another size", self._at)
        self._move(JobState.RESTARTING, f"parallelism is {entry.parallelism} now")
        self._outbox.note("info", "job resized", parallelism=entry.parallelism, operators=entry.operators)

    def _give_up_rescale(self, reason: str) -> None:
        """Unless it is in the journal already, or on its way."""
        self.rescaling.give_up(reason, self._at)
        pending = self.checkpoints.pending
        if pending is not None and pending.barrier.kind is BarrierKind.RESTART:
            self.checkpointing.interrupt(reason, self._at)

    # ------------------------------------------------------------ savepoints

    def _taken(self, pending: coordinator.Pending) -> Taken:
        return Taken(
            uri=pending.barrier.savepoint,
            job=self.id,
            graph=self.graph,
            checkpoint=pending.barrier.checkpoint,
            stops=pending.barrier.kind is BarrierKind.STOP,
            triggered_us=pending.triggered_us,
            now_us=self._at.now_us,
            restored_from=self.restored_from,
            tables=tuple(table for _, handle in sorted(pending.handles.items()) for table in handle.tables),
        )

    # ------------------------------------------------------------ states and the journal

    @property
    def _over(self) -> bool:
        return self.state in TERMINAL

    @property
    def _all_running(self) -> bool:
        return self._ending is None and self.regions.all_running

    def _place_regions(self) -> None:
        if self.rescaling.switching:
            return
        match self._placing.place(self._at, not_before=self.restarts.resume_at):
            case packing.Wait(reason):
                self.reason = reason
            case packing.Merge():
                self.checkpointing.interrupt(PACKED, self._at)
                self._move(JobState.RESTARTING, PACKED)
            case UserError() as mismatch:
                self.end(JobState.FAILED, str(mismatch))

    def _show_state(self) -> None:
        if self._ending is not None:
            return
        if self._all_running:
            if self.state not in (JobState.RUNNING, JobState.STOPPING):
                self.checkpoints.arm(self._at.monotonic)
                self.restarts.on_running(self._at.monotonic)
                self.running_us = self.running_us or self._at.now_us
            self._move(JobState.STOPPING if self.checkpointing.stopping else JobState.RUNNING, "")
            return
        self.checkpoints.disarm()
        if self._placing.short:
            self._move(JobState.WAITING_FOR_SLOTS, self.reason)
        elif all(run.state not in (RegionState.WAITING, RegionState.FAILING) for run in self.regions.runs):
            self._move(JobState.DEPLOYING, "")

    def _move(self, state: JobState, reason: str) -> None:
        self.reason = reason
        if state is not self.state:
            self.state = move(self.id, self.state, state)
            self._outbox.note("info", f"job {state.value}", why=reason)

    def _next_entry(self) -> journal.JournalEntry | None:
        """What the journal should say next, the most urgent first."""
        if self.submission is not None:
            return self._journal.submitted(self.graph.name, self.submission, self._at)
        if self._ending is not None:
            outcome = self._ending.state.value
            return self._journal.make(journal.Ended, self._at, outcome=outcome, reason=self._ending.reason)
        if (manifest := self.checkpointing.collected(self._at)) is not None:
            return self._journal.make(journal.CheckpointCompleted, self._at, manifest=manifest)
        if (move := self.rescaling.next_move()) is not None:
            return self._journal.resized(move, self._at)
        reserved = [run for run in self.regions.runs if run.state is RegionState.JOURNALING]
        if not reserved:
            return None
        # What it restores is decided here, where no other checkpoint can come between.
        run = min(reserved, key=lambda run: run.number)
        run.restored = self.checkpoints.latest
        return self._journal.attempt_started(run, self._at)
