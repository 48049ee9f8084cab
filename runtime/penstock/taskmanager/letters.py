"""Work for the main thread of a slot process, from its other threads."""

import contextlib
import socket
from collections import deque
from collections.abc import Callable


class Letters:
    """Work for the main thread, from other threads."""

    def __init__(self) -> None:
        self.readable, self._writable = socket.socketpair()
        self.readable.setblocking(False)
        self._writable.setblocking(False)
        self._box: deque[Callable[[], None]] = deque()

    def post(self, letter: Callable[[], None]) -> None:
        """Run `letter` on the main thread, soon. Safe from any thread."""
        self._box.append(letter)
        with contextlib.suppress(BlockingIOError):
            self._writable.send(b"x")

    def open_all(self) -> None:
        """On the main thread: run what is there."""
        with contextlib.suppress(BlockingIOError):
            self.readable.recv(4096)
        while self._box:
            self._box.popleft()()
