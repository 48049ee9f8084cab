"""What a running function sees of where it is: subtask, event time, key, timers, metrics, side outputs.

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


EachKey = Callable[[Any, Callable[..., Any]], None]
"""Calls a function for each key that has something in a state."""


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


def no_current_key() -> UserError:
    """State is asked for, and not whose."""
    return UserError(
        "P046",
        "state of a key is used where no key is the current one",
        fix="with a batch: get_many, set_many, add_many; for rows that go to every subtask: ctx.for_each_key",
    )


class NoKey:
    """Stands where a key would be while there is none; whoever looks for its state is told so."""

    def __hash__(self) -> int:
        raise no_current_key()

    def __repr__(self) -> str:
        return "<no key>"


NO_KEY = NoKey()


class ProcessContext(Context):
    """Of functions with state: the time of a row, and timers. Without keys, timers belong to the subtask."""

    __slots__ = ("_event", "_processing", "_timestamp", "has_key", "key")

    def __init__(
        self,
        subtask: int = 0,
        parallelism: int = 1,
        *,
        event: TimerCalls,
        processing: TimerCalls,
        metrics: UserMetrics | None = None,
        now: Callable[[], int] = lambda: 0,
        side: Callable[[str, Any], None] = no_side_output,
    ) -> None:
        super().__init__(subtask, parallelism, metrics=metrics, now=now, side=side)
        self.key: Any = None
        """The value of the key column, or a tuple when there are several; None where rows have no key."""
        self.has_key = True
        """False while a batch of many keys, or a row for every subtask, is processed."""
        self._event, self._processing = event, processing
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


class KeyedContext(ProcessContext):
    """The current key, its time, and its timers; timers of many keys at once."""

    __slots__ = ("_decode", "_each_key")

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
        super().__init__(subtask, parallelism, event=event, processing=processing, metrics=metrics, now=now, side=side)
        self._decode = decode
        self._each_key: EachKey | None = None

    def set_timers(self, keys: pl.DataFrame, times: pl.Series | Sequence[int | datetime.datetime]) -> None:
        """In `process_batch`: one timer for the key of each row of a frame."""
        self._set_many(self._event, keys, times)

    def set_processing_timers(self, keys: pl.DataFrame, times: pl.Series | Sequence[int | datetime.datetime]) -> None:
        """In `process_batch`: one processing-time timer for the key of each row of a frame."""
        self._set_many(self._processing, keys, times)

    def for_each_key(self, state: Any, function: Callable[["KeyedContext"], Any]) -> None:
        """In `process_broadcast`: call `function(ctx)` for each key that has something in `state`.

        It may do what `process` may: use all states and timers of `ctx.key`, and return rows.
        """
        if self._each_key is None:
            raise UserError(
                "P046",
                "for_each_key goes over all keys, and here is one or a batch of them",
                fix="call it in process_broadcast, for a row that goes to every subtask",
            )
        self._each_key(state, function)

    def _set_many(
        self, timers: TimerCalls, keys: pl.DataFrame, times: pl.Series | Sequence[int | datetime.datetime]
    ) -> None:
        for time, key in zip(times, self._decode(keys), strict=True):
            timers.set(microseconds(time), key)


def _no_key(call: str) -> UserError:
    return UserError(
        "P016",
        f"{call} has no current key here",
        fix="in process_batch: ctx.set_timers(frame_with_the_keys, times), or ctx.set_processing_timers; "
        "in process_broadcast: ctx.for_each_key",
    )


def microseconds(time: int | datetime.datetime) -> int:
    """A point in time as the engine counts it; a datetime without zone is UTC."""
    if isinstance(time, int):
        return time
    if time.tzinfo is None:
        time = time.replace(tzinfo=datetime.UTC)
    return (time - _EPOCH) // _MICROSECOND
