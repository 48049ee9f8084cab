"""Sources that keep step: what those of one slot hear of each other and of other slots, and what they say.

Owns: when the slot says how far its sources are, and what it has heard.
Does not own: which split waits (`operators.sources`), the slowest of other slots (`jobmanager.aligning`).
Invariant: what is heard is late, so it is never too far: a source waits too long rather than too short. Everything is
said again and again, so that a lost message costs time and nothing else.
"""

from collections.abc import Iterable

from penstock.model import tasks
from penstock.model.clocks import MIN_WATERMARK
from penstock.model.messages import GroupTime
from penstock.taskmanager.task import RunningTask

_PAUSE_SECONDS = 0.01
"""Between two messages of a slot, when there is news: a hundred a second are nothing to a JobManager."""

_REPEAT_SECONDS = 2.0
"""Between two messages without news: what one that was lost costs."""

_NEWS = 4
"""A step of so many parts of the bound is news: others wait for the last part at most."""


class _Group:
    def __init__(self, within_us: int) -> None:
        self.step_us = within_us // _NEWS
        self.sources: list[RunningTask] = []
        self.others = self.said = MIN_WATERMARK

    @property
    def time(self) -> int:
        return min(source.awaited_time for source in self.sources)

    @property
    def has_news(self) -> bool:
        """An older time is news at once: whoever relied on the newer one runs ahead."""
        time = self.time
        return time < self.said or time - self.said >= max(1, self.step_us)

    def settle(self) -> None:
        times = [source.awaited_time for source in self.sources]
        for number, source in enumerate(self.sources):
            source.align(min([self.others, *times[:number], *times[number + 1 :]]))


class SourceAlignment:
    """All aligned sources of a slot."""

    def __init__(self, sources: Iterable[tuple[tasks.Task, RunningTask]]) -> None:
        self._groups: dict[str, _Group] = {}
        for description, source in sources:
            alignment = tasks.alignment_of(description)
            if alignment is not None:
                name, within_us = alignment
                self._groups.setdefault(name, _Group(within_us)).sources.append(source)
        self._said_at: float | None = None

    def hear(self, others: dict[str, int]) -> None:
        """How far other slots are."""
        for name, time in others.items():
            if name in self._groups:
                self._groups[name].others = time

    def settle(self) -> None:
        """Tell each source how far the others are."""
        for group in self._groups.values():
            group.settle()

    def wait(self, now: float) -> float | None:
        """Seconds until something is to be said; None: never."""
        if not self._groups:
            return None
        if self._said_at is None:
            return 0.0
        news = any(group.has_news for group in self._groups.values())
        return max(0.0, self._said_at + (_PAUSE_SECONDS if news else _REPEAT_SECONDS) - now)

    def say(self, now: float) -> tuple[GroupTime, ...]:
        """What is to be said now; nothing mostly."""
        if self.wait(now) != 0.0:
            return ()
        self._said_at = now
        for group in self._groups.values():
            group.said = group.time
        return tuple(
            GroupTime(group=name, time=group.said, others=group.others) for name, group in self._groups.items()
        )
