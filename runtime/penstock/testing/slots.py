"""A slot process in virtual time: the engine's own `Slot`, with simulated network, threads and control socket.

A turn of the slot takes time, so that a slot can be slower than its senders. Work in the background has its effect
after a delay, and its result comes back after another: the process may die in between.
"""

import asyncio
from collections import deque
from collections.abc import AsyncIterator, Callable
from typing import Any, TypeVar

from penstock.model.ids import SlotId
from penstock.model.messages import (
    Abort,
    Align,
    Commit,
    Deploy,
    Forgo,
    FromSlot,
    Overtake,
    Prepare,
    Reassign,
    SlotInfo,
    SlotReady,
    ToSlot,
    Trigger,
)
from penstock.storage import ObjectStore
from penstock.taskmanager.chain import MakeOperator
from penstock.taskmanager.slot import Slot
from penstock.testing.coroutines import VirtualCoroutines
from penstock.testing.network import Network
from penstock.testing.processes import Process, VirtualLoop
from penstock.testing.watching import Watcher

REPORT_US = 500_000
PIPE_US = 150
"""Longest time of a message between a TaskManager and its slot."""

T = TypeVar("T")


class Pipe:
    """One direction of a control socket: ordered, and closed when the sender is gone."""

    def __init__(self, receiver: Process, delay_us: Callable[[], int]) -> None:
        self._receiver, self._delay_us = receiver, delay_us
        self._last_us = 0

    def send(self, label: str, arrive: Callable[[], None]) -> None:
        """Let something arrive after what was sent before."""
        now = self._receiver.world.now_us
        self._last_us = max(self._last_us + 1, now + self._delay_us())
        self._receiver.after(self._last_us - now, label, arrive)


class DelayedBackground:
    """`taskmanager.ports.Background`: one piece of work after the other, each a delay before and after its effect."""

    def __init__(self, process: Process, delay_us: Callable[[], int], done: Callable[[], None]) -> None:
        self._process, self._delay_us, self._done = process, delay_us, done
        self._queue: deque[tuple[Callable[[], Any], Callable[[Any], None]]] = deque()
        self._busy = False

    def submit(self, work: Callable[[], T], done: Callable[[T | Exception], None]) -> None:
        """See the port."""
        self._queue.append((work, done))
        if not self._busy:
            self._next()

    def _next(self) -> None:
        self._busy = bool(self._queue)
        if self._queue:
            work, done = self._queue.popleft()
            self._process.after(self._delay_us(), "", lambda: self._run(work, done))

    def _run(self, work: Callable[[], Any], done: Callable[[Any], None]) -> None:
        try:
            result: Any = work()
        except Exception as error:
            result = error
        self._process.after(self._delay_us(), "", lambda: self._finish(done, result))

    def _finish(self, done: Callable[[Any], None], result: Any) -> None:
        done(result)
        self._done()
        self._next()


class SlotProcess:
    """One process behind a slot; what a `SlotRelay` knows as its process."""

    def __init__(
        self,
        slot: SlotId,
        process: Process,
        parent: Process,
        loop: VirtualLoop,
        *,
        network: Network,
        open_store: Callable[[str], ObjectStore],
        store_delay_us: Callable[[], int],
        make_operator: MakeOperator,
        watcher: Watcher,
        start_us: int,
        turn_us: int,
    ) -> None:
        self.id, self.process, self.pid = slot, process, process.pid
        self.address = f"slot://{slot}"
        self._watcher, self._turn_us = watcher, turn_us
        self._random = process.world.stream(process.name)
        self._inbox: asyncio.Queue[FromSlot | SlotReady | None] = asyncio.Queue()
        self._exited: asyncio.Future[None] = loop.create_future()
        self._up = Pipe(parent, self._pipe_delay_us)
        self._down = Pipe(process, self._pipe_delay_us)
        self._turn_at_us: int | None = None
        self._rested_us = 0
        self.slot = Slot(
            slot,
            clock=process.clock,
            work_folder=process.world.folder / process.name,
            background=DelayedBackground(process, store_delay_us, self.wake),
            coroutines=VirtualCoroutines(process, store_delay_us, self.wake),
            open_store=open_store,
            make_operator=make_operator,
            report=self._say,
        )
        process.at_end(self._on_end)
        process.after(start_us, "starts", lambda: self._start(network))

    # ------------------------------------------------------------ as the relay sees it

    async def messages(self) -> AsyncIterator[FromSlot | SlotReady]:
        """What the slot says, until it is gone."""
        while (message := await self._inbox.get()) is not None:
            yield message

    def send(self, message: ToSlot) -> None:
        """To the slot."""
        self._down.send(_label(message), lambda: self._receive(message))

    def kill(self) -> None:
        """SIGKILL."""
        self.process.kill("killed by its TaskManager")

    async def exit_code(self) -> int:
        """Wait for the end. Does not suspend when it is there: a dying TaskManager may not wait."""
        if self.process.alive:
            await self._exited
        return -9

    # ------------------------------------------------------------ inside

    def _pipe_delay_us(self) -> int:
        return self._random.randrange(10, PIPE_US)

    def _start(self, network: Network) -> None:
        self.slot.transport = network.listen(self.address, self.process, self.slot, self.wake)
        self._say(SlotReady(info=SlotInfo(slot=self.id, address=self.address, pid=self.pid)))
        self.process.after(REPORT_US, "", self._report)

    def _receive(self, message: ToSlot) -> None:
        self._watcher.before_message(self, message)
        self.slot.on_message(message)
        self.wake()

    def _say(self, message: FromSlot | SlotReady) -> None:
        self._watcher.on_report(self, message)
        self._up.send("", lambda: self._inbox.put_nowait(message))

    def _report(self) -> None:
        if (report := self.slot.report()) is not None:
            self._say(report)
        self.process.after(REPORT_US, "", self._report)

    def wake(self) -> None:
        """Something has come: take a turn, when the one before is over."""
        self._turn_in(max(0, self._rested_us - self.process.world.now_us))

    def _turn_in(self, delay_us: int) -> None:
        at = self.process.world.now_us + delay_us
        if self._turn_at_us is not None and self._turn_at_us <= at:
            return
        self._turn_at_us = at
        self.process.after(delay_us, "", lambda: self._turn(at))

    def _turn(self, at: int) -> None:
        if self._turn_at_us != at:
            return
        self._turn_at_us = None
        wait = self.slot.run_once()
        self._watcher.after_turn(self)
        self._rested_us = self.process.world.now_us + self._random.randrange(1, self._turn_us)
        if wait is not None:
            rest = self._rested_us - self.process.world.now_us
            self._turn_in(max(rest, round(wait * 1_000_000)))

    def _on_end(self) -> None:
        self._watcher.on_process_end(self)
        self._up.send("", lambda: self._inbox.put_nowait(None))
        if not self._exited.done():
            self._exited.set_result(None)


def _label(message: ToSlot) -> str:
    match message:
        case Deploy(deployment=deployment):
            return f"gets Deploy attempt={deployment.attempt}"
        case Align():
            return ""
        case Trigger() | Overtake() | Commit() | Abort():
            return f"gets {type(message).__name__} checkpoint={message.checkpoint} attempt={message.attempt}"
        case Prepare(reshape=reshape):
            return f"gets Prepare number={reshape.number} attempt={message.attempt}"
        case Forgo() | Reassign():
            return f"gets {type(message).__name__} number={message.number} attempt={message.attempt}"
