"""Sinks on Spark: rows are staged where no reader looks, and become visible when all of them are there.

Parquet is written by Spark, other files by the engine's own file sink in Python workers. Both stage below
`<out>/_penstock/staging/<job>/`; then files are renamed to where readers find them, one after the other. A job that
fails before that has left nothing but staged files, and removes them.
"""

import shutil
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any
from urllib.parse import quote, unquote

import msgspec
import polars as pl
import pyarrow as pa
from pyspark import TaskContext
from pyspark.sql import DataFrame, types

from penstock.batch.columns import from_arrow, is_own_type
from penstock.batch.tables import Table, named
from penstock.batch.workers import ArrowFunction, Batches, Work
from penstock.connectors import make_sink, read_collected
from penstock.connectors.base import SinkContext
from penstock.connectors.file_sink import STAGING
from penstock.connectors.files import stable_hash
from penstock.connectors.gathering import NULL_PARTITION, file_name
from penstock.model import specs
from penstock.model.clocks import SystemClock
from penstock.model.ids import Attempt, CheckpointId, JobId, SubtaskId, Uid, VertexId
from penstock.storage import flush_folder, make_folders

_PARTITION = "__partition_"
"""Folders are named by copies of the columns: the files keep all of theirs."""

_CODECS = {"lz4": "lz4_raw"}

Commit = Callable[[], None]


class Sinks:
    """All sinks of one job."""

    def __init__(self, job: JobId) -> None:
        self._job = job
        self._commits: list[Commit] = []
        self._staging: set[Path] = set()
        self.frames: dict[str, pl.DataFrame] = {}
        """Rows of collect sinks."""

    def stage(self, work: Work, table: Table) -> None:
        """Compute the rows and put them where nobody sees them."""
        spec = work.operator.spec
        assert isinstance(spec, specs.Sink)
        connector, uid = spec.connector, work.operator.uid
        match connector.kind:
            case "discard":
                table.frame.write.format("noop").mode("overwrite").save()
            case "print":
                rows = collected(table)
                self._commits.append(lambda: _print(work, rows))
            case "collect" if not connector.options.get("directory"):
                self.frames[uid] = collected(table)
            case "parquet" if not _in_bucket(connector) and all(is_own_type(kind) for kind in table.schema.values()):
                self._stage_parquet(work, table, connector)
            case _:
                self._stage_files(work, table, connector)
                if connector.kind == "collect":
                    folder, schema = connector.options["directory"], work.operator.output
                    self._commits.append(lambda: self.frames.__setitem__(uid, read_collected(folder, schema)))

    def commit(self) -> None:
        """Make everything visible."""
        for commit in self._commits:
            commit()
        self.clean()

    def clean(self) -> None:
        """Remove what is still staged."""
        for folder in self._staging:
            shutil.rmtree(folder, ignore_errors=True)

    def _stage_parquet(self, work: Work, table: Table, connector: specs.Connector) -> None:
        out = Path(connector.options["directory"])
        make_folders(out)
        staged = self._folder(out) / file_name(work.operator.uid)
        partition_by: Sequence[str] = connector.options.get("partition_by") or ()
        frame = table.frame
        for number, name in enumerate(partition_by):
            frame = frame.withColumn(f"{_PARTITION}{number}", named(name).cast("string"))
        compression = connector.options.get("compression", "zstd")
        writer = frame.write.option("compression", _CODECS.get(compression, compression))
        if partition_by:
            writer = writer.partitionBy(*(f"{_PARTITION}{number}" for number in range(len(partition_by))))
        writer.parquet(str(staged))
        self._commits.append(lambda: self._move(staged, out, work.operator.uid, partition_by))

    def _move(self, staged: Path, out: Path, uid: str, partition_by: Sequence[str]) -> None:
        """By rename, each file at once; folders under the names of the columns."""
        prefix = f"part-{stable_hash(self._job):016x}"[:13]
        folders = set()
        for number, file in enumerate(sorted(staged.rglob("part-*.parquet"))):
            names = file.parent.relative_to(staged).parts
            folder = out.joinpath(*(_folder(name, partition_by) for name in names))
            make_folders(folder)
            # As the file sink names them: job, uid, subtask, attempt, checkpoint, number.
            file.rename(folder / f"{prefix}-{file_name(uid)}-{number}-1-1-0.parquet")
            folders.add(folder)
        for folder in folders:
            flush_folder(folder)

    def _stage_files(self, work: Work, table: Table, connector: specs.Connector) -> None:
        if not _in_bucket(connector):
            self._folder(Path(connector.options["directory"]))
        context = _context(self._job, work.operator.uid, 0, 1)
        sink = make_sink(connector, work.operator.output, context)
        sink.recover([])
        made = _arrow(table.frame, _writing(work, self._job, dict(table.schema)))
        committables = [msgspec.json.decode(row[0]) for row in made.collect()]
        self._commits.append(lambda: sink.commit(committables))

    def _folder(self, out: Path) -> Path:
        folder = out / STAGING / file_name(self._job)
        self._staging.add(folder)
        return folder


def collected(table: Table) -> pl.DataFrame:
    """All rows, in the memory of this process."""
    batches = table.frame.toArrow().to_batches()
    frames = [from_arrow(batch, table.schema) for batch in batches if batch.num_rows]
    return pl.concat([table.schema.to_frame(), *frames])


def _arrow(frame: DataFrame, function: ArrowFunction) -> DataFrame:
    return frame.mapInArrow(function, types.StructType([types.StructField("committable", types.StringType())]))


def _writing(work: Work, job: JobId, schema: dict[str, pl.DataType]) -> ArrowFunction:
    text = msgspec.json.encode(work)

    def run(batches: Batches) -> Batches:
        work = msgspec.json.decode(text, type=Work)
        spec = work.operator.spec
        assert isinstance(spec, specs.Sink)
        task: Any = TaskContext.get()
        context = _context(job, work.operator.uid, task.partitionId(), task.taskAttemptId() + 1)
        sink = make_sink(spec.connector, work.operator.output, context)
        for batch in batches:
            if batch.num_rows:
                sink.write(from_arrow(batch, schema))
        stage = sink.prepare(CheckpointId(1))
        committables = stage() if stage is not None else []
        sink.close()
        rows = [msgspec.json.encode(each).decode() for each in committables]
        yield pa.RecordBatch.from_pydict({"committable": pa.array(rows, pa.string())})

    return run


def _context(job: JobId, uid: str, index: int, attempt: int) -> SinkContext:
    return SinkContext(
        job=job,
        attempt=Attempt(attempt),
        uid=Uid(uid),
        subtask=SubtaskId(VertexId(uid), index),
        clock=SystemClock(),
    )


def _print(work: Work, rows: pl.DataFrame) -> None:
    spec = work.operator.spec
    assert isinstance(spec, specs.Sink)
    make_sink(spec.connector, work.operator.output, _context(work.job, work.operator.uid, 0, 1)).write(rows)


def _in_bucket(connector: specs.Connector) -> bool:
    """The engine's own sink writes there."""
    return "://" in connector.options["directory"]


def _folder(name: str, partition_by: Sequence[str]) -> str:
    """A folder of Spark under the name that the file sink gives it."""
    column, _, value = name.partition("=")
    shown = value if value == NULL_PARTITION else quote(unquote(value), safe=" :")
    return f"{partition_by[int(column.removeprefix(_PARTITION))]}={shown}"
