"""Aggregates of windows and running aggregates as those of Spark, where both mean the same."""

from collections.abc import Sequence
from dataclasses import dataclass

import polars as pl
from pyspark.sql import Column
from pyspark.sql import functions as F  # noqa: N812 - as everybody calls it

from penstock.batch.columns import is_own_type, spark_type
from penstock.batch.expressions import NotNative, smallest
from penstock.batch.tables import Table
from penstock.model import specs
from penstock.model.schemas import type_from_text

MERGED = frozenset({"count", "sum", "min", "max"})
"""Aggregates whose results can be aggregated again."""


@dataclass(frozen=True, slots=True)
class Aggregation:
    """What to compute of each row, and what of each group of them."""

    inputs: dict[str, Column]
    results: dict[str, Column]


def aggregation(table: Table, aggregates: Sequence[specs.Aggregate], time: Column | None) -> Aggregation:
    """All aggregates over a table; NotNative if one of them is the engine's alone."""
    inputs: dict[str, Column] = {}
    results: dict[str, Column] = {}
    for number, aggregate in enumerate(aggregates):
        made: list[tuple[Column, pl.DataType]] = []
        for what, expression in enumerate((aggregate.input, aggregate.by)):
            if expression is not None:
                name = f"__in{number}_{what}"
                inputs[name] = table.native(expression)
                made.append((F.col(name), table.type_of(expression)))
        kind = type_from_text(aggregate.output_type)
        results[aggregate.name] = _result(aggregate, made, kind, time).cast(spark_type(kind))
    return Aggregation(inputs, results)


def merged(aggregate: specs.Aggregate, kind: pl.DataType) -> Column:
    """The result of results, which are columns of the aggregate's name; of those that are in `MERGED`."""
    column = F.col("`" + aggregate.name.replace("`", "``") + "`")
    match aggregate.function:
        case "count" | "sum":
            return F.sum(column).cast(spark_type(kind))
        case "min":
            return smallest(column, kind)
        case _:
            return smallest(column, kind, largest=True)


def _result(
    aggregate: specs.Aggregate, made: Sequence[tuple[Column, pl.DataType]], kind: pl.DataType, time: Column | None
) -> Column:
    if aggregate.function == "count":
        return F.count(made[0][0]) if made else F.count(F.lit(1))
    if not made:
        raise NotNative(f"Spark has no {aggregate.function}")
    column, source = made[0]
    match aggregate.function:
        case "sum" if kind in (pl.Int64(), pl.Float64()) or isinstance(kind, pl.Decimal):
            total = F.sum(column.cast("int") if source == pl.Boolean else column)
            return F.coalesce(total.cast(spark_type(kind)), F.lit(0).cast(spark_type(kind)))
        case "min" | "max":
            return smallest(column, source, largest=aggregate.function == "max")
        case "mean" if kind == pl.Float64:
            return F.avg(_number(column, source))
        case "var" if kind == pl.Float64:
            return F.var_samp(_number(column, source))
        case "std" if kind == pl.Float64:
            return F.stddev_samp(_number(column, source))
        case "any":
            return F.coalesce(F.bool_or(column), F.lit(False))
        case "all":
            return F.coalesce(F.bool_and(column), F.lit(True))
        case "count_distinct" if is_own_type(source) and not source.is_nested():
            return F.count_distinct(column)
        case "quantile":
            return F.percentile(_number(column, source), aggregate.share)
        case "first" | "last" if time is not None:
            return (F.min_by if aggregate.function == "first" else F.max_by)(column, time)
        case "first" | "last":
            return (F.first if aggregate.function == "first" else F.last)(column)
        case "min_by" | "max_by":
            return _by(aggregate, column, made[1])
        case "collect_list" if time is not None and not source.is_nested():
            kept = F.when(column.isNotNull(), F.struct(time.alias("time"), column.alias("value")))
            return F.transform(F.array_sort(F.collect_list(kept)), lambda each: each["value"])
    raise NotNative(f"Spark has no {aggregate.function} of {source} that means the same")


def _by(aggregate: specs.Aggregate, column: Column, by: tuple[Column, pl.DataType]) -> Column:
    """Of several rows with the extreme the smallest value that is there."""
    bound, kind = by
    order = [bound]
    if aggregate.function == "max_by":
        order = [_reversed(bound, kind)]
    if kind.is_float():
        # Of numbers that are none, one is taken only when there is nothing else.
        order.insert(0, F.isnan(bound))
    ranked = F.struct(*order, column.isNull(), column)
    return F.min_by(column, F.when(bound.isNotNull(), ranked))


def _reversed(column: Column, kind: pl.DataType) -> Column:
    """Numbers in the opposite order."""
    match kind:
        case pl.Datetime() if kind.time_unit != "ns":
            return F.bitwise_not(F.unix_micros(column.cast("timestamp")))
        case pl.Date():
            return F.bitwise_not(F.unix_date(column))
        case pl.Boolean():
            return ~column
        case _ if kind.is_float():
            return -column
        case _ if kind.is_integer() and kind != pl.UInt64:
            return F.bitwise_not(column.cast("bigint"))
    raise NotNative(f"max_by of {kind}")


def _number(column: Column, kind: pl.DataType) -> Column:
    return column.cast("int").cast("double") if kind == pl.Boolean else column.cast("double")
