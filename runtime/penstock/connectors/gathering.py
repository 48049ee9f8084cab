"""What sinks of files have in common: rows until they are a file, and how files and folders are called."""

from collections.abc import Iterator, Sequence
from typing import Any
from urllib.parse import quote

import polars as pl

from penstock.connectors.base import SinkContext
from penstock.connectors.files import stable_hash
from penstock.model.ids import JobId

ROLL_BYTES = 128 * 1024 * 1024
"""A file is written when this much has been gathered; as Parquet it is a third or less."""

NULL_PARTITION = "__HIVE_DEFAULT_PARTITION__"
"""The folder of rows whose partition column is null; Hive's word, which Spark, DuckDB and Polars know."""


class GatheredRows:
    """Rows in memory, until there are enough of them for a file."""

    def __init__(self, roll_bytes: int) -> None:
        self._roll_bytes = roll_bytes
        self._rows: list[pl.DataFrame] = []
        self._bytes = 0

    def add(self, frame: pl.DataFrame) -> bool:
        """True when there are enough."""
        self._rows.append(frame)
        self._bytes += size_of(frame)
        return self._bytes >= self._roll_bytes

    def take(self) -> list[pl.DataFrame]:
        """All of them, and there are none left."""
        rows, self._rows, self._bytes = self._rows, [], 0
        return rows


def partitions(rows: pl.DataFrame, by: Sequence[str]) -> Iterator[tuple[str, pl.DataFrame]]:
    """Folder and rows; the columns stay in the files, so that each file is complete by itself."""
    if not by:
        yield "", rows
        return
    for values, part in rows.partition_by(by, as_dict=True).items():
        pairs = zip(by, values, strict=True)
        yield "".join(f"{name}={_partition_value(value)}/" for name, value in pairs), part


def part_prefix(context: SinkContext) -> str:
    """The beginning of the names of a subtask's files."""
    subtask, attempt = context.subtask.index, context.attempt
    return f"part-{job_mark(context.job)}-{file_name(context.uid)}-{subtask}-{attempt}"


def job_mark(job: JobId) -> str:
    """Part of the names: a program that is run again must not replace what it wrote before."""
    return f"{stable_hash(job):016x}"[:8]


def size_of(frame: pl.DataFrame) -> int:
    """Bytes of the rows themselves. `estimated_size` of a slice counts the text of the whole frame it is cut from."""
    total = 0
    for column in frame.get_columns():
        if column.dtype == pl.String:
            total += int(column.str.len_bytes().sum()) + 8 * frame.height
        elif column.dtype == pl.Binary:
            total += int(column.bin.size().sum()) + 8 * frame.height
        else:
            total += int(column.estimated_size())
    return total


def file_name(text: str) -> str:
    """Any text as one part of a path."""
    return quote(text, safe=" ") or "_"


def _partition_value(value: Any) -> str:
    return NULL_PARTITION if value is None else quote(str(value), safe=" :")
