"""A job in this process and in virtual time: the JobManager's own core, the engine's own slots, one thread.

Owns: the slots, and the messages between them and the core. A run goes from a start, or a checkpoint, to the end of
the job or to a crash; what a crash leaves behind is the store.
Does not own: faults of the network, of storage and of JobManagers; `testing.episodes` simulates those.
"""

import hashlib
import random
from dataclasses import dataclass

import msgspec

from penstock.checkpoint import journal
from penstock.config import installed_versions
from penstock.graph import JobGraph
from penstock.jobmanager.core import Core
from penstock.jobmanager.events import (
    AppendJournal,
    CheckpointRequested,
    DeleteObjects,
    Event,
    JobSubmitted,
    JournalWritten,
    MessageReceived,
    SavepointWritten,
    Send,
    StopRequested,
    Tick,
    WakeAt,
    WriteSavepoint,
)
from penstock.jobmanager.timing import Timing
from penstock.model.errors import PenstockError
from penstock.model.handles import Manifest
from penstock.model.ids import JobId, SlotId, TaskManagerId
from penstock.model.messages import Failed, FromSlot, Register, SlotInfo, SlotReport, ToSlot
from penstock.savepoints.checks import RestoreOptions, restore_report
from penstock.savepoints.completing import Taken, complete
from penstock.savepoints.manifest import digest, read_manifest
from penstock.savepoints.restoring import adopt
from penstock.storage import MemoryStore, ObjectStore
from penstock.taskmanager.chain import MakeOperator
from penstock.taskmanager.slot import Slot
from penstock.testing.coroutines import VirtualCoroutines
from penstock.testing.network import Conditions, Network
from penstock.testing.processes import Process
from penstock.testing.slots import DelayedBackground, Pipe
from penstock.testing.world import World

JOB = JobId("test")
_TASK_MANAGER = TaskManagerId("tm-0")
_PATIENT = Timing(heartbeat_timeout=1e15, deploy_timeout=1e15, repeat=1e15)
"""Nothing is lost here, so nothing is said twice, however long the pauses of a test are."""
_MESSAGE_US = 100
_TURN_US = 50


class HostedSlot:
    """One slot, driven by the world's events."""

    def __init__(
        self, run: "Run", slot: SlotId, process: Process, *, network: Network, make_operator: MakeOperator
    ) -> None:
        self.process = process
        self.info = SlotInfo(slot=slot, address=f"slot://{slot}", pid=process.pid)
        self._random: random.Random = process.world.stream(process.name)
        self._up, self._down = Pipe(run.manager, self._delay_us), Pipe(process, self._delay_us)
        self._turn_at_us: int | None = None
        self._slot = Slot(
            slot,
            clock=process.clock,
            work_folder=process.world.folder / process.name,
            background=DelayedBackground(process, self._delay_us, self._wake),
            coroutines=VirtualCoroutines(process, self._delay_us, self._wake),
            open_store=run.open,
            make_operator=make_operator,
            report=lambda message: self._up.send("", lambda: run.on_report(slot, message)),
        )
        self._slot.transport = network.listen(self.info.address, process, self._slot, self._wake)

    def send(self, message: ToSlot) -> None:
        """From the JobManager."""
        self._down.send("", lambda: self._receive(message))

    def end(self) -> None:
        """The process is gone, and what it had open with it."""
        self.process.kill("ended")
        for task in self._slot.tasks:
            task.chain.close()

    def _delay_us(self) -> int:
        return self._random.randrange(10, _MESSAGE_US)

    def _receive(self, message: ToSlot) -> None:
        self._slot.on_message(message)
        self._wake()

    def _wake(self) -> None:
        self._turn_in(0)

    def _turn_in(self, delay_us: int) -> None:
        at = self.process.world.now_us + delay_us
        if self._turn_at_us is None or at < self._turn_at_us:
            self._turn_at_us = at
            self.process.after(delay_us, "", lambda: self._turn(at))

    def _turn(self, at: int) -> None:
        if self._turn_at_us != at:
            return
        self._turn_at_us = None
        wait = self._slot.run_once()
        if wait is not None:
            self._turn_in(max(_TURN_US, round(wait * 1_000_000)))


@dataclass(frozen=True, slots=True)
class Leftover:
    """What a run leaves to the next: its last checkpoint, and the objects that it names."""

    manifest: Manifest | None
    store: MemoryStore
    savepoint: ObjectStore | None = None
    """What the next run starts from instead, with nothing else."""


class Run:
    """One submission of the job."""

    def __init__(
        self, world: World, graph: JobGraph, make_operator: MakeOperator, *, number: int, before: Leftover | None
    ) -> None:
        self.world, self.number = world, number
        self.store = MemoryStore(f"test-{number}")
        self._savepoints: dict[str, MemoryStore] = {}
        self.manager = Process(world, f"jobmanager-{number}", pid=1)
        self.outcome: journal.Ended | None = None
        self.failure: Failed | None = None
        self.manifest = before.manifest if before else None
        """Of the last checkpoint that is in the journal."""
        self.checkpoints = 0
        self.error: BaseException | None = None
        self._core = Core(writer=self.manager.name, rng=world.stream(self.manager.name), timing=_PATIENT)
        network = Network(world, Conditions())
        slots = max(vertex.parallelism for vertex in graph.vertices)
        self._slots = {
            slot: HostedSlot(
                self,
                slot,
                Process(world, f"slot-{number}-{slot.index}", pid=slot.index + 2),
                network=network,
                make_operator=make_operator,
            )
            for slot in (SlotId(_TASK_MANAGER, index) for index in range(slots))
        }
        self._submit(graph, before)

    @property
    def ended(self) -> bool:
        """Nothing more happens."""
        return self.outcome is not None or self.error is not None

    def request_checkpoint(self) -> None:
        """As soon as the core is free."""
        self.manager.after(0, "", lambda: self.feed(CheckpointRequested(job=JOB)))

    def request_stop(self, savepoint: str) -> None:
        """With a savepoint, as soon as the core is free."""
        self.manager.after(0, "", lambda: self.feed(StopRequested(job=JOB, savepoint=savepoint)))

    def open(self, uri: str) -> ObjectStore:
        """What slots and the core are given addresses of."""
        if uri == self.store.uri:
            return self.store
        return self._savepoints.setdefault(uri, MemoryStore(uri.removeprefix("memory://")))

    def end(self, savepoint: str = "") -> Leftover:
        """Kill everything. `savepoint`: what the job was stopped with."""
        self.manager.kill("ended")
        for slot in self._slots.values():
            slot.end()
        return Leftover(self.manifest, self.store, self._savepoints[savepoint] if savepoint else None)

    def feed(self, event: Event) -> None:
        """Let the core decide, and do what it wants."""
        clock = self.manager.clock
        try:
            commands = self._core.handle(event, now_us=clock.now_us(), monotonic=clock.monotonic())
        except Exception as error:
            self.error = self.error or error
            return
        for command in commands:
            match command:
                case Send(directed=directed) if directed.slot in self._slots:
                    if isinstance(directed.message, ToSlot):
                        self._slots[directed.slot].send(directed.message)
                case AppendJournal(entry=entry):
                    self.manager.after(_MESSAGE_US, "", lambda entry=entry: self._append(entry))  # type: ignore[misc]
                case WriteSavepoint(taken=taken):
                    self.manager.after(_MESSAGE_US, "", lambda taken=taken: self._complete(taken))  # type: ignore[misc]
                case DeleteObjects(paths=paths):
                    for path in paths:
                        self.store.delete(path)
                case WakeAt(at=at):
                    delay_us = round((at - clock.monotonic()) * 1_000_000) + 1
                    self.manager.after(delay_us, "", lambda: self.feed(Tick()))

    def on_report(self, slot: SlotId, message: FromSlot) -> None:
        """A slot says something."""
        if isinstance(message, Failed):
            self.failure = self.failure or message
        if not isinstance(message, SlotReport):
            self.feed(MessageReceived(task_manager=slot.task_manager, message=message))

    def _submit(self, graph: JobGraph, before: Leftover | None) -> None:
        infos = tuple(slot.info for slot in self._slots.values())
        register = Register(
            task_manager=_TASK_MANAGER,
            address="test",
            host="test",
            pid=1,
            slots=infos,
            versions=installed_versions(),
        )
        self.feed(MessageReceived(task_manager=_TASK_MANAGER, message=register))
        initial = before.manifest if before else None
        if before is not None and before.savepoint is not None:
            saved = read_manifest(before.savepoint)
            report = restore_report(saved, graph, RestoreOptions(allow_foreign=True))
            groups = graph.max_parallelism
            initial = self.manifest = adopt(before.savepoint, saved, report, self.store, max_parallelism=groups)
        elif before is not None and initial is not None:
            for path in sorted(_objects(initial)):
                if (data := before.store.get(path)) is not None:
                    self.store.put(path, data)
        digest = hashlib.sha256(msgspec.json.encode(graph)).hexdigest()
        self.feed(JobSubmitted(job=JOB, graph=graph, graph_sha256=digest, store=self.store.uri, initial=initial))

    def _complete(self, taken: Taken) -> None:
        assert taken.checkpoint is not None
        manifest = complete(self.open(taken.uri), taken)
        written = SavepointWritten(job=JOB, checkpoint=taken.checkpoint, size=manifest.size, sha256=digest(manifest))
        self.feed(written)

    def _append(self, entry: journal.JournalEntry) -> None:
        written = journal.append(self.store, entry)
        if not isinstance(written, journal.Appended):
            raise PenstockError("C025", "the journal of a test has another writer")
        match entry:
            case journal.CheckpointCompleted(manifest=manifest):
                self.manifest = manifest
                self.checkpoints += 1
            case journal.Ended():
                self.outcome = entry
        self.feed(JournalWritten(job=JOB, entry=entry, sha256=written.sha256))


def _objects(manifest: Manifest) -> set[str]:
    """Everything in the store that a checkpoint needs."""
    shared = (path for handle in manifest.handles for section in handle.sections for path, _ in section.shared)
    return {*(handle.path for handle in manifest.handles if handle.path), *shared}
