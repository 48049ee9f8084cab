"""FlowSavepoints: taken when they are created, kept as a catalogue, removed as they say, made by schedules.

A savepoint is named by the uid of its object, so that however often it is asked for, one is taken.
"""

import logging
from collections.abc import Mapping
from datetime import datetime, timedelta
from typing import Any, Final

from penstock_operator import names, observe
from penstock_operator.border import Read, due_savepoint, place_of, savepoint_folder
from penstock_operator.cache import Body, Cache
from penstock_operator.deciding.facts import EngineSavepoint
from penstock_operator.engine import EngineRefusedError, Engines
from penstock_operator.failures import pod_problem
from penstock_operator.kube import ApiError, ConflictError, Kube
from penstock_operator.moments import elapsed, moment_of, seconds_of, text_of
from penstock_operator.resources import runs
from penstock_operator.resources.pods import Owner
from penstock_operator.spec.flowjob import FlowJobSpec
from penstock_operator.spec.flowsavepoint import FlowSavepointSpec, FlowSavepointStatus
from penstock_operator.spec.status import Condition, FlowJobStatus

logger = logging.getLogger(__name__)

TERMINAL: Final = frozenset({"Completed", "Failed"})
_ACCESS: Final = ("image", "imagePullPolicy", "imagePullSecrets", "serviceAccountName", "env", "envFrom")
_DEFAULT_COUNT: Final = 10
_REMOVAL_SECONDS: Final = 300.0
"""A store that does not answer must not keep an object from being deleted for ever."""


class SavepointKeeper:
    """All FlowSavepoints."""

    def __init__(self, kube: Kube, engines: Engines, cache: Cache, *, default_image: str) -> None:
        self._kube, self._engines, self._cache = kube, engines, cache
        self._default_image = default_image

    def places(self, namespace: str) -> dict[str, str]:
        """Name of a complete one -> where it is."""
        return {
            body["metadata"]["name"]: body["status"]["location"]
            for body in self._cache.all(names.FLOWSAVEPOINT, namespace)
            if (body.get("status") or {}).get("phase") == "Completed"
        }

    async def look(self, body: Body, now: datetime) -> float | None:
        """One FlowSavepoint."""
        spec = FlowSavepointSpec.model_validate(body["spec"])
        status = FlowSavepointStatus.model_validate(body.get("status") or {})
        if body["metadata"].get("deletionTimestamp"):
            return await self._delete(body, spec, status, now)
        if spec.deletion_policy == "Delete" and names.FINALIZER not in (body["metadata"].get("finalizers") or ()):
            await self._finalizer(body, wanted=True)
            return 0.0
        if status.phase in TERMINAL:
            return None
        if spec.existing is not None:
            new, seconds = await self._verify(body, spec, status, now)
        else:
            new, seconds = await self._take(body, spec, status, now)
        if new != status:
            await self._write(body, new)
        if new.phase in TERMINAL:
            return None
        return seconds

    async def schedule(self, read: Read, body: Body, now: datetime) -> str:
        """Ask for the savepoint that is due, and let those go that are no longer kept; the time that it is of."""
        created = body["metadata"]["creationTimestamp"]
        due = due_savepoint(read.spec, created, now)
        desired = read.desired
        if not due:
            return ""
        own = [
            each
            for each in self._cache.all(names.FLOWSAVEPOINT, desired.namespace)
            if (each["metadata"].get("labels") or {}).get(names.SCHEDULED_LABEL) == desired.name
        ]
        name = f"{desired.name}-{moment_of(due):%Y%m%d%H%M}"
        asked = due == read.status.last_scheduled_savepoint or any(each["metadata"]["name"] == name for each in own)
        if not asked and read.status.phase == "Running":
            await self._ask_for(desired.namespace, desired.name, name)
            asked = True
        for old in expired(own, read.spec, now):
            await self._kube.delete(names.FLOWSAVEPOINT, desired.namespace, old)
        return due if asked else ""

    async def _ask_for(self, namespace: str, job: str, name: str) -> None:
        manifest = {
            "apiVersion": names.API_VERSION,
            "kind": names.FLOWSAVEPOINT,
            "metadata": {"name": name, "namespace": namespace, "labels": {names.SCHEDULED_LABEL: job}},
            "spec": {"jobRef": {"name": job}, "deletionPolicy": "Delete"},
        }
        try:
            self._cache.put(names.FLOWSAVEPOINT, await self._kube.create(manifest))
        except ConflictError:
            return

    async def _take(
        self, body: Body, spec: FlowSavepointSpec, status: FlowSavepointStatus, now: datetime
    ) -> tuple[FlowSavepointStatus, float]:
        meta = body["metadata"]
        started = status.started_at or meta["creationTimestamp"]
        if elapsed(meta["creationTimestamp"], now) > seconds_of(spec.timeout or "10m"):
            return self._failed(body, status, now, status.message or "it took longer than spec.timeout"), 0.0
        job = self._cache.get(names.FLOWJOB, meta["namespace"], spec.job_ref.name)
        if job is None:
            return self._waits(body, status, now, f"there is no FlowJob {spec.job_ref.name}"), 5.0
        memory = FlowJobStatus.model_validate(job.get("status") or {})
        job_id = status.job_id or (memory.job.id if memory.job else None)
        if job_id is None:
            return self._waits(body, status, now, f"FlowJob {spec.job_ref.name} has not started yet"), 2.0
        found = await self._engines.look(
            observe.jobmanager_addresses(self._cache, meta["namespace"], spec.job_ref.name), job_id
        )
        if found is None:
            return self._waits(body, status, now, "no JobManager answers"), 2.0
        address, engine = found
        name = f"{spec.job_ref.name[:40]}-{meta['uid'][:8]}"
        taken = engine.savepoint(name)
        if taken is not None and taken.status == "failed":
            return self._failed(body, status, now, taken.reason), 0.0
        if taken is not None and taken.status == "completed":
            return self._completed(body, status, job, taken, now), 0.0
        running = engine.job(job_id)
        if taken is None and (running is None or running.state != "running"):
            what = running.state if running is not None else "unknown to its JobManager"
            if running is not None and running.ended:
                return self._failed(body, status, now, f"job {job_id} is {what}"), 0.0
            return self._waits(body, status, now, f"job {job_id} is {what}"), 2.0
        updates: dict[str, Any] = {
            "job_id": job_id,
            "started_at": status.started_at or text_of(now),
            "access": {key: job["spec"][key] for key in _ACCESS if key in job["spec"]},
        }
        status = status.model_copy(update=updates)
        if taken is None:
            # Written down first: whoever comes after asks the same job, under the same name.
            status = self._state(body, status, now, "Taking", "")
            await self._write(body, status)
            job_spec = FlowJobSpec.model_validate(job["spec"])
            folder = spec.location or savepoint_folder(job_spec)
            try:
                await self._engines.take_savepoint(address, job_id, name=name, folder=folder, stop=False)
            except EngineRefusedError as error:
                return self._waits(body, status, now, str(error)), 2.0
            return status, 1.0
        progress = f"{taken.acknowledged} of {taken.subtasks} subtasks" if taken.subtasks else None
        took = elapsed(started, now)
        return self._state(body, status.model_copy(update={"progress": progress}), now, "Taking", ""), min(
            1.0 + took / 10, 5.0
        )

    def _completed(
        self, body: Body, status: FlowSavepointStatus, job: Body, taken: EngineSavepoint, now: datetime
    ) -> FlowSavepointStatus:
        done = status.model_copy(
            update={
                "location": taken.uri,
                "checkpoint": taken.checkpoint,
                "size": taken.size,
                "size_text": size_text(taken.size),
                "checksum": taken.sha256,
                "key_groups": job["spec"].get("maxParallelism", 128),
                "completed_at": text_of(now),
                "progress": None,
            }
        )
        return self._state(body, done, now, "Completed", "")

    async def _verify(
        self, body: Body, spec: FlowSavepointSpec, status: FlowSavepointStatus, now: datetime
    ) -> tuple[FlowSavepointStatus, float]:
        """An existing one is looked at by the image of its job, which must be there for that."""
        assert spec.existing is not None
        meta = body["metadata"]
        job = self._cache.get(names.FLOWJOB, meta["namespace"], spec.job_ref.name)
        if job is None:
            what = f"there is no FlowJob {spec.job_ref.name}: its image and rights are needed to look"
            return self._waits(body, status, now, what), 5.0
        access = {key: job["spec"][key] for key in _ACCESS if key in job["spec"]}
        status = status.model_copy(update={"access": access, "started_at": status.started_at or text_of(now)})
        run = self._cache.get("Job", meta["namespace"], f"{meta['name']}-verify")
        if run is None:
            status = self._state(body, status, now, "Verifying", "")
            owner = self._owner(body)
            await self._create(runs.verification(owner, _spec_of(access), "verify", "verify", place_of(spec.existing)))
            return status, 2.0
        ended, words = self._run_state(body, run)
        if ended is None:
            return self._state(body, status, now, "Verifying", words), 2.0
        if not ended:
            return self._failed(body, status, now, words), 0.0
        done = status.model_copy(update={"location": place_of(spec.existing), "completed_at": text_of(now)})
        return self._state(body, done, now, "Completed", ""), 0.0

    async def _delete(
        self, body: Body, spec: FlowSavepointSpec, status: FlowSavepointStatus, now: datetime
    ) -> float | None:
        meta = body["metadata"]
        if names.FINALIZER not in (meta.get("finalizers") or ()):
            return None
        late = elapsed(meta["deletionTimestamp"], now) > _REMOVAL_SECONDS
        forced = names.FORCE_DELETE_ANNOTATION in (meta.get("annotations") or {})
        if spec.deletion_policy != "Delete" or status.location is None or late or forced:
            if late:
                logger.warning("savepoint left behind", extra={"object": meta["name"], "location": status.location})
            await self._finalizer(body, wanted=False)
            return None
        run = self._cache.get("Job", meta["namespace"], f"{meta['name']}-remove")
        if run is None:
            spec_of_job = _spec_of(status.access or {})
            await self._create(runs.removal(self._owner(body), spec_of_job, "remove", "remove", status.location))
            return 2.0
        ended, words = self._run_state(body, run)
        if ended is None:
            return 2.0
        if not ended and "S001" not in words:
            return 10.0
        await self._finalizer(body, wanted=False)
        return None

    def _run_state(self, body: Body, run: Body) -> tuple[bool | None, str]:
        meta = body["metadata"]
        pods = self._cache.children("Pod", meta["namespace"], meta["name"])
        found = observe.run_of(run, meta["name"], pods)
        if found is None or found.state == "active":
            problem = next(filter(None, map(pod_problem, pods)), None)
            return None, problem.text if problem is not None else ""
        return found.state == "succeeded", found.message

    def _owner(self, body: Body) -> Owner:
        meta = body["metadata"]
        return Owner(
            namespace=meta["namespace"],
            name=meta["name"],
            uid=meta["uid"],
            default_image=self._default_image,
            kind=names.FLOWSAVEPOINT,
        )

    async def _create(self, manifest: Mapping[str, Any]) -> None:
        try:
            self._cache.put("Job", await self._kube.create(manifest))
        except ApiError as error:
            if error.reason != "AlreadyExists":
                raise

    def _waits(self, body: Body, status: FlowSavepointStatus, now: datetime, what: str) -> FlowSavepointStatus:
        return self._state(body, status, now, "Pending" if status.phase != "Taking" else "Taking", f"waits: {what}")

    def _failed(self, body: Body, status: FlowSavepointStatus, now: datetime, what: str) -> FlowSavepointStatus:
        return self._state(body, status, now, "Failed", what)

    def _state(
        self, body: Body, status: FlowSavepointStatus, now: datetime, phase: str, message: str
    ) -> FlowSavepointStatus:
        generation = body["metadata"]["generation"]
        truths = {
            "Ready": "True" if phase == "Completed" else "False",
            "Reconciling": "False" if phase in TERMINAL else "True",
            "Stalled": "True" if phase == "Failed" else "False",
        }
        before = {condition.type: condition for condition in status.conditions}
        conditions = []
        for name, truth in truths.items():
            same = before.get(name)
            kept = same.last_transition_time if same is not None and same.status == truth else None
            conditions.append(
                Condition(
                    type=name,
                    status=truth,
                    reason=phase,
                    message=message[:1000],
                    observed_generation=generation,
                    last_transition_time=kept or text_of(now),
                )
            )
        return status.model_copy(
            update={
                "observed_generation": generation,
                "phase": phase,
                "message": message[:1000] or None,
                "conditions": tuple(conditions),
            }
        )

    async def _write(self, body: Body, status: FlowSavepointStatus) -> None:
        fresh = self._cache.get(names.FLOWSAVEPOINT, body["metadata"]["namespace"], body["metadata"]["name"]) or body
        whole = {**fresh, "apiVersion": names.API_VERSION, "kind": names.FLOWSAVEPOINT}
        whole["status"] = status.model_dump(exclude_none=True)
        self._cache.put(names.FLOWSAVEPOINT, await self._kube.put_status(whole))

    async def _finalizer(self, body: Body, *, wanted: bool) -> None:
        meta = body["metadata"]
        rest = [each for each in meta.get("finalizers") or () if each != names.FINALIZER]
        finalizers = [*rest, names.FINALIZER] if wanted else rest
        changes = {"metadata": {"finalizers": finalizers, "resourceVersion": meta["resourceVersion"]}}
        answer = await self._kube.patch(names.FLOWSAVEPOINT, meta["namespace"], meta["name"], changes)
        self._cache.put(names.FLOWSAVEPOINT, answer)


def expired(own: list[Body], spec: FlowJobSpec, now: datetime) -> list[str]:
    """Names of those of the schedule that are no longer kept; never the newest that is whole."""
    retain = spec.savepoints.retain if spec.savepoints is not None else None
    count = (retain and retain.count) or _DEFAULT_COUNT
    age = timedelta(seconds=seconds_of(retain.age)) if retain is not None and retain.age else None
    whole = [each for each in own if (each.get("status") or {}).get("phase") == "Completed"]
    failed = [each for each in own if (each.get("status") or {}).get("phase") == "Failed"]
    whole.sort(key=lambda each: str(each["metadata"]["creationTimestamp"]), reverse=True)
    gone = [each["metadata"]["name"] for each in whole[count:]]
    if age is not None:
        old = (each for each in whole[1:count] if now - moment_of(each["metadata"]["creationTimestamp"]) > age)
        gone += [each["metadata"]["name"] for each in old]
    # What has failed is kept until there is a newer one that has not.
    newest = str(whole[0]["metadata"]["creationTimestamp"]) if whole else ""
    return gone + [each["metadata"]["name"] for each in failed if str(each["metadata"]["creationTimestamp"]) < newest]


def size_text(size: int) -> str:
    """For a column."""
    value, unit = float(size), "B"
    for unit in ("B", "KiB", "MiB", "GiB", "TiB"):
        if value < 1024 or unit == "TiB":
            break
        value /= 1024
    return f"{value:.0f} {unit}" if unit == "B" else f"{value:.1f} {unit}"


def _spec_of(access: Mapping[str, Any]) -> FlowJobSpec:
    """Enough of a spec to make a pod that reaches the store."""
    return FlowJobSpec.model_validate({"entrypoint": "-", **access})
