"""From what the API server and the engine tell to the facts that decisions are made from."""

from collections.abc import Mapping, Sequence
from datetime import datetime
from typing import Final

from penstock_operator import names
from penstock_operator.cache import Body, Cache
from penstock_operator.deciding.facts import Engine, Pod, Problem, Run, Seen
from penstock_operator.engine import address_of
from penstock_operator.failures import last_words, pod_problem
from penstock_operator.spec.flowjob import FlowJobSpec

_COMPONENTS: Final = (names.JOBMANAGER, names.TASKMANAGER)


def jobmanager_addresses(cache: Cache, namespace: str, job: str) -> list[str]:
    """REST of JobManagers whose pods run; those that are ready first."""
    pods = [
        pod
        for pod in cache.children("Pod", namespace, job)
        if _label(pod, names.COMPONENT_LABEL) == names.JOBMANAGER
        and (pod.get("status") or {}).get("podIP")
        and not pod["metadata"].get("deletionTimestamp")
    ]
    pods.sort(key=lambda pod: (not _ready(pod), pod["metadata"]["name"]))
    return [address_of(pod["status"]["podIP"]) for pod in pods if _ready(pod)]


def revisions(cache: Cache, namespace: str, job: str) -> dict[str, Body]:
    """Our ControllerRevisions, by revision."""
    return {
        _label(body, names.REVISION_LABEL): body
        for body in cache.children("ControllerRevision", namespace, job)
        if _label(body, names.COMPONENT_LABEL) == names.REVISION
    }


def seen(
    cache: Cache,
    namespace: str,
    job: str,
    *,
    now: datetime,
    engine: Engine | None,
    specs: Mapping[str, FlowJobSpec],
    blocked: Problem | None,
) -> Seen:
    """All of it."""
    pods = cache.children("Pod", namespace, job)
    return Seen(
        now=now,
        pods=tuple(
            _pod(pod)
            for pod in sorted(pods, key=lambda pod: str(pod["metadata"]["name"]))
            if _label(pod, names.COMPONENT_LABEL) in _COMPONENTS
        ),
        runs={
            run.name: run
            for body in cache.children("Job", namespace, job)
            if (run := run_of(body, job, pods)) is not None
        },
        engine=engine,
        slots_per_pod={name: (spec.task_manager and spec.task_manager.slots) or 1 for name, spec in specs.items()},
        jobmanagers={name: (spec.job_manager and spec.job_manager.replicas) or 1 for name, spec in specs.items()},
        blocked=blocked,
    )


def lacks_pods(cache: Cache, namespace: str, job: str) -> list[str]:
    """StatefulSets with fewer pods than they should have made by now."""
    lacking = []
    for body in cache.children("StatefulSet", namespace, job):
        made = (body.get("status") or {}).get("replicas", 0)
        if made < (body["spec"].get("replicas") or 0):
            lacking.append(body["metadata"]["name"])
    return lacking


def creation_problem(events: Sequence[Body], component: str) -> Problem | None:
    """Why pods cannot even be created, from the events of their StatefulSet."""
    refused = [event for event in events if event.get("reason") == "FailedCreate"]
    if not refused:
        return None
    message = str(max(refused, key=_event_time).get("message", ""))
    quota = "exceeded quota" in message
    return Problem(
        reason="QuotaExceeded" if quota else "FailedCreate",
        message=message[:800],
        fix="raise the ResourceQuota of the namespace, or ask for less"
        if quota
        else "see kubectl describe statefulset",
        component=component,
    )


def _event_time(event: Body) -> str:
    return str(event.get("lastTimestamp") or event.get("eventTime") or "")


def _pod(pod: Body) -> Pod:
    return Pod(
        name=pod["metadata"]["name"],
        component=_label(pod, names.COMPONENT_LABEL),
        revision=_label(pod, names.REVISION_LABEL),
        ready=_ready(pod),
        leaving=bool(pod["metadata"].get("deletionTimestamp")),
        problem=pod_problem(pod),
    )


def run_of(body: Body, job: str, pods: Sequence[Body]) -> Run | None:
    """A short-lived pod's job: how far it is, and what its pod said at last."""
    if body["metadata"].get("deletionTimestamp"):
        return None
    name = body["metadata"]["name"]
    own = [pod for pod in pods if _label(pod, "batch.kubernetes.io/job-name") == name]
    own.sort(key=lambda pod: str(pod["metadata"]["creationTimestamp"]))
    state = "active"
    reason = ""
    for condition in (body.get("status") or {}).get("conditions") or ():
        if condition["status"] == "True" and condition["type"] in {"Complete", "Failed"}:
            state = "succeeded" if condition["type"] == "Complete" else "failed"
            reason = condition.get("message", "") if state == "failed" else ""
    words = next(filter(None, (last_words(pod) for pod in reversed(own))), "")
    problem = pod_problem(own[-1]) if own and state == "active" else None
    return Run(name=name.removeprefix(f"{job}-"), state=state, message=words or reason, problem=problem)


def _label(body: Body, name: str) -> str:
    return str((body["metadata"].get("labels") or {}).get(name, ""))


def _ready(pod: Body) -> bool:
    conditions = (pod.get("status") or {}).get("conditions") or ()
    return any(condition["type"] == "Ready" and condition["status"] == "True" for condition in conditions)
