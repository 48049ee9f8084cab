"""Aggregates of a window, as users write them: `agg(bids=ps.count(), top=ps.max("price"))`.

Each is mergeable: partial results of panes, batches and subtasks combine to the same value as all rows at once.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import msgspec
import narwhals as nw
import polars as pl

from penstock.api import places
from penstock.api.expressions import IntoExpression, native, output_types, serialize
from penstock.model import specs
from penstock.model.errors import UserError
from penstock.model.schemas import type_to_text
from penstock.operators.aggregates import output_type

__all__ = [
    "AggregateCall", "MergeableAggregate", "all_", "any_", "approx_count_distinct", "collect_list", "count",
    "count_distinct", "first", "last", "max_", "max_by", "mean", "min_", "min_by", "quantile", "std", "sum_", "var",
]  # fmt: skip


@dataclass(frozen=True, slots=True)
class AggregateCall:
    """An aggregate that is not yet tied to a stream's columns."""

    function: str
    input: IntoExpression | None = None
    by: IntoExpression | None = None
    share: float = 0.5

    def resolve(self, name: str, schema: pl.Schema, *, where: str) -> tuple[specs.Aggregate, pl.DataType]:
        """The aggregate over columns of `schema`, and the type of its result."""
        what = f"agg: {name}=ps.{self.function}(...)"
        aggregate = specs.Aggregate(
            name=name,
            function=self.function,
            input=_input(self.input, schema, what=what, where=where),
            by=_input(self.by, schema, what=what, where=where),
            share=self.share,
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


def count_distinct(column: IntoExpression) -> AggregateCall:
    """Number of different values that are not null. Exact: every one of them is kept until the window ends."""
    return AggregateCall("count_distinct", column)


def approx_count_distinct(column: IntoExpression) -> AggregateCall:
    """About how many different values there are (HyperLogLog, standard error 1.6 %), in at most 16 KB per key."""
    return AggregateCall("approx_count_distinct", column)


def collect_list(column: IntoExpression) -> AggregateCall:
    """All values that are not null, in order of event time, as a list."""
    return AggregateCall("collect_list", column)


def quantile(column: IntoExpression, share: float) -> AggregateCall:
    """The value below which `share` (0 to 1) of the values lie, interpolated. Exact: all values are kept."""
    if not 0 <= share <= 1:
        raise UserError(
            "P020", f"quantile: the share must be from 0 to 1; got {share}", where=places.caller(),
            fix='ps.quantile("price", 0.95)',
        )  # fmt: skip
    return AggregateCall("quantile", column, share=share)


class MergeableAggregate(AggregateCall):
    """An aggregate of your own: three methods that give expressions. It runs as fast as the built-in ones.

    ```python
    class GeometricMean(ps.MergeableAggregate):
        def fold(self, value):                 # rows -> partial columns
            return {"logs": value.log().sum(), "rows": value.count()}

        def merge(self, logs, rows):           # partial columns -> fewer of them
            return {"logs": logs.sum(), "rows": rows.sum()}

        def finish(self, logs, rows):          # partial columns -> the result
            return (logs / rows).exp()

    stream.key_by("auction").window(ps.tumbling("1m")).agg(mean=GeometricMean("price"))
    ```

    Whatever mixture of fold and merge the rows go through, the result must be the same.
    """

    __slots__ = ()

    def __init__(self, column: IntoExpression) -> None:
        super().__init__("custom", column)

    def fold(self, value: Any) -> Mapping[str, IntoExpression]:
        """Partial columns of a group of rows, by name: aggregating expressions of `value`."""
        raise NotImplementedError

    def merge(self, **parts: Any) -> Mapping[str, IntoExpression]:
        """The same columns, from several partial results: aggregating expressions of `parts`."""
        raise NotImplementedError

    def finish(self, **parts: Any) -> IntoExpression:
        """The result, from the columns of one partial result."""
        raise NotImplementedError

    def resolve(self, name: str, schema: pl.Schema, *, where: str) -> tuple[specs.Aggregate, pl.DataType]:
        """The aggregate as expressions over prepared columns, checked against their types."""
        kind_name = type(self).__name__
        what = f"agg: {name}={kind_name}(...)"
        value = _input(self.input, schema, what=what, where=where)
        assert value is not None, "a custom aggregate has an input"
        column = f"__{name}.in"
        kind = schema.to_frame(eager=False).select(native(self.input)).collect_schema().dtypes()[0]
        folded = dict(self.fold(nw.col(column)))
        names = {part: f"__{name}.{part}" for part in folded}
        fold, types = _aggregating(folded, names, pl.Schema({column: kind}), what=f"{what}: fold", where=where)
        partial = {part: nw.col(long) for part, long in names.items()}
        merged = dict(self.merge(**partial))
        merge, merged_types = _aggregating(merged, names, types, what=f"{what}: merge", where=where)
        if merged_types != types:
            raise UserError(
                "P020",
                f"{what}: fold gives {_types(types)}, and merge gives {_types(merged_types)}",
                where=where,
                fix="both give the same names and types: partial results of either are merged again",
            )
        finish = native(self.finish(**partial)).alias(name)
        result = output_types(finish, types, what=f"{what}: finish", where=where)[name]
        custom = specs.CustomParts(input=column, fold=fold, merge=merge, finish=serialize(name, finish))
        aggregate = specs.Aggregate(
            name=name, function="custom", input=value, output_type=type_to_text(result), custom=custom
        )
        return aggregate, result


def _aggregating(
    made: Mapping[str, IntoExpression], names: Mapping[str, str], schema: pl.Schema, *, what: str, where: str
) -> tuple[tuple[specs.Expression, ...], pl.Schema]:
    """Expressions under the long names of their partial columns, and the types that they give."""
    if made.keys() != names.keys() or not made:
        raise UserError(
            "P020",
            f"{what} gives {', '.join(made) or 'nothing'}; expected {', '.join(names) or 'a dict of expressions'}",
            where=where,
            fix="fold and merge give the same names",
        )
    exprs = {names[part]: native(made[part]).alias(names[part]) for part in names}
    types = {
        name: output_types(expr, schema, what=what, where=where, aggregates=True)[name] for name, expr in exprs.items()
    }
    return tuple(serialize(name, expr) for name, expr in exprs.items()), pl.Schema(types)


def _types(schema: pl.Schema) -> str:
    return ", ".join(f"{name.rpartition('.')[2]}: {kind}" for name, kind in schema.items())


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
