"""From a savepoint to the first checkpoint of a new job: its tables, checked and copied, and where they lie.

The copies are the new job's own: the savepoint may be removed as soon as the job is submitted. Every object is
compared with its size and SHA-256 before anything is started.
"""

import msgspec
import polars as pl

from penstock.checkpoint import canonical, shared_objects
from penstock.model import schemas
from penstock.model.errors import FatalJobError, UserError
from penstock.model.handles import Manifest, Redistribution, SectionHandle, StateHandle
from penstock.model.ids import CheckpointId, SubtaskId, VertexId
from penstock.operators.base import Section
from penstock.savepoints import evolution
from penstock.savepoints.checks import Report, StatePlan, value_type_of
from penstock.savepoints.manifest import SavedTable, SavepointManifest, section
from penstock.savepoints.writing import table_handle
from penstock.state.key_groups import KEY_GROUP, sort_by_group
from penstock.storage import ObjectStore


def adopt(
    savepoint: ObjectStore,
    manifest: SavepointManifest,
    report: Report,
    target: ObjectStore,
    *,
    max_parallelism: int,
) -> Manifest:
    """Copy what `report` restores into `target`, evolved where it has to be. The report refuses nothing."""
    report.require(savepoint.uri)
    handles: list[StateHandle] = []
    for plan in report.plans:
        for table in plan.saved.tables:
            data = verified(savepoint, table)
            path = f"restored/savepoint/{len(handles):06d}.parquet"
            handle = _copied(plan, table, path)
            if plan.rewritten:
                data, handle = _rewritten(plan, data, path, max_parallelism)
            target.put(path, data)
            subtask = SubtaskId(VertexId(plan.uid), len(handles))
            handles.append(StateHandle(subtask=subtask, path="", size=0, sha256="", sections=(handle,)))
    return Manifest(
        checkpoint=CheckpointId(manifest.lineage.checkpoint or 1),
        kind="savepoint",
        parallelism={operator.uid: operator.parallelism for operator in manifest.operators},
        max_parallelism=max_parallelism,
        triggered_us=manifest.triggered_us,
        completed_us=manifest.created_us,
        handles=tuple(handles),
    )


def verified(savepoint: ObjectStore, table: SavedTable) -> bytes:
    """The bytes of a table; S002 with its name when they are not those that were written."""
    try:
        return shared_objects.verified(savepoint, table.path, table.size, table.sha256)
    except FatalJobError as error:
        raise UserError(
            "S002",
            error.what,
            where=savepoint.uri,
            fix="put the object back from a copy, or name another savepoint: penstock savepoints ls",
        ) from error


def _copied(plan: StatePlan, table: SavedTable, path: str) -> SectionHandle:
    found = section(plan.saved, table)
    return msgspec.structs.replace(found, uid=plan.uid, state=plan.state, path=path)


def _rewritten(plan: StatePlan, data: bytes, path: str, max_parallelism: int) -> tuple[bytes, SectionHandle]:
    saved = plan.saved
    frame = canonical.from_table(canonical.decode(data, saved.columns), saved.columns, saved.form)
    if plan.recut and saved.redistribution is not Redistribution.KEYED:
        frame = _progress_of_all(plan, frame, max_parallelism)
    elif plan.recut:
        keys = [each.internal or each.name for each in saved.columns if each.role == canonical.KEY]
        frame = sort_by_group(frame.drop(KEY_GROUP), keys, max_parallelism)
    if plan.rules is not None:
        frame = _with_new_values(plan, frame)
    table, columns, form = canonical.to_table(plan.spec, Section(plan.state, saved.redistribution, frame))
    groups = range(0)
    if saved.redistribution is Redistribution.KEYED:
        held = table.get_column(KEY_GROUP)
        groups = range(int(held[0]), int(held[-1]) + 1)
    made = canonical.encode(table)
    handle = table_handle(plan.uid, plan.state, saved.redistribution, path, made, table.height, groups, columns, form)
    return made, handle


def _with_new_values(plan: StatePlan, frame: pl.DataFrame) -> pl.DataFrame:
    field = canonical.declared(plan.spec, plan.state)
    assert field is not None
    assert plan.rules is not None
    old, new = (schemas.type_from_text(text) for text in (value_type_of(plan.saved), field.type))
    (name,) = (each.internal or each.name for each in plan.saved.columns if each.role == canonical.VALUE)
    return frame.with_columns(evolution.converted(pl.col(name), old, new, plan.rules).alias(name))


def _progress_of_all(plan: StatePlan, frame: pl.DataFrame, max_parallelism: int) -> pl.DataFrame:
    """How far subtasks had come, for ranges of key groups that are cut anew: they must have come as far."""
    reached = frame.get_column("watermark").unique()
    if len(reached) > 1:
        raise UserError(
            "S009",
            f"{plan.saved.name}: subtasks had come more or less far, so that key groups cannot be computed anew",
            fix="keep the max_parallelism of the savepoint",
        )
    whole = frame.head(1).with_columns(
        pl.lit(0, frame.schema["first_group"]).alias("first_group"),
        pl.lit(max_parallelism, frame.schema["end_group"]).alias("end_group"),
    )
    return whole.select(frame.columns)
