"""The event loop of a slot process: users' coroutines run on a thread of their own, all on one loop.

Owns: the thread, which starts with the first call, and the calls that are under way.
Results come back to the main thread as letters; what finishes together comes in one.
"""

import asyncio
import threading
from collections import deque
from collections.abc import Awaitable, Callable, Sequence
from typing import Any

from penstock.operators.base import Call
from penstock.taskmanager.letters import Letters


class CoroutineThread:
    """See `operators.base.Coroutines`."""

    def __init__(self, letters: Letters) -> None:
        self._letters = letters
        self._loop: asyncio.AbstractEventLoop | None = None
        self._under_way: set[asyncio.Task[None]] = set()
        self._finished: deque[tuple[Callable[[Any], None], Any]] = deque()
        self._posted = False

    def start(self, calls: Sequence[Call]) -> None:
        """From the main thread."""
        if self._loop is None:
            self._loop = asyncio.new_event_loop()
            threading.Thread(target=self._loop.run_forever, name="coroutines", daemon=True).start()
        self._loop.call_soon_threadsafe(self._spawn, self._loop, calls)

    def _spawn(self, loop: asyncio.AbstractEventLoop, calls: Sequence[Call]) -> None:
        for call, done in calls:
            task = loop.create_task(self._run(call, done))
            self._under_way.add(task)
            task.add_done_callback(self._under_way.discard)

    async def _run(self, call: Callable[[], Awaitable[Any]], done: Callable[[Any], None]) -> None:
        self._finished.append((done, await outcome(call)))
        if not self._posted:
            self._posted = True
            self._letters.post(self._deliver)

    def _deliver(self) -> None:
        """On the main thread."""
        self._posted = False
        while self._finished:
            done, result = self._finished.popleft()
            done(result)


async def outcome(call: Callable[[], Awaitable[Any]]) -> Any:
    """The result of a call, or what it raised.

    Also what would end the loop: a function that calls `sys.exit`, or is cancelled by a library of its own, has
    failed and no more.
    """
    try:
        return await call()
    except (Exception, SystemExit, asyncio.CancelledError) as error:
        return error
