"""Event time and windows as arithmetic on integers of microseconds.

A window is `[start, end)`. Windows overlap when they slide; panes, of the greatest common divisor of size and slide,
do not, and every window is a row of panes. A watermark `w` says that no row at or before `w` will come, so a window
is complete when `end - 1 <= w`. Python's integers do not overflow, so the last watermark needs no special case.
"""

import math
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import polars as pl

from penstock.model import specs
from penstock.model.errors import UserError
from penstock.operators.event_times import event_times_us

_FROM_MICROS: dict[str, Callable[[npt.NDArray[np.int64]], npt.NDArray[np.int64]]] = {
    "d": lambda micros: micros // 86_400_000_000,
    "s": lambda micros: micros // 1_000_000,
    "ms": lambda micros: micros // 1_000,
    "us": lambda micros: micros,
    "ns": lambda micros: micros * 1_000,
}


@dataclass(frozen=True, slots=True)
class Panes:
    """The windows of an assigner and the panes they are made of."""

    size: int
    slide: int
    offset: int

    @classmethod
    def of(cls, assigner: specs.Tumbling | specs.Sliding) -> "Panes":
        """The panes of an assigner."""
        slide = assigner.slide_us if isinstance(assigner, specs.Sliding) else assigner.size_us
        return cls(assigner.size_us, slide, assigner.offset_us)

    @property
    def length(self) -> int:
        """Of one pane."""
        return math.gcd(self.size, self.slide)

    def start_of(self, time: int) -> int:
        """Start of the pane that `time` is in."""
        return (time - self.offset) // self.length * self.length + self.offset

    def window_ends(self, pane: int) -> range:
        """Ends of the windows that the pane is in; none when it lies between windows (slide above size)."""
        last_start = (pane - self.offset) // self.slide * self.slide + self.offset
        count = (last_start - pane + self.size - 1) // self.slide + 1
        last_end = last_start + self.size
        return range(last_end - (count - 1) * self.slide, last_end + 1, self.slide)

    def next_end(self, pane: int, watermark: int) -> int | None:
        """End of the pane's first window that is not complete at `watermark`; None: all are."""
        ends = self.window_ends(pane)
        if not ends or ends[-1] - 1 <= watermark:
            return None
        if ends[0] - 1 > watermark:
            return ends[0]
        return ends[0] + ((watermark + 1 - ends[0]) // self.slide + 1) * self.slide

    def all_complete(self, times: npt.NDArray[np.int64], watermark: int) -> npt.NDArray[np.bool_]:
        """For each time, whether it has windows and all of them are complete at `watermark`."""
        last_ends = (times - self.offset) // self.slide * self.slide + (self.offset + self.size)
        return (last_ends - 1 <= watermark) & (times < last_ends)

    def ends_between(self, pane: int, fired: int, watermark: int) -> range:
        """Ends of the pane's windows that are complete at `watermark` and were not at `fired`."""
        ends = self.window_ends(pane)
        after = max(0, -(-(fired + 2 - ends.start) // self.slide))
        until = max(after, (watermark + 1 - ends.start) // self.slide + 1)
        return ends[after:until]


def event_times(frame: pl.DataFrame, event_time: specs.EventTime, uid: str) -> npt.NDArray[np.int64]:
    """Microseconds of each row. A row without a time is an error that names the column."""
    times = event_times_us(frame, event_time)
    if missing := times.null_count():
        raise UserError(
            "R004",
            f'{missing} of {len(times)} rows have no event time: column "{event_time.column}" is null',
            where=f'operator "{uid}"',
            fix="filter such rows out, or fill the column, before the window",
        )
    return times.to_numpy()


def time_column(micros: npt.NDArray[np.int64], kind: pl.DataType, unit: str, name: str) -> pl.Series:
    """Times in the type of a user's time column; `unit` is that of integers."""
    match kind:
        case pl.Datetime():
            unit = kind.time_unit
        case pl.Date():
            unit = "d"
    return pl.Series(name, _FROM_MICROS[unit](micros)).cast(kind)
