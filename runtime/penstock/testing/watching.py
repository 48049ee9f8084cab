"""What a simulation looks at while it runs: phases for the faults to aim at, rare situations, broken promises.

The product knows nothing of this. Everything is seen from outside, or by a look into a slot between two turns.
"""

from collections.abc import Callable
from typing import TYPE_CHECKING

import msgspec

from penstock.checkpoint import journal
from penstock.exchange import wire
from penstock.jobmanager.events import (
    AppendJournal,
    Command,
    Event,
    JournalConflict,
    JournalFailed,
    JournalWritten,
    MessageReceived,
    Send,
)
from penstock.model.elements import Barrier, BarrierKind
from penstock.model.ids import Attempt, CheckpointId, SlotId
from penstock.model.messages import (
    Abort,
    Commit,
    Declined,
    Deploy,
    Failed,
    FromSlot,
    Running,
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
    "P009": "a slot process died",
}
"""Failures that injected faults may cause. Any other one is a bug: C010 (a gap in a channel) above all, since the
simulated network never loses or repeats a frame of a connection that lives."""


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
        self.restarts = 0
        self.ended = False
        """The journal says so."""
        self.journaled: dict[tuple[CheckpointId, Attempt], None] = {}
        self._attempt = Attempt(0)
        self._last_sequence, self._last_writer = -1, ""
        self._aborted: dict[str, set[int]] = {}
        self._deployed: dict[Attempt, dict[SlotId, bool]] = {}
        self._running: dict[Attempt, dict[SlotId, bool]] = {}

    def violation(self, oracle: str, text: str) -> None:
        """A promise was broken; the episode ends here."""
        self.world.trace(f"VIOLATION {oracle}: {text}")
        self.violations.append((oracle, text))

    # ------------------------------------------------------------ store

    def on_written(self, path: str, data: bytes) -> None:
        """An object came into being. Looks at the journal as it grows, before anything in it is deleted."""
        if not path.startswith(journal.PREFIX):
            return
        entry = journal.decode(data, where=path)
        self.world.trace(f"journal: {entry.sequence} {type(entry).__name__} by {entry.writer}")
        if entry.sequence < self._last_sequence:
            self.world.sometimes("late JobManager filled a hole in the journal")
            return
        self._last_sequence, self._last_writer = entry.sequence, entry.writer
        match entry:
            case journal.AttemptStarted(attempt=attempt):
                if attempt <= self._attempt:
                    self.violation("journal", f"attempt {attempt} follows {self._attempt}")
                self._attempt = attempt
                self.restarts += attempt > 1
            case journal.CheckpointCompleted(manifest=manifest):
                newest = max((checkpoint for checkpoint, _ in self.journaled), default=0)
                if manifest.checkpoint <= newest:
                    self.violation("journal", f"checkpoint {manifest.checkpoint} follows {newest}")
                self.journaled[manifest.checkpoint, self._attempt] = None
                self.on_phase("journaled")
            case journal.Ended():
                self.ended = True

    def is_journaled(self, checkpoint: CheckpointId, attempt: Attempt) -> bool:
        """Whether the journal has ever held this checkpoint, or a later one of the same attempt.

        What was prepared for a checkpoint that was given up is part of the next one.
        """
        return any(owner == attempt and done >= checkpoint for done, owner in self.journaled)

    # ------------------------------------------------------------ JobManager

    def on_event(self, event: Event, *, leads: bool) -> None:
        """Before a core handles it; `leads`: no other JobManager was started after that one."""
        match event:
            case MessageReceived(message=Running(attempt=attempt, slot=slot)):
                self._running.setdefault(attempt, {})[slot] = True
            case MessageReceived(message=Declined()):
                self.world.sometimes("checkpoint declined")
            case JournalConflict(entry=entry):
                if (entry.sequence, entry.writer) == (self._last_sequence, self._last_writer):
                    self.violation("journal", f"{entry.writer} takes its own entry {entry.sequence} for another's")
                who = "came too late" if leads else "was replaced"
                self.world.sometimes(f"JobManager that {who} fenced by the journal")
            case JournalFailed():
                self.world.sometimes("journal given up")
            case JournalWritten(entry=journal.CheckpointCompleted()):
                self.on_phase("answered")

    def on_commands(self, commands: list[Command]) -> None:
        """What a core decided."""
        for command in commands:
            match command:
                case AppendJournal(entry=journal.CheckpointCompleted()):
                    self.on_phase("collected")
                case AppendJournal(entry=journal.AttemptStarted(attempt=attempt, restored=restored)):
                    self.on_phase("restarting" if attempt > 1 else "starting")
                    before = Attempt(attempt - 1)
                    if (
                        restored is not None
                        and self._deployed.get(before, {}).keys() - self._running.get(before, {}).keys()
                    ):
                        self.world.sometimes("restart during a restore")
                case Send(directed=directed):
                    self._on_send(directed.slot, directed.message)

    def _on_send(self, slot: SlotId, message: object) -> None:
        match message:
            case Deploy(deployment=deployment):
                self._deployed.setdefault(deployment.attempt, {})[slot] = True
                self.on_phase("restoring" if any(task.restore for task in deployment.tasks) else "deploying")
            case Trigger(kind=kind):
                self.on_phase("triggered" if kind is BarrierKind.CHECKPOINT else "ending")
            case Abort():
                self.world.sometimes("checkpoint aborted")

    # ------------------------------------------------------------ slots

    def before_message(self, process: "SlotProcess", message: ToSlot) -> None:
        """A slot is about to handle it."""
        match message:
            case Abort(checkpoint=checkpoint):
                self._aborted.setdefault(process.process.name, set()).add(checkpoint)
            case Commit(checkpoint=checkpoint, attempt=attempt):
                if not self.is_journaled(checkpoint, attempt):
                    self.violation("visibility", f"commit of checkpoint {checkpoint}, which is not in the journal")
                self.on_phase("committing")

    def on_report(self, process: "SlotProcess", message: FromSlot | SlotReady) -> None:
        """A slot says something."""
        if not isinstance(message, Failed):
            return
        self.world.trace(f"{process.process.name}: fails with {message.code}")
        if message.code not in EXPECTED_FAILURES or message.fatal:
            self.violation("failure", f"{process.process.name} failed with {message.code}: {message.reason}")

    def on_send(self, sender: str, data: bytes) -> None:
        """A frame leaves a slot."""
        if data[0] == wire.FrameKind.BARRIER and (aborted := self._aborted.get(sender)):
            barrier = msgspec.json.decode(data[wire.HEADER_BYTES :], type=Barrier)
            if barrier.checkpoint in aborted:
                self.world.sometimes("barrier of an aborted checkpoint forwarded")

    def after_turn(self, process: "SlotProcess") -> None:
        """A slot has taken a turn."""
        name, tasks = process.process.name, process.slot._tasks
        if any(task._aligner.pending is not None for task in tasks):
            if name not in self.aligning:
                self.aligning[name] = None
                self.on_phase("aligning")
        else:
            self.aligning.pop(name, None)
        if self.aligning and any(task.chain.full for task in tasks):
            self.world.sometimes("back-pressure while aligning")

    def on_process_end(self, process: "SlotProcess") -> None:
        """It is gone."""
        if self.aligning.pop(process.process.name, "") is None:
            self.world.sometimes("slot lost while aligning")
