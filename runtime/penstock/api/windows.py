"""Window assigners as users write them."""

from dataclasses import dataclass
from datetime import timedelta

import narwhals as nw
import polars as pl

from penstock.api import places
from penstock.api.expressions import IntoExpression, native, output_types, serialize, text
from penstock.model import specs
from penstock.model.durations import parse_duration
from penstock.model.errors import UserError
from penstock.model.specs import Sliding, Tumbling

Duration = str | timedelta | int | float
"""`"10s"`, a timedelta, or a number of seconds."""


def tumbling(size: Duration, *, offset: Duration = 0) -> Tumbling:
    """Windows of `size`, side by side; they start at multiples of `size` since 1970, plus `offset`."""
    where = places.caller()
    size_us = _positive(size, "tumbling: size", where)
    return Tumbling(size_us=size_us, offset_us=duration(offset, what="tumbling: offset", where=where) % size_us)


def sliding(size: Duration, *, every: Duration, offset: Duration = 0) -> Sliding:
    """Windows of `size`, one starting every `every`; a row is in `size / every` of them."""
    where = places.caller()
    size_us = _positive(size, "sliding: size", where)
    slide_us = _positive(every, "sliding: every", where)
    if size_us % slide_us:
        raise UserError(
            "P011",
            f'sliding: the size "{size}" is not a multiple of every="{every}"',
            where=where,
            fix="windows share panes of `every`: choose a size that is a whole number of them",
        )
    offset_us = duration(offset, what="sliding: offset", where=where) % slide_us
    return Sliding(size_us=size_us, slide_us=slide_us, offset_us=offset_us)


@dataclass(frozen=True, slots=True)
class Sessions:
    """Windows that end when no row came for a while; the gap is not yet tied to a stream's columns."""

    gap_us: int = 0
    gap: IntoExpression | None = None

    def gap_in_us(self, schema: pl.Schema, *, where: str) -> specs.Expression | None:
        """Microseconds of the gap of each row: durations, or numbers of seconds."""
        if self.gap is None:
            return None
        expr = native(self.gap)
        types = output_types(expr, schema, what="session: gap", where=where)
        (name, kind), *more = types.items()
        if more or not (isinstance(kind, pl.Duration) or (kind.is_numeric() and not kind.is_decimal())):
            raise UserError(
                "P011",
                f'session: the gap "{text(expr)}" is {kind}; it must be one Duration, or one number of seconds',
                where=where,
                fix='ps.session(gap=col("timeout_seconds"))',
            )
        micros = expr.dt.total_microseconds() if isinstance(kind, pl.Duration) else expr.cast(pl.Float64) * 1_000_000
        made = serialize(name, micros.cast(pl.Int64).alias(name))
        return specs.Expression(name=name, text=text(expr), polars=made.polars)


@dataclass(frozen=True, slots=True)
class CountWindows:
    """Windows of a number of rows."""

    rows: int
    every: int | None = None


class WindowAssigner:
    """Windows of your own: subclass it, and give an object to `.window(...)`. Called for whole batches.

    `assign` gives each row the window that it is in, as columns `start` and `end`: Datetime, or microseconds since
    1970. Lists put a row into several windows, null into none. It must give the same for the same row every time.
    """

    def assign(self, rows: pl.DataFrame, times: pl.Series) -> pl.DataFrame:
        """Columns `start` and `end`, one entry for each row; `times` are the rows' event times."""
        raise NotImplementedError(type(self).__name__)


def global_window() -> specs.GlobalWindow:
    """All rows of a key in one window, which never ends by itself: `.trigger(...)` says when it fires.

    Its results have no `window_start` and `window_end`.
    """
    return specs.GlobalWindow()


def count_window(rows: int, *, every: int | None = None) -> CountWindows:
    """Windows of `rows` rows of a key; with `every`, the last `rows` rows after each `every` rows.

    Rows that do not fill a window when the input ends give no result. Results have no `window_start` and `window_end`.
    """
    if not all(isinstance(number, int) and number >= 1 for number in (rows, every or 1)):
        raise UserError(
            "P026", f"count_window: {rows!r}, every={every!r} are not numbers of rows", where=places.caller(),
            fix="ps.count_window(100, every=10)",
        )  # fmt: skip
    return CountWindows(rows, every)


Assigner = Tumbling | Sliding | Sessions | CountWindows | WindowAssigner | specs.GlobalWindow
"""What `window` takes."""


def session(gap: Duration | IntoExpression) -> Sessions:
    """Rows of a key that follow each other within `gap`: `ps.session("30s")`, or by row `ps.session(gap=col("g"))`.

    A session lasts from its first row to `gap` after its last one. A gap by expression is a duration, or a number of
    seconds; each row keeps its session open for its own gap.
    """
    where = places.caller()
    if isinstance(gap, nw.Expr | pl.Expr):
        return Sessions(gap=gap)
    return Sessions(gap_us=_positive(gap, "session: gap", where))


def duration(value: Duration, *, what: str, where: str) -> int:
    """Microseconds of `value`; what cannot be read is reported at the user's place."""
    try:
        return parse_duration(value, what=what)
    except UserError as error:
        raise UserError(error.code, error.what, where=where, fix=error.fix) from None


def _positive(value: Duration, what: str, where: str) -> int:
    micros = duration(value, what=what, where=where)
    if micros <= 0:
        raise UserError("P011", f'{what} must be longer than nothing; got "{value}"', where=where, fix='"10s"')
    return micros
