"""The time of rows, whatever its column looks like, as microseconds since 1970."""

from dataclasses import dataclass

import polars as pl

from penstock.model import specs
from penstock.model.errors import UserError

_SCALES = {"s": (1_000_000, 1), "ms": (1_000, 1), "us": (1, 1), "ns": (1, 1_000)}
_DAY_US = 86_400_000_000


@dataclass(frozen=True, slots=True)
class TimeScale:
    """How the numbers of a time column become microseconds."""

    multiplier: int
    divisor: int
    offset_us: int

    def microseconds(self, number: int) -> int:
        """One number; exact, however large it is."""
        return number * self.multiplier // self.divisor + self.offset_us

    def number(self, micros: int) -> int:
        """The number of this time, rounded down."""
        return (micros - self.offset_us) * self.divisor // self.multiplier


def time_scale(frame: pl.DataFrame, event_time: specs.EventTime, *, where: str = "") -> TimeScale:
    """What the numbers in the time column mean."""
    match dtype := frame.schema[event_time.column]:
        case pl.Datetime():
            scale = _SCALES[dtype.time_unit]
        case pl.Date():
            scale = (_DAY_US, 1)
        case _ if dtype.is_integer():
            scale = _SCALES[event_time.unit]
        case _:
            raise UserError(
                "P010",
                f'event time "{event_time.column}" is of type {dtype}',
                where=where,
                fix="take a Datetime, Date or integer column",
            )
    return TimeScale(*scale, event_time.offset_us)


def time_numbers(frame: pl.DataFrame, event_time: specs.EventTime, *, where: str = "") -> tuple[pl.Series, TimeScale]:
    """The numbers in the time column, null where a row has none, and what they mean."""
    scale = time_scale(frame, event_time, where=where)
    column = frame.get_column(event_time.column)
    return column.cast(pl.Int64) if column.dtype.is_temporal() else column, scale


def event_times_us(frame: pl.DataFrame, event_time: specs.EventTime) -> pl.Series:
    """Event time of each row as Int64 microseconds; null where the row has none."""
    numbers, scale = time_numbers(frame, event_time)
    times = numbers.cast(pl.Int64)
    if scale.multiplier != 1:
        times = times * scale.multiplier
    if scale.divisor != 1:
        times = times // scale.divisor
    return times + scale.offset_us if scale.offset_us else times
