"""What a job wants done, in the order in which it was decided. No I/O: the core hands it to its shell."""

from penstock.checkpoint import journal
from penstock.jobmanager.events import AppendJournal, Command, DeleteObjects, Note, Send, WriteSavepoint
from penstock.model import messages
from penstock.model.ids import JobId, SlotId
from penstock.savepoints.completing import Taken


class Outbox:
    """The commands of one job, until they are taken."""

    def __init__(self, job: JobId) -> None:
        self.job = job
        self._commands: list[Command] = []

    def send(self, slot: SlotId, message: messages.ToTaskManager) -> None:
        """To a slot by way of its TaskManager."""
        directed = messages.Directed(slot=slot, message=message)
        self._commands.append(Send(task_manager=slot.task_manager, directed=directed))

    def append(self, entry: journal.JournalEntry) -> None:
        """Into the journal."""
        self._commands.append(AppendJournal(job=self.job, entry=entry))

    def write_savepoint(self, taken: Taken) -> None:
        """Its tables are all there: make it complete."""
        self._commands.append(WriteSavepoint(job=self.job, taken=taken))

    def delete(self, paths: tuple[str, ...]) -> None:
        """Objects that nobody needs any more, if there are any."""
        if paths:
            self._commands.append(DeleteObjects(job=self.job, paths=paths))

    def note(self, level: str, message: str, **facts: object) -> None:
        """For the log."""
        self._commands.append(Note(level=level, message=message, facts={"job": self.job, **facts}))

    def take(self) -> list[Command]:
        """All of it; nothing is left."""
        commands, self._commands = self._commands, []
        return commands
