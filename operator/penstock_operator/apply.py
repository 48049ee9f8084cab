"""Carries decisions out: the only module that changes something in the cluster or the engine for a FlowJob."""

import hashlib
import json
import logging
from collections.abc import Mapping
from typing import Any

from penstock_operator import names
from penstock_operator.border import Read, savepoint_folder
from penstock_operator.cache import Body, Cache
from penstock_operator.deciding.steps import (
    AddFinalizer,
    CancelJob,
    CheckRestore,
    DeletePods,
    DeleteRun,
    DeleteSelf,
    RemoveFinalizer,
    RemoveSavepoint,
    Rescale,
    Step,
    StopJob,
    Submit,
    TakeSavepoint,
    Workload,
)
from penstock_operator.engine import Engines
from penstock_operator.kube import ApiError, Kube
from penstock_operator.resources import runs, workload
from penstock_operator.resources.pods import Owner
from penstock_operator.spec.flowjob import FlowJobSpec

logger = logging.getLogger(__name__)


class Applier:
    """Remembers what it has applied, so that nothing is sent again while nobody has changed it."""

    def __init__(self, kube: Kube, engines: Engines, cache: Cache) -> None:
        self._kube, self._engines, self._cache = kube, engines, cache
        self._applied: dict[tuple[str, str, str], tuple[str, str]] = {}

    async def make(self, manifest: Mapping[str, Any]) -> None:
        """Make it so, unless it is."""
        kind, meta = manifest["kind"], manifest["metadata"]
        key = (kind, meta["namespace"], meta["name"])
        wanted = _digest(manifest)
        live = self._cache.get(*key)
        if live is not None and self._applied.get(key) == (wanted, _fingerprint(live)):
            return
        answer = await self._kube.apply(manifest)
        self._cache.put(kind, answer)
        self._applied[key] = (wanted, _fingerprint(answer))

    async def workload(self, owner: Owner, spec: FlowJobSpec, wanted: Workload) -> None:
        """Services, budgets and StatefulSets."""
        for manifest in workload.manifests(owner, spec, wanted):
            await self.make(manifest)

    async def keep_revision(self, owner: Owner, raw: Mapping[str, Any], revision: str, generation: int) -> None:
        """Write down what a revision is made of; it never changes."""
        if self._cache.get("ControllerRevision", owner.namespace, f"{owner.name}-{revision}") is None:
            answer = await self._kube.apply(workload.revision(owner, dict(raw), revision, generation))
            self._cache.put("ControllerRevision", answer)

    async def step(
        self, read: Read, owner: Owner, step: Step, specs: Mapping[str, FlowJobSpec], address: str | None
    ) -> None:
        """One step; each may be done twice."""
        logger.info("step", extra={"job": f"{owner.namespace}/{owner.name}", "step": str(step)[:300]})
        namespace, name = owner.namespace, owner.name
        match step:
            case AddFinalizer() | RemoveFinalizer():
                await self._finalizer(namespace, name, wanted=isinstance(step, AddFinalizer))
            case DeletePods(pods):
                for pod in pods:
                    # The one that was seen, not the one that has taken its name since.
                    body = self._cache.get("Pod", namespace, pod)
                    if body is not None:
                        await self._kube.delete("Pod", namespace, pod, uid=body["metadata"]["uid"])
            case Submit():
                await self._run(runs.submission(owner, specs[step.revision], step))
            case CheckRestore():
                await self._run(runs.restore_check(owner, specs[step.revision], step))
            case DeleteRun(run):
                await self._kube.delete("Job", namespace, f"{name}-{run}")
                self._cache.drop("Job", namespace, f"{name}-{run}")
            case RemoveSavepoint(run, uri, revision):
                spec = specs.get(revision) or specs[read.desired.revision]
                await self._run(runs.removal(owner, spec, run, revision, uri))
            case DeleteSelf():
                await self._kube.delete(names.FLOWJOB, namespace, name)
            case TakeSavepoint():
                folder = savepoint_folder(read.spec)
                if address is not None:
                    await self._engines.take_savepoint(
                        address, step.job_id, name=step.name, folder=folder, stop=step.stop
                    )
            case StopJob(job_id):
                if address is not None:
                    await self._engines.stop(address, job_id)
            case CancelJob(job_id):
                if address is not None:
                    await self._engines.cancel(address, job_id)
            case Rescale(job_id, parallelism):
                if address is not None:
                    await self._engines.rescale(address, job_id, parallelism)

    async def _run(self, manifest: Mapping[str, Any]) -> None:
        """Jobs cannot be changed: one that is there is the one that was asked for."""
        meta = manifest["metadata"]
        if self._cache.get("Job", meta["namespace"], meta["name"]) is not None:
            return
        try:
            self._cache.put("Job", await self._kube.create(manifest))
        except ApiError as error:
            if error.reason != "AlreadyExists":
                raise

    async def _finalizer(self, namespace: str, name: str, *, wanted: bool) -> None:
        body = await self._kube.get(names.FLOWJOB, namespace, name)
        have = body["metadata"].get("finalizers") or []
        if (names.FINALIZER in have) == wanted:
            return
        finalizers = [each for each in have if each != names.FINALIZER] + ([names.FINALIZER] if wanted else [])
        changes = {"metadata": {"finalizers": finalizers, "resourceVersion": body["metadata"]["resourceVersion"]}}
        self._cache.put(names.FLOWJOB, await self._kube.patch(names.FLOWJOB, namespace, name, changes))


def _digest(manifest: Mapping[str, Any]) -> str:
    return hashlib.sha256(json.dumps(manifest, sort_keys=True).encode()).hexdigest()


def _fingerprint(body: Body) -> str:
    """Changes when somebody changes what we have set; not when its status does."""
    meta = body["metadata"]
    content = [
        meta.get("uid"),
        meta.get("generation") or meta.get("resourceVersion"),
        meta.get("labels"),
        meta.get("ownerReferences"),
    ]
    return json.dumps(content, sort_keys=True)
