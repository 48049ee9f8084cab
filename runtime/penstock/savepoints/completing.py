"""The last step of a savepoint: when every subtask has written its tables, `manifest.json` is written over them."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import msgspec
import polars as pl

from penstock.checkpoint import canonical, shared_objects
from penstock.config import installed_versions
from penstock.graph import JobGraph
from penstock.model import specs
from penstock.model.clocks import MIN_WATERMARK
from penstock.model.errors import RetryableError, UserError
from penstock.model.handles import SectionHandle
from penstock.model.ids import CheckpointId, JobId, Uid
from penstock.savepoints.manifest import (
    FORMAT,
    MANIFEST,
    Lineage,
    SavedOperator,
    SavepointManifest,
    encode,
    gathered,
)
from penstock.savepoints.shapes import operators_of, shapes, without_code
from penstock.savepoints.writing import STATES
from penstock.storage import ObjectStore, UnknownResultError

_SPLITS, _PROGRESS = "splits", "progress"


@dataclass(frozen=True, slots=True, kw_only=True)
class Taken:
    """A savepoint whose tables are all there."""

    uri: str
    job: JobId
    graph: JobGraph
    checkpoint: CheckpointId | None
    stops: bool
    triggered_us: int
    now_us: int
    restored_from: str
    tables: Sequence[SectionHandle]


def complete(store: ObjectStore, taken: Taken) -> SavepointManifest:
    """Write the manifest, by conditional create; then remove what other tries have left in the folder.

    In this order: whoever writes this may have been replaced, and not know it, while another JobManager took the
    savepoint again, into the same folder. The one manifest decides whose tables stay. Tables that garbage
    collection has removed by now are found missing here: before this point it claims the folder, and after it nothing
    is removed that the manifest names.
    """
    manifest = make_manifest(store, taken)
    data = encode(manifest)
    try:
        created = store.create(MANIFEST, data)
    except UnknownResultError as error:
        found = store.get(MANIFEST)
        if found is None:
            raise RetryableError(error.code, error.what, where=error.where) from error
        created = found == data
    if not created and store.get(MANIFEST) != data:
        raise UserError(
            "S021",
            "another savepoint lies there already",
            where=store.uri,
            fix="name another folder; a savepoint is never written over",
        )
    missing = {table.path for table in taken.tables}
    for info in store.list(f"{STATES}/"):
        if info.path not in missing:
            store.delete(info.path)
        missing.discard(info.path)
    if missing:
        # Written long ago, and removed since as garbage, with a claim that has gone as well.
        store.delete(MANIFEST)
        raise UserError(
            "S027",
            f"{min(missing)} is gone: the savepoint took so long that it was taken for garbage",
            where=store.uri,
            fix="take another one, and give `penstock gc` a longer --grace",
        )
    return manifest


def make_manifest(store: ObjectStore, taken: Taken) -> SavepointManifest:
    """What there is to say about it."""
    found = shapes(taken.graph)
    operators = [(operator, parallelism) for operator, parallelism in operators_of(taken.graph)]
    kinds = {(operator.uid, field.name): field.kind for operator, _ in operators for field in _states(operator.spec)}
    return SavepointManifest(
        format=FORMAT,
        job=taken.job,
        job_name=taken.graph.name,
        created_us=taken.now_us,
        triggered_us=taken.triggered_us,
        max_parallelism=taken.graph.max_parallelism,
        size=sum(table.size for table in taken.tables),
        operators=tuple(
            SavedOperator(
                uid=operator.uid,
                name=operator.name,
                kind=type(operator.spec).__name__,
                parallelism=parallelism,
                shape=found[operator.uid],
                states=tuple(msgspec.to_builtins(field) for field in _states(operator.spec)),
            )
            for operator, parallelism in operators
        ),
        states=gathered(taken.tables, kinds),
        sources=_positions(store, taken),
        watermarks=_watermarks(store, taken),
        lineage=Lineage(
            restored_from=taken.restored_from,
            checkpoint=taken.checkpoint,
            stopped=taken.stops,
            versions=installed_versions(),
        ),
        graph=without_code(msgspec.to_builtins(taken.graph)),
    )


def _states(spec: specs.OperatorSpec) -> tuple[specs.StateField, ...]:
    return getattr(spec, "states", ())


def _positions(store: ObjectStore, taken: Taken) -> dict[str, tuple[dict[str, Any], ...]]:
    found: dict[str, tuple[dict[str, Any], ...]] = {}
    for uid, frame in _read(store, taken, _SPLITS):
        rows = frame.select("split", "position", "watermark", "ended").iter_rows(named=True)
        found[uid] = (*found.get(uid, ()), *rows)
    return found


def _watermarks(store: ObjectStore, taken: Taken) -> dict[str, int]:
    found: dict[str, int] = {}
    for state in (_SPLITS, _PROGRESS):
        for uid, frame in _read(store, taken, state):
            reached = [time for time in frame.get_column("watermark").to_list() if time != MIN_WATERMARK]
            if reached:
                found[uid] = min(reached[0] if uid not in found else found[uid], *reached)
    return found


def _read(store: ObjectStore, taken: Taken, state: str) -> Iterator[tuple[Uid, pl.DataFrame]]:
    """Small tables that tell people how far the job had come."""
    for table in taken.tables:
        if table.state == state and "watermark" in {column.name for column in table.columns}:
            data = shared_objects.verified(store, table.path, table.size, table.sha256)
            yield table.uid, canonical.decode(data, table.columns)
