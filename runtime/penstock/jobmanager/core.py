"""The JobManager without its effects: events in, commands out.

Owns: the slot pool and the jobs. One thread calls it, one event at a time; it reads no clock, draws no randomness
but from the generator it is given, and iterates in fixed orders, so that the same events give the same commands.
Jobs get slots in the order in which they came.
"""

import random
from collections.abc import Mapping

from penstock import graph as graphs
from penstock.graph import Size
from penstock.jobmanager import showing, starting
from penstock.jobmanager.events import (
    CancelRequested,
    CheckpointRequested,
    Command,
    Event,
    Forget,
    JobRecovered,
    JobSubmitted,
    JournalConflict,
    JournalFailed,
    JournalWritten,
    MessageReceived,
    Note,
    RescaleRequested,
    SavepointFailed,
    SavepointRequested,
    SavepointWritten,
    Send,
    StopRequested,
    TaskManagerLost,
    Tick,
    WakeAt,
)
from penstock.jobmanager.jobs import Job
from penstock.jobmanager.slots import LostSlot, SlotPool, Usage
from penstock.jobmanager.starting import Surroundings
from penstock.jobmanager.timing import Moment, Timing
from penstock.model.ids import NO_EPOCH, Epoch, JobId, TaskManagerId
from penstock.model.messages import (
    Directed,
    Heartbeat,
    Leaving,
    Register,
    SlotReady,
    ToJobManager,
)
from penstock.model.views import CheckpointView, ClusterView, JobView, PlanView, RescaleView, SavepointView


class Core:
    """`writer` names this JobManager process in journals and must be unique to it; it leads in `epoch`."""

    def __init__(
        self, *, writer: str, epoch: Epoch = NO_EPOCH, rng: random.Random | None = None, timing: Timing | None = None
    ) -> None:
        self._timing = timing or Timing()
        self._pool = SlotPool(heartbeat_timeout=self._timing.heartbeat_timeout, cancel_repeat=self._timing.repeat)
        self._around = Surroundings(writer, epoch, rng or random.Random(writer), self._timing, self._pool)
        self._jobs: dict[JobId, Job] = {}
        self._wake_at: float | None = None
        self._commands: list[Command] = []
        self.ignored = 0
        """Messages of unknown TaskManagers and jobs."""

    def handle(self, event: Event, *, now_us: int, monotonic: float) -> list[Command]:
        """Take note of the event; returns everything that has to be done because of it, in order."""
        at = Moment(now_us, monotonic)
        for job in self._jobs.values():
            job.begin(at)
        self._take_note(event, at)
        for task_manager in self._pool.silent(monotonic):
            self._commands.append(Forget(task_manager=task_manager))
            self._lose(task_manager, f"not heard for {self._timing.heartbeat_timeout:g} s")
        for job in self._jobs.values():
            self._commands += job.advance()
        for cancel in self._pool.due_cancels(monotonic):
            directed = Directed(slot=cancel.slot, message=cancel)
            self._commands.append(Send(task_manager=cancel.slot.task_manager, directed=directed))
        self._ask_for_wake(monotonic)
        commands, self._commands = self._commands, []
        return commands

    def view_job(self, job: JobId) -> JobView:
        """One job, for people. KeyError when there is none."""
        return showing.view_job(self._jobs[job])

    def view_cluster(self) -> ClusterView:
        """TaskManagers, slots and jobs, for people."""
        slots = self._pool.slots()
        return ClusterView(
            processes=showing.view_processes(self._pool, self._jobs.values()),
            slots_total=len(slots),
            slots_free=sum(slot.usage is None for slot in slots),
            jobs=tuple(showing.view_job(job) for job in self._jobs.values()),
        )

    def plan(self, job: JobId) -> PlanView:
        """The graph of one job, at the size that it has now. KeyError when there is none."""
        return graphs.outline(self._jobs[job].graph)

    def checkpoints(self, job: JobId) -> tuple[CheckpointView, ...]:
        """Of one job, the newest last. KeyError when there is none."""
        return tuple(self._jobs[job].checkpoints.views())

    def savepoints(self, job: JobId) -> tuple[SavepointView, ...]:
        """Those that this JobManager was asked for, the newest last. KeyError when there is no such job."""
        known = self._jobs[job]
        return tuple(known.checkpointing.savepoints.views(known.checkpoints.pending))

    def rescales(self, job: JobId) -> tuple[RescaleView, ...]:
        """Of one job, the newest last. KeyError when there is none."""
        return self._jobs[job].rescaling.views()

    def plan_rescale(self, job: JobId, parallelism: int | None, operators: Mapping[str, int]) -> Size:
        """What RescaleRequested is given; UserError when the job cannot have that."""
        return self._jobs[job].rescaling.plan(parallelism, operators)

    def check_invariants(self) -> None:
        """For tests: what always holds between two events."""
        for job in self._jobs.values():
            job.check_invariants()
        used = [slot.info.slot for slot in self._pool.slots() if slot.usage is not None]
        assert len(set(used)) == len(used)

    # ------------------------------------------------------------ inside

    def _take_note(self, event: Event, at: Moment) -> None:
        match event:
            case MessageReceived(task_manager=task_manager, message=message):
                self._on_message(task_manager, message, at)
            case TaskManagerLost(task_manager=task_manager, reason=reason):
                self._lose(task_manager, reason)
            case JobSubmitted(job=name) | JobRecovered(job=name):
                self._add(name, event, at)
            case Tick():
                pass
            case _:
                if job := self._known(event.job):
                    self._tell(job, event)

    def _tell(
        self,
        job: Job,
        event: CancelRequested
        | StopRequested
        | CheckpointRequested
        | SavepointRequested
        | RescaleRequested
        | SavepointWritten
        | SavepointFailed
        | JournalWritten
        | JournalConflict
        | JournalFailed,
    ) -> None:
        match event:
            case CancelRequested():
                job.on_cancel()
            case StopRequested(savepoint=savepoint):
                job.on_stop(savepoint)
            case CheckpointRequested():
                job.on_checkpoint_request()
            case SavepointRequested(uri=uri):
                job.on_savepoint_request(uri)
            case RescaleRequested(size=size):
                job.on_rescale(size)
            case SavepointWritten(checkpoint=checkpoint, size=size, sha256=sha256):
                job.on_savepoint_written(checkpoint, size, sha256)
            case SavepointFailed(checkpoint=checkpoint, reason=reason):
                job.on_savepoint_failed(checkpoint, reason)
            case JournalWritten(entry=entry, sha256=sha256):
                job.on_written(entry, sha256)
            case JournalConflict(entry=entry):
                job.on_conflict(entry)
            case JournalFailed(entry=entry, reason=reason):
                job.on_journal_failed(entry, reason)

    def _add(self, name: JobId, event: JobSubmitted | JobRecovered, at: Moment) -> None:
        if name in self._jobs:
            self._commands.append(Note(level="warning", message="job is known already", facts={"job": name}))
            return
        if isinstance(event, JobSubmitted):
            self._jobs[name] = starting.submitted(event, self._around, at)
        else:
            self._jobs[name] = starting.recovered(event, self._around, at)

    def _on_message(self, task_manager: TaskManagerId, message: ToJobManager, at: Moment) -> None:
        if isinstance(message, Register):
            self._report(self._pool.register(message, at.monotonic))
            self._take_over(message, at)
            return
        if not self._pool.heard(task_manager, at.monotonic):
            self.ignored += 1
            self._commands.append(Forget(task_manager=task_manager))
            return
        match message:
            case SlotReady(info=info):
                self._report(self._pool.slot_ready(info))
            case Leaving():
                self._lose(task_manager, "it has left")
            case Heartbeat(reports=reports):
                for report in reports:
                    self._pool.note_memory(report.slot, report.rss_bytes)
                    if job := self._known(report.job):
                        job.on_message(report)
            case _:
                if job := self._known(message.job):
                    job.on_message(message)

    def _take_over(self, message: Register, at: Moment) -> None:
        """Let jobs have what still runs of them, and end what no job wants."""
        for info in message.slots:
            if (runs := info.runs) is not None:
                job = self._jobs.get(runs.job)
                if job is None or not job.on_runs(info.slot, runs):
                    self._pool.release([info.slot], Usage(runs.job, runs.attempt), at.monotonic)
        for job in self._jobs.values():
            job.on_registered(message.task_manager)

    def _lose(self, task_manager: TaskManagerId, reason: str) -> None:
        facts: dict[str, object] = {"task_manager": task_manager, "why": reason}
        self._commands.append(Note(level="warning", message="taskmanager lost", facts=facts))
        self._report(self._pool.lose(task_manager, reason))

    def _report(self, lost: list[LostSlot]) -> None:
        for slot in lost:
            if job := self._jobs.get(slot.usage.job):
                job.on_slot_lost(slot)

    def _known(self, job: JobId) -> Job | None:
        found = self._jobs.get(job)
        self.ignored += found is None
        return found

    def _ask_for_wake(self, monotonic: float) -> None:
        """One timer is enough: asked for when an earlier one is needed than the one that is set."""
        if self._wake_at is not None and self._wake_at <= monotonic:
            self._wake_at = None
        wakes = self._pool.next_wakes() + [time for job in self._jobs.values() for time in job.next_wakes()]
        soonest = min((time for time in wakes if monotonic < time < float("inf")), default=None)
        if soonest is not None and (self._wake_at is None or soonest < self._wake_at):
            self._wake_at = soonest
            self._commands.append(WakeAt(at=soonest))
