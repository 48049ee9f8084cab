"""Rows of a stream as a DataFrame of Spark, with the stream's own column types."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import polars as pl
from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F  # noqa: N812 - as everybody calls it

from penstock.batch.columns import spark_type
from penstock.batch.expressions import NotNative, Translation
from penstock.model import specs
from penstock.model.changes import CHANGE, INSERT

_SCALES = {"s": 1_000_000, "ms": 1_000, "us": 1}
_DAY_US = 86_400_000_000


@dataclass(frozen=True, slots=True)
class Table:
    """All rows of one output of an operator."""

    frame: DataFrame
    schema: pl.Schema

    def column(self, name: str) -> Column:
        """A column by its name, whatever characters that has."""
        return named(name)

    def columns(self) -> dict[str, Column]:
        """All of them. Every row of a table is one that was inserted: those that were replaced are not there."""
        known = {name: named(name) for name in self.schema}
        return known if CHANGE in known else {**known, CHANGE: F.lit(INSERT).cast("tinyint")}

    def translation(self) -> Translation:
        """For expressions over its columns."""
        return Translation(pl.Schema({**self.schema, CHANGE: pl.Int8()}), self.columns())

    def native(self, expression: specs.Expression) -> Column:
        """An expression over its columns; NotNative where Spark has none that means the same."""
        return self.translation().native(expression)

    def type_of(self, expression: specs.Expression) -> pl.DataType:
        """What Polars makes of it."""
        expr = pl.Expr.deserialize(expression.polars)
        return pl.LazyFrame(schema=self.schema).select(expr).collect_schema().dtypes()[0]

    def time_us(self, event_time: specs.EventTime) -> Column:
        """When each row happened, in microseconds. A row without a time is an error, as in a stream."""
        micros = self.optional_time_us(event_time)
        missing = f"R004 a row has no event time: {event_time.column} is null"
        return F.coalesce(micros, F.raise_error(F.lit(missing)).cast("bigint"))

    def optional_time_us(self, event_time: specs.EventTime) -> Column:
        """The same, null where a row has none."""
        return time_us(named(event_time.column), self.schema[event_time.column], event_time)


def named(name: str) -> Column:
    """A column by its name, whatever characters that has."""
    return F.col("`" + name.replace("`", "``") + "`")


def selected(frame: DataFrame, columns: Mapping[str, Column]) -> DataFrame:
    """The columns under these names."""
    return frame.select(*(column.alias(name) for name, column in columns.items()))


def quoted(names: Sequence[str]) -> list[Column]:
    """Columns by their names."""
    return [named(name) for name in names]


def time_us(column: Column, kind: pl.DataType, event_time: specs.EventTime) -> Column:
    """A time column in microseconds since 1970."""
    match kind:
        case pl.Datetime(time_unit="ns"):
            micros = _floor(column, 1_000)
        case pl.Datetime():
            micros = F.unix_micros(column.cast("timestamp"))
        case pl.Date():
            micros = F.unix_date(column).cast("bigint") * F.lit(_DAY_US)
        case _ if event_time.unit == "ns":
            micros = _floor(column, 1_000)
        case _:
            micros = column.cast("bigint") * F.lit(_SCALES[event_time.unit])
    return micros + F.lit(event_time.offset_us) if event_time.offset_us else micros


def time_column(micros: Column, kind: pl.DataType, unit: str) -> Column:
    """Microseconds in the type of a user's time column; `unit` is that of integers."""
    match kind:
        case pl.Datetime(time_unit="ns"):
            return micros * F.lit(1_000)
        case pl.Datetime():
            return F.timestamp_micros(micros).cast(spark_type(kind))
        case pl.Date():
            return F.date_from_unix_date(_floor(micros, _DAY_US).cast("int"))
    scaled = micros * F.lit(1_000) if unit == "ns" else _floor(micros, _SCALES[unit])
    return scaled.cast(spark_type(kind))


def floored(micros: Column, step: int, offset: int = 0) -> Column:
    """The last multiple of `step`, counted from `offset`, that is not above."""
    return micros - F.pmod(micros - F.lit(offset), F.lit(step).cast("bigint"))


def _floor(column: Column, divisor: int) -> Column:
    if divisor == 1:
        return column
    return F.call_function("div", floored(column.cast("bigint"), divisor), F.lit(divisor).cast("bigint"))


__all__ = [
    "NotNative", "Table", "floored", "named", "quoted", "selected", "time_column", "time_us",
]  # fmt: skip
