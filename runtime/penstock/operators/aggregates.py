"""Aggregates that can be computed in pieces: rows -> partial results -> fewer partial results -> the result.

For every function there is one set of partial columns, and four ways to make them or use them: `fold` groups rows,
`lift` gives each row its own partial result without grouping, `merge` groups partial results, `finish` makes the
output column. Whatever mixture of fold, lift and merge the rows went through, the result is the same.

Nulls are left out, and a group of only nulls gives what Polars gives: 0 for sum and count, false for any, true for
all, null for the rest. Counts and sums of integers are Int64. Names of partial columns begin with `__`.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import msgspec
import numpy as np
import numpy.typing as npt
import polars as pl
from polars.exceptions import PolarsError

from penstock.model import specs
from penstock.model.errors import UserError
from penstock.model.schemas import type_from_text, type_to_text
from penstock.operators import dense_counts
from penstock.operators.expressions import Column, expression_error

PANE = "__pane"
"""Start of a partial result's pane, in microseconds."""

_TIME = "__time"


@dataclass(frozen=True, slots=True)
class _Parts:
    """The partial columns of one aggregate. `fold`, `lift` and `merge` name the same columns, in the same order."""

    fold: tuple[pl.Expr, ...]
    lift: tuple[pl.Expr, ...]
    merge: tuple[pl.Expr, ...]
    finish: pl.Expr


class Aggregation:
    """All aggregates of one window. Without keys there is one group."""

    def __init__(self, keys: Sequence[str], aggregates: Sequence[specs.Aggregate]) -> None:
        self.keys = list(keys)
        self._inputs: dict[bytes, Column] = {}
        parts = [self._parts(aggregate) for aggregate in aggregates]
        self._needs_time = any(aggregate.function in ("first", "last") for aggregate in aggregates)
        self._fold = [expression for part in parts for expression in part.fold]
        self._lift = [expression for part in parts for expression in part.lift]
        self._merge = [expression for part in parts for expression in part.merge]
        self.finish = [part.finish for part in parts]
        self._renamed = _renamed(aggregates, self.finish)
        self.partial_columns = [expression.meta.output_name() for expression in self._merge]
        self._extreme = None if keys else self._shared_extreme(aggregates, parts)
        self._row_count = self.partial_columns[0] if _only_counts_rows(keys, aggregates) else None

    def prepare(self, frame: pl.DataFrame, times: npt.NDArray[np.int64], uid: str) -> pl.DataFrame:
        """Only what the aggregates need of each row: keys and inputs."""
        inputs = self._inputs.values()
        # Without keys and inputs, or with constants alone, only the times have as many rows as the batch.
        times_column = [pl.Series(_TIME, times)] if self._needs_time or not self.keys else []
        if all(column.source for column in inputs):
            taken = [frame.get_column(column.source or "").alias(column.name) for column in inputs]
            return pl.DataFrame([*(frame.get_column(key) for key in self.keys), *taken, *times_column])
        try:
            return frame.select(*self.keys, *(column.expression for column in inputs), *times_column)
        except PolarsError as error:
            raise expression_error(error, frame, list(inputs), uid) from error

    def relevant(self, rows: pl.DataFrame) -> pl.DataFrame:
        """Prepared rows without those that cannot change the result."""
        return rows if self._extreme is None else self._extreme.hits(rows)

    def fold(self, rows: pl.DataFrame) -> pl.DataFrame:
        """Partial results of prepared rows, each key once."""
        quick = None
        if self._row_count is not None:
            quick = dense_counts.count(rows, self.keys[0], self._row_count)
        elif self._extreme is not None:
            quick = self._extreme.fold(rows)
        return self._group(rows, self._fold) if quick is None else quick

    def lift(self, rows: pl.DataFrame) -> pl.DataFrame:
        """Prepared rows as partial results, row by row: cheaper than `fold` when hardly a key comes twice."""
        return rows.select(*self.keys, *self._lift)

    def merge(self, partials: pl.DataFrame) -> pl.DataFrame:
        """Fewer partial results, each key once. Of equal times, earlier rows count as earlier."""
        quick = None
        if self._row_count is not None:
            quick = dense_counts.add_up(partials, self.keys[0], self._row_count)
        elif self._extreme is not None:
            quick = self._extreme.merge(partials)
        return self._group(partials, self._merge) if quick is None else quick

    def results(self, partials: pl.DataFrame) -> list[pl.Series]:
        """The output columns. Most are a partial column as it is, and windows are small: a query costs more."""
        if self._renamed is None:
            return partials.select(self.finish).get_columns()
        return [partials.get_column(source).cast(kind).alias(name) for name, source, kind in self._renamed]

    def _group(self, frame: pl.DataFrame, expressions: Sequence[pl.Expr]) -> pl.DataFrame:
        return frame.group_by(self.keys).agg(expressions) if self.keys else frame.select(expressions)

    def _shared_extreme(self, aggregates: Sequence[specs.Aggregate], parts: Sequence[_Parts]) -> "_Extreme | None":
        """The bound that all aggregates look for, when it is one and the same."""
        found = {_bound_of(aggregate) for aggregate in aggregates}
        function, expression = found.pop() if len(found) == 1 else (None, None)
        if function is None or expression is None:
            return None
        bound, inputs = self._inputs[expression].name, dict[str, str]()
        for aggregate, part in zip(aggregates, parts, strict=True):
            *values, last = (expression.meta.output_name() for expression in part.merge)
            inputs |= {name: self._inputs[aggregate.input.polars].name for name in values if aggregate.input}
            inputs[last] = bound
        return _Extreme(bound, largest=function == "max", inputs=inputs, partial=last)

    def _input(self, expression: specs.Expression) -> pl.Expr:
        """The prepared column of an input; one for all aggregates that read the same."""
        if expression.polars not in self._inputs:
            self._inputs[expression.polars] = Column.of(expression, name=f"__in{len(self._inputs)}")
        return pl.col(self._inputs[expression.polars].name)

    def _parts(self, aggregate: specs.Aggregate) -> _Parts:
        value = self._input(aggregate.input) if aggregate.input else None
        by = self._input(aggregate.by) if aggregate.by else None
        kind = type_from_text(aggregate.output_type) if aggregate.output_type else None
        return _parts(aggregate, value, by, kind)


@dataclass(frozen=True, slots=True)
class _Extreme:
    """A column whose largest (or smallest) value decides everything that is asked of a group.

    Only the rows that have it matter, and to find them is one look at one column: the highest bid of ten seconds
    with its auction and bidder is kept as the few rows that it may still be, not folded batch by batch.
    """

    column: str
    largest: bool
    inputs: Mapping[str, str]
    """The input column behind each partial column."""
    partial: str
    """The partial column that holds the extreme."""

    def hits(self, rows: pl.DataFrame) -> pl.DataFrame:
        """The prepared rows that have the extreme; all rows where there is none to be found this way."""
        return self._hits(rows, self.column)

    def fold(self, rows: pl.DataFrame) -> pl.DataFrame | None:
        """The partial result, if one row alone has the extreme: then it is that row. A query costs ten times more."""
        one = self._only_hit(rows, self.column)
        if one is None:
            return None
        return pl.DataFrame([one.get_column(source).alias(name) for name, source in self.inputs.items()])

    def merge(self, partials: pl.DataFrame) -> pl.DataFrame | None:
        """Of several partial results the one that has the extreme, if it is one."""
        return self._only_hit(partials, self.partial)

    def _only_hit(self, rows: pl.DataFrame, column: str) -> pl.DataFrame | None:
        hits = self._hits(rows, column)
        return hits if hits.height == 1 and not hits.get_column(column).null_count() else None

    def _hits(self, rows: pl.DataFrame, column: str) -> pl.DataFrame:
        values = rows.get_column(column)
        bound = values.max() if self.largest else values.min()
        if bound is None or values.dtype.is_float():
            return rows
        # Not `filter` or `arg_true`: both run a query, which costs more than to look at the rows.
        return rows[np.flatnonzero((values == bound).to_numpy())]


def _only_counts_rows(keys: Sequence[str], aggregates: Sequence[specs.Aggregate]) -> bool:
    match aggregates:
        case [specs.Aggregate(function="count", input=None)]:
            return len(keys) == 1
    return False


def _bound_of(aggregate: specs.Aggregate) -> tuple[str | None, bytes | None]:
    match aggregate:
        case specs.Aggregate(function="max" | "min" as function, input=specs.Expression(polars=expression)):
            return function, expression
        case specs.Aggregate(function="max_by" | "min_by" as function, by=specs.Expression(polars=expression)):
            return function.removesuffix("_by"), expression
    return None, None


def _renamed(
    aggregates: Sequence[specs.Aggregate], finish: Sequence[pl.Expr]
) -> list[tuple[str, str, pl.DataType]] | None:
    """Name, partial column and type of each result, when each is a partial column as it is."""
    renamed = []
    for aggregate, expression in zip(aggregates, finish, strict=True):
        sources, kind = expression.meta.root_names(), type_from_text(aggregate.output_type)
        if len(sources) != 1 or not expression.meta.eq(pl.col(sources[0]).cast(kind).alias(aggregate.name)):
            return None
        renamed.append((aggregate.name, sources[0], kind))
    return renamed


def _parts(aggregate: specs.Aggregate, value: pl.Expr | None, by: pl.Expr | None, kind: pl.DataType | None) -> _Parts:
    def part(suffix: str) -> tuple[str, pl.Expr]:
        name = f"__{aggregate.name}.{suffix}"
        return name, pl.col(name)

    def finished(expression: pl.Expr) -> pl.Expr:
        return (expression if kind is None else expression.cast(kind)).alias(aggregate.name)

    if aggregate.function == "count":
        name, count = part("count")
        return _Parts(
            fold=((pl.len() if value is None else value.count()).cast(pl.Int64).alias(name),),
            lift=((pl.lit(1, pl.Int64) if value is None else value.is_not_null().cast(pl.Int64)).alias(name),),
            merge=(count.sum(),),
            finish=finished(count),
        )
    assert value is not None, f"{aggregate.function} needs an input"
    match aggregate.function:
        case "sum":
            name, total = part("sum")
            typed = value if kind is None else value.cast(kind)
            zero = typed.fill_null(strategy="zero")
            return _Parts((typed.sum().alias(name),), (zero.alias(name),), (total.sum(),), finished(total))
        case "min":
            name, least = part("min")
            return _Parts((value.min().alias(name),), (value.alias(name),), (least.min(),), finished(least))
        case "max":
            name, most = part("max")
            return _Parts((value.max().alias(name),), (value.alias(name),), (most.max(),), finished(most))
        case "any":
            name, some = part("any")
            lift = value.fill_null(False).alias(name)
            return _Parts((value.any().alias(name),), (lift,), (some.any(),), finished(some))
        case "all":
            name, every = part("all")
            lift = value.fill_null(True).alias(name)
            return _Parts((value.all().alias(name),), (lift,), (every.all(),), finished(every))
        case "mean":
            (sum_name, total), (count_name, count) = part("sum"), part("count")
            number = value.cast(pl.Float64)
            return _Parts(
                fold=(number.sum().alias(sum_name), value.count().cast(pl.Int64).alias(count_name)),
                lift=(number.fill_null(0.0).alias(sum_name), value.is_not_null().cast(pl.Int64).alias(count_name)),
                merge=(total.sum(), count.sum()),
                finish=finished(pl.when(count > 0).then(total / count)),
            )
        case "var" | "std":
            (count_name, count), (mean_name, mean), (m2_name, m2) = part("count"), part("mean"), part("m2")
            number = value.cast(pl.Float64)
            # Chan: the squares around the common mean are those around each mean, plus those of the means.
            common = (count * mean).sum() / count.sum().clip(lower_bound=1)
            variance = pl.when(count > 1).then(m2 / (count - 1))
            return _Parts(
                fold=(
                    value.count().cast(pl.Int64).alias(count_name),
                    number.mean().fill_null(0.0).alias(mean_name),
                    (number.var(ddof=0) * number.count()).fill_null(0.0).alias(m2_name),
                ),
                lift=(
                    value.is_not_null().cast(pl.Int64).alias(count_name),
                    number.fill_null(0.0).alias(mean_name),
                    (number * 0.0).fill_null(0.0).alias(m2_name),
                ),
                merge=(
                    count.sum(),
                    common.alias(mean_name),
                    (m2.sum() + (count * (mean - common) ** 2).sum()).alias(m2_name),
                ),
                finish=finished(variance if aggregate.function == "var" else variance.sqrt()),
            )
        case "first":
            (value_name, chosen), (time_name, chosen_at) = part("value"), part("time")
            at = pl.col(_TIME)
            return _Parts(
                fold=(value.get(at.arg_min()).alias(value_name), at.min().alias(time_name)),
                lift=(value.alias(value_name), at.alias(time_name)),
                merge=(chosen.get(chosen_at.arg_min()), chosen_at.min()),
                finish=finished(chosen),
            )
        case "last":
            (value_name, chosen), (time_name, chosen_at) = part("value"), part("time")
            at = pl.col(_TIME)
            return _Parts(
                fold=(value.filter(at == at.max()).last().alias(value_name), at.max().alias(time_name)),
                lift=(value.alias(value_name), at.alias(time_name)),
                merge=(chosen.filter(chosen_at == chosen_at.max()).last(), chosen_at.max()),
                finish=finished(chosen),
            )
        case "min_by" | "max_by":
            assert by is not None, f"{aggregate.function} needs something to compare by"
            (value_name, chosen), (by_name, bound) = part("value"), part("by")

            def extreme(column: pl.Expr) -> pl.Expr:
                return column.min() if aggregate.function == "min_by" else column.max()

            # Of several rows with the extreme the smallest value wins, so that order does not matter.
            return _Parts(
                fold=(value.filter(by == extreme(by)).min().alias(value_name), extreme(by).alias(by_name)),
                lift=(pl.when(by.is_not_null()).then(value).alias(value_name), by.alias(by_name)),
                merge=(chosen.filter(bound == extreme(bound)).min(), extreme(bound)),
                finish=finished(chosen),
            )
    raise ValueError(f"no aggregate {aggregate.function}")


def partial_schema(
    keys: Sequence[str],
    aggregates: Sequence[specs.Aggregate],
    input_schema: Mapping[str, pl.DataType],
    event_time: specs.EventTime | None = None,
) -> pl.Schema:
    """Columns of partial results on their way from Combine to WindowAggregate: keys, pane, partial columns."""
    typed = [
        aggregate
        if aggregate.output_type
        else msgspec.structs.replace(aggregate, output_type=type_to_text(output_type(aggregate, input_schema)))
        for aggregate in aggregates
    ]
    aggregation = Aggregation(keys, typed)
    empty = pl.DataFrame(schema=input_schema)
    partial = aggregation.fold(aggregation.prepare(empty, np.empty(0, np.int64), uid="schema"))
    schema = {key: partial.schema[key] for key in keys} | {PANE: pl.Int64()}
    return pl.Schema(schema | {name: partial.schema[name] for name in aggregation.partial_columns})


def output_type(aggregate: specs.Aggregate, input_schema: Mapping[str, pl.DataType]) -> pl.DataType:
    """Type of the aggregate's column. Raises a UserError when the function cannot take its input."""
    if aggregate.function == "count":
        return pl.Int64()
    assert aggregate.input is not None, f"{aggregate.function} needs an input"
    kind = _type_of(aggregate.input, input_schema)
    match aggregate.function:
        case "sum":
            if kind.is_integer() or kind == pl.Boolean:
                return pl.UInt64() if kind == pl.UInt64 else pl.Int64()
            if isinstance(kind, pl.Decimal):
                return pl.Decimal(38, kind.scale)
            if kind.is_float() or isinstance(kind, pl.Duration):
                return kind
            raise _refused(aggregate, kind, "numbers and durations")
        case "mean" | "var" | "std":
            if not (kind.is_numeric() or kind == pl.Boolean):
                raise _refused(aggregate, kind, "numbers")
            return pl.Float32() if kind == pl.Float32 else pl.Float64()
        case "any" | "all":
            if kind != pl.Boolean:
                raise _refused(aggregate, kind, "booleans")
            return kind
        case "min" | "max":
            return _ordered(aggregate, kind)
        case "min_by" | "max_by":
            assert aggregate.by is not None, f"{aggregate.function} needs something to compare by"
            _ordered(aggregate, _type_of(aggregate.by, input_schema))
            return _ordered(aggregate, kind)
        case "first" | "last":
            return kind
    raise ValueError(f"no aggregate {aggregate.function}")


def _type_of(expression: specs.Expression, schema: Mapping[str, pl.DataType]) -> pl.DataType:
    return pl.DataFrame(schema=schema).select(Column.of(expression).expression).dtypes[0]


def _ordered(aggregate: specs.Aggregate, kind: pl.DataType) -> pl.DataType:
    if kind.is_nested() or kind == pl.Null:
        raise _refused(aggregate, kind, "columns that have an order")
    return kind


def _refused(aggregate: specs.Aggregate, kind: pl.DataType, takes: str) -> UserError:
    text = aggregate.input.text if aggregate.input else ""
    return UserError(
        "P020",
        f'"{aggregate.name}": {aggregate.function}({text}) takes {takes}, and this is {kind}',
        fix="cast the column, or use another aggregate",
    )
