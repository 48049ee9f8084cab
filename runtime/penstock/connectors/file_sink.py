"""Files as a sink, in two phases.

Rows are gathered in memory and written as staged files below `<out>/_penstock/staging/`, under names that no reader
of the format looks at: when there are enough, and after a barrier in the background. A staged file is whole and
flushed to disk before it becomes a committable. Committing renames it to

    <out>/[column=value/...]part-<job>-<uid>-<subtask>-<attempt>-<checkpoint>-<number>.<suffix>

which is atomic, and can be repeated: a staged file that is gone was renamed before, by whichever subtask. So a
reader of `<out>/**/*.<suffix>` sees the rows of completed checkpoints, each once, and nothing else.

Invariant: only staged files of lower attempts of the same job, uid and subtask are ever removed. A higher
attempt has replaced this one, and its files are its own.
"""

import contextlib
import itertools
import os
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple
from urllib.parse import quote

import polars as pl

from penstock.connectors import base
from penstock.connectors.file_formats import OutputFormat
from penstock.connectors.files import stable_hash
from penstock.model.errors import FatalJobError, UserError
from penstock.model.ids import CheckpointId
from penstock.model.specs import Connector
from penstock.storage import flush_folder, make_folders

STAGING = Path("_penstock") / "staging"
STAGED_SUFFIX = ".staged"
ROLL_BYTES = 128 * 1024 * 1024
"""A file is written when this much has been gathered; as Parquet it is a third or less on disk."""

NULL_PARTITION = "__HIVE_DEFAULT_PARTITION__"
"""The folder of rows whose partition column is null; Hive's word, which Spark, DuckDB and Polars know."""


class StagedFile(NamedTuple):
    """A file that is whole and on disk."""

    name: str
    """In staging."""
    folder: str
    """Below `out`, where it will go."""


class FileSink:
    """Task side of the file sinks, for one subtask."""

    def __init__(self, output: OutputFormat, connector: Connector, context: base.SinkContext) -> None:
        options = connector.options
        if "directory" not in options:
            raise UserError("P018", f"{connector.kind} has no directory", fix='give one: collect("/some/directory")')
        self._out = Path(options["directory"])
        self._output, self._options, self._context = output, options, context
        self._partition_by: list[str] = options.get("partition_by") or []
        self._roll_bytes: int = options.get("roll_bytes", ROLL_BYTES)
        self._staging = self._out / STAGING / _file_name(context.job) / _file_name(context.uid)
        self._rows: list[pl.DataFrame] = []
        self._bytes = 0
        self._staged: list[StagedFile] = []
        self._numbers = itertools.count()

    def write(self, frame: pl.DataFrame) -> None:
        """Keep rows; write a staged file when there are enough."""
        self._rows.append(frame)
        self._bytes += size_of(frame)
        if self._bytes >= self._roll_bytes:
            self._staged += self._stage_rows(self._rows)
            self._rows, self._bytes = [], 0

    def prepare(self, checkpoint: CheckpointId) -> base.Stage | None:
        """What is staged already, and the rows that are yet to be."""
        rows, staged = self._rows, self._staged
        self._rows, self._bytes, self._staged = [], 0, []
        return partial(self._stage, checkpoint, rows, staged) if rows or staged else None

    def commit(self, committables: list[dict[str, Any]]) -> None:
        """Rename; what was renamed before stays as it is."""
        folders = {(self._out / each["target"]).parent for each in committables}
        for folder in folders:
            make_folders(folder)
        for each in committables:
            staged, target = self._out / each["staged"], self._out / each["target"]
            try:
                staged.rename(target)
            except FileNotFoundError:
                if not target.exists():
                    raise _lost(staged, target) from None
        for folder in folders:
            flush_folder(folder)

    def recover(self, committables: list[dict[str, Any]]) -> None:
        """Commit what the checkpoint holds, then remove what older attempts of this subtask left behind."""
        _require_writable(self._out)
        self.commit(committables)
        for name in self._abandoned():
            (self._staging / name).unlink(missing_ok=True)

    def close(self) -> None:
        """Staged rows are abandoned: the next attempt removes them."""
        self._rows, self._bytes = [], 0

    def _stage(
        self, checkpoint: CheckpointId, rows: list[pl.DataFrame], staged: list[StagedFile]
    ) -> list[dict[str, Any]]:
        """Write the rest, and say what is to be renamed to what."""
        files = [*staged, *self._stage_rows(rows)]
        flush_folder(self._staging)
        return [
            {
                "staged": str((self._staging / file.name).relative_to(self._out)),
                "target": f"{file.folder}{self._part_name(checkpoint, number)}",
            }
            for number, file in enumerate(files)
        ]

    def _stage_rows(self, gathered: list[pl.DataFrame]) -> list[StagedFile]:
        """Write what was gathered, a file for each partition."""
        if not gathered:
            return []
        rows = gathered[0] if len(gathered) == 1 else pl.concat(gathered)
        make_folders(self._staging)
        staged = []
        for folder, part in self._partitions(rows):
            name = f"{self._context.subtask.index}-{self._context.attempt}-{next(self._numbers)}{STAGED_SUFFIX}"
            with (self._staging / name).open("wb") as file:
                self._output.write(part, file, self._options)
                file.flush()
                os.fsync(file.fileno())
            staged.append(StagedFile(name, folder))
        return staged

    def _partitions(self, rows: pl.DataFrame) -> Iterator[tuple[str, pl.DataFrame]]:
        """Folder and rows; the columns stay in the files, so that each file is complete by itself."""
        if not self._partition_by:
            yield "", rows
            return
        for values, part in rows.partition_by(self._partition_by, as_dict=True).items():
            pairs = zip(self._partition_by, values, strict=True)
            yield "".join(f"{name}={_partition_value(value)}/" for name, value in pairs), part

    def _part_name(self, checkpoint: CheckpointId, number: int) -> str:
        context = self._context
        # The job is part of the name: a program that is run again must not replace what it wrote before.
        job = f"{stable_hash(context.job):016x}"[:8]
        return (
            f"part-{job}-{_file_name(context.uid)}-{context.subtask.index}-{context.attempt}"
            f"-{checkpoint}-{number}{self._output.suffix}"
        )

    def _abandoned(self) -> Iterator[str]:
        with contextlib.suppress(FileNotFoundError):
            for name in os.listdir(self._staging):  # noqa: PTH208 - names are all that is needed
                subtask, attempt, _ = name.removesuffix(STAGED_SUFFIX).split("-")
                if int(subtask) == self._context.subtask.index and int(attempt) < self._context.attempt:
                    yield name


def _require_writable(out: Path) -> None:
    """Before the first row: else every checkpoint would fail, and every attempt in the same way."""
    nearest = next(folder for folder in (out, *out.parents) if folder.exists())
    if not nearest.is_dir() or not os.access(nearest, os.W_OK | os.X_OK):
        why = f"{nearest} is not a directory" if not nearest.is_dir() else f"no permission to write to {nearest}"
        raise UserError("S011", f"cannot write to {out}: {why}", fix="allow writing there, or write somewhere else")


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


def _file_name(text: str) -> str:
    """Any text as one part of a path."""
    return quote(text, safe=" ") or "_"


def _partition_value(value: Any) -> str:
    return NULL_PARTITION if value is None else quote(str(value), safe=" :")


def _lost(staged: Path, target: Path) -> FatalJobError:
    return FatalJobError(
        "S010",
        f"a checkpoint holds rows in {staged}, but neither it nor {target} exists: somebody removed it",
        fix=f"bring one of the two files back; never clean {STAGING} while a job may go on",
    )
