"""Parquet as a source: a split is the row groups whose first byte lies in its range.

Measured (10 M rows of four integers and a string, one thread): one Polars scan with a slice per run of row
groups takes about half the CPU of pyarrow's `iter_batches`, as much as `pl.read_parquet` of the whole file.
Rows are therefore decoded by runs of whole row groups and handed out as slices, which cost nothing. From a bucket
pyarrow reads them, by our own requests: they are made again when they fail, as all others of a job are.
"""

from bisect import bisect_right
from itertools import accumulate
from typing import Any, Protocol

import polars as pl
import pyarrow as pa
import pyarrow.parquet as pq
from polars.exceptions import PolarsError

from penstock.connectors import base
from penstock.connectors.files import selected
from penstock.connectors.places import Place, in_store, place_of
from penstock.model.errors import RecordError
from penstock.model.schemas import type_to_text

RUN_ROWS = 512 * 1024
"""Row groups are decoded together up to this many rows. A scan is handed from thread to thread a dozen times, which
costs as much as decoding 10 K rows on a quiet machine and 100 K on a busy one; longer runs lose again what they save,
in rows that have left the cache and in pages that must be mapped first (both measured, 10 M rows of four integers)."""

RUN_BYTES = 128 * 1024 * 1024
"""... and up to this size: it is the memory that a reader holds."""


class ParquetFormat:
    """Parquet files."""

    suffixes: tuple[str, ...] = (".parquet", ".pq")

    def splittable(self, path: str, options: dict[str, Any]) -> bool:
        """Always: the footer says where row groups are."""
        return True

    def infer(self, path: str, options: dict[str, Any]) -> pl.Schema:
        """From the footer."""
        found = _file_schema(path, "", place_of(options["path"]))
        return pl.Schema({name: _streamed(kind) for name, kind in found.items()})

    def open(
        self,
        split: base.Split,
        position: dict[str, Any] | None,
        schema: pl.Schema,
        options: dict[str, Any],
        context: base.SourceContext,
    ) -> base.SplitReader:
        """Position: rows of the split before the run that is being read, and rows of that run that were taken."""
        return ParquetReader(split, position, selected(schema, context.columns), context, place_of(options["path"]))


class ParquetReader:
    """Reads the row groups of one split."""

    def __init__(
        self,
        split: base.Split,
        position: dict[str, Any] | None,
        schema: pl.Schema,
        context: base.SourceContext,
        place: Place,
    ) -> None:
        path = split.options["path"]
        _check_schema(path, schema, context.place, place)
        self._first, self._borders, self._row_bytes = _row_groups(split, place)
        self._rows: _Rows = _ObjectRows(path, schema, place) if in_store(path) else _FileRows(path, schema)
        self._wanted = [pl.Expr.deserialize(predicate) for predicate in context.predicates]
        position = position or {"rows": 0, "taken": 0}
        self._run = self._next = self._first + position["rows"]
        """The run that was decoded last is from `_run` to `_next`."""
        self._decoded = pl.DataFrame()
        self._taken = 0
        if position["taken"]:
            self._decode_next_run()
            self._taken = position["taken"]

    def read(self, max_rows: int) -> base.ReadResult:
        """A slice of the decoded run; decodes the next run when it is used up."""
        if self._taken == self._decoded.height:
            self._decode_next_run()
        frame = self._decoded.slice(self._taken, max_rows)
        self._taken += frame.height
        ended = self._taken == self._decoded.height and self._next >= self._end
        return base.ReadResult(frame=frame if frame.height else None, ended=ended)

    def position(self) -> dict[str, Any]:
        """The run, and how many of its rows were handed out.

        A run that is decoded again gives the same rows in the same order, even if it were longer than before: so
        this holds whatever the predicates leave out.
        """
        if self._taken == self._decoded.height:
            return {"rows": self._next - self._first, "taken": 0}
        return {"rows": self._run - self._first, "taken": self._taken}

    def close(self) -> None:
        """Nothing stays open between reads."""
        self._decoded, self._taken = pl.DataFrame(), 0

    @property
    def _end(self) -> int:
        return self._borders[-1] if self._borders else self._first

    def _decode_next_run(self) -> None:
        """Whole row groups from here on; a part of one only if it is larger than a run may be."""
        largest = max(1, RUN_BYTES // max(1, self._row_bytes))
        # With predicates hardly anything may be left of a run, and Polars skips best in long ones.
        limit = self._next + (largest if self._wanted else min(RUN_ROWS, largest))
        whole = [border for border in self._borders if self._next < border <= limit]
        following = [border for border in self._borders if border > self._next]
        self._run, self._taken = self._next, 0
        self._decoded = pl.DataFrame()  # its memory is there for the next run
        if not following:
            return
        self._next = whole[-1] if whole else min(following[0], self._run + largest)
        rows = self._rows.slice(self._run, self._next - self._run)
        try:
            self._decoded = rows.filter(self._wanted).collect() if self._wanted else rows.collect()
        except PolarsError:
            if not self._wanted:
                raise
            # A condition that fails on some row is the filter's own to report: it names the expression.
            self._wanted = []
            self._decoded = rows.collect()


class _Rows(Protocol):
    """The wanted columns of a file."""

    def slice(self, start: int, count: int) -> pl.LazyFrame:
        """Rows from `start` on."""
        ...


class _FileRows:
    """On a disk."""

    def __init__(self, path: str, schema: pl.Schema) -> None:
        self._scan = pl.scan_parquet(path, glob=False, hive_partitioning=False).select(_casts(schema))

    def slice(self, start: int, count: int) -> pl.LazyFrame:
        return self._scan.slice(start, count)


class _ObjectRows:
    """In a bucket: only the row groups and columns that are needed are fetched, near ones together."""

    def __init__(self, path: str, schema: pl.Schema, place: Place) -> None:
        self._file = pq.ParquetFile(place.file(path), pre_buffer=True)
        self._schema = schema
        metadata = self._file.metadata
        sizes = (metadata.row_group(index).num_rows for index in range(metadata.num_row_groups))
        self._starts = list(accumulate(sizes, initial=0))

    def slice(self, start: int, count: int) -> pl.LazyFrame:
        first = bisect_right(self._starts, start) - 1
        groups = [index for index in range(first, len(self._starts) - 1) if self._starts[index] < start + count]
        table = self._file.read_row_groups(groups, columns=list(self._schema), use_threads=False)
        frame = pl.from_arrow(table)
        assert isinstance(frame, pl.DataFrame)
        return frame.lazy().slice(start - self._starts[first], count).select(_casts(self._schema))


def _casts(schema: pl.Schema) -> list[pl.Expr]:
    return [pl.col(name).cast(kind) for name, kind in schema.items()]


def _row_groups(split: base.Split, place: Place) -> tuple[int, list[int], int]:
    """First row of the split in its file, the row after each of its row groups, and bytes per row."""
    start, length = split.options["start"], split.options["length"]
    metadata = pq.read_metadata(place.file(split.options["path"]))
    first, row, total_bytes = 0, 0, 0
    borders: list[int] = []
    for index in range(metadata.num_row_groups):
        group = metadata.row_group(index)
        if start <= _first_byte(group) < start + length:
            first = row if not borders else first
            borders.append(row + group.num_rows)
            total_bytes += group.total_byte_size
        row += group.num_rows
    rows = borders[-1] - first if borders else 0
    return first, borders, total_bytes // max(1, rows)


def _first_byte(group: pq.RowGroupMetaData) -> int:
    column = group.column(0)
    return int(column.dictionary_page_offset or column.data_page_offset)


def _file_schema(path: str, where: str, place: Place) -> dict[str, pl.DataType]:
    try:
        if in_store(path):
            return dict(pl.Schema(pq.read_schema(place.file(path))))
        return dict(pl.read_parquet_schema(path))
    except (pl.exceptions.ComputeError, pa.ArrowInvalid, OSError) as error:
        raise RecordError(
            "R001",
            f"{path} is not a Parquet file: {error}",
            where=where or None,
            fix="remove it, or read another path",
        ) from error


def _check_schema(path: str, expected: pl.Schema, where: str, place: Place) -> None:
    found = _file_schema(path, where, place)
    for name, kind in expected.items():
        if name not in found or _streamed(found[name]) != kind:
            seen = type_to_text(_streamed(found[name])) if name in found else "missing"
            raise RecordError(
                "R003",
                f"field {name}: {type_to_text(kind)} -> {seen} at {path}",
                where=where,
                fix="give all files the same columns, or leave this one out of the path",
            )


def _streamed(kind: pl.DataType) -> pl.DataType:
    """Strings that a file keeps in a dictionary flow as plain strings."""
    return pl.String() if isinstance(kind, pl.Categorical | pl.Enum) else kind
