"""Stays with a job until it has ended: shows how far it is, and turns Ctrl-C into stop and cancel."""

import contextlib
import signal
import threading
from collections.abc import Callable, Iterator
from types import FrameType

from penstock.jobmanager.lifecycle import TERMINAL
from penstock.local.progress import Progress
from penstock.model.clocks import Clock
from penstock.model.errors import RetryableError
from penstock.model.views import JobView
from penstock.rpc import RestClient

ENDED = frozenset(state.value for state in TERMINAL)

_POLL_SECONDS = 0.1
_PATIENCE_SECONDS = 30.0
"""A JobManager that is being restarted is back within seconds."""


class Interrupts:
    """Counts Ctrl-C (and SIGTERM, the Ctrl-C of containers)."""

    def __init__(self) -> None:
        self.count = 0
        self._arrived = threading.Event()

    def wait(self, seconds: float) -> None:
        """Returns early when one arrives."""
        if self._arrived.wait(seconds):
            self._arrived.clear()

    def add(self, _number: int = 0, _frame: FrameType | None = None) -> None:
        """One more; the third does what Ctrl-C does everywhere."""
        self.count += 1
        self._arrived.set()
        if self.count > 2:
            raise KeyboardInterrupt


@contextlib.contextmanager
def counted_interrupts() -> Iterator[Interrupts]:
    """Take Ctrl-C over for a while; only the main thread can."""
    interrupts = Interrupts()
    if threading.current_thread() is not threading.main_thread():
        yield interrupts
        return
    before = {number: signal.signal(number, interrupts.add) for number in (signal.SIGINT, signal.SIGTERM)}
    try:
        yield interrupts
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def follow(
    client: RestClient,
    job: str,
    progress: Progress,
    interrupts: Interrupts,
    *,
    clock: Clock,
    printed: Callable[[], str] = lambda: "",
    check: Callable[[], None] = lambda: None,
) -> JobView:
    """The job's last view. First Ctrl-C: stop with a checkpoint; second: cancel."""
    progress.note(f"dashboard: {client.url}/#{job}")
    obeyed = 0
    heard = clock.monotonic()
    while True:
        try:
            if (count := interrupts.count) > obeyed:
                _obey(client, job, progress, count)
                obeyed = count
            view = client.job(job)
        except RetryableError:
            check()
            if clock.monotonic() - heard > _PATIENCE_SECONDS:
                raise
        else:
            heard = clock.monotonic()
            progress.update(view, clock.now_us())
            if view.state in ENDED:
                if text := printed():
                    progress.printed(text)
                return view
        if text := printed():
            progress.printed(text)
        interrupts.wait(_POLL_SECONDS)


def _obey(client: RestClient, job: str, progress: Progress, count: int) -> None:
    if count == 1:
        progress.note("stopping with a final checkpoint; Ctrl-C again to cancel at once")
        client.stop(job)
    else:
        progress.note("cancelling")
        client.cancel(job)
