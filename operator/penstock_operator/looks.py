"""Which objects are to be looked at, and when: each at most once at a time, however often it was asked for."""

import asyncio
from collections.abc import Callable
from typing import NamedTuple


class Key(NamedTuple):
    """An object that is reconciled."""

    kind: str
    namespace: str
    name: str


class Looks:
    """A queue in time. `clock`: seconds that only grow."""

    def __init__(self, clock: Callable[[], float]) -> None:
        self._clock = clock
        self._due: dict[Key, float] = {}
        self._busy: set[Key] = set()
        self._changed = asyncio.Event()

    def ask(self, key: Key, *, after: float = 0.0) -> None:
        """Look at it then, or earlier if that was asked for."""
        at = self._clock() + after
        if key not in self._due or at < self._due[key]:
            self._due[key] = at
            self._changed.set()

    def forget(self, key: Key) -> None:
        """It is gone."""
        self._due.pop(key, None)

    async def next(self) -> Key:
        """Wait for one; `done` must follow."""
        while True:
            self._changed.clear()
            now = self._clock()
            waiting = [(at, key) for key, at in self._due.items() if key not in self._busy]
            at, key = min(waiting, default=(now + 3600.0, None))
            if key is not None and at <= now:
                del self._due[key]
                self._busy.add(key)
                return key
            try:
                async with asyncio.timeout(max(0.0, at - now)):
                    await self._changed.wait()
            except TimeoutError:
                continue

    def done(self, key: Key) -> None:
        """It may be looked at again."""
        self._busy.discard(key)
        self._changed.set()

    def __len__(self) -> int:
        """Objects that are due."""
        now = self._clock()
        return sum(1 for at in self._due.values() if at <= now)
