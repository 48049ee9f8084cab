"""Carries out what the core decides: messages, journal, deletions, timers, log.

Owns: the queues to the TaskManagers and the stores of the jobs.
Invariant: the core is called from one thread only, and never from within one of its own commands.
"""

import asyncio
import contextlib
import logging
from collections.abc import Callable, Coroutine, Mapping
from typing import Any, Protocol

from penstock.checkpoint import journal
from penstock.config import LinkSettings, loggable
from penstock.graph import Size
from penstock.jobmanager.events import (
    AppendJournal,
    Command,
    DeleteObjects,
    Event,
    Forget,
    JournalConflict,
    JournalFailed,
    JournalWritten,
    MessageReceived,
    Note,
    SavepointFailed,
    SavepointWritten,
    Send,
    TaskManagerLost,
    Tick,
    WakeAt,
    WriteSavepoint,
)
from penstock.jobmanager.peers import Connect, Peer
from penstock.model.clocks import Clock
from penstock.model.errors import PenstockError, RetryableError
from penstock.model.ids import Epoch, JobId, TaskManagerId
from penstock.model.messages import Leaving, Register
from penstock.model.views import CheckpointView, ClusterView, JobView, PlanView, RescaleView, SavepointView
from penstock.rpc import Reply, ToldJobManager, taskmanager_channel
from penstock.savepoints.completing import Taken, complete
from penstock.savepoints.manifest import digest
from penstock.storage import ObjectStore, UnknownResultError, open_store

logger = logging.getLogger(__name__)

_JOURNAL_TRIES = 5
_JOURNAL_RETRY_SECONDS = 0.2
"""A store that refuses for a second in all is given up; the core decides what that means for the job."""


class DecidingCore(Protocol):
    """`jobmanager.core.Core`, as the shell uses it."""

    def handle(self, event: Event, *, now_us: int, monotonic: float) -> list[Command]:
        """Facts in, decisions out."""
        ...

    def view_job(self, job: JobId) -> JobView:
        """One job, for people."""
        ...

    def view_cluster(self) -> ClusterView:
        """Everything, for people."""
        ...

    def plan(self, job: JobId) -> PlanView:
        """What runs, to be drawn."""
        ...

    def checkpoints(self, job: JobId) -> tuple[CheckpointView, ...]:
        """Of one job, the newest last."""
        ...

    def savepoints(self, job: JobId) -> tuple[SavepointView, ...]:
        """Of one job, the newest last."""
        ...

    def rescales(self, job: JobId) -> tuple[RescaleView, ...]:
        """Of one job, the newest last."""
        ...

    def plan_rescale(self, job: JobId, parallelism: int | None, operators: Mapping[str, int]) -> Size:
        """What is asked for, if the job can have it."""
        ...


class Shell:
    """Give it events with `feed` and messages with `tell`; it does the rest inside `run`'s lifetime."""

    def __init__(
        self,
        core: DecidingCore,
        *,
        epoch: Epoch,
        clock: Clock,
        link: LinkSettings,
        connect: Connect = taskmanager_channel,
        open_store: Callable[[str], ObjectStore] = open_store,
    ) -> None:
        """`open_store`: where savepoints go."""
        self._open_store = open_store
        self._core, self._epoch, self._clock, self._link, self._connect = core, epoch, clock, link, connect
        self._stores: dict[JobId, ObjectStore] = {}
        self._in_journal: dict[JobId, asyncio.Event] = {}
        self._peers: dict[TaskManagerId, Peer] = {}
        self._wakes: dict[float, asyncio.TimerHandle] = {}
        self._tasks: asyncio.TaskGroup | None = None
        self._broken: asyncio.Future[None] | None = None
        self.running = asyncio.Event()
        """Events may be fed from now on."""
        self.overtaken = asyncio.Event()
        """Somebody else has written a journal that was ours: this process leads no more, or read it too early."""

    async def run(self) -> None:
        """Until cancelled, or until the core has broken: then the process must end and start afresh."""
        self._broken = asyncio.get_running_loop().create_future()
        try:
            async with asyncio.TaskGroup() as self._tasks:
                self.running.set()
                await self._broken
        finally:
            self._tasks = None
            for handle in self._wakes.values():
                handle.cancel()

    def add_job(self, job: JobId, store: ObjectStore) -> None:
        """Before the first event of a job: where its journal is."""
        self._stores[job] = store
        self._in_journal[job] = asyncio.Event()

    async def in_journal(self, job: JobId) -> None:
        """Returns when something was written to the job's journal: from then on it survives this process."""
        await self._in_journal[job].wait()

    def feed(self, event: Event) -> None:
        """Let the core decide, and start what it wants done."""
        try:
            for command in self._core.handle(event, now_us=self._clock.now_us(), monotonic=self._clock.monotonic()):
                self._carry_out(command)
        except Exception as error:
            # Callers are timers, gRPC and REST handlers: none of them may swallow a broken core.
            if self._broken is not None and not self._broken.done():
                self._broken.set_exception(error)
            raise

    async def tell(self, told: ToldJobManager) -> Reply:
        """A message of a TaskManager. Who is not registered with this very process must do so first."""
        message = told.message
        if isinstance(message, Register):
            self._meet(told.task_manager, message)
        elif told.epoch != self._epoch or told.task_manager not in self._peers:
            return Reply(accepted=False, epoch=self._epoch)
        self.feed(MessageReceived(task_manager=told.task_manager, message=message))
        if isinstance(message, Leaving):
            self._part(told.task_manager)
            return Reply(accepted=True, epoch=self._epoch)
        return Reply(accepted=told.task_manager in self._peers, epoch=self._epoch)

    def _carry_out(self, command: Command) -> None:
        match command:
            case Send(task_manager=task_manager, directed=directed):
                if peer := self._peers.get(task_manager):
                    peer.send(directed)
            case Forget(task_manager=task_manager):
                self._part(task_manager)
            case AppendJournal(job=job, entry=entry):
                self._spawn(self._append(job, entry))
            case WriteSavepoint(job=job, taken=taken):
                self._spawn(self._write_savepoint(job, taken))
            case DeleteObjects(job=job, paths=paths):
                self._spawn(self._delete(self._stores[job], paths))
            case WakeAt(at=at):
                self._wake(at)
            case Note(level=level, message=text, facts=facts):
                logger.log(logging.getLevelNamesMapping()[level.upper()], text, extra=loggable(facts))

    def _spawn(self, work: Coroutine[Any, Any, None]) -> "asyncio.Task[None]":
        if self._tasks is None:
            work.close()
            raise RuntimeError("the shell is not running")
        return self._tasks.create_task(work)

    # ------------------------------------------------------------ TaskManagers

    def _meet(self, task_manager: TaskManagerId, message: Register) -> None:
        before = self._peers.get(task_manager)
        self._part(task_manager)
        peer = Peer(message.address, epoch=self._epoch, call_seconds=self._link.call_seconds, connect=self._connect)
        if before is not None and any(info.runs for info in message.slots):
            peer.inherit(before)
        self._peers[task_manager] = peer
        peer.task = self._spawn(self._serve(task_manager, peer))

    def _part(self, task_manager: TaskManagerId) -> None:
        if peer := self._peers.pop(task_manager, None):
            peer.cancel()

    async def _serve(self, task_manager: TaskManagerId, peer: Peer) -> None:
        reason = await peer.run()
        if self._peers.get(task_manager) is peer:
            del self._peers[task_manager]
            self.feed(TaskManagerLost(task_manager=task_manager, reason=reason))

    # ------------------------------------------------------------ journal, store, time

    async def _append(self, job: JobId, entry: journal.JournalEntry) -> None:
        refusals, doubtful = 0, False
        while True:
            try:
                result = await asyncio.to_thread(journal.append, self._stores[job], entry)
            except UnknownResultError:
                # It may be there by now: until that is known, nothing may be decided as if it were not.
                doubtful = True
            except (PenstockError, OSError) as error:
                refusals += 1
                hopeless = refusals == _JOURNAL_TRIES or not isinstance(error, RetryableError | OSError)
                if hopeless and not doubtful:
                    self.feed(JournalFailed(job=job, entry=entry, reason=str(error)))
                    return
            else:
                if isinstance(result, journal.Conflict):
                    self.overtaken.set()
                    self.feed(JournalConflict(job=job, entry=entry))
                else:
                    self._in_journal[job].set()
                    self.feed(JournalWritten(job=job, entry=entry, sha256=result.sha256))
                return
            await asyncio.sleep(_JOURNAL_RETRY_SECONDS)

    async def _write_savepoint(self, job: JobId, taken: Taken) -> None:
        assert taken.checkpoint is not None
        for last in (*[False] * (_JOURNAL_TRIES - 1), True):
            try:
                manifest = await asyncio.to_thread(lambda: complete(self._open_store(taken.uri), taken))
            except (PenstockError, OSError) as error:
                if last or not isinstance(error, RetryableError | OSError):
                    self.feed(SavepointFailed(job=job, checkpoint=taken.checkpoint, reason=str(error)))
                    return
                await asyncio.sleep(_JOURNAL_RETRY_SECONDS)
            else:
                written = SavepointWritten(
                    job=job, checkpoint=taken.checkpoint, size=manifest.size, sha256=digest(manifest)
                )
                self.feed(written)
                return

    async def _delete(self, store: ObjectStore, paths: tuple[str, ...]) -> None:
        # What stays behind costs space, not truth. But an entry of the journal comes before the objects that it
        # names, and when it stays they must.
        with contextlib.suppress(OSError, PenstockError):
            for path in paths:
                await asyncio.to_thread(store.delete, path)

    def _wake(self, at: float) -> None:
        if at not in self._wakes:
            delay = max(0.0, at - self._clock.monotonic())
            self._wakes[at] = asyncio.get_running_loop().call_later(delay, self._tick, at)

    def _tick(self, at: float) -> None:
        del self._wakes[at]
        self.feed(Tick())
