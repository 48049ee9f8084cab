"""How the regions of a job share the slots there are, and how long they wait for more."""

from collections.abc import Sequence
from dataclasses import dataclass

from penstock.graph import Region
from penstock.model.messages import SlotInfo


@dataclass(frozen=True, slots=True)
class Share:
    """Each region gets these slots."""

    slots: list[list[SlotInfo]]


@dataclass(frozen=True, slots=True)
class Merge:
    """There are fewer slots than regions: regions have to be merged."""


@dataclass(frozen=True, slots=True)
class Wait:
    """Not now."""

    reason: str


Choice = Share | Merge | Wait


class Packing:
    """The patience of one job."""

    def __init__(self, wait: float) -> None:
        self._wait = wait
        self.missing_since: float | None = None
        """Since when slots are missing; None: they are not."""

    def choose(
        self, wanted: Sequence[int], free: list[SlotInfo], *, returning: int, held: int, monotonic: float
    ) -> Choice:
        """What regions that want so many slots get of those that are free.

        `returning` slots get a fresh process at this moment and are waited for twice as long; `held` are used by
        other regions of the same job.
        """
        if len(free) < sum(wanted):
            if self.missing_since is None:
                self.missing_since = monotonic
            waited = monotonic - self.missing_since
            patient = waited < self._wait or (returning and waited < 2 * self._wait)
            if patient or not (free or held):
                return Wait(self._reason(sum(wanted), len(free), returning + held))
            if len(free) < len(wanted):
                return Merge()
        self.missing_since = None
        shares, start = [], 0
        for count in share(wanted, len(free)):
            shares.append(free[start : start + count])
            start += count
        return Share(shares)

    def satisfied(self) -> None:
        """Nobody waits for slots."""
        self.missing_since = None

    def wakes(self) -> list[float]:
        """When patience ends."""
        return [] if self.missing_since is None else [self.missing_since + n * self._wait for n in (1, 2)]

    def _reason(self, wanted: int, free: int, others: int) -> str:
        need = f"needs {wanted} slots, {free} free"
        if free or others:
            return f"{need}; makes do with fewer after {self._wait:g} s"
        return f"{need}; start a TaskManager: penstock taskmanager"


def share(wanted: Sequence[int], slots: int) -> list[int]:
    """How many of `slots` each region gets: one each, then in turns, never more than wanted."""
    given = [1] * len(wanted)
    left = min(slots, sum(wanted)) - len(wanted)
    while left > 0:
        for index, most in enumerate(wanted):
            if given[index] < most and left > 0:
                given[index] += 1
                left -= 1
    return given


def merge(regions: Sequence[Region], count: int) -> list[Region]:
    """At most `count` regions with the same tasks.

    A slot process runs one attempt, so regions that share slots become one: they start and fail together, which
    is correct, only coarser.
    """
    bundles = [regions[first::count] for first in range(min(count, len(regions)))]
    return [
        Region(
            index=bundle[0].index,
            tasks=tuple(task for region in bundle for task in region.tasks),
            subtasks=tuple(subtask for region in bundle for subtask in region.subtasks),
        )
        for bundle in bundles
    ]
