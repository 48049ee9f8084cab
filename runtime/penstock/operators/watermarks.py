"""How far event time has come in a split, from the rows that it gave.

Owns: the strategies (bounded delay, punctuated by an expression, a user's own generator), one object for each split.
Does not own: which rows have a usable time (`source_times`), the lowest of many splits (`valve`), what was reached
before a restore (the split's own progress).
Invariant: what a strategy says holds for the rows after the batch that it saw; that it never goes back is seen to by
who asks.
"""

from collections.abc import Callable, Sequence
from datetime import UTC, datetime, timedelta
from typing import Any, ClassVar, Protocol

import polars as pl
from polars.exceptions import PolarsError

from penstock.model import specs
from penstock.model.clocks import MIN_WATERMARK
from penstock.model.errors import UserError
from penstock.operators.base import OperatorContext
from penstock.operators.event_times import event_times_us, time_scale
from penstock.operators.expressions import Column, expression_error
from penstock.operators.user_errors import place, user_code

Time = int | datetime
"""A point of event time as users see it: a number in the unit of the event-time column, or a datetime."""

_EPOCH = datetime.fromtimestamp(0, UTC)
_MICROSECOND = timedelta(microseconds=1)


class WatermarkGenerator:
    """A watermark strategy of your own: subclass it, and give an object to `flow.read(..., watermark=...)`.

    ```python
    class Hourly(ps.WatermarkGenerator):
        columns = ("ts",)                        # all that it looks at

        def on_batch(self, frame):               # an hour is over when a row of the next one came
            return frame["ts"].max().replace(minute=0, second=0, microsecond=0) - timedelta(microseconds=1)
    ```

    Every split has a copy of its own. What it says is a watermark: no row of the split at or before it follows. It is
    a datetime (without zone: UTC), or a number in the unit of the event-time column. One that is older than the last
    changes nothing.
    """

    columns: ClassVar[Sequence[str] | None] = None
    """The columns that `on_batch` looks at; None: all of them, so that all are read."""

    def open(self, watermark: Time | None) -> None:
        """Called before the first batch. `watermark`: what the split has reached, if this is not its beginning.

        As the event-time column has it: a datetime, or a number. All that a generator keeps in itself begins anew
        after a restart; this is what it can go on from.
        """

    def on_batch(self, frame: pl.DataFrame) -> Time | None:
        """The watermark behind these rows; None: as it was."""
        raise NotImplementedError


class Strategy(Protocol):
    """What a source asks after each batch of a split."""

    def on_batch(self, frame: pl.DataFrame, latest_us: int) -> int | None:
        """Microseconds up to which no row follows; `latest_us` is the latest time in the batch."""
        ...


LoadFunction = Callable[[specs.Function, OperatorContext], Any]
"""Opens what a user wrote."""

MakeStrategy = Callable[[int], Strategy]
"""From what the split has reached already."""


class _BoundedDelay:
    def __init__(self, delay_us: int) -> None:
        self._behind_us = delay_us + 1

    def on_batch(self, frame: pl.DataFrame, latest_us: int) -> int:
        return latest_us - self._behind_us


class _Punctuated:
    def __init__(self, spec: specs.Punctuated, event_time: specs.EventTime, uid: str) -> None:
        self._said = Column.of(spec.expression)
        self._event_time, self._uid = event_time, uid
        self._value = specs.EventTime(column=self._said.name, unit=event_time.unit)

    def on_batch(self, frame: pl.DataFrame, latest_us: int) -> int | None:
        try:
            said = frame.select(self._said.expression)
        except PolarsError as error:
            raise expression_error(error, frame, [self._said], self._uid) from error
        marks = said.to_series()
        if marks.dtype == pl.Boolean:
            latest = event_times_us(frame.filter(marks), self._event_time).max()
        else:
            latest = event_times_us(said, self._value).max()
        return latest if isinstance(latest, int) else None


class _Generated:
    def __init__(self, generator: Any, name: str, event_time: specs.EventTime, context: OperatorContext) -> None:
        self._generator, self._name, self._context = generator, name, context
        self._event_time = event_time
        self._opened_at: int | None = None

    def open(self, reached: int) -> "_Generated":
        self._opened_at = reached
        return self

    def on_batch(self, frame: pl.DataFrame, latest_us: int) -> int | None:
        if self._opened_at is not None:
            # Only with rows is it known what the column looks like.
            reached, self._opened_at = self._opened_at, None
            with user_code(self._context, f"{self._name}.open"):
                self._generator.open(self._as_column(reached, frame))
        with user_code(self._context, f"{self._name}.on_batch"):
            said = self._generator.on_batch(frame)
        match said:
            case None:
                return None
            case datetime():
                return ((said if said.tzinfo is not None else said.replace(tzinfo=UTC)) - _EPOCH) // _MICROSECOND
            case int() if not isinstance(said, bool):
                return time_scale(frame, self._event_time).microseconds(said)
        raise UserError(
            "P014",
            f"{self._name}.on_batch returned {said!r:.200}, which is no watermark",
            where=place(self._context),
            fix="return a datetime, a whole number in the unit of the event-time column, or None",
        )

    def _as_column(self, reached: int, frame: pl.DataFrame) -> Time | None:
        if reached == MIN_WATERMARK:
            return None
        kind = frame.schema[self._event_time.column]
        if not kind.is_temporal():
            return time_scale(frame, self._event_time).number(reached)
        time = pl.Series([reached]).cast(pl.Datetime("us", getattr(kind, "time_zone", None)))[0]
        assert isinstance(time, datetime)
        return time


def make_strategy(
    spec: specs.WatermarkStrategy,
    event_time: specs.EventTime,
    context: OperatorContext,
    load: LoadFunction,
) -> MakeStrategy:
    """Makes the strategies of splits, a new one for each."""
    match spec:
        case specs.BoundedDelay(delay_us=delay_us):
            return lambda _: _BoundedDelay(delay_us)
        case specs.Punctuated():
            return lambda _: _Punctuated(spec, event_time, context.uid)
        case specs.Generated(generator=generator):
            return lambda reached: _Generated(load(generator, context), generator.name, event_time, context).open(
                reached
            )
