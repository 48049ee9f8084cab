"""Event time at a source: which rows have a usable one, and how far it has come.

A row without a time (null, a number before 1970, a date before year 1) or with one far in the future would be lost or
would carry the watermark away with it; such rows stop the job, or are dropped and counted, as the settings say. A unit
that is wrong for all rows always stops it: too small a one shows in the future, too large a one in 1970.
"""

from dataclasses import dataclass

import polars as pl

from penstock.model import specs
from penstock.model.errors import RecordError, UserError
from penstock.model.settings import SourceSettings
from penstock.operators.event_times import TimeScale, time_numbers

_YEAR_US = 31_556_952_000_000
_EARLIEST_US = -62_135_596_800_000_000
"""The year 1: nothing before it is a datetime in Python, and nothing that far back fits into all units."""
_YEAR_2000_US = 946_684_800_000_000
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

    def check_unit(self, frame: pl.DataFrame, now_us: int) -> None:
        """The first rows of a split: whether all of them are in 1970 only because their unit is a larger one."""
        if not self.settings.check_unit or not frame.height or self._is_calendar(frame):
            return
        numbers, scale = time_numbers(frame, self.event_time, where=self.where)
        low, high = int(numbers.min()), int(numbers.max())  # type: ignore[arg-type]
        if scale.microseconds(high) >= _YEAR_US:
            return
        limit = now_us + self.settings.max_future_us
        for unit, (name, factor) in _UNIT_NAMES.items():
            if low * factor >= _YEAR_2000_US and high * factor <= limit:
                raise UserError(
                    "P010",
                    f"all times are in 1970; timestamps look like {name}: {self.event_time.column}={low} "
                    f"read as {self.event_time.unit}",
                    where=self.where,
                    fix=f'set unit="{unit}" for the event time; or, if they are right, '
                    'flow.configure({"source.check_unit": False})',
                )

    def check_watermark(self, watermark: int, now_us: int) -> int:
        """What a strategy of the user said, if time may have come so far: it is not bound to the rows."""
        if watermark <= now_us + self.settings.max_future_us:
            return watermark
        raise UserError(
            "P010",
            f"the watermark strategy says {watermark} microseconds: year {1970 + watermark // _YEAR_US}",
            where=self.where,
            fix=f'numbers count in the unit of the event time, "{self.event_time.unit}" here; or raise '
            "source.max_future_us",
        )

    def _is_usable(self, frame: pl.DataFrame, low: object, high: object, scale: TimeScale, limit: int) -> bool:
        """Whether the whole range is; a Datetime column may well reach back before 1970."""
        if not isinstance(low, int) or not isinstance(high, int):
            return False
        return low >= self._lowest(frame, scale) and scale.microseconds(high) <= limit

    def _lowest(self, frame: pl.DataFrame, scale: TimeScale) -> int:
        """The first number that is a usable time."""
        return scale.number(_EARLIEST_US) if self._is_calendar(frame) else 0

    def _is_calendar(self, frame: pl.DataFrame) -> bool:
        return frame.schema[self.event_time.column].is_temporal()

    def _drop(self, frame: pl.DataFrame, numbers: pl.Series, scale: TimeScale, now_us: int) -> TimedRows:
        last_number = scale.number(now_us + self.settings.max_future_us)
        usable = numbers.is_not_null() & (numbers <= last_number) & (numbers >= self._lowest(frame, scale))
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
        bad = numbers.is_null() | (numbers < self._lowest(frame, scale)).fill_null(False)
        if bad.any():
            row = int(bad.arg_true()[0])
            value = numbers[row]  # of a date before year 1 there is no other form
            raise RecordError(
                "R004",
                f"row {row} of the batch has no usable event time: {self.event_time.column}={value!r}",
                where=self.where,
                fix='filter such rows where they come from, or flow.configure({"source.on_bad_record": "drop"})',
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
            else "check the rows, or raise source.max_future_us",
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
