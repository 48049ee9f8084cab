"""Columns of a stream as Spark holds them, and back.

Spark has no unsigned integers, no time of day and no durations of its own that Arrow passes on unchanged. Such a
column travels as the smallest of Spark's types that holds all its values, and a Python worker sees it again as what it
is. Every other type is itself. Times without a zone are `timestamp_ntz`, times with one are `timestamp`.
"""

from collections.abc import Mapping

import polars as pl
import pyarrow as pa
from pyspark.sql import Column, DataFrame, types
from pyspark.sql import functions as F  # noqa: N812 - as everybody calls it
from pyspark.sql.pandas.types import to_arrow_schema

from penstock.model.schemas import type_to_text

_PLAIN: dict[pl.DataType, types.DataType] = {
    pl.Boolean(): types.BooleanType(),
    pl.Int8(): types.ByteType(),
    pl.Int16(): types.ShortType(),
    pl.Int32(): types.IntegerType(),
    pl.Int64(): types.LongType(),
    pl.UInt8(): types.ShortType(),
    pl.UInt16(): types.IntegerType(),
    pl.UInt32(): types.LongType(),
    pl.UInt64(): types.DecimalType(20, 0),
    pl.Float32(): types.FloatType(),
    pl.Float64(): types.DoubleType(),
    pl.String(): types.StringType(),
    pl.Binary(): types.BinaryType(),
    pl.Date(): types.DateType(),
    pl.Time(): types.LongType(),
    pl.Null(): types.StringType(),
}

_OWN_TYPE = (pl.Boolean, pl.Int8, pl.Int16, pl.Int32, pl.Int64, pl.Float32, pl.Float64, pl.String, pl.Binary, pl.Date)


def spark_type(kind: pl.DataType) -> types.DataType:
    """The type that holds all values of a column."""
    match kind:
        case pl.Datetime(time_unit="ns") | pl.Duration():
            return types.LongType()
        case pl.Datetime():
            return types.TimestampNTZType() if kind.time_zone is None else types.TimestampType()
        case pl.Decimal():
            return types.DecimalType(kind.precision or 38, kind.scale)
        case pl.List():
            return types.ArrayType(spark_type(_instance(kind.inner)))
        case pl.Struct():
            fields = [types.StructField(field.name, spark_type(_instance(field.dtype))) for field in kind.fields]
            return types.StructType(fields)
    return _PLAIN[kind]


def spark_schema(schema: Mapping[str, pl.DataType]) -> types.StructType:
    """All columns, all of them nullable."""
    return types.StructType([types.StructField(name, spark_type(kind)) for name, kind in schema.items()])


def is_own_type(kind: pl.DataType) -> bool:
    """Whether Spark's type has just the values of this one, so that its functions mean the same."""
    match kind:
        case pl.Datetime():
            return kind.time_unit != "ns" and kind.time_zone in (None, "UTC")
        case pl.Decimal():
            return True
        case pl.List():
            return is_own_type(_instance(kind.inner))
        case pl.Struct():
            return all(is_own_type(_instance(field.dtype)) for field in kind.fields)
    return isinstance(kind, _OWN_TYPE)


def hash_column(column: Column, kind: pl.DataType) -> Column:
    """The column as `xxhash64` is to see it: times and durations are hashed in microseconds."""
    match kind:
        case pl.Datetime(time_unit="ns") | pl.Duration(time_unit="ns"):
            return F.floor(column / F.lit(1_000)).cast("long")
        case pl.Duration(time_unit="ms"):
            return column * F.lit(1_000)
        case pl.Null():
            return F.lit(None).cast("int")
    return column


def key_group(frame: DataFrame, keys: Mapping[str, pl.DataType], max_parallelism: int) -> Column:
    """The key group of each row: what `state.key_groups` computes, by Spark's own `xxhash64`."""
    if not keys:
        return F.lit(42 % max_parallelism).cast("int")
    hashed = [hash_column(frame[name], kind) for name, kind in keys.items()]
    return F.pmod(F.xxhash64(*hashed), F.lit(max_parallelism).cast("long")).cast("int")


def from_arrow(batch: pa.RecordBatch, schema: Mapping[str, pl.DataType]) -> pl.DataFrame:
    """Rows of Spark as a frame with the stream's own types."""
    if not schema:
        return pl.DataFrame(height=batch.num_rows)
    frame = pl.DataFrame(pl.from_arrow(pa.Table.from_batches([batch])))
    return pl.DataFrame([_restored(frame.get_column(name), kind) for name, kind in schema.items()])


def to_arrow(frame: pl.DataFrame, schema: Mapping[str, pl.DataType]) -> pa.RecordBatch:
    """A frame as the rows that Spark expects of these columns."""
    made = pl.DataFrame([_physical(frame.get_column(name), kind) for name, kind in schema.items()])
    table = made.rechunk().to_arrow(compat_level=pl.CompatLevel.oldest()).cast(arrow_schema(schema))
    batches = table.combine_chunks().to_batches()
    return batches[0] if batches else pa.RecordBatch.from_pylist([], schema=arrow_schema(schema))


def arrow_schema(schema: Mapping[str, pl.DataType]) -> pa.Schema:
    """Spark's columns in Arrow, as workers send them."""
    return to_arrow_schema(spark_schema(schema), timezone="UTC")


def describe(schema: Mapping[str, pl.DataType]) -> str:
    """For people."""
    return ", ".join(f"{name}: {type_to_text(kind)}" for name, kind in schema.items())


def _restored(column: pl.Series, kind: pl.DataType) -> pl.Series:
    if column.dtype == kind:
        return column
    match kind:
        case pl.Null():
            return pl.Series(column.name, [None], pl.Null()).new_from_index(0, len(column))
        case pl.Datetime() if column.dtype.is_temporal():
            in_unit = column.dt.cast_time_unit(kind.time_unit)
            return in_unit.dt.convert_time_zone(kind.time_zone) if kind.time_zone else in_unit
    return column.cast(kind)


def _physical(column: pl.Series, kind: pl.DataType) -> pl.Series:
    match kind:
        case pl.Null():
            return column.cast(pl.String)
        case pl.Datetime(time_unit="ns") | pl.Duration() | pl.Time():
            return column.cast(kind).to_physical()
        case pl.Datetime():
            in_unit = column.dt.cast_time_unit("us")
            return in_unit.dt.convert_time_zone("UTC") if kind.time_zone else in_unit
    return column.cast(_physical_type(kind))


def _physical_type(kind: pl.DataType) -> pl.DataType:
    """Inside lists and structs."""
    match kind:
        case pl.UInt8():
            return pl.Int16()
        case pl.UInt16():
            return pl.Int32()
        case pl.UInt32():
            return pl.Int64()
        case pl.UInt64():
            return pl.Decimal(20, 0)
        case pl.Datetime(time_unit="ns") | pl.Duration() | pl.Time():
            return pl.Int64()
        case pl.Datetime():
            return pl.Datetime("us", "UTC" if kind.time_zone else None)
        case pl.Null():
            return pl.String()
        case pl.List():
            return pl.List(_physical_type(_instance(kind.inner)))
        case pl.Struct():
            return pl.Struct([pl.Field(field.name, _physical_type(_instance(field.dtype))) for field in kind.fields])
    return kind


def _instance(kind: object) -> pl.DataType:
    return kind() if isinstance(kind, type) else kind  # type: ignore[return-value]
