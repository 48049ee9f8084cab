"""What the simulated programs share: the columns of their rows, what a program is, and windows computed plainly."""

from collections.abc import Callable, Iterator
from dataclasses import dataclass

import polars as pl

from penstock.api.streams import DataStream
from penstock.testing.answers import Answer, Row

SECOND_US = 1_000_000
SCHEMA = pl.Schema({"key": pl.Int64(), "ts": pl.Int64(), "value": pl.Int64(), "name": pl.String()})

Input = tuple[int, int, int, str]
"""key, ts, value, name."""

Build = Callable[[list[DataStream], list[list[Input]], int], Answer]
"""From streams, the rows of each and the width of a window in seconds: writes the results, and says what they are."""


@dataclass(frozen=True, slots=True)
class Program:
    """A program and what its sources are like."""

    build: Build
    sources: int = 1
    time: str = "event"
    falls_silent: bool = False
    """The source has no end, and one of its splits stops giving rows early: time must go on without it."""
    grows: bool = False
    """Splits appear while the job runs."""

    @property
    def endless(self) -> bool:
        """Somebody has to end it."""
        return self.falls_silent or self.grows


def grouped(
    rows: list[Input], key: Callable[[Input], object], width: int, every: int
) -> dict[tuple[object, int], list[int]]:
    """Values by key and start of a window of `width` seconds, of which one begins every `every`."""
    size, slide = width * SECOND_US, every * SECOND_US
    groups: dict[tuple[object, int], list[int]] = {}
    for row in rows:
        start = row[1] // slide * slide
        while start > row[1] - size:
            groups.setdefault((key(row), start), []).append(row[2])
            start -= slide
    return groups


def window_answer(rows: list[Input], width: int, every: int) -> Iterator[Row]:
    """Rows (key, start, end, count, sum) of such windows."""
    for (key, start), values in grouped(rows, lambda row: row[0], width, every).items():
        yield key, start, start + width * SECOND_US, len(values), sum(values)
