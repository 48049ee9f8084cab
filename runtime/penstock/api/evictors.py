"""Which rows a window keeps when it fires, as users write it: `.evict(ps.evictor.count(100))`.

The others are forgotten, before the function sees them or, with `after=True`, afterwards.
"""

from dataclasses import dataclass

import polars as pl

from penstock.api import expressions, places
from penstock.api.expressions import IntoExpression
from penstock.api.windows import Duration, duration
from penstock.model import specs
from penstock.model.errors import UserError

__all__ = ["EvictorCall", "count", "time", "where"]


@dataclass(frozen=True, slots=True)
class EvictorCall:
    """An evictor that is not yet tied to a stream's columns."""

    kind: str
    rows: int = 0
    size_us: int = 0
    condition: IntoExpression | None = None
    after: bool = False

    def resolve(self, schema: pl.Schema, *, where: str) -> specs.Evictor:
        """The evictor over columns of `schema`."""
        keep = None if self.condition is None else expressions.predicate([self.condition], schema, where=where)
        return specs.Evictor(kind=self.kind, count=self.rows, size_us=self.size_us, keep=keep, after=self.after)


def count(rows: int, *, after: bool = False) -> EvictorCall:
    """Keep the last `rows` rows."""
    if not isinstance(rows, int) or rows < 0:
        raise UserError(
            "P026", f"evictor.count: {rows!r} is not a number of rows", where=places.caller(), fix="0 or more"
        )
    return EvictorCall("count", rows=rows, after=after)


def time(size: Duration, *, after: bool = False) -> EvictorCall:
    """Keep the rows that are less than `size` older than the newest one of their window."""
    return EvictorCall("time", size_us=duration(size, what="evictor.time", where=places.caller()), after=after)


def where(condition: IntoExpression, *, after: bool = False) -> EvictorCall:
    """Keep the rows for which the condition is true."""
    return EvictorCall("where", condition=condition, after=after)
