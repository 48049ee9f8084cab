"""The loop: observe, validate, decide, write down, apply, report. Level-triggered; owns no state but caches."""

import asyncio
import logging
import time
from collections.abc import Callable
from datetime import datetime
from typing import Any, Final

from pydantic import ValidationError

from penstock_operator import border, metrics, names, observe
from penstock_operator.apply import Applier
from penstock_operator.cache import Body, Cache
from penstock_operator.deciding.decide import decide
from penstock_operator.deciding.facts import Engine, Problem, Seen
from penstock_operator.deciding.steps import Decision
from penstock_operator.engine import EngineRefusedError, Engines, EngineUnreachableError
from penstock_operator.events import Happened, happened
from penstock_operator.kube import ApiError, ConflictError, Kube, NotFoundError
from penstock_operator.looks import Key, Looks
from penstock_operator.moments import text_of, utc_now
from penstock_operator.report import changed, report
from penstock_operator.resources.pods import Owner
from penstock_operator.savepoints import SavepointKeeper
from penstock_operator.spec.flowjob import FlowJobSpec
from penstock_operator.spec.status import FlowJobStatus, Memory

logger = logging.getLogger(__name__)

WATCHED: Final = (
    "FlowJob",
    "FlowSavepoint",
    "StatefulSet",
    "ControllerRevision",
    "Job",
    "Pod",
    "Service",
    "PodDisruptionBudget",
)
FULL_PASS_SECONDS: Final = 60.0
"""Watching may miss a deletion; a list does not."""
KEPT_REVISIONS: Final = 10
_WORKERS: Final = 8
_BACKOFF: Final = (1.0, 2.0, 5.0, 10.0, 30.0)
_EVENTS_SECONDS: Final = 10.0


class Controller:
    """All FlowJobs and FlowSavepoints of the namespaces that it watches."""

    def __init__(
        self,
        kube: Kube,
        engines: Engines,
        *,
        default_image: str,
        namespaces: tuple[str, ...] = (),
        now: Callable[[], datetime] = utc_now,
    ) -> None:
        self.cache = Cache()
        self.looks = Looks(time.monotonic)
        self.last_full_pass: float | None = None
        self._kube, self._engines, self._now = kube, engines, now
        self._default_image, self._namespaces = default_image, namespaces
        self._applier = Applier(kube, engines, self.cache)
        self._savepoints = SavepointKeeper(kube, engines, self.cache, default_image=default_image)
        self._listed = asyncio.Event()
        self._failures: dict[Key, int] = {}
        self._events_asked: dict[Key, tuple[float, Problem | None]] = {}

    # ------------------------------------------------------------ what is heard

    def heard(self, kind: str, type_: str | None, body: Body) -> None:
        """From a watch."""
        meta = body["metadata"]
        if type_ == "DELETED":
            self.cache.drop(kind, meta["namespace"], meta["name"])
        elif not self.cache.put(kind, body):
            return
        self._ask_about(kind, body)

    def _ask_about(self, kind: str, body: Body) -> None:
        meta = body["metadata"]
        labels = meta.get("labels") or {}
        if kind in {names.FLOWJOB, names.FLOWSAVEPOINT}:
            self.looks.ask(Key(kind, meta["namespace"], meta["name"]))
            if kind == names.FLOWSAVEPOINT and (job := body["spec"].get("jobRef", {}).get("name")):
                self.looks.ask(Key(names.FLOWJOB, meta["namespace"], job))
        elif job := labels.get(names.JOB_LABEL):
            owners = meta.get("ownerReferences") or ()
            kinds = {owner["kind"] for owner in owners} & {names.FLOWSAVEPOINT}
            name = next((owner["name"] for owner in owners if owner["kind"] in kinds), job)
            self.looks.ask(Key(names.FLOWSAVEPOINT if kinds else names.FLOWJOB, meta["namespace"], name))

    async def full_passes(self) -> None:
        """List everything now and then: what watching has missed is found here, and that the API answers."""
        while True:
            try:
                for kind in WATCHED:
                    await self._list(kind)
                self.last_full_pass = time.monotonic()
                self._listed.set()
                metrics.objects.set(len(self.cache.all(names.FLOWJOB)))
            except (ApiError, OSError, TimeoutError) as error:
                logger.warning("full pass cut short", extra={"error": str(error)})
                await asyncio.sleep(2)
                continue
            await asyncio.sleep(FULL_PASS_SECONDS)

    async def _list(self, kind: str) -> None:
        own = kind in {names.FLOWJOB, names.FLOWSAVEPOINT}
        labels = "" if own else names.MANAGED_SELECTOR
        for namespace in self._namespaces or (None,):
            found = await self._kube.list(kind, namespace, labels=labels)
            for gone in self.cache.replace(kind, found, namespace):
                self._ask_about(kind, gone)
            for body in found:
                if own:
                    self._ask_about(kind, body)

    # ------------------------------------------------------------ the loop

    async def run(self) -> None:
        """Until cancelled."""
        async with asyncio.TaskGroup() as tasks:
            tasks.create_task(self.full_passes())
            await self._listed.wait()
            for _ in range(_WORKERS):
                tasks.create_task(self._work())

    async def _work(self) -> None:
        while True:
            key = await self.looks.next()
            started = time.monotonic()
            try:
                seconds = await self._look(key)
                self._failures.pop(key, None)
            except ConflictError:
                # Somebody was faster: read it again.
                seconds = await self._read_again(key)
            except (ApiError, EngineRefusedError, EngineUnreachableError, OSError, TimeoutError) as error:
                seconds = self._back_off(key)
                logger.warning("look cut short", extra={"object": "/".join(key), "error": str(error)[:500]})
                metrics.errors.labels(type(error).__name__).inc()
            except Exception:
                # One object that cannot be handled must not keep the others waiting.
                seconds = self._back_off(key)
                logger.exception("look failed", extra={"object": "/".join(key)})
                metrics.errors.labels("bug").inc()
            finally:
                self.looks.done(key)
            metrics.looks.labels(key.kind).observe(time.monotonic() - started)
            metrics.api_calls.set(self._kube.calls)
            if seconds is not None:
                self.looks.ask(key, after=seconds)

    def _back_off(self, key: Key) -> float:
        count = self._failures[key] = self._failures.get(key, 0) + 1
        return _BACKOFF[min(count, len(_BACKOFF)) - 1]

    async def _read_again(self, key: Key) -> float:
        try:
            self.cache.put(key.kind, await self._kube.get(*key))
        except NotFoundError:
            self.cache.drop(*key)
        except (ApiError, OSError, TimeoutError):
            return 1.0
        return 0.1

    async def _look(self, key: Key) -> float | None:
        body = self.cache.get(*key)
        if body is None:
            self.looks.forget(key)
            return None
        if key.kind == names.FLOWSAVEPOINT:
            return await self._savepoints.look(body, self._now())
        return await self._look_at_job(body)

    async def _look_at_job(self, body: Body) -> float:
        now = self._now()
        meta = body["metadata"]
        namespace, name = meta["namespace"], meta["name"]
        read = border.read(
            body,
            now,
            savepoints=self._savepoints.places(namespace),
            storages=self._storages(namespace, name, meta["creationTimestamp"]),
        )
        owner = Owner(namespace=namespace, name=name, uid=meta["uid"], default_image=self._default_image)
        specs = self._specs(read, namespace, name)
        found = await self._ask_engine(read)
        address, engine = found if found is not None else (None, None)
        blocked = await self._blocked(Key(names.FLOWJOB, namespace, name))
        seen = observe.seen(self.cache, namespace, name, now=now, engine=engine, specs=specs, blocked=blocked)
        memory = Memory.model_validate({field: getattr(read.status, field) for field in Memory.model_fields})
        decision = decide(read.desired, memory, seen)
        status = report(read, decision, seen, now)
        if changed(read.status, status):
            body = await self._write(body, status)
            for each in happened(read.status, status):
                await self._tell(body, each, now)
        await self._act(read, owner, decision, specs, address, body, seen)
        if not read.desired.deleted_at and read.desired.invalid is None:
            asked = await self._savepoints.schedule(read, body, now)
            if asked and asked != status.last_scheduled_savepoint:
                # Its object may be deleted; it was taken all the same.
                await self._write(body, status.model_copy(update={"last_scheduled_savepoint": asked}))
        return decision.seconds

    async def _act(
        self,
        read: border.Read,
        owner: Owner,
        decision: Decision,
        specs: dict[str, FlowJobSpec],
        address: str | None,
        body: Body,
        seen: Seen,
    ) -> None:
        desired = read.desired
        if desired.deleted_at is None and desired.invalid is None and desired.finalizer:
            await self._applier.keep_revision(owner, body["spec"], desired.revision, desired.generation)
            await self._forget_revisions(owner, decision.memory, desired.revision)
        if decision.workload is not None and not desired.paused:
            await self._applier.workload(owner, specs[decision.workload.revision], decision.workload)
        for step in decision.steps:
            try:
                await self._applier.step(read, owner, step, specs, address)
            except EngineRefusedError as error:
                # Refusals for now (a savepoint is under way, the job is not running) end by themselves.
                logger.info("engine refused", extra={"job": f"{owner.namespace}/{owner.name}", "error": str(error)})

    async def _ask_engine(self, read: border.Read) -> tuple[str, Engine] | None:
        desired, memory = read.desired, read.status
        addresses = observe.jobmanager_addresses(self.cache, desired.namespace, desired.name)
        job = memory.job.id if memory.job is not None else None
        return await self._engines.look(addresses, job)

    def _specs(self, read: border.Read, namespace: str, name: str) -> dict[str, FlowJobSpec]:
        specs: dict[str, FlowJobSpec] = {}
        for revision, kept in observe.revisions(self.cache, namespace, name).items():
            try:
                specs[revision] = FlowJobSpec.model_validate(kept["data"]["spec"])
            except ValidationError:
                logger.warning("revision cannot be read", extra={"job": f"{namespace}/{name}", "revision": revision})
        if read.desired.invalid is None:
            specs[read.desired.revision] = read.spec
        return specs

    def _storages(self, namespace: str, name: str, created: str) -> dict[str, str]:
        """Places that older FlowJobs have. Creation times are equal within a second: names decide."""
        found = {}
        for body in self.cache.all(names.FLOWJOB):
            meta = body["metadata"]
            place = ((body.get("spec") or {}).get("checkpoints") or {}).get("storage", "")
            local = not place.startswith("s3://")
            older = (meta["creationTimestamp"], meta["namespace"], meta["name"]) < (created, namespace, name)
            if place and older and not (local and meta["namespace"] != namespace):
                owner = meta["name"] if meta["namespace"] == namespace else f"{meta['namespace']}/{meta['name']}"
                found[border.place_of(place)] = owner
        return found

    async def _blocked(self, key: Key) -> Problem | None:
        """Asks for events only when pods are missing, and not too often."""
        lacking = observe.lacks_pods(self.cache, key.namespace, key.name)
        if not lacking:
            self._events_asked.pop(key, None)
            return None
        asked, answer = self._events_asked.get(key, (0.0, None))
        if time.monotonic() - asked < _EVENTS_SECONDS:
            return answer
        fields = f"involvedObject.kind=StatefulSet,involvedObject.name={lacking[0]}"
        events = await self._kube.list("Event", key.namespace, fields=fields)
        answer = observe.creation_problem(events, lacking[0].removeprefix(f"{key.name}-"))
        self._events_asked[key] = (time.monotonic(), answer)
        return answer

    async def _forget_revisions(self, owner: Owner, memory: Memory, wanted: str) -> None:
        bodies = list(observe.revisions(self.cache, owner.namespace, owner.name).values())
        if len(bodies) <= KEPT_REVISIONS:
            return
        needed = {wanted, *(part.revision for part in (memory.job, memory.change, memory.stable) if part)}
        needed |= {memory.change.from_revision} if memory.change else set()
        bodies = sorted(bodies, key=lambda body: int(body.get("revision", 0)))
        for body in bodies[: len(bodies) - KEPT_REVISIONS]:
            if body["metadata"]["labels"][names.REVISION_LABEL] not in needed:
                await self._kube.delete("ControllerRevision", owner.namespace, body["metadata"]["name"])
                self.cache.drop("ControllerRevision", owner.namespace, body["metadata"]["name"])

    async def _write(self, body: Body, status: FlowJobStatus) -> dict[str, Any]:
        whole = {**body, "apiVersion": names.API_VERSION, "kind": names.FLOWJOB}
        whole["status"] = status.model_dump(exclude_none=True)
        answer = await self._kube.put_status(whole)
        self.cache.put(names.FLOWJOB, answer)
        return answer

    async def _tell(self, body: Body, event: Happened, now: datetime) -> None:
        """An event that is lost is no reason to stop."""
        meta = body["metadata"]
        manifest = {
            "apiVersion": "v1",
            "kind": "Event",
            "metadata": {"generateName": f"{meta['name']}-", "namespace": meta["namespace"]},
            "involvedObject": {
                "apiVersion": names.API_VERSION,
                "kind": body["kind"],
                "name": meta["name"],
                "namespace": meta["namespace"],
                "uid": meta["uid"],
                "resourceVersion": meta["resourceVersion"],
            },
            "type": event.type,
            "reason": event.reason,
            "message": event.message[:1024],
            "source": {"component": names.FIELD_MANAGER},
            "reportingComponent": names.FIELD_MANAGER,
            "reportingInstance": names.FIELD_MANAGER,
            "firstTimestamp": text_of(now),
            "lastTimestamp": text_of(now),
            "count": 1,
        }
        try:
            await self._kube.create(manifest)
        except (ApiError, OSError, TimeoutError) as error:
            logger.warning("event lost", extra={"reason": event.reason, "error": str(error)[:200]})
