"""What an aggregate is made of: expressions over prepared rows and over partial results."""

from dataclasses import dataclass

import polars as pl

TIME = "__time"
"""Event time of a prepared row, for aggregates that go by it."""


@dataclass(frozen=True, slots=True)
class Parts:
    """The partial columns of one aggregate. `fold`, `lift` and `merge` name the same columns, in the same order."""

    fold: tuple[pl.Expr, ...]
    lift: tuple[pl.Expr, ...] | None
    """None: there is no cheaper way than to fold each row by itself."""
    merge: tuple[pl.Expr, ...]
    finish: pl.Expr
    negate: tuple[pl.Expr, ...] | None = None
    """Partial results that take others back when they are merged; None: there are none."""
