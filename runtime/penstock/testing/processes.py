"""Processes that live in a simulated world: they can be killed and paused between any two events.

A process sees the world through `after` alone, so a dead one does nothing more and a paused one (SIGSTOP, a long
garbage collection, a starved virtual machine) does everything later, in order, without knowing that time has passed.

`VirtualLoop` is an asyncio event loop on top of a process. The engine's own coroutines run on it unchanged.
"""

import asyncio
import contextvars
from collections import deque
from collections.abc import Callable, Coroutine, Generator
from typing import Any

from penstock.testing.world import Action, VirtualClock, World


class Process:
    """One operating-system process."""

    def __init__(self, world: World, name: str, *, pid: int, skew_us: int = 0) -> None:
        self.world, self.name, self.pid = world, name, pid
        self.clock = VirtualClock(world, skew_us=skew_us)
        self.alive = True
        self.paused = False
        self._held: deque[tuple[str, Action]] = deque()
        self._at_end: list[Action] = []

    def after(self, delay_us: int, label: str, action: Action) -> None:
        """Do this later, if still alive."""
        self.world.after(delay_us, "", lambda: self._do(label, action))

    def at_end(self, action: Action) -> None:
        """What the kernel does when the process is gone: close its sockets, tell its parent."""
        self._at_end.append(action)

    def kill(self, why: str) -> None:
        """SIGKILL: nothing that was under way goes on."""
        if not self.alive:
            return
        self.alive = False
        self.world.trace(f"{self.name}: dies, {why}")
        self._held.clear()
        for action in self._at_end:
            action()

    def pause(self, duration_us: int) -> None:
        """SIGSTOP, and SIGCONT after a while."""
        if self.alive and not self.paused:
            self.paused = True
            self.world.trace(f"{self.name}: paused for {duration_us} us")
            self.world.after(duration_us, "", self._resume)

    def _resume(self) -> None:
        if not self.alive:
            return
        self.paused = False
        self.world.trace(f"{self.name}: goes on")
        while self._held and self.alive and not self.paused:
            label, action = self._held.popleft()
            self._do(label, action)

    def _do(self, label: str, action: Action) -> None:
        if self.paused:
            self._held.append((label, action))
        elif self.alive:
            if label:
                self.world.trace(f"{self.name}: {label}")
            action()


class VirtualLoop(asyncio.AbstractEventLoop):
    """Runs coroutines in virtual time. What they start in threads runs after a delay instead.

    Files, sockets, signals and child processes are not there: nothing that runs here may touch them.
    """

    def __init__(
        self,
        process: Process,
        *,
        thread_delay_us: Callable[[], int],
        on_error: Callable[[BaseException], None],
    ) -> None:
        self._process, self._thread_delay_us, self._on_error = process, thread_delay_us, on_error
        self._ready: deque[asyncio.Handle] = deque()
        self._running = False
        self._tasks: dict[asyncio.Task[Any], None] = {}
        process.world.at_close(self.dispose)

    # ------------------------------------------------------------ what asyncio asks of a loop

    def time(self) -> float:
        """Virtual seconds."""
        return self._process.clock.monotonic()

    def get_debug(self) -> bool:
        """Never."""
        return False

    def is_running(self) -> bool:
        """As long as the process lives."""
        return self._process.alive

    def is_closed(self) -> bool:
        """A loop ends with its process."""
        return False

    def create_future(self) -> "asyncio.Future[Any]":
        """A future of this loop."""
        return asyncio.Future(loop=self)

    def create_task(
        self,
        coro: Generator[Any, None, Any] | Coroutine[Any, Any, Any],
        *,
        name: object = None,
        context: contextvars.Context | None = None,
    ) -> "asyncio.Task[Any]":
        """A task of this loop."""
        task = asyncio.Task(coro, loop=self, name=None if name is None else str(name), context=context)
        self._tasks[task] = None
        task.add_done_callback(self._tasks.pop)
        return task

    def call_soon(  # type: ignore[override]
        self, callback: Callable[..., object], *args: Any, context: contextvars.Context | None = None
    ) -> asyncio.Handle:
        """At this instant, after what is already due."""
        handle = asyncio.Handle(callback, args, self, context)
        self._ready.append(handle)
        if not self._running and len(self._ready) == 1:
            self._process.after(0, "", self._run_ready)
        return handle

    def call_later(  # type: ignore[override]
        self, delay: float, callback: Callable[..., object], *args: Any, context: contextvars.Context | None = None
    ) -> asyncio.TimerHandle:
        """In `delay` virtual seconds."""
        return self.call_at(self.time() + delay, callback, *args, context=context)

    def call_at(  # type: ignore[override]
        self, when: float, callback: Callable[..., object], *args: Any, context: contextvars.Context | None = None
    ) -> asyncio.TimerHandle:
        """At a virtual second."""
        handle = asyncio.TimerHandle(when, callback, args, self, context)
        delay_us = round((when - self.time()) * 1_000_000)
        self._process.after(delay_us, "", lambda: None if handle.cancelled() else self._enter(handle))
        return handle

    def run_in_executor(  # type: ignore[override]
        self, executor: object, func: Callable[..., Any], *args: Any
    ) -> "asyncio.Future[Any]":
        """The work is done after a delay, its result comes back after another: a crash may fall between them."""
        future = self.create_future()

        def work() -> None:
            try:
                result, error = func(*args), None
            except Exception as raised:
                result, error = None, raised
            self._process.after(
                self._thread_delay_us(), "", lambda: self._enter(asyncio.Handle(settle, (result, error), self))
            )

        def settle(result: Any, error: Exception | None) -> None:
            if future.done():
                return
            if error is not None:
                future.set_exception(error)
            else:
                future.set_result(result)

        self._process.after(self._thread_delay_us(), "", work)
        return future

    def call_exception_handler(self, context: dict[str, Any]) -> None:
        """An error that nobody awaited is a bug of the code under test, unless its process is gone."""
        error = context.get("exception")
        if error is not None and self._process.alive:
            self._on_error(error)

    def dispose(self) -> None:
        """When the world has ended: unwind all coroutines, so that none complains when it is thrown away."""
        self._process.alive = False
        while self._tasks:
            for task in list(self._tasks):
                task.cancel()
            self._run_ready()

    def _timer_handle_cancelled(self, handle: asyncio.TimerHandle) -> None:
        """Called by asyncio; a cancelled timer is skipped when its time comes."""

    # ------------------------------------------------------------ inside

    def _enter(self, handle: asyncio.Handle) -> None:
        self._ready.append(handle)
        if not self._running:
            self._run_ready()

    def _run_ready(self) -> None:
        outer = asyncio._get_running_loop()
        asyncio._set_running_loop(self)
        self._running = True
        try:
            while self._ready:
                handle = self._ready.popleft()
                if not handle.cancelled():
                    handle._run()
        finally:
            self._running = False
            asyncio._set_running_loop(outer)
