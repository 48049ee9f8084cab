"""Users' coroutines in virtual time: they run on an event loop of their slot's process, and die with it."""

from collections.abc import Awaitable, Callable, Sequence
from typing import Any

from penstock.operators.base import Call
from penstock.taskmanager.coroutines import outcome
from penstock.testing.processes import Process, VirtualLoop


class VirtualCoroutines:
    """`operators.base.Coroutines`: a result comes back to the slot after a delay."""

    def __init__(self, process: Process, delay_us: Callable[[], int], wake: Callable[[], None]) -> None:
        self._process, self._delay_us, self._wake = process, delay_us, wake
        self._loop = VirtualLoop(process, thread_delay_us=delay_us, on_error=_raise)  # type: ignore[abstract]

    def start(self, calls: Sequence[Call]) -> None:
        """See the port."""
        for call, done in calls:
            self._loop.create_task(self._run(call, done))

    async def _run(self, call: Callable[[], Awaitable[Any]], done: Callable[[Any], None]) -> None:
        result = await outcome(call)
        self._process.after(self._delay_us(), "", lambda: self._finish(done, result))

    def _finish(self, done: Callable[[Any], None], result: Any) -> None:
        done(result)
        self._wake()


def _raise(error: BaseException) -> None:
    raise error
