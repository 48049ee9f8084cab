"""Files in a bucket as a sink, in two phases.

A file is staged as an upload that is not completed: it is in the store, whole, and in no listing. Committing
completes the upload, which shows it at once, and can be repeated by anybody. Files are called

    <out>/[column=value/...]part-<job>-<uid>-<subtask>-<attempt>-<mark>-<number>.<suffix>

where the mark is drawn by each subtask when it begins: after a rescale of a running job another one may have the same
number and the same attempt.

Not every store lists the uploads below a folder, some answer for one whole path only. So whoever stages files leaves
a note of their paths first, `<out>/_penstock/staging/<job>/<uid>/<subtask>-<attempt>-<mark>-<number>.json`, and
removes it after the commit. The notes of older attempts tell the next one what to discard.

Invariant: only what lower attempts of the same job, uid and subtask have staged is ever discarded, and only after
everything that the checkpoint holds is shown.
"""

import contextlib
import io
import itertools
import secrets
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import Any

import msgspec
import polars as pl

from penstock.connectors import base
from penstock.connectors.file_formats import OutputFormat
from penstock.connectors.gathering import ROLL_BYTES, GatheredRows, file_name, part_prefix, partitions
from penstock.model.errors import FatalJobError, RetryableError
from penstock.model.ids import CheckpointId
from penstock.model.specs import Connector
from penstock.storage import UploadStore, open_uploads

STAGING = "_penstock/staging"
_PARALLEL = 8
"""Requests at once. A commit keeps the slot from its rows, and takes as long as its slowest file."""


class StagingNote(msgspec.Struct, frozen=True, kw_only=True):
    """What a subtask is about to stage."""

    paths: tuple[str, ...]


class _Staged(msgspec.Struct, frozen=True):
    """An upload that is whole."""

    target: str
    staged: str
    note: str


class ObjectSink:
    """Task side of the file sinks in a bucket, for one subtask."""

    def __init__(self, output: OutputFormat, connector: Connector, context: base.SinkContext) -> None:
        options = connector.options
        self._store: UploadStore = open_uploads(options["directory"])
        self._output, self._options, self._context = output, options, context
        self._partition_by: list[str] = options.get("partition_by") or []
        self._notes = f"{STAGING}/{file_name(context.job)}/{file_name(context.uid)}/"
        self._gathered = GatheredRows(options.get("roll_bytes", ROLL_BYTES))
        self._staged: list[_Staged] = []
        self._mark = secrets.token_hex(4)
        self._numbers = itertools.count()
        self._note_numbers = itertools.count()

    def write(self, frame: pl.DataFrame) -> None:
        """Keep rows; stage a file when there are enough."""
        if self._gathered.add(frame):
            self._staged += self._stage_rows(self._gathered.take())

    def prepare(self, checkpoint: CheckpointId) -> base.Stage | None:
        """What is staged already, and the rows that are yet to be."""
        rows, staged, self._staged = self._gathered.take(), self._staged, []
        return partial(self._stage, rows, staged) if rows or staged else None

    def commit(self, committables: list[dict[str, Any]]) -> None:
        """Show what was staged; what was shown before stays as it is."""
        found = [msgspec.convert(each, _Staged) for each in committables]
        with ThreadPoolExecutor(_PARALLEL, thread_name_prefix="publish") as pool:
            shown = list(pool.map(lambda each: self._store.publish(each.target, each.staged), found))
            lost = next((each for each, there in zip(found, shown, strict=True) if not there), None)
            if lost is not None:
                raise _lost(f"{self._store.uri.partition('?')[0]}/{lost.target}")
            list(pool.map(self._store.delete, {each.note for each in found}))

    def recover(self, committables: list[dict[str, Any]]) -> None:
        """Commit what the checkpoint holds, then discard what older attempts of this subtask left behind."""
        self.commit(committables)
        for note in list(self._abandoned()):
            discard(self._store, note)

    def close(self) -> None:
        """Staged rows are abandoned: the next attempt discards them."""
        self._gathered.take()

    def _stage(self, rows: list[pl.DataFrame], staged: list[_Staged]) -> list[dict[str, Any]]:
        files = [*staged, *self._stage_rows(rows)]
        return [msgspec.to_builtins(file) for file in files]

    def _stage_rows(self, gathered: list[pl.DataFrame]) -> list[_Staged]:
        """Write what was gathered, a file for each partition."""
        if not gathered:
            return []
        rows = gathered[0] if len(gathered) == 1 else pl.concat(gathered)
        parts = [
            (f"{folder}{part_prefix(self._context)}-{self._mark}-{next(self._numbers)}{self._output.suffix}", part)
            for folder, part in partitions(rows, self._partition_by)
        ]
        context = self._context
        own = f"{context.subtask.index}-{context.attempt}-{self._mark}"
        note = f"{self._notes}{own}-{next(self._note_numbers)}.json"
        self._store.put(note, msgspec.json.encode(StagingNote(paths=tuple(path for path, _ in parts))))
        try:
            return [_Staged(path, self._store.stage(path, self._encoded(part)), note) for path, part in parts]
        except RetryableError:
            # It will be called again, for other paths.
            with contextlib.suppress(RetryableError):
                discard(self._store, note)
            raise

    def _encoded(self, rows: pl.DataFrame) -> bytes:
        file = io.BytesIO()
        self._output.write(rows, file, self._options)
        return file.getvalue()

    def _abandoned(self) -> Iterator[str]:
        for found in self._store.list(self._notes):
            subtask, attempt, *_ = found.path.removeprefix(self._notes).split("-")
            if int(subtask) == self._context.subtask.index and int(attempt) < self._context.attempt:
                yield found.path


def discard(store: UploadStore, note: str) -> int:
    """Discard what a note speaks of, and the note itself. Gives how many uploads that were."""
    data, count = store.get(note), 0
    for path in msgspec.json.decode(data, type=StagingNote).paths if data is not None else ():
        for upload in store.unfinished(path):
            if upload.path == path:
                store.discard(upload)
                count += 1
    store.delete(note)
    return count


def _lost(target: str) -> FatalJobError:
    return FatalJobError(
        "S010",
        f"a checkpoint holds rows that were staged for {target}, and the store has them no more",
        fix="put the file there from a copy, or start from an older checkpoint; "
        "rules of the bucket must keep unfinished uploads for as long as a job may be down",
    )
