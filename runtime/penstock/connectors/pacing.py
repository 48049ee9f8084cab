"""Reading from anything that can make its n-th row: how many rows are due, and where reading goes on.

With a rate, row n of a split is due n / rate after the reader opened, however late it is asked for: what
falls behind is caught up, and a row's creation time is when it was due, not when it was made. So latency that
is measured from it leaves nothing out.
"""

from collections.abc import Callable
from typing import Any

import numpy as np
import polars as pl

from penstock.connectors import base
from penstock.connectors.random_streams import Integers
from penstock.model.clocks import Clock

MakeRows = Callable[[int, int, Integers], pl.DataFrame]
"""(first row of the split, number of rows, creation time of each in microseconds) -> rows."""

MIN_PAUSE_US = 2_000
"""Rows that are due within this time leave together: a batch of one row costs as much as one of a thousand."""


class PacedReader:
    """Reads one split of a generator."""

    def __init__(
        self, make: MakeRows, rows: int | None, rate: float | None, clock: Clock, position: dict[str, Any] | None
    ) -> None:
        self._make, self._rows, self._rate, self._clock = make, rows, rate, clock
        self._next: int = position["rows"] if position else 0
        self._opened_at, self._opened_us, self._opened_row = clock.monotonic(), clock.now_us(), self._next
        self._rest_until = 0.0
        """Seconds after opening before which rows leave only if they fill a batch."""

    def read(self, max_rows: int) -> base.ReadResult:
        """The rows that are due; after that none for a moment, so that they leave together."""
        count = max_rows if self._rows is None else min(max_rows, self._rows - self._next)
        if self._rate is not None:
            passed = self._clock.monotonic() - self._opened_at
            due = self._opened_row + int(passed * self._rate) + 1 - self._next
            if due < count and passed < self._rest_until:
                count = 0
            count = min(count, due)
            if count <= 0 and not self._ended():
                return base.ReadResult(wait_us=self._pause_us(passed))
            self._rest_until = passed + MIN_PAUSE_US / 1_000_000
        if count <= 0:
            return base.ReadResult(ended=True)
        frame = self._make(self._next, count, self._creation_times(count))
        self._next += count
        return base.ReadResult(frame=frame, ended=self._ended())

    def position(self) -> dict[str, Any]:
        """Rows that were made."""
        return {"rows": self._next}

    def close(self) -> None:
        """Nothing is open."""

    def _ended(self) -> bool:
        return self._rows is not None and self._next >= self._rows

    def _pause_us(self, passed: float) -> int:
        assert self._rate is not None
        next_due = (self._next - self._opened_row) / self._rate
        return max(1, round((max(next_due, self._rest_until) - passed) * 1_000_000))

    def _creation_times(self, count: int) -> Integers:
        if self._rate is None:
            return np.full(count, self._clock.now_us(), dtype=np.int64)
        since = np.arange(self._next - self._opened_row, self._next - self._opened_row + count)
        return self._opened_us + np.asarray(since * (1_000_000 / self._rate), dtype=np.int64)


def share(rows: int | None, split: int, splits: int) -> int | None:
    """How many of `rows` belong to a split when they are dealt out in turns."""
    return None if rows is None else max(0, (rows - split + splits - 1) // splits)


def split_numbers(count: int) -> list[base.Split]:
    """Splits that are told apart by number alone."""
    return [base.Split(id=str(number), options={"split": number}) for number in range(count)]
