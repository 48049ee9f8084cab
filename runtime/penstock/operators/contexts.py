"""What a running function sees of where it is: subtask, event time, key, timers, metrics.

Owns: the objects that are passed as `ctx`. What they do is done by whoever made them.
"""

import datetime
from collections.abc import Callable, Sequence
from typing import Any, Protocol

import polars as pl

from penstock.model.clocks import MIN_WATERMARK
from penstock.model.errors import UserError
from penstock.operators.user_metrics import DEFAULT_BOUNDS, Counter, Gauge, Histogram, UserMetrics

_EPOCH = datetime.datetime(1970, 1, 1, tzinfo=datetime.UTC)
_MICROSECOND = datetime.timedelta(microseconds=1)


def no_side_output(tag: str, _: Any) -> None:
    """Where functions have none."""
    raise UserError(
        "P016",
        f'there is no side output "{tag}" here',
        fix="declare it where the function is used: process(function, side_outputs={...: schema})",
    )


class Context:
    """Where a function runs."""

    __slots__ = ("_metrics", "_now", "_side", "parallelism", "subtask", "watermark")

    def __init__(
        self,
        subtask: int = 0,
        parallelism: int = 1,
        *,
        metrics: UserMetrics | None = None,
        now: Callable[[], int] = lambda: 0,
        side: Callable[[str, Any], None] = no_side_output,
    ) -> None:
        self.subtask, self.parallelism = subtask, parallelism
        self._side = side
        self._metrics = metrics or UserMetrics()
        self._now = now
        self.watermark = MIN_WATERMARK
        """Event time that has been reached, in microseconds; MAX_WATERMARK when all input has ended."""

    @property
    def processing_time(self) -> int:
        """The wall clock, in microseconds."""
        return self._now()

    def output(self, tag: str, row: Any) -> None:
        """Put a row, a list of rows or a DataFrame out by the side output `tag`, declared with `side_outputs=`."""
        self._side(tag, row)

    def counter(self, name: str) -> Counter:
        """A counter of this operator: `ctx.counter("retries").inc()`. Look it up in `open` and keep it."""
        return self._metrics.counter(name)

    def gauge(self, name: str, *, across: str = "sum") -> Gauge:
        """A figure that goes up and down; `across`: sum, min or max over the subtasks."""
        return self._metrics.gauge(name, across)

    def histogram(self, name: str, *, bounds: Sequence[float] = DEFAULT_BOUNDS) -> Histogram:
        """How values spread: `ctx.histogram("seconds").observe(0.2)`."""
        return self._metrics.histogram(name, bounds)


class TimerCalls(Protocol):
    """Timers of one kind, as a context needs them."""

    def set(self, time: int, key: Any) -> None:
        """Call `key` at `time`."""
        ...

    def delete(self, time: int, key: Any) -> None:
        """Do not."""
        ...


class KeyedContext(Context):
    """The current key, its time, and its timers."""

    __slots__ = ("_decode", "_event", "_processing", "_timestamp", "has_key", "key")

    def __init__(
        self,
        subtask: int = 0,
        parallelism: int = 1,
        *,
        event: TimerCalls,
        processing: TimerCalls,
        decode: Callable[[pl.DataFrame], list[Any]],
        metrics: UserMetrics | None = None,
        now: Callable[[], int] = lambda: 0,
        side: Callable[[str, Any], None] = no_side_output,
    ) -> None:
        super().__init__(subtask, parallelism, metrics=metrics, now=now, side=side)
        self.key: Any = None
        """The value of the key column, or a tuple when there are several."""
        self.has_key = True
        """False while a batch of many keys is processed at once."""
        self._event, self._processing, self._decode = event, processing, decode
        self._timestamp: Callable[[], int | None] = lambda: None

    @property
    def timestamp(self) -> int | None:
        """Event time of the row, in microseconds, if the stream has one; in `on_timer` the time of the timer."""
        return self._timestamp()

    def set_timer(self, time: int | datetime.datetime) -> None:
        """Have `on_timer` called for this key when event time reaches `time` (microseconds, or a datetime)."""
        if not self.has_key:
            raise _no_key("set_timer")
        self._event.set(microseconds(time), self.key)

    def delete_timer(self, time: int | datetime.datetime) -> None:
        """Forget a timer of this key."""
        if not self.has_key:
            raise _no_key("delete_timer")
        self._event.delete(microseconds(time), self.key)

    def set_timers(self, keys: pl.DataFrame, times: pl.Series | Sequence[int | datetime.datetime]) -> None:
        """In `process_batch`: one timer for the key of each row of a frame."""
        self._set_many(self._event, keys, times)

    def set_processing_timer(self, time: int | datetime.datetime) -> None:
        """Have `on_processing_timer` called for this key when the wall clock reaches `time`."""
        if not self.has_key:
            raise _no_key("set_processing_timer")
        self._processing.set(microseconds(time), self.key)

    def delete_processing_timer(self, time: int | datetime.datetime) -> None:
        """Forget a processing-time timer of this key."""
        if not self.has_key:
            raise _no_key("delete_processing_timer")
        self._processing.delete(microseconds(time), self.key)

    def set_processing_timers(self, keys: pl.DataFrame, times: pl.Series | Sequence[int | datetime.datetime]) -> None:
        """In `process_batch`: one processing-time timer for the key of each row of a frame."""
        self._set_many(self._processing, keys, times)

    def _set_many(
        self, timers: TimerCalls, keys: pl.DataFrame, times: pl.Series | Sequence[int | datetime.datetime]
    ) -> None:
        for time, key in zip(times, self._decode(keys), strict=True):
            timers.set(microseconds(time), key)


def _no_key(call: str) -> UserError:
    return UserError(
        "P016",
        f"{call} has no current key in process_batch",
        fix="ctx.set_timers(frame_with_the_keys, times), or ctx.set_processing_timers",
    )


def microseconds(time: int | datetime.datetime) -> int:
    """A point in time as the engine counts it; a datetime without zone is UTC."""
    if isinstance(time, int):
        return time
    if time.tzinfo is None:
        time = time.replace(tzinfo=datetime.UTC)
    return (time - _EPOCH) // _MICROSECOND
