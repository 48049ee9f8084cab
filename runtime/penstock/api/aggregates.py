"""Aggregates of a window, as users write them: `agg(bids=ps.count(), top=ps.max("price"))`.

Each is mergeable: partial results of panes, batches and subtasks combine to the same value as all rows at once.
"""

from dataclasses import dataclass

import msgspec
import polars as pl

from penstock.api.expressions import IntoExpression, native, output_types, serialize
from penstock.model import specs
from penstock.model.errors import UserError
from penstock.model.schemas import type_to_text
from penstock.operators.aggregates import output_type

__all__ = [
    "AggregateCall", "all_", "any_", "count", "first", "last", "max_", "max_by", "mean", "min_", "min_by", "std",
    "sum_", "var",
]  # fmt: skip


@dataclass(frozen=True, slots=True)
class AggregateCall:
    """An aggregate that is not yet tied to a stream's columns."""

    function: str
    input: IntoExpression | None = None
    by: IntoExpression | None = None

    def resolve(self, name: str, schema: pl.Schema, *, where: str) -> tuple[specs.Aggregate, pl.DataType]:
        """The aggregate over columns of `schema`, and the type of its result."""
        what = f"agg: {name}=ps.{self.function}(...)"
        aggregate = specs.Aggregate(
            name=name,
            function=self.function,
            input=_input(self.input, schema, what=what, where=where),
            by=_input(self.by, schema, what=what, where=where),
        )
        try:
            kind = output_type(aggregate, schema)
        except UserError as error:
            raise UserError(error.code, f"agg: {error.what}", where=where, fix=error.fix) from None
        return msgspec.structs.replace(aggregate, output_type=type_to_text(kind)), kind


def count(column: IntoExpression | None = None) -> AggregateCall:
    """Number of rows; with a column, of its values that are not null."""
    return AggregateCall("count", column)


def sum_(column: IntoExpression) -> AggregateCall:
    """Sum of the values that are not null; 0 when there are none."""
    return AggregateCall("sum", column)


def min_(column: IntoExpression) -> AggregateCall:
    """Smallest value."""
    return AggregateCall("min", column)


def max_(column: IntoExpression) -> AggregateCall:
    """Largest value."""
    return AggregateCall("max", column)


def mean(column: IntoExpression) -> AggregateCall:
    """Arithmetic mean."""
    return AggregateCall("mean", column)


def var(column: IntoExpression) -> AggregateCall:
    """Variance of the sample (divides by n - 1)."""
    return AggregateCall("var", column)


def std(column: IntoExpression) -> AggregateCall:
    """Standard deviation of the sample (divides by n - 1)."""
    return AggregateCall("std", column)


def first(column: IntoExpression) -> AggregateCall:
    """Value of the row that came first."""
    return AggregateCall("first", column)


def last(column: IntoExpression) -> AggregateCall:
    """Value of the row that came last."""
    return AggregateCall("last", column)


def min_by(column: IntoExpression, by: IntoExpression) -> AggregateCall:
    """Value of `column` in the row where `by` is smallest."""
    return AggregateCall("min_by", column, by)


def max_by(column: IntoExpression, by: IntoExpression) -> AggregateCall:
    """Value of `column` in the row where `by` is largest."""
    return AggregateCall("max_by", column, by)


def any_(column: IntoExpression) -> AggregateCall:
    """True when any value is."""
    return AggregateCall("any", column)


def all_(column: IntoExpression) -> AggregateCall:
    """True when all values are."""
    return AggregateCall("all", column)


def _input(value: IntoExpression | None, schema: pl.Schema, *, what: str, where: str) -> specs.Expression | None:
    if value is None:
        return None
    expr = native(value)
    types = output_types(expr, schema, what=what, where=where)
    if len(types) != 1:
        raise UserError(
            "P020", f"{what}: the expression gives {len(types)} columns, not one", where=where,
            fix='name one column: ps.sum("price")',
        )  # fmt: skip
    (name,) = types
    return serialize(name, expr)
