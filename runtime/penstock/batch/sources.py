"""Bounded sources on Spark: Parquet by Spark's own reader, everything else by the engine's readers, split by split."""

from collections.abc import Iterator

import msgspec
import polars as pl
import pyarrow as pa
from pyspark.sql import Column, SparkSession
from pyspark.sql import functions as F  # noqa: N812 - as everybody calls it

from penstock.batch.columns import spark_schema, to_arrow
from penstock.batch.tables import Table, named
from penstock.batch.workers import ArrowFunction, Batches, Collected, Work, context_of
from penstock.connectors import make_source
from penstock.model import specs
from penstock.model.errors import UserError
from penstock.model.schemas import polars_schema
from penstock.operators.factory import make_operator
from penstock.operators.sources import SourceOperator

_UNBOUNDED = ("socket-lines",)


def read(spark: SparkSession, work: Work, spec: specs.Source) -> Table:
    """All rows of a source."""
    schema = polars_schema(work.operator.output)
    _require_bounded(work, spec)
    if is_native(work.operator):
        files = [entry[0] for entry in spec.connector.options["files"]]
        frame = spark.read.schema(spark_schema(schema)).parquet(*files)
        return _with_times(Table(frame, schema), work, spec)
    return _by_splits(spark, work, spec, schema)


def is_native(operator: specs.Operator) -> bool:
    """Whether Spark's own reader reads it."""
    spec = operator.spec
    kinds = polars_schema(operator.output).values()
    return (
        isinstance(spec, specs.Source)
        and spec.connector.kind == "parquet"
        and "://" not in spec.connector.options["path"]
        and spec.time_kind != "ingestion"
        and all(_is_readable(kind) for kind in kinds)
    )


def _require_bounded(work: Work, spec: specs.Source) -> None:
    options = spec.connector.options
    endless = (
        spec.connector.kind in _UNBOUNDED
        or bool(options.get("watch"))
        or (spec.connector.kind in ("nexmark", "generate") and options.get("events", options.get("rows")) is None)
    )
    if endless:
        raise UserError(
            "P081",
            f'source "{work.operator.uid}" ({spec.connector.kind}) never ends, and a batch has an end',
            where=work.operator.place,
            fix="run it as a stream (without --engine spark), or read what ends: events=, rows=, or files without "
            "watch=True",
        )


def _is_readable(kind: pl.DataType) -> bool:
    match kind:
        case pl.Datetime():
            return kind.time_unit != "ns"
        case pl.List():
            return _is_readable(_instance(kind.inner))
        case pl.Struct():
            return all(_is_readable(_instance(field.dtype)) for field in kind.fields)
    return not isinstance(kind, pl.Time | pl.Duration | pl.Null)


def _with_times(table: Table, work: Work, spec: specs.Source) -> Table:
    """Rows without event time stop the job or are left out, as the settings say."""
    if spec.event_time is None or spec.time_kind != "event":
        return table
    time = named(spec.event_time.column)
    if work.settings.source.on_bad_record == "drop":
        return Table(table.frame.where(time.isNotNull()), table.schema)
    return Table(table.frame.where(_required(time, work.operator.uid, spec.event_time.column)), table.schema)


def _required(time: Column, uid: str, column: str) -> Column:
    message = (
        f'R004 source "{uid}": a row has no usable event time: {column} is null  '
        'fix: filter such rows where they come from, or flow.configure({"source.on_bad_record": "drop"})'
    )
    return F.when(time.isNotNull(), F.lit(True)).otherwise(F.raise_error(F.lit(message)).cast("boolean"))


def _by_splits(spark: SparkSession, work: Work, spec: specs.Source, schema: pl.Schema) -> Table:
    count = len(make_source(spec.connector).splits())
    numbers = spark.range(0, count, 1, max(count, 1))
    return Table(numbers.mapInArrow(_reading(work, count, dict(schema)), spark_schema(schema)), schema)


def _reading(work: Work, count: int, schema: dict[str, pl.DataType]) -> ArrowFunction:
    text = msgspec.json.encode(work)

    def run(batches: Batches) -> Batches:
        for batch in batches:
            for number in batch.column(0).to_pylist():
                yield from _read_split(msgspec.json.decode(text, type=Work), number, count, schema)

    return run


def _read_split(work: Work, number: int, count: int, schema: dict[str, pl.DataType]) -> Iterator[pa.RecordBatch]:
    context = context_of(work, index=number, parallelism=count)
    source = make_operator(work.operator, context)
    assert isinstance(source, SourceOperator)
    rows = Collected()
    source.open(context, rows)
    source.on_restored()
    try:
        while not source.poll().ended:
            yield from (to_arrow(frame, schema) for _, frame in rows.taken())
        yield from (to_arrow(frame, schema) for _, frame in rows.taken())
    finally:
        source.close()


def _instance(kind: object) -> pl.DataType:
    return kind() if isinstance(kind, type) else kind  # type: ignore[return-value]
