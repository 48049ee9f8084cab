"""Metrics that functions keep themselves: counters, gauges, histograms.

Owns: the figures of one operator in one subtask. Changed by the slot's own thread, read by the reporter's.
Counters and histograms go on after a restart from what they were at the checkpoint; a gauge starts anew.
"""

from bisect import bisect_left
from collections.abc import Sequence
from itertools import accumulate, pairwise
from typing import TypeVar

from penstock.model.counters import UserMetric
from penstock.model.errors import UserError

DEFAULT_BOUNDS = tuple(base * 10.0**power for power in range(-4, 5) for base in (1.0, 2.5, 5.0))
"""From 0.1 ms to 14 hours, when what is observed are seconds."""

M = TypeVar("M", "Counter", "Gauge", "Histogram")

_ACROSS = ("sum", "min", "max")


class Counter:
    """Only grows."""

    __slots__ = ("value",)

    def __init__(self) -> None:
        self.value: float = 0

    def inc(self, by: float = 1) -> None:
        """Count one more, or several."""
        self.value += by

    def read(self, name: str) -> UserMetric:
        """For a report."""
        return UserMetric(name=name, kind="counter", value=self.value)


class Gauge:
    """The last value that was set."""

    __slots__ = ("across", "value")

    def __init__(self, across: str) -> None:
        self.across = across
        self.value: float = 0

    def set(self, value: float) -> None:
        """It is this now."""
        self.value = value

    def read(self, name: str) -> UserMetric:
        """For a report."""
        return UserMetric(name=name, kind="gauge", value=self.value, across=self.across)


class Histogram:
    """How often values fell between bounds."""

    __slots__ = ("bounds", "counts", "total")

    def __init__(self, bounds: Sequence[float]) -> None:
        self.bounds = tuple(bounds)
        self.counts = [0] * (len(self.bounds) + 1)
        self.total = 0.0

    def observe(self, value: float) -> None:
        """One more value."""
        self.counts[bisect_left(self.bounds, value)] += 1
        self.total += value

    def read(self, name: str) -> UserMetric:
        """For a report: how many values were at most each bound, and how many in all."""
        counts = tuple(accumulate(self.counts))
        return UserMetric(name=name, kind="histogram", value=self.total, bounds=self.bounds, counts=counts)


class UserMetrics:
    """By name; a name keeps its kind."""

    def __init__(self) -> None:
        self._metrics: dict[str, Counter | Gauge | Histogram] = {}

    def counter(self, name: str) -> Counter:
        """The counter of this name."""
        found = self._metrics.get(name)
        return found if isinstance(found, Counter) else self._add(name, Counter())

    def gauge(self, name: str, across: str) -> Gauge:
        """The gauge of this name."""
        found = self._metrics.get(name)
        if isinstance(found, Gauge):
            return found
        if across not in _ACROSS:
            raise UserError("P016", f'gauge "{name}": across={across!r} is not known', fix=f"one of {_ACROSS}")
        return self._add(name, Gauge(across))

    def histogram(self, name: str, bounds: Sequence[float]) -> Histogram:
        """The histogram of this name."""
        found = self._metrics.get(name)
        if isinstance(found, Histogram):
            return found
        if not bounds or any(low >= high for low, high in pairwise(bounds)):
            raise UserError("P016", f'histogram "{name}": bounds must rise', fix="bounds=(0.01, 0.1, 1.0)")
        return self._add(name, Histogram(bounds))

    def read(self) -> tuple[UserMetric, ...]:
        """All of them, by name. Safe from another thread."""
        return tuple(metric.read(name) for name, metric in sorted(self._metrics.copy().items()))

    def _add(self, name: str, metric: M) -> M:
        if name in self._metrics:
            kind = type(self._metrics[name]).__name__.lower()
            raise UserError("P016", f'metric "{name}" is a {kind} already', fix="give each metric its own name")
        self._metrics[name] = metric
        return metric
