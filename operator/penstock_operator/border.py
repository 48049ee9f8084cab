"""From a FlowJob as the API server holds it to what the controller decides upon: defaults in place, checked.

All defaults are here or in `resources`, none in the stored object.
"""

import hashlib
import json
import zoneinfo
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any, Final

from cronsim import CronSim, CronSimError
from pydantic import ValidationError

from penstock_operator import names
from penstock_operator.deciding.facts import Desired, Problem
from penstock_operator.moments import moment_of, seconds_of, text_of
from penstock_operator.spec.flowjob import FlowJobSpec
from penstock_operator.spec.status import FlowJobStatus
from penstock_operator.templates import template_problem

REVISION_FIELDS: Final = (
    "image",
    "imagePullPolicy",
    "imagePullSecrets",
    "serviceAccountName",
    "entrypoint",
    "args",
    "env",
    "envFrom",
    "program",
    "maxParallelism",
    "settings",
    "checkpoints",
    "jobManager",
    "taskManager",
)
"""What pods and program are made of. Only what the user wrote counts, so another controller version, with other
defaults, sees no change."""

_LOOK_BACK_DAYS: Final = 400


@dataclass(frozen=True, slots=True)
class Read:
    """A FlowJob that was read."""

    desired: Desired
    spec: FlowJobSpec
    status: FlowJobStatus


def read(
    body: Mapping[str, Any],
    now: datetime,
    *,
    savepoints: Mapping[str, str],
    storages: Mapping[str, str],
) -> Read:
    """`savepoints`: name of a complete FlowSavepoint -> its place. `storages`: place -> the FlowJob that has it."""
    meta, raw = body["metadata"], body.get("spec") or {}
    annotations = meta.get("annotations") or {}
    status = FlowJobStatus.model_validate(body.get("status") or {})
    invalid: Problem | None = None
    try:
        spec = FlowJobSpec.model_validate(raw)
    except ValidationError as error:
        first = error.errors()[0]
        place = ".".join(str(part) for part in ("spec", *first["loc"]))
        invalid = Problem(reason="InvalidSpec", message=f"M013 {place}: {first['msg']}", fix="correct the field")
        spec = FlowJobSpec.model_construct(entrypoint="?")
    invalid = invalid or _first_problem(spec, meta["name"], storages)
    savepoint_spec, upgrade, batch, rollout = spec.savepoints, spec.upgrade, spec.batch, spec.rollout
    restore, origin = _restore(spec, savepoints)
    desired = Desired(
        namespace=meta["namespace"],
        name=meta["name"],
        uid=meta["uid"],
        generation=meta["generation"],
        revision=revision_of(raw, annotations),
        parallelism=spec.parallelism or 1,
        suspended=spec.state == "suspended",
        batch=spec.mode == "batch",
        upgrade_mode=(upgrade and upgrade.mode) or "savepoint",
        restore_check=not (upgrade and upgrade.restore_check is False),
        restore=restore,
        restore_origin=origin,
        storage=storage_of(spec),
        savepoint_on_delete=bool(savepoint_spec and savepoint_spec.on_delete == "Take"),
        delete_seconds=_seconds(savepoint_spec.delete_timeout if savepoint_spec else None, 300),
        rollout_seconds=_seconds(rollout.timeout if rollout else None, 600),
        rollback=not (rollout and rollout.rollback is False),
        retries=(batch and batch.retries) or 0,
        ttl_seconds=batch.ttl_seconds_after_finished if batch else None,
        replace_runs=bool(batch and batch.concurrency_policy == "Replace"),
        deleted_at=meta.get("deletionTimestamp"),
        finalizer=names.FINALIZER in (meta.get("finalizers") or ()),
        force_delete=names.FORCE_DELETE_ANNOTATION in annotations,
        paused=annotations.get(names.PAUSE_ANNOTATION, "false") != "false",
        invalid=invalid,
        due_run="" if invalid or not batch else _due(batch.schedule, batch.time_zone, meta["creationTimestamp"], now),
    )
    return Read(desired, spec, status)


def revision_of(raw: Mapping[str, Any], annotations: Mapping[str, str]) -> str:
    """Ten hex digits for image, program and settings as they are written."""
    content = {name: raw[name] for name in REVISION_FIELDS if raw.get(name) is not None}
    if restart := annotations.get(names.RESTART_ANNOTATION):
        content["restart"] = restart
    return hashlib.sha256(json.dumps(content, sort_keys=True).encode()).hexdigest()[:10]


def storage_of(spec: FlowJobSpec) -> str:
    """Where journal and state are."""
    return place_of((spec.checkpoints and spec.checkpoints.storage) or "")


def savepoint_folder(spec: FlowJobSpec) -> str:
    """Where savepoints get a folder each."""
    given = spec.savepoints and spec.savepoints.location
    return place_of(given) if given else below(storage_of(spec), "savepoints")


def place_of(text: str) -> str:
    """A place without a slash at its end; `?endpoint=...` stays."""
    place, mark, query = text.partition("?")
    return place.rstrip("/") + mark + query


def below(place: str, name: str) -> str:
    """A folder in a place."""
    path, mark, query = place.partition("?")
    return f"{path}/{name}{mark}{query}"


def due_savepoint(spec: FlowJobSpec, created: str, now: datetime) -> str:
    """The latest time of the savepoint schedule that has come; empty: none."""
    if spec.savepoints is None:
        return ""
    return _due(spec.savepoints.schedule, spec.savepoints.time_zone, created, now)


def _due(schedule: str | None, zone: str | None, since: str, now: datetime) -> str:
    if not schedule:
        return ""
    local = now.astimezone(zoneinfo.ZoneInfo(zone or "UTC"))
    last = next(CronSim(schedule, local, reverse=True), None)
    if last is None or last < moment_of(since) or (local - last).days > _LOOK_BACK_DAYS:
        return ""
    return text_of(last.astimezone(UTC))


def _restore(spec: FlowJobSpec, savepoints: Mapping[str, str]) -> tuple[str, str]:
    if spec.restore is None:
        return "", ""
    origin = spec.restore.from_
    if origin.savepoint_ref:
        return f"savepoint {origin.savepoint_ref}", savepoints.get(origin.savepoint_ref, "")
    place = origin.path or origin.checkpoint or ""
    return place, place_of(place)


def _seconds(duration: str | None, default: float) -> float:
    try:
        return seconds_of(duration) if duration else default
    except ValueError:
        return default


def _first_problem(spec: FlowJobSpec, name: str, storages: Mapping[str, str]) -> Problem | None:
    """What no rule of the API server can see."""
    storage = storage_of(spec)
    if not storage:
        return Problem(
            reason="InvalidSpec",
            message="M007 spec.checkpoints.storage is needed",
            fix="give a place of the job's own, such as s3://bucket/folder",
        )
    for place, owner in storages.items():
        if owner != name and _overlap(storage, place):
            return Problem(
                reason="StorageInUse",
                message=f"M014 spec.checkpoints.storage {storage} is in use by FlowJob {owner}, which is older",
                fix="give this job a place of its own",
            )
    for path, template in (("jobManager", spec.job_manager), ("taskManager", spec.task_manager)):
        if template is not None and template.pod_template is not None:
            problem = template_problem(template.pod_template, f"spec.{path}.podTemplate")
            if problem is not None:
                return problem
    for path, part in (("spec.savepoints", spec.savepoints), ("spec.batch", spec.batch)):
        if part is not None:
            problem = _schedule_problem(path, part.schedule or "", part.time_zone or "UTC")
            if problem is not None:
                return problem
    return None


def _overlap(one: str, other: str) -> bool:
    first, second = (place.partition("?")[0] + "/" for place in (one, other))
    return first.startswith(second) or second.startswith(first)


def _schedule_problem(path: str, schedule: str, zone: str) -> Problem | None:
    try:
        zoneinfo.ZoneInfo(zone)
    except (zoneinfo.ZoneInfoNotFoundError, ValueError):
        return Problem(
            reason="InvalidSpec",
            message=f'M015 {path}.timeZone: there is no time zone "{zone}"',
            fix="write a name such as Europe/Berlin, or UTC",
        )
    if not schedule:
        return None
    try:
        CronSim(schedule, datetime(2026, 1, 1, tzinfo=UTC))
    except CronSimError as error:
        return Problem(
            reason="InvalidSpec",
            message=f'M015 {path}.schedule: "{schedule}": {error}',
            fix='write five fields, such as "0 */6 * * *" for every six hours',
        )
    return None
