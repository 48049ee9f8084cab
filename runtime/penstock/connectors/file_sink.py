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

import polars as pl

from penstock.connectors import base
from penstock.connectors.file_formats import OutputFormat
from penstock.connectors.gathering import ROLL_BYTES, GatheredRows, file_name, part_prefix, partitions
from penstock.model.errors import FatalJobError, UserError
from penstock.model.ids import CheckpointId
from penstock.model.specs import Connector
from penstock.storage import flush_folder, make_folders

STAGING = Path("_penstock") / "staging"
STAGED_SUFFIX = ".staged"


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
        self._staging = self._out / STAGING / file_name(context.job) / file_name(context.uid)
        self._gathered = GatheredRows(options.get("roll_bytes", ROLL_BYTES))
        self._staged: list[StagedFile] = []
        self._numbers = itertools.count()

    def write(self, frame: pl.DataFrame) -> None:
        """Keep rows; write a staged file when there are enough."""
        if self._gathered.add(frame):
            self._staged += self._stage_rows(self._gathered.take())

    def prepare(self, checkpoint: CheckpointId) -> base.Stage | None:
        """What is staged already, and the rows that are yet to be."""
        rows, staged, self._staged = self._gathered.take(), self._staged, []
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
        self._gathered.take()

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
        for folder, part in partitions(rows, self._partition_by):
            name = f"{self._context.subtask.index}-{self._context.attempt}-{next(self._numbers)}{STAGED_SUFFIX}"
            with (self._staging / name).open("wb") as file:
                self._output.write(part, file, self._options)
                file.flush()
                os.fsync(file.fileno())
            staged.append(StagedFile(name, folder))
        return staged

    def _part_name(self, checkpoint: CheckpointId, number: int) -> str:
        return f"{part_prefix(self._context)}-{checkpoint}-{number}{self._output.suffix}"

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


def _lost(staged: Path, target: Path) -> FatalJobError:
    return FatalJobError(
        "S010",
        f"a checkpoint holds rows in {staged}, but neither it nor {target} exists: somebody removed it",
        fix=f"bring one of the two files back; never clean {STAGING} while a job may go on",
    )
