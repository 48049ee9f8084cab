"""A reference interpreter: what programs mean, in plain Python over all rows, one at a time.

It knows nothing of batches, channels, key groups, state or checkpoints. A script is a list of rows (dicts) and
watermarks (seconds) in the order in which one input gives them out; a row is late for a window that ended before the
last watermark in front of it.
"""

import math
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from typing import Any

Row = dict[str, Any]
Output = tuple[Any, ...]
END = math.inf


@dataclass(frozen=True, slots=True)
class Mark:
    """A watermark in seconds."""

    time: float


Script = list[Row | Mark]


def rows_of(script: Script) -> list[Row]:
    return [each for each in script if isinstance(each, dict)]


def timed(script: Script) -> Iterator[tuple[Row, float]]:
    """Each row with the watermark in front of it."""
    reached = -math.inf
    for each in script:
        if isinstance(each, Mark):
            reached = max(reached, each.time)
        else:
            yield each, reached


def is_over(window_end: float, watermark: float) -> bool:
    """No row before the end is expected any more: microseconds are the smallest steps of time."""
    return watermark >= window_end - 1e-6


def windows(
    script: Script, key: Callable[[Row], Any], size: int, every: int, offset: int = 0, lateness: int = 0
) -> tuple[dict[tuple[Any, int], list[Row]], list[Row]]:
    """(key, start) -> rows that were in time; and the rows that were in time for none of their windows."""
    groups: dict[tuple[Any, int], list[Row]] = defaultdict(list)
    late = []
    for row, watermark in timed(script):
        start = (row["ts"] - offset) // every * every + offset
        starts = [first for first in range(start, row["ts"] - size, -every) if first > row["ts"] - size]
        open_starts = [first for first in starts if not is_over(first + size + lateness, watermark)]
        for first in open_starts:
            groups[key(row), first].append(row)
        if not open_starts:
            late.append(row)
    return groups, late


def by_key(rows: Iterable[Row], key: str = "key") -> dict[Any, list[Row]]:
    groups: dict[Any, list[Row]] = defaultdict(list)
    for row in rows:
        groups[row[key]].append(row)
    return groups


def mean(values: list[int]) -> float:
    return sum(values) / len(values)


def variance(values: list[int]) -> float | None:
    if len(values) < 2:
        return None
    center = mean(values)
    return sum((value - center) ** 2 for value in values) / (len(values) - 1)


def first_by_time(rows: list[Row], column: str) -> Any:
    """The earliest; of those the one that came first."""
    return min(enumerate(rows), key=lambda each: (each[1]["ts"], each[0]))[1][column]


def last_by_time(rows: list[Row], column: str) -> Any:
    """The latest; of those the one that came last."""
    return max(enumerate(rows), key=lambda each: (each[1]["ts"], each[0]))[1][column]
