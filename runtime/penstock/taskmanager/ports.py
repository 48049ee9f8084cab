"""What a slot needs from the process around it, beside the network and the clock."""

from collections.abc import Callable
from typing import Protocol, TypeVar

T = TypeVar("T")


class Background(Protocol):
    """Runs slow work (encoding and upload of snapshots) beside the slot's own thread.

    In a slot process it is one thread; in the simulation it is a delay.
    """

    def submit(self, work: Callable[[], T], done: Callable[[T | Exception], None]) -> None:
        """Run `work` elsewhere; later call `done` with its result or exception on the slot's own thread."""
        ...
