"""What a simulation looks at while it runs: phases for the faults to aim at, rare situations, broken promises.

The product knows nothing of this. Everything is seen from outside, or by a look into a slot between two turns.
"""

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import msgspec

from penstock.checkpoint import journal
from penstock.exchange import wire
from penstock.graph.loops import FEEDBACK_PORT
from penstock.jobmanager.events import (
    AppendJournal,
    Command,
    Event,
    JournalConflict,
    JournalFailed,
    JournalWritten,
    MessageReceived,
    Note,
    Send,
    WriteSavepoint,
)
from penstock.model.elements import Barrier, BarrierKind
from penstock.model.ids import Attempt, CheckpointId, JobId, SlotId
from penstock.model.messages import (
    Abort,
    Cancel,
    Commit,
    Declined,
    Deploy,
    Failed,
    FromSlot,
    Prepare,
    Running,
    Settled,
    SlotReady,
    ToSlot,
    Trigger,
)
from penstock.testing.world import World

if TYPE_CHECKING:
    from penstock.testing.slots import SlotProcess

EXPECTED_FAILURES = {
    "C005": "a deployment met a slot that was being replaced",
    "C012": "a connection was lost",
    "C020": "the store did not answer a restore",
    "C021": "the store lost an answer",
    "C022": "a commit failed",
    "C031": "a rescale met the end of the input",
    "P009": "a slot process died",
}
"""Failures that injected faults may cause. Any other one is a bug: C010 (a gap in a channel) above all, since the
simulated network never loses or repeats a frame of a connection that lives."""


_PHASE_OF = {BarrierKind.CHECKPOINT: "triggered", BarrierKind.RESTART: "rescaling", BarrierKind.RESCALE: "moving"}


@dataclass(slots=True)
class WatchedJournal:
    """The journal of one job as it grew, with what was deleted since."""

    last_sequence: int = -1
    last_writer: str = ""
    epoch: int = 0
    """In which its last writer leads."""
    outcome: str | None = None
    restarts: int = 0
    completed: dict[CheckpointId, frozenset[Attempt]] = field(default_factory=dict)
    """Checkpoints, with the attempts that were in force."""
    in_force: dict[int, Attempt] = field(default_factory=dict)
    """By region."""
    bystanders: frozenset[Attempt] = frozenset()
    """Attempts of other regions that ran when the last region started again."""
    sizes: list[int] = field(default_factory=list)
    """That it has had since it was submitted."""
    _last_attempt: int = 0

    def add(self, entry: journal.JournalEntry) -> str | None:
        """One more entry; says what is wrong with it."""
        self.last_sequence, self.last_writer = entry.sequence, entry.writer
        before_epoch, self.epoch = self.epoch, max(entry.epoch, self.epoch)
        if entry.epoch < before_epoch:
            return f"{type(entry).__name__} of epoch {entry.epoch} was accepted in epoch {before_epoch}"
        match entry:
            case journal.AttemptStarted(attempt=attempt, region=region, cause=cause):
                before, self._last_attempt = self._last_attempt, attempt
                self.in_force[region] = attempt
                self.restarts += bool(cause)
                return f"attempt {attempt} follows {before}" if attempt <= before else None
            case journal.CheckpointCompleted(manifest=manifest):
                newest = max(self.completed, default=0)
                self.completed[manifest.checkpoint] = frozenset(self.in_force.values())
                if manifest.checkpoint <= newest:
                    return f"checkpoint {manifest.checkpoint} follows {newest}"
            case journal.Resized(parallelism=parallelism, live=live):
                # Attempts of the size before are over, and there may be other regions; unless the job went on.
                if not live:
                    self.in_force.clear()
                self.sizes.append(parallelism)
            case journal.Ended(outcome=outcome):
                self.outcome = outcome
        return None


class Watcher:
    """Told of everything by the simulated processes."""

    def __init__(self, world: World) -> None:
        self.world = world
        self.violations: list[tuple[str, str]] = []
        self.error: BaseException | None = None
        """The first crash of the code under test, with its traceback."""
        self.on_phase: Callable[[str], None] = lambda _: None
        self.aligning: dict[str, None] = {}
        """Names of slot processes in which a task waits for barriers."""
        self.journals: dict[JobId, WatchedJournal] = {}
        """Of all jobs, in the order of their submission."""
        self._aborted: dict[str, set[int]] = {}
        self._deployed: dict[tuple[JobId, Attempt], dict[SlotId, bool]] = {}
        self._running: dict[tuple[JobId, Attempt], dict[SlotId, bool]] = {}
        self._cancelled: dict[tuple[JobId, Attempt], None] = {}

    @property
    def restarts(self) -> int:
        """Of all jobs."""
        return sum(each.restarts for each in self.journals.values())

    @property
    def checkpoints(self) -> int:
        """That were completed, of all jobs."""
        return sum(len(each.completed) for each in self.journals.values())

    def journal_length(self, job: JobId) -> int:
        """It grows with all that matters."""
        return self.journals[job].last_sequence

    def runs(self, job: JobId) -> bool:
        """All slots of all its regions have said so."""
        return all(self._runs(job, attempt) for attempt in self.journals[job].in_force.values())

    def outcome(self, job: JobId) -> str | None:
        """How it ended, once its journal says so."""
        return self.journals[job].outcome if job in self.journals else None

    def violation(self, oracle: str, text: str) -> None:
        """A promise was broken; the episode ends here."""
        self.world.trace(f"VIOLATION {oracle}: {text}")
        self.violations.append((oracle, text))

    # ------------------------------------------------------------ store

    def on_written(self, path: str, data: bytes) -> None:
        """An object came into being. Looks at journals as they grow, before anything in them is deleted."""
        job, _, inside = path.partition("/")
        if not inside.startswith(journal.PREFIX):
            return
        entry = journal.decode(data, where=path)
        self.world.trace(f"journal: {entry.sequence} {type(entry).__name__} by {entry.writer}")
        watched = self.journals.setdefault(JobId(job), WatchedJournal())
        if entry.sequence < watched.last_sequence:
            self.world.sometimes("late JobManager filled a hole in the journal")
            return
        if (wrong := watched.add(entry)) is not None:
            self.violation("journal", wrong)
        match entry:
            case journal.AttemptStarted(attempt=attempt, cause=cause) if cause:
                others = frozenset(watched.in_force.values()) - {attempt}
                watched.bystanders = frozenset(other for other in others if self._runs(JobId(job), other))
            case journal.Resized(cause=cause, live=live):
                if live:
                    self.world.sometimes("rescaled while it ran")
                before, after = [0, *watched.sizes][-2:]
                self.world.sometimes(
                    "went back to the size before" if cause else "grew" if after > before else "shrank"
                )
                self.on_phase("resized")
            case journal.CheckpointCompleted(manifest=manifest):
                owners = watched.completed[manifest.checkpoint]
                if any(self._runs(JobId(job), each) for each in watched.bystanders & owners):
                    self.world.sometimes("one region restarted while another ran on")
                self.on_phase("journaled")

    def is_journaled(self, job: JobId, checkpoint: CheckpointId, attempt: Attempt) -> bool:
        """Whether the job's journal has ever held this checkpoint, or a later one, while the attempt was in force.

        What was prepared for a checkpoint that was given up is part of the next one.
        """
        completed = self.journals[job].completed if job in self.journals else {}
        return any(done >= checkpoint and attempt in owners for done, owners in completed.items())

    def _runs(self, job: JobId, attempt: Attempt) -> bool:
        """All its slots have said so, and nobody wants it to end."""
        deployed, running = self._deployed.get((job, attempt), {}), self._running.get((job, attempt), {})
        return bool(deployed) and deployed.keys() == running.keys() and (job, attempt) not in self._cancelled

    # ------------------------------------------------------------ JobManager

    def on_event(self, event: Event, *, leads: bool) -> None:
        """Before a core handles it; `leads`: no other JobManager was started after that one."""
        match event:
            case MessageReceived(message=Running(job=job, attempt=attempt, slot=slot)):
                self._running.setdefault((job, attempt), {})[slot] = True
            case MessageReceived(message=Declined()):
                self.world.sometimes("checkpoint declined")
            case JournalConflict(job=job, entry=entry):
                watched = self.journals[job]
                if (entry.sequence, entry.writer) == (watched.last_sequence, watched.last_writer):
                    self.violation("journal", f"{entry.writer} takes its own entry {entry.sequence} for another's")
                if not leads:
                    self.world.sometimes("JobManager that was replaced fenced by the journal")
            case JournalFailed():
                self.world.sometimes("journal given up")
            case JournalWritten(entry=journal.CheckpointCompleted()):
                self.on_phase("answered")

    def on_commands(self, commands: list[Command]) -> None:
        """What a core decided."""
        for command in commands:
            match command:
                case WriteSavepoint():
                    self.on_phase("tables")
                case Note(message="region taken over"):
                    self.world.sometimes("region taken over as it ran")
                case AppendJournal(entry=journal.CheckpointCompleted()):
                    self.on_phase("collected")
                case AppendJournal(entry=journal.Resized()):
                    self.on_phase("resizing")
                case AppendJournal(job=job, entry=journal.AttemptStarted() as entry):
                    self.on_phase("restarting" if entry.cause else "starting")
                    before = (job, Attempt(entry.attempt - 1))
                    deployed, running = self._deployed.get(before, {}), self._running.get(before, {})
                    if entry.restored is not None and deployed.keys() - running.keys():
                        self.world.sometimes("restart during a restore")
                case Send(directed=directed):
                    self._on_send(directed.slot, directed.message)

    def _on_send(self, slot: SlotId, message: object) -> None:
        match message:
            case Deploy(deployment=deployment):
                self._deployed.setdefault((deployment.job, deployment.attempt), {})[slot] = True
                self.on_phase("restoring" if any(task.restore for task in deployment.tasks) else "deploying")
            case Prepare():
                self.on_phase("preparing")
            case Trigger(kind=kind):
                self.on_phase(_PHASE_OF.get(kind, "ending"))
            case Abort():
                self.world.sometimes("checkpoint aborted")
            case Cancel(job=job, attempt=attempt):
                self._cancelled[job, attempt] = None

    # ------------------------------------------------------------ slots

    def before_message(self, process: "SlotProcess", message: ToSlot) -> None:
        """A slot is about to handle it."""
        match message:
            case Abort(checkpoint=checkpoint):
                self._aborted.setdefault(process.process.name, set()).add(checkpoint)
            case Commit(job=job, checkpoint=checkpoint, attempt=attempt):
                if not self.is_journaled(job, checkpoint, attempt):
                    self.violation("visibility", f"commit of checkpoint {checkpoint}, which is not in the journal")
                self.on_phase("committing")

    def on_report(self, process: "SlotProcess", message: FromSlot | SlotReady) -> None:
        """A slot says something."""
        if isinstance(message, Running):
            self._on_running(process)
        if isinstance(message, Settled):
            self.on_phase("settling")
        if not isinstance(message, Failed):
            return
        self.world.trace(f"{process.process.name}: fails with {message.code}")
        if message.attempt not in self.journals[message.job].in_force.values():
            # A deployment that arrives when it has long been replaced finds its checkpoint gone; nobody waits for it.
            self.world.sometimes("failure of an attempt that was replaced")
        elif message.code not in EXPECTED_FAILURES or message.fatal:
            self.violation("failure", f"{process.process.name} failed with {message.code}: {message.reason}")

    def _on_running(self, process: "SlotProcess") -> None:
        for task in process.slot.tasks:
            if task._restored:
                self.world.sometimes("rows in flight restored")
            if any(rows.port == FEEDBACK_PORT and task._feedback for rows in task._restored):
                self.world.sometimes("rows of a loop restored")

    def on_send(self, sender: str, data: bytes) -> None:
        """A frame leaves a slot."""
        if data[0] == wire.FrameKind.BARRIER and (aborted := self._aborted.get(sender)):
            barrier = msgspec.json.decode(data[wire.HEADER_BYTES :], type=Barrier)
            if barrier.checkpoint in aborted:
                self.world.sometimes("barrier of an aborted checkpoint forwarded")

    def after_turn(self, process: "SlotProcess") -> None:
        """A slot has taken a turn."""
        name, tasks = process.process.name, process.slot.tasks
        if any(task._aligner.pending is not None for task in tasks):
            if name not in self.aligning:
                self.aligning[name] = None
                self.on_phase("aligning")
        else:
            self.aligning.pop(name, None)
        if any(task._source is not None and task._source.held for task in tasks):
            self.world.sometimes("source waited for slower ones")
        for task in tasks:
            if task._cut is not None and task._cut.barrier.overtakes:
                self.world.sometimes("barrier overtook rows")
            if task._cut is not None and task._cut.restored:
                self.world.sometimes("restored rows captured again")
        if self.aligning and any(task.chain.full for task in tasks):
            self.world.sometimes("back-pressure while aligning")

    def on_process_end(self, process: "SlotProcess") -> None:
        """It is gone."""
        if self.aligning.pop(process.process.name, "") is None:
            self.world.sometimes("slot lost while aligning")
