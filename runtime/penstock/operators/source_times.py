"""Event time at a source: which rows have a usable one, and how far it has come.

A row without a time (null, or a number before 1970) or with one far in the future would be lost or would carry
the watermark away with it; such rows stop the job, or are dropped and counted, as the settings say.
"""

from dataclasses import dataclass

import polars as pl

from penstock.model import specs
from penstock.model.errors import RecordError, UserError
from penstock.model.settings import SourceSettings
from penstock.operators.event_times import TimeScale, time_numbers

_YEAR_US = 31_556_952_000_000
_UNIT_NAMES = {"s": ("seconds", 1_000_000), "ms": ("milliseconds", 1_000), "us": ("microseconds", 1)}


@dataclass(frozen=True, slots=True)
class TimedRows:
    """The rows of a batch that may go on."""

    frame: pl.DataFrame
    latest_us: int | None
    """None: no rows are left."""
    dropped: int = 0


@dataclass(frozen=True, slots=True)
class TimeGuard:
    """Checks the event times of one source."""

    event_time: specs.EventTime
    settings: SourceSettings
    where: str

    def check(self, frame: pl.DataFrame, now_us: int) -> TimedRows:
        """Rows whose time is usable, and the latest time among them."""
        numbers, scale = time_numbers(frame, self.event_time, where=self.where)
        limit = now_us + self.settings.max_future_us
        low, high = numbers.min(), numbers.max()
        if not numbers.null_count() and self._is_usable(frame, low, high, scale, limit):
            return TimedRows(frame, scale.microseconds(int(high)))  # type: ignore[arg-type]
        if self.settings.on_bad_record == "stop":
            self._refuse(frame, numbers, scale, now_us)
        return self._drop(frame, numbers, scale, now_us)

    def _is_usable(self, frame: pl.DataFrame, low: object, high: object, scale: TimeScale, limit: int) -> bool:
        """Whether the whole range is; a Datetime column may well reach back before 1970."""
        if not isinstance(low, int) or not isinstance(high, int):
            return False
        return (low >= 0 or self._is_calendar(frame)) and scale.microseconds(high) <= limit

    def _is_calendar(self, frame: pl.DataFrame) -> bool:
        return frame.schema[self.event_time.column].is_temporal()

    def _drop(self, frame: pl.DataFrame, numbers: pl.Series, scale: TimeScale, now_us: int) -> TimedRows:
        last_number = (now_us + self.settings.max_future_us - scale.offset_us) * scale.divisor // scale.multiplier
        usable = numbers.is_not_null() & (numbers <= last_number)
        if not self._is_calendar(frame):
            usable &= numbers >= 0
        kept = frame.filter(usable)
        if not kept.height:
            highest = numbers.max()
            if isinstance(highest, int) and highest > last_number:
                # Not one bad row but the wrong unit: dropping everything would hide it.
                self._refuse_future(frame, highest, scale, now_us)
            return TimedRows(kept, None, frame.height)
        latest = numbers.filter(usable).max()
        return TimedRows(kept, scale.microseconds(int(latest)), frame.height - kept.height)  # type: ignore[arg-type]

    def _refuse(self, frame: pl.DataFrame, numbers: pl.Series, scale: TimeScale, now_us: int) -> None:
        bad = numbers.is_null()
        if not self._is_calendar(frame):
            bad |= numbers < 0
        if bad.any():
            row = int(bad.arg_true()[0])
            value = frame.get_column(self.event_time.column)[row]
            raise RecordError(
                "R004",
                f"row {row} of the batch has no usable event time: {self.event_time.column}={value!r}",
                where=self.where,
                fix='filter such rows where they come from, or set source.on_bad_record="drop"',
            )
        self._refuse_future(frame, int(numbers.max()), scale, now_us)  # type: ignore[arg-type]

    def _refuse_future(self, frame: pl.DataFrame, number: int, scale: TimeScale, now_us: int) -> None:
        year = 1970 + scale.microseconds(number) // _YEAR_US
        looks_like = None if self._is_calendar(frame) else _likely_unit(number, now_us + self.settings.max_future_us)
        guess = f"; timestamps look like {looks_like[1]}" if looks_like else ""
        raise UserError(
            "P010",
            f"watermark is in year {year}{guess}: {self.event_time.column}={number} read as {self._unit(frame)}",
            where=self.where,
            fix=f'set unit="{looks_like[0]}" for the event time'
            if looks_like
            else "check the rows, or raise source.max_future",
        )

    def _unit(self, frame: pl.DataFrame) -> str:
        dtype = frame.schema[self.event_time.column]
        return str(dtype) if dtype.is_temporal() else self.event_time.unit


def _likely_unit(number: int, limit_us: int) -> tuple[str, str] | None:
    """The largest unit in which the number is a time that may have come; short name and long."""
    for unit, (name, factor) in _UNIT_NAMES.items():
        if number * factor <= limit_us:
            return unit, name
    return ("ns", "nanoseconds") if number // 1_000 <= limit_us else None
