"""When windows fire, as users write it: `.trigger(ps.trigger.count(1000))`.

Without a trigger a window fires when it is complete. A trigger that makes windows of time fire several times gives a
stream of updates, unless it is purging: then each firing has only the rows since the one before.
"""

from dataclasses import dataclass, replace

import polars as pl

from penstock.api import functions, places
from penstock.api.expressions import IntoExpression, native, output_types, serialize, text
from penstock.api.windows import Duration, duration
from penstock.model import specs
from penstock.model.errors import UserError

__all__ = ["Trigger", "TriggerCall", "count", "delta", "event_time", "every", "processing_time", "purging"]


@dataclass(frozen=True, slots=True)
class TriggerCall:
    """A trigger that is not yet tied to a stream's columns."""

    spec: specs.Trigger
    column: IntoExpression | None = None
    own: "Trigger | None" = None

    def resolve(self, schema: pl.Schema, *, name: str, where: str) -> specs.Trigger:
        """The trigger over columns of `schema`."""
        spec = self.spec
        values = {field: getattr(spec, field) for field in ("kind", "count", "interval_us", "clock", "threshold")}
        column = None if self.column is None else _number(self.column, schema, where)
        function = None if self.own is None else functions.instance(self.own, name=name, where=where)
        return specs.Trigger(**values, purging=spec.purging, input=column, function=function)


class Trigger:
    """A trigger of your own: subclass it, and give an object to `.trigger(...)`. Called for whole batches.

    ```python
    class OnAlarm(ps.trigger.Trigger):
        def on_rows(self, rows):               # fire the window of a row right after it
            return (rows["level"] == "alarm") | (rows["rows_in_window"] % 1000 == 0)
    ```

    `rows` has the columns of the stream and `window_start`, `window_end` and `rows_in_window`: how many rows came to
    its window since that fired last before this batch, the row included. `on_time` gets the windows that are alive:
    keys, the same three columns and `now`, the watermark (with `clock = True`: the time of the clock); by default it
    fires the windows that are complete and have changed. It must not keep anything in itself: that would be lost in
    a restart.
    """

    clock = False

    def on_rows(self, rows: pl.DataFrame) -> pl.Series | None:
        """After which rows their windows fire, as a Boolean Series; None: after none."""
        return None

    def on_time(self, windows: pl.DataFrame) -> pl.Series | None:
        """Which windows fire now, as a Boolean Series; None: none."""
        over = pl.col("window_end") <= pl.col("now") + pl.duration(microseconds=1)
        return windows.select(fires=over & (pl.col("rows_in_window") > 0)).to_series()


def event_time() -> TriggerCall:
    """When the watermark passes the window's end, and again with each change by late rows; the default."""
    return TriggerCall(specs.Trigger(kind="event_time"))


def processing_time() -> TriggerCall:
    """When the clock passes the window's end."""
    return TriggerCall(specs.Trigger(kind="processing_time"))


def count(rows: int) -> TriggerCall:
    """After each `rows` rows of a window. What is left when the window ends is not fired."""
    if not isinstance(rows, int) or rows < 1:
        raise UserError(
            "P026", f"trigger.count: {rows!r} is not a number of rows", where=places.caller(), fix="1 or more"
        )
    return TriggerCall(specs.Trigger(kind="count", count=rows))


def every(interval: Duration, *, clock: bool = False) -> TriggerCall:
    """Early results whenever time passes a multiple of `interval`, then the final one, then each late change.

    Time is event time; with `clock=True` it is the clock's. A window that has not changed says nothing.
    """
    where = places.caller()
    micros = duration(interval, what="trigger.every", where=where)
    if micros <= 0:
        raise UserError("P011", f'trigger.every: "{interval}" is not longer than nothing', where=where, fix='"10s"')
    return TriggerCall(specs.Trigger(kind="every", interval_us=micros, clock=clock))


def delta(column: IntoExpression, threshold: float) -> TriggerCall:
    """When the value is more than `threshold` away from what it was when the window fired last (or began)."""
    return TriggerCall(specs.Trigger(kind="delta", threshold=float(threshold)), column=column)


def purging(trigger: "TriggerCall | Trigger") -> TriggerCall:
    """The same trigger, but rows are forgotten once they were fired."""
    call = as_call(trigger, where=places.caller())
    values = {field: getattr(call.spec, field) for field in call.spec.__struct_fields__}
    return replace(call, spec=specs.Trigger(**{**values, "purging": True}))


def as_call(trigger: object, *, where: str) -> TriggerCall:
    """What `.trigger` was given."""
    if isinstance(trigger, TriggerCall):
        return trigger
    if isinstance(trigger, Trigger):
        return TriggerCall(specs.Trigger(kind="custom"), own=trigger)
    raise UserError(
        "P026", f"trigger: {trigger!r} is not a trigger", where=where, fix="ps.trigger.count(1000), or one of your own"
    )


def _number(column: IntoExpression, schema: pl.Schema, where: str) -> specs.Expression:
    expr = native(column)
    (name, kind), *more = output_types(expr, schema, what="trigger.delta", where=where).items()
    if more or not kind.is_numeric():
        raise UserError("P026", f'trigger.delta: "{text(expr)}" is {kind}, not a number', where=where, fix="cast it")
    return serialize(name, expr)
