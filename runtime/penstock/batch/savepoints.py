"""Savepoints as DataFrames, and back: to look into state, repair it, and cut it into another number of key groups.

    frames = penstock.batch.read_savepoint(spark, "s3://backups/orders-3f2a11")
    frames["totals.total"].where("total > 100").show()
    penstock.batch.write_savepoint(spark, "s3://backups/repaired", {"totals.total": repaired}, like="s3://backups/...")

Executors read and write the tables, each verified by its hash; the manifest is written last, by whoever calls. Key
groups are computed anew, by Spark's own hash, whatever a frame says.
"""

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import msgspec
import polars as pl
import pyarrow as pa
from pyspark import TaskContext
from pyspark.sql import DataFrame, types
from pyspark.sql import functions as F  # noqa: N812 - as everybody calls it

from penstock.batch.columns import from_arrow, key_group, spark_schema, to_arrow
from penstock.batch.session import prepared
from penstock.batch.tables import named
from penstock.batch.workers import ArrowFunction, Batches
from penstock.checkpoint import canonical
from penstock.model.clocks import Clock, SystemClock
from penstock.model.errors import UserError
from penstock.model.handles import Column, Redistribution, SectionHandle
from penstock.model.ids import Uid
from penstock.model.schemas import type_from_text
from penstock.savepoints.frames import Savepoint
from penstock.savepoints.frames import open as open_frames
from penstock.savepoints.manifest import MANIFEST, SavedState, SavepointManifest, encode, gathered, open_savepoint
from penstock.savepoints.restoring import verified
from penstock.savepoints.writing import state_folder, table_handle
from penstock.state.key_groups import KEY_GROUP, MAX_MAX_PARALLELISM
from penstock.storage import open_store

_PART = "__part"
HANDLES = types.StructType([types.StructField("handle", types.StringType())])


def read_savepoint(spark: Any, uri: str) -> dict[str, DataFrame]:
    """Each state of a savepoint, `uid.state`, as a DataFrame: `key_group`, keys, value."""
    spark = prepared(spark)
    savepoint = open_frames(uri)
    return {state.name: _read(spark, savepoint, state) for state in savepoint.manifest.states}


def write_savepoint(
    spark: Any,
    uri: str,
    frames: Mapping[str, DataFrame],
    *,
    like: str,
    max_parallelism: int | None = None,
    clock: Clock | None = None,
) -> str:
    """A savepoint `like` another one, with other rows for some states, and perhaps another max parallelism.

    The columns of a state stay as they are; `key_group` may be left out. Gives where it is.
    """
    base = open_frames(like)
    target = max_parallelism or base.manifest.max_parallelism
    if not 1 <= target <= MAX_MAX_PARALLELISM:
        raise UserError("S029", f"max_parallelism is {target}", fix=f"1 to {MAX_MAX_PARALLELISM}")
    unknown = [name for name in frames if name not in base.states]
    if unknown:
        raise UserError(
            "S024", f'the savepoint has no state "{unknown[0]}"', where=like, fix="it has: " + ", ".join(base.states)
        )
    store = open_store(uri)
    if store.get(MANIFEST) is not None:
        raise UserError("S021", "another savepoint lies there already", where=store.uri, fix="name another folder")
    spark = prepared(spark)
    recut = target != base.manifest.max_parallelism
    handles: list[SectionHandle] = []
    for state in base.manifest.states:
        keyed = state.redistribution is Redistribution.KEYED
        if state.name in frames or (recut and keyed):
            frame = frames[state.name] if state.name in frames else _read(spark, base, state)
            handles += _written(frame, state, uri, target)
        elif recut:
            handles += _progress_of_all(base, state, uri, target)
        else:
            for table in state.tables:
                store.put(table.path, verified(base.store, table))
    manifest = _manifest(base, handles, target, (clock or SystemClock()).now_us(), uri)
    if not store.create(MANIFEST, encode(manifest)):
        raise UserError("S021", "another savepoint lies there already", where=store.uri, fix="name another folder")
    return store.uri


def _manifest(
    base: Savepoint, handles: Sequence[SectionHandle], max_parallelism: int, now_us: int, uri: str
) -> SavepointManifest:
    kinds = {(Uid(state.uid), state.state): state.kind for state in base.manifest.states}
    made = {state.name: state for state in gathered(handles, kinds)}
    kept = []
    for state in base.manifest.states:
        rewritten = state.redistribution is Redistribution.KEYED or state.name in made
        if state.name in made:
            kept.append(made[state.name])
        elif max_parallelism == base.manifest.max_parallelism or not rewritten:
            kept.append(state)
    states = tuple(sorted(kept, key=lambda state: state.name))
    return msgspec.structs.replace(
        base.manifest,
        created_us=now_us,
        triggered_us=now_us,
        max_parallelism=max_parallelism,
        size=sum(state.size for state in states),
        states=states,
        lineage=msgspec.structs.replace(base.manifest.lineage, restored_from=base.uri),
    )


# ---------------------------------------------------------------- reading


def schema_of(state: SavedState) -> dict[str, pl.DataType]:
    """Columns of a table."""
    return {column.name: type_from_text(column.type) for column in state.columns}


def _read(spark: Any, savepoint: Savepoint, state: SavedState) -> DataFrame:
    schema = schema_of(state)
    numbers = spark.range(0, len(state.tables), 1, max(1, len(state.tables)))
    frame: DataFrame = numbers.mapInArrow(_reading(savepoint.uri, state, schema), spark_schema(schema))
    return frame


def _reading(uri: str, state: SavedState, schema: dict[str, pl.DataType]) -> ArrowFunction:
    text = msgspec.json.encode(state)

    def run(batches: Batches) -> Batches:
        state, store = msgspec.json.decode(text, type=SavedState), open_savepoint(uri)
        for batch in batches:
            for number in batch.column(0).to_pylist():
                rows = canonical.decode(verified(store, state.tables[number]), state.columns)
                yield from (to_arrow(part, schema) for part in rows.iter_slices(65_536))

    return run


# ---------------------------------------------------------------- writing


def _written(frame: DataFrame, state: SavedState, uri: str, max_parallelism: int) -> list[SectionHandle]:
    """The rows of a state, by key group, in tables that executors write."""
    schema = schema_of(state)
    missing = [name for name in schema if name not in frame.columns and name != KEY_GROUP]
    if missing:
        raise UserError(
            "S029", f'state "{state.name}": there is no column "{missing[0]}"', fix=f"its columns: {', '.join(schema)}"
        )
    types_ = spark_schema(schema)
    if state.redistribution is Redistribution.KEYED:
        keys = {column.name: schema[column.name] for column in state.columns if column.role == canonical.KEY}
        grouped = frame.withColumn(KEY_GROUP, key_group(frame, keys, max_parallelism))
        spread = by_ranges_of_groups(grouped, F.col(KEY_GROUP), max_parallelism)
    else:
        spread = frame.coalesce(1)
    typed = spread.select(*(named(each.name).cast(each.dataType).alias(each.name) for each in types_.fields))
    written = typed.mapInArrow(_writing(uri, state, schema), HANDLES)
    return [msgspec.json.decode(row.handle, type=SectionHandle) for row in written.collect()]


def by_ranges_of_groups(frame: DataFrame, group: Any, max_parallelism: int) -> DataFrame:
    """Rows in partitions that have ranges of key groups of their own, as tables of savepoints have."""
    spark = frame.sparkSession
    count = min(int(spark.conf.get("spark.sql.shuffle.partitions")), max_parallelism)
    part = F.call_function("div", group.cast("bigint") * F.lit(count), F.lit(max_parallelism).cast("bigint"))
    spread = frame.withColumn(_PART, part.cast("int")).repartitionById(count, F.col(_PART))
    return spread.drop(_PART)


def _writing(uri: str, state: SavedState, schema: dict[str, pl.DataType]) -> ArrowFunction:
    text = msgspec.json.encode(state)

    def run(batches: Batches) -> Batches:
        frames = [from_arrow(batch, schema) for batch in batches if batch.num_rows]
        if frames:
            saved = msgspec.json.decode(text, type=SavedState)
            rows = canonical.sorted_table(pl.concat(frames, rechunk=True), saved.columns)
            task: Any = TaskContext.get()
            part = f"spark-{task.partitionId()}-{task.taskAttemptId()}"
            yield packed(put_table(uri, saved, rows, saved.columns, part))

    return run


def put_table(uri: str, saved: SavedState, rows: pl.DataFrame, columns: Sequence[Column], part: str) -> SectionHandle:
    """One table as an object of the savepoint."""
    data = canonical.encode(rows)
    path = f"{state_folder(Uid(saved.uid), saved.state)}/{part}.parquet"
    open_store(uri).put(path, data)
    groups = range(0)
    if saved.redistribution is Redistribution.KEYED:
        held = rows.get_column(KEY_GROUP)
        groups = range(int(held[0]), int(held[-1]) + 1)
    return table_handle(
        Uid(saved.uid), saved.state, saved.redistribution, path, data, rows.height, groups, columns, saved.form
    )


def packed(*handles: SectionHandle) -> pa.RecordBatch:
    """On the way back to the driver."""
    rows = [msgspec.json.encode(handle).decode() for handle in handles]
    return pa.RecordBatch.from_pydict({"handle": pa.array(rows, pa.string())})


def _progress_of_all(base: Savepoint, state: SavedState, uri: str, max_parallelism: int) -> Iterator[SectionHandle]:
    """How far event time had come, for key groups that are cut anew; what belongs to no key stays as it is."""
    rows = base.frame(state.name)
    if {"first_group", "end_group", "watermark"} <= set(rows.columns) and rows.height:
        if rows.get_column("watermark").n_unique() > 1:
            raise UserError(
                "S009",
                f"{state.name}: subtasks had come more or less far, so that key groups cannot be computed anew",
                fix="keep the max_parallelism of the savepoint",
            )
        whole = {"first_group": 0, "end_group": max_parallelism}
        rows = rows.head(1).with_columns(pl.lit(value, rows.schema[name]).alias(name) for name, value in whole.items())
    yield put_table(uri, state, rows, state.columns, "spark-0-0")
