"""How a source tells how far event time has come, as users write it: `flow.read(..., watermark=ps.bounded("2s"))`."""

from dataclasses import dataclass

import polars as pl

from penstock.api import checks, expressions, functions, places
from penstock.api.expressions import IntoExpression
from penstock.api.windows import Duration, duration
from penstock.model import specs
from penstock.model.errors import UserError
from penstock.operators.watermarks import WatermarkGenerator


@dataclass(frozen=True, slots=True)
class PunctuatedCall:
    """A strategy that is not yet tied to a stream's columns."""

    expression: IntoExpression


Watermark = specs.BoundedDelay | PunctuatedCall | WatermarkGenerator
"""What `flow.read(..., watermark=)` takes."""


def bounded(delay: Duration = 0) -> specs.BoundedDelay:
    """Rows are out of order by `delay` at most: `max_delay=` says the same."""
    delay_us = duration(delay, what="bounded", where=(where := places.caller()))
    if delay_us < 0:
        raise UserError("P011", f"bounded: {delay!r} is less than nothing", where=where, fix='bounded("2s")')
    return specs.BoundedDelay(delay_us=delay_us)


def punctuated(expression: IntoExpression) -> PunctuatedCall:
    """The rows themselves say how far time has come.

    A Boolean expression is true for rows whose own event time is a watermark: no row at or before it follows. Any
    other gives the watermark itself, or null: a Datetime, or a number in the unit of the event-time column. A
    watermark acts behind the whole batch in which it came.
    """
    return PunctuatedCall(expression)


def strategy(given: object, event_time: specs.EventTime, schema: pl.Schema, *, where: str) -> specs.WatermarkStrategy:
    """The strategy over columns of `schema`."""
    match given:
        case specs.BoundedDelay():
            return given
        case PunctuatedCall(expression=expression):
            return specs.Punctuated(expression=_said(expression, event_time, schema, where))
        case WatermarkGenerator():
            return specs.Generated(generator=_generator(given, schema, where))
    raise UserError(
        "P050",
        f"read: watermark={given!r} is no watermark strategy",
        where=where,
        fix='ps.bounded("2s"), ps.punctuated(col("is_last")), or an object of a ps.WatermarkGenerator of your own',
    )


def _said(expression: IntoExpression, event_time: specs.EventTime, schema: pl.Schema, where: str) -> specs.Expression:
    what = "read: watermark"
    (made, *more), types = expressions.resolve([expression], {}, schema, what=what, where=where)
    kind, column = types[made.name], schema[event_time.column]
    if more:
        raise UserError(
            "P050", f'{what}: "{made.text}" gives several columns', where=where, fix="give an expression of one column"
        )
    if kind == pl.Boolean() or isinstance(kind, pl.Datetime) or (kind.is_integer() and column.is_integer()):
        return made
    raise UserError(
        "P050",
        f'{what}: "{made.text}" is {kind}; the event-time column "{event_time.column}" is {column}',
        where=where,
        fix="give a Boolean that is true where the time of the row is a watermark, or "
        + ("a number in the same unit" if column.is_integer() else "a Datetime"),
    )


def _generator(given: WatermarkGenerator, schema: pl.Schema, where: str) -> specs.Function:
    made, columns = functions.instance(given, name="read", where=where), given.columns
    if type(given).on_batch is WatermarkGenerator.on_batch:
        raise UserError(
            "P050",
            f"read: {made.name} has no on_batch",
            where=where,
            fix='def on_batch(self, frame): return frame["ts"].max()',
        )
    if columns is None:
        return made
    named = (columns,) if isinstance(columns, str) else tuple(columns)
    checks.require_columns(named, schema, what=f"read: {made.name}.columns", where=where)
    return specs.Function(name=made.name, pickled=made.pickled, columns=named)
