"""One job: its regions, its checkpoints and its journal, from submission to its end. No I/O.

Facts come in through the `on_...` methods, which note them and react to failures; `advance` then takes every step
that is possible now. It is called after each event, so little depends on the order of facts.

Invariants:
  nothing is done that an unwritten journal entry would have to allow: an attempt is deployed after its
  AttemptStarted, output is committed after its CheckpointCompleted, a job has ended after its Ended;
  attempts only grow, and what belongs to an attempt that is not the present one of a region is ignored;
  after a conflict in the journal the job belongs to somebody else, and nothing more is done or sent for it.
"""

from collections.abc import Collection
from dataclasses import dataclass

import msgspec

from penstock import graph as graphs
from penstock.checkpoint import coordinator, journal
from penstock.graph import JobGraph
from penstock.jobmanager import failures, packing, versions
from penstock.jobmanager.events import AppendJournal, Command, DeleteObjects, JobSubmitted, Note, Send
from penstock.jobmanager.failures import Failure
from penstock.jobmanager.journal_writer import JournalWriter
from penstock.jobmanager.lifecycle import TERMINAL, JobState, move
from penstock.jobmanager.regions import RegionRun, RegionState
from penstock.jobmanager.restarts import Restarts
from penstock.jobmanager.slots import LostSlot, SlotPool, Usage
from penstock.jobmanager.timing import Moment, Timing
from penstock.model import messages
from penstock.model.counters import OperatorMetrics
from penstock.model.elements import BarrierKind
from penstock.model.ids import Attempt, CheckpointId, JobId, SlotId
from penstock.model.tasks import Deployment

PACKED = "the job is packed on fewer slots"


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
        self.id, self.graph, self.checkpoints, self.restarts = job, graph, checkpoints, restarts
        self._store, self._journal, self._pool, self._timing, self._at = store, writer, pool, timing, at
        self._commands: list[Command] = []
        self._regions = graphs.execution(graph)
        self.runs = self._fresh_runs(cause="")
        self.state, self.reason = JobState.CREATED, ""
        self.failures = failures.FailureLog()
        self.submitted_us = at.now_us
        self.running_us: int | None = None
        self.ended_us: int | None = None
        self.last_attempt = Attempt(0)
        self.ignored = 0
        """Messages of attempts that are over."""
        self.submission: JobSubmitted | None = None
        """Until it is in the journal."""
        self._ending: Ending | None = None
        self._replaced = False
        self._stop_requested = self._checkpoint_requested = False
        self._packing = packing.Packing(graph.settings.restart.slot_wait_us / 1e6)
        self._commit_repeat_at = float("inf")

    def counted_before(self) -> list[OperatorMetrics]:
        """What operators had counted in the checkpoint that their region was restored from, or will be."""
        starts = [(run.uids, run.restored if run.alive else self.checkpoints.latest) for run in self.runs]
        return [
            msgspec.structs.replace(each, state_rows=0)
            for uids, manifest in starts
            if manifest is not None
            for each in manifest.counters
            if each.uid in uids
        ]

    # ------------------------------------------------------------ facts: people

    def on_stop(self) -> None:
        """Take a last checkpoint and end; at once when nothing runs that could take one."""
        if self.state in (JobState.RUNNING, JobState.STOPPING):
            self._stop_requested = True
            return
        last = self.checkpoints.latest
        goes_on = f"goes on from checkpoint {last.checkpoint}" if last else "starts from the beginning"
        self.end(JobState.STOPPED, f"was {self.state.value} when it was stopped: started again, it {goes_on}")

    def on_cancel(self) -> None:
        """End now; the last checkpoint stays."""
        self.end(JobState.CANCELLED, "")

    def on_checkpoint_request(self) -> None:
        """Take a checkpoint as soon as one is possible."""
        self._checkpoint_requested = True

    # ------------------------------------------------------------ facts: slots

    def on_message(self, message: messages.FromSlot) -> None:
        """From a slot that works for this job, or did."""
        run = self._run_of(message.attempt)
        if run is None:
            self.ignored += 1
            self._on_stale(message)
            return
        match message:
            case messages.Running(slot=slot) if slot in run.placement:
                run.reported[slot] = None
                if run.state is RegionState.DEPLOYING and len(run.reported) == len(run.placement):
                    run.enter(RegionState.RUNNING, self._at.monotonic)
            case messages.Acknowledged(checkpoint=checkpoint, subtask=subtask, handle=handle):
                if self.checkpoints.acknowledge(checkpoint, subtask, handle) is coordinator.Answer.STALE:
                    self._on_stale(message)
            case messages.Declined(checkpoint=checkpoint, subtask=subtask, reason=reason):
                self._fail_checkpoint(checkpoint, f"{subtask} declined: {reason}")
            case messages.Committed(checkpoint=checkpoint, slot=slot):
                if kind := self.checkpoints.committed(checkpoint, slot):
                    self.end(JobState.FINISHED if kind is BarrierKind.FINAL else JobState.STOPPED, "")
            case messages.InputEnded(subtask=subtask) if subtask in run.region.subtasks:
                run.ended[subtask] = None
            case messages.Failed():
                self._on_failure(run, failures.from_message(message))
            case messages.SlotReport(tasks=tasks):
                run.metrics |= {metrics.subtask: metrics for metrics in tasks}
                run.ended |= {metrics.subtask: None for metrics in tasks if metrics.ended}

    def on_slot_lost(self, lost: LostSlot, code: str, *, secondary: bool) -> None:
        """The process is gone."""
        run = self._run_of(lost.usage.attempt)
        if run is None:
            return
        if run.state is RegionState.JOURNALING:
            # Nothing was deployed: other slots will do, and no failure is counted.
            self._release(run)
            run.reset(self._at.monotonic, run.cause)
        else:
            what = f"slot {lost.slot} is lost: {lost.reason}"
            self._on_failure(run, Failure(code, what, str(lost.slot), secondary))

    # ------------------------------------------------------------ facts: journal

    def on_written(self, entry: journal.JournalEntry, sha256: str) -> None:
        """The outstanding entry is in the store."""
        if self._replaced or not self._journal.written(entry, sha256):
            return
        match entry:
            case journal.Submitted():
                self.submission = None
            case journal.AttemptStarted(attempt=attempt):
                if run := self._run_of(attempt):
                    self._deploy(run, attempt)
            case journal.CheckpointCompleted():
                self._on_checkpoint_written(entry)
            case journal.Ended(outcome=outcome, reason=reason):
                self._release_all()
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
                if run := self._run_of(attempt):
                    self._fail_region(run, Failure("C024", what))
            case journal.CheckpointCompleted(manifest=manifest):
                self._fail_checkpoint(manifest.checkpoint, what)
            case journal.Ended():
                self._note("warning", "end of job not written yet", why=reason)

    def on_conflict(self, entry: journal.JournalEntry) -> None:
        """Somebody else writes this journal now."""
        if self.state in TERMINAL or not self._journal.refused(entry, self._at.monotonic):
            return
        self._replaced = True
        self._commands.clear()
        self._pool.abandon(self.id)
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
                self._settle_failures()
                self._give_slots()
                self._show_state()
                self._drive_checkpoints()
            if self._journal.ready(self._at.monotonic) and (entry := self._next_entry()):
                self._commands.append(AppendJournal(job=self.id, entry=entry))
        commands, self._commands = self._commands, []
        return commands

    def next_wakes(self) -> list[float]:
        """When `advance` may have something new to do."""
        if self._over:
            return []
        waits = {
            RegionState.FAILING: self._timing.cause_grace,
            RegionState.DEPLOYING: self._timing.deploy_timeout,
        }
        times = [self.checkpoints.next_trigger(), self.checkpoints.deadline(), self._journal.not_before]
        times += [self.restarts.resume_at, self._commit_repeat_at, *self._packing.wakes()]
        times += [run.since + waits[run.state] for run in self.runs if run.state in waits]
        return [time for time in times if time is not None]

    def end(self, state: JobState, reason: str) -> None:
        """Decide the end; it counts once it is in the journal."""
        if self._ending is not None or self._over:
            return
        self._ending = Ending(state, reason)
        self._interrupt_checkpoint(f"the job is {state.value}")
        self.checkpoints.disarm()
        if state in (JobState.CANCELLED, JobState.FAILED):
            self._release_all()

    def show_ended(self, state: JobState, reason: str, ended_us: int) -> None:
        """The journal says so: nothing is left to be done."""
        self.ended_us = ended_us
        self._move(state, reason)

    def check_invariants(self) -> None:
        """For tests: what always holds."""
        self.checkpoints.check_invariants()
        attempts = [run.attempt for run in self.runs if run.attempt is not None]
        assert len(set(attempts)) == len(attempts)
        assert all(attempt <= self.last_attempt for attempt in attempts)
        subtasks = [subtask for run in self.runs for subtask in run.region.subtasks]
        assert sorted(subtasks) == sorted(subtask for region in self._regions for subtask in region.subtasks)
        if self._over or self._ending is not None:
            return
        pending = self.checkpoints.pending
        collecting = pending is not None and pending.phase is coordinator.Phase.COLLECTING
        if collecting or self.state in (JobState.RUNNING, JobState.STOPPING):
            assert self._all_running
        for run in self.runs:
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
            self._interrupt_checkpoint(f"{failure.place} failed")
            self._move(JobState.RESTARTING, str(failure))

    def _settle_failures(self) -> None:
        """Failures whose cause was waited for long enough, and deployments that do not get ready."""
        for run in self.runs:
            waited = self._at.monotonic - run.since
            if run.state is RegionState.FAILING and run.failure and waited >= self._timing.cause_grace:
                self._fail_region(run, run.failure)
            elif run.state is RegionState.DEPLOYING and waited >= self._timing.deploy_timeout:
                missing = ", ".join(str(slot) for slot in run.placement if slot not in run.reported)
                self._fail_region(run, Failure("C022", f"not running {waited:.0f} s after its start", missing))

    def _fail_region(self, run: RegionRun, failure: Failure) -> None:
        """End the attempt everywhere; start the region again later, or give the job up."""
        attempt = run.attempt or self.last_attempt
        self.failures.add(failure, attempt, self._at.now_us)
        self._note("warning", "region failed", attempt=attempt, why=str(failure))
        self._release(run)
        run.reset(self._at.monotonic, str(failure))
        self._interrupt_checkpoint(f"{failure.place or 'a region'} failed")
        self._move(JobState.RESTARTING, str(failure))
        if failure.fatal:
            self.end(JobState.FAILED, str(failure))
        elif not self.restarts.on_failure(self._at.monotonic):
            fix = "remove the cause and start the job again from its last checkpoint, or raise restart.budget"
            times = self.restarts.in_a_row
            self.end(JobState.FAILED, f"failed {times} times in a row, at last with {failure}\n  fix: {fix}")

    def _on_stale(self, message: messages.FromSlot) -> None:
        """Nothing of an older attempt counts; but its garbage is removed, and a late cause is told to people."""
        if self._replaced:
            return
        match message:
            case messages.Acknowledged(handle=handle) if self.checkpoints.useless(handle):
                self._commands.append(DeleteObjects(job=self.id, paths=(handle.path,)))
            case messages.Failed():
                failure = failures.from_message(message)
                if self.failures.explain(failure, message.attempt) and failure.fatal:
                    self.end(JobState.FAILED, str(failure))

    # ------------------------------------------------------------ slots and deployment

    def _give_slots(self) -> None:
        """Reserve slots for regions that wait: all they want, or after a while what there is."""
        waiting = [run for run in self.runs if run.state is RegionState.WAITING]
        if not waiting or self._at.monotonic < self.restarts.resume_at:
            self._packing.satisfied()
            return
        if len(waiting) == len(self.runs) < len(self._regions):
            # Nothing runs: what was merged for want of slots is taken apart again.
            self.runs = waiting = self._fresh_runs(waiting[0].cause)
        free = self._pool.free()
        choice = self._choose(waiting, free)
        if isinstance(choice, packing.Merge):
            waiting = self._merge_regions(len(free))
            choice = self._choose(waiting, free) if waiting else packing.Wait(PACKED)
        if isinstance(choice, packing.Wait):
            self.reason = choice.reason
        if isinstance(choice, packing.Share):
            for run, slots in zip(waiting, choice.slots, strict=True):
                self._reserve(run, slots)

    def _choose(self, waiting: list[RegionRun], free: list[messages.SlotInfo]) -> packing.Choice:
        return self._packing.choose(
            [run.wanted for run in waiting],
            free,
            returning=self._pool.returning(),
            held=sum(len(run.placement) for run in self.runs),
            monotonic=self._at.monotonic,
        )

    def _merge_regions(self, free: int) -> list[RegionRun]:
        """All regions share the slots there are; those that run are ended first, and their slots come back."""
        active = [run for run in self.runs if run.state is not RegionState.WAITING]
        for run in active:
            self._release(run)
            run.reset(self._at.monotonic, PACKED)
        if active:
            self._interrupt_checkpoint(PACKED)
            self._move(JobState.RESTARTING, PACKED)
            return []
        merged = packing.merge(self._regions, free)
        cause = self.runs[0].cause
        self.runs = [RegionRun(region, since=self._at.monotonic, cause=cause) for region in merged]
        return self.runs

    def _reserve(self, run: RegionRun, slots: list[messages.SlotInfo]) -> None:
        if mismatch := versions.mismatch(self.graph.versions, self._pool.versions(slots)):
            self.end(JobState.FAILED, str(mismatch))
            return
        self.last_attempt = run.attempt = Attempt(self.last_attempt + 1)
        run.placement = dict(graphs.place(run.region, slots))
        run.enter(RegionState.JOURNALING, self._at.monotonic)
        self._pool.reserve(run.placement, Usage(self.id, run.attempt))

    def _deploy(self, run: RegionRun, attempt: Attempt) -> None:
        if self._ending is not None:
            return
        run.enter(RegionState.DEPLOYING, self._at.monotonic)
        for slot in run.placement:
            deployment = Deployment(
                job=self.id,
                attempt=attempt,
                slot=slot,
                tasks=run.tasks_to_restore(slot),
                settings=self.graph.settings,
                store=self._store,
            )
            self._pool.deployed(slot)
            self._send(slot, messages.Deploy(deployment=deployment))
        restored = run.restored.checkpoint if run.restored else None
        self._note("info", "region deployed", attempt=attempt, slots=len(run.placement), restored=restored)

    def _release(self, run: RegionRun) -> None:
        if run.attempt is not None:
            self._pool.release(run.placement, Usage(self.id, run.attempt), self._at.monotonic)

    def _release_all(self) -> None:
        for run in self.runs:
            self._release(run)

    # ------------------------------------------------------------ checkpoints

    def _drive_checkpoints(self) -> None:
        pending, deadline = self.checkpoints.pending, self.checkpoints.deadline()
        if pending is not None and deadline is not None and deadline <= self._at.monotonic:
            missing = ", ".join(str(subtask) for subtask in list(pending.waiting)[:5])
            seconds = self.graph.settings.checkpoint.timeout_us / 1e6
            late = f"not complete after {seconds:g} s, waits for {missing}"
            self._fail_checkpoint(pending.barrier.checkpoint, late)
        if not self._all_running:
            return
        if all(run.all_ended for run in self.runs):
            self._drive_last(BarrierKind.FINAL)
        elif self._stop_requested:
            self._drive_last(BarrierKind.STOP)
        elif self._checkpoint_requested or self._interval_is_over():
            self._trigger(BarrierKind.CHECKPOINT)

    def _interval_is_over(self) -> bool:
        due = self.checkpoints.next_trigger()
        return due is not None and due <= self._at.monotonic

    def _drive_last(self, kind: BarrierKind) -> None:
        """The last checkpoint does not wait for an ordinary one; its Commit is repeated until all have answered."""
        pending = self.checkpoints.pending
        if pending is not None and pending.barrier.kind is BarrierKind.CHECKPOINT:
            self._interrupt_checkpoint(f"the {kind.value} checkpoint takes its place")
        self._trigger(kind)
        pending = self.checkpoints.pending
        if pending is not None and pending.uncommitted and self._commit_repeat_at <= self._at.monotonic:
            self._commit(pending.barrier.checkpoint, pending.uncommitted)

    def _trigger(self, kind: BarrierKind) -> None:
        if self.checkpoints.pending is not None:
            return
        self._checkpoint_requested = False
        subtasks = [subtask for run in self.runs for subtask in run.region.subtasks]
        at = self._at
        barrier = self.checkpoints.trigger(kind, subtasks, now_us=at.now_us, monotonic=at.monotonic)
        for run in self.runs:
            for slot in run.source_slots():
                trigger = messages.Trigger(job=self.id, attempt=_number(run), checkpoint=barrier.checkpoint, kind=kind)
                self._send(slot, trigger)

    def _on_checkpoint_written(self, entry: journal.CheckpointCompleted) -> None:
        slots = [slot for run in self.runs if run.state is RegionState.RUNNING for slot in run.placement]
        all_commit = slots if self._all_running else ()
        garbage = self.checkpoints.journaled(entry, commit_by=all_commit, monotonic=self._at.monotonic)
        if garbage:
            self._commands.append(DeleteObjects(job=self.id, paths=garbage))
        if self._ending is None:
            self._commit(entry.manifest.checkpoint, slots)
        manifest = entry.manifest
        self._note("debug", "checkpoint completed", checkpoint=manifest.checkpoint, size=manifest.size)

    def _commit(self, checkpoint: CheckpointId, slots: Collection[SlotId]) -> None:
        self._commit_repeat_at = self._at.monotonic + self._timing.repeat
        for run in self.runs:
            for slot in run.placement:
                if slot in slots:
                    commit = messages.Commit(job=self.id, attempt=_number(run), checkpoint=checkpoint)
                    self._send(slot, commit)

    def _fail_checkpoint(self, checkpoint: CheckpointId, reason: str) -> None:
        given_up = self.checkpoints.fail(checkpoint, reason, monotonic=self._at.monotonic)
        if given_up is None:
            return
        self._note("warning", "checkpoint failed", checkpoint=checkpoint, why=reason)
        self._abort(given_up)
        if given_up.restart and self._ending is None:
            for run in [run for run in self.runs if run.alive]:
                self._fail_region(run, Failure("C023", given_up.restart))

    def _interrupt_checkpoint(self, reason: str) -> None:
        given_up = self.checkpoints.interrupt(reason, monotonic=self._at.monotonic)
        if given_up is not None:
            self._abort(given_up)

    def _abort(self, given_up: coordinator.GivenUp) -> None:
        if given_up.garbage:
            self._commands.append(DeleteObjects(job=self.id, paths=given_up.garbage))
        for run in self.runs:
            if run.state is RegionState.RUNNING:
                for slot in run.placement:
                    abort = messages.Abort(job=self.id, attempt=_number(run), checkpoint=given_up.checkpoint)
                    self._send(slot, abort)

    # ------------------------------------------------------------ states and the journal

    @property
    def _over(self) -> bool:
        return self.state in TERMINAL

    @property
    def _all_running(self) -> bool:
        return self._ending is None and all(run.state is RegionState.RUNNING for run in self.runs)

    def _show_state(self) -> None:
        if self._ending is not None:
            return
        if self._all_running:
            if self.state not in (JobState.RUNNING, JobState.STOPPING):
                self.checkpoints.arm(self._at.monotonic)
                self.restarts.on_running(self._at.monotonic)
                self.running_us = self.running_us or self._at.now_us
            self._move(JobState.STOPPING if self._stop_requested else JobState.RUNNING, "")
            return
        self.checkpoints.disarm()
        if self._packing.missing_since is not None:
            self._move(JobState.WAITING_FOR_SLOTS, self.reason)
        elif all(run.state not in (RegionState.WAITING, RegionState.FAILING) for run in self.runs):
            self._move(JobState.DEPLOYING, "")

    def _move(self, state: JobState, reason: str) -> None:
        self.reason = reason
        if state is not self.state:
            self.state = move(self.id, self.state, state)
            self._note("info", f"job {state.value}", why=reason)

    def _next_entry(self) -> journal.JournalEntry | None:
        """What the journal should say next, the most urgent first."""
        if (submission := self.submission) is not None:
            return self._journal.make(
                journal.Submitted,
                self._at,
                name=self.graph.name,
                graph_sha256=submission.graph_sha256,
                restored_from=submission.restored_from,
                initial=submission.initial,
            )
        if (ending := self._ending) is not None:
            outcome = ending.state.value
            return self._journal.make(journal.Ended, self._at, outcome=outcome, reason=ending.reason)
        manifest = self.checkpoints.collected(
            counted_before=self.counted_before(),
            parallelism={vertex.id: vertex.parallelism for vertex in self.graph.vertices},
            max_parallelism=self.graph.max_parallelism,
            now_us=self._at.now_us,
        )
        if manifest is not None:
            return self._journal.make(journal.CheckpointCompleted, self._at, manifest=manifest)
        reserved = [run for run in self.runs if run.state is RegionState.JOURNALING]
        return self._attempt_entry(min(reserved, key=_number)) if reserved else None

    def _attempt_entry(self, run: RegionRun) -> journal.AttemptStarted:
        """What it restores is decided here, where no other checkpoint can come between."""
        run.restored = self.checkpoints.latest
        return self._journal.make(
            journal.AttemptStarted,
            self._at,
            attempt=_number(run),
            region=run.region.index,
            restored=run.restored.checkpoint if run.restored else None,
            cause=run.cause,
        )

    # ------------------------------------------------------------ small things

    def _fresh_runs(self, cause: str) -> list[RegionRun]:
        return [RegionRun(region, since=self._at.monotonic, cause=cause) for region in self._regions]

    def _run_of(self, attempt: Attempt) -> RegionRun | None:
        return next((run for run in self.runs if run.attempt == attempt), None)

    def _send(self, slot: SlotId, message: messages.ToTaskManager) -> None:
        directed = messages.Directed(slot=slot, message=message)
        self._commands.append(Send(task_manager=slot.task_manager, directed=directed))

    def _note(self, level: str, message: str, **facts: object) -> None:
        self._commands.append(Note(level=level, message=message, facts={"job": self.id, **facts}))


def _number(run: RegionRun) -> Attempt:
    """Of a region that has slots: such a region has an attempt."""
    assert run.attempt is not None
    return run.attempt
