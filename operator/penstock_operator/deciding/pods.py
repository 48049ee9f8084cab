"""Which pods a revision needs, and which of them are not there."""

from collections.abc import Sequence
from typing import Final

from penstock_operator.deciding.facts import Desired, Pod, Problem, Seen
from penstock_operator.deciding.steps import Workload
from penstock_operator.moments import elapsed
from penstock_operator.names import JOBMANAGER, TASKMANAGER
from penstock_operator.spec.status import Change, Memory

IMAGE_PATIENCE: Final = 60.0
"""Seconds for which an image may fail to be pulled: a registry that hiccups recovers, a wrong name does not."""

_IMAGE_REASONS: Final = {"ErrImagePull", "ImagePullBackOff", "InvalidImageName", "ErrImageNeverPull"}


def workload_of(revision: str, parallelism: int, seen: Seen) -> Workload | None:
    """Pods for a job of that revision and size; None when the revision is no longer known."""
    slots = seen.slots_per_pod.get(revision)
    if slots is None:
        return None
    jobmanagers = seen.jobmanagers.get(revision, 1)
    return Workload(revision=revision, jobmanagers=jobmanagers, taskmanagers=-(-parallelism // slots))


def settled_workload(memory: Memory, seen: Seen) -> Workload | None:
    """Pods of the job that runs."""
    if memory.job is None or memory.suspended:
        return None
    return workload_of(memory.job.revision, memory.job.parallelism, seen)


def wider_workload(memory: Memory, change: Change, seen: Seen) -> Workload | None:
    """Pods for the sizes before and after a rescale."""
    if memory.job is None:
        return None
    return workload_of(
        memory.job.revision, max(memory.job.parallelism, change.parallelism, change.from_parallelism), seen
    )


def no_pods(revision: str, seen: Seen) -> Workload | None:
    """The StatefulSets stay, for the next start."""
    return Workload(revision=revision, jobmanagers=0, taskmanagers=0) if revision in seen.slots_per_pod else None


def missing(workload: Workload | None, seen: Seen) -> str | None:
    """What is not ready, in words."""
    if workload is None:
        return "the revision to be known"
    wanted = {JOBMANAGER: workload.jobmanagers, TASKMANAGER: workload.taskmanagers}
    for component, count in wanted.items():
        ready = sum(_counts(pod, workload.revision) for pod in seen.of(component))
        # Of several JobManagers one leads; the others are not waited for.
        needed = min(count, 1) if component == JOBMANAGER else count
        if ready < needed:
            return f"{component} pods: {ready} of {needed} are ready"
    return None


def surplus(workload: Workload | None, seen: Seen) -> list[Pod]:
    """TaskManagers beyond those that there are to be."""
    if workload is None:
        return []
    return [pod for pod in seen.of(TASKMANAGER) if ordinal(pod.name) >= workload.taskmanagers]


def stale(revision: str, seen: Seen) -> tuple[str, ...]:
    """Pods of another revision."""
    return tuple(pod.name for pod in seen.pods if pod.revision != revision and not pod.leaving)


def hopeless(problems: Sequence[Problem | None], change: Change, desired: Desired, seen: Seen) -> Problem | None:
    """A problem that will not go away by itself, or has been there for too long."""
    waited = elapsed(change.step_at, seen.now)
    for problem in filter(None, problems):
        if problem.reason in _IMAGE_REASONS and waited > IMAGE_PATIENCE:
            return problem
        if waited > desired.rollout_seconds:
            return problem
    return None


def ordinal(pod: str) -> int:
    """Of a pod of a StatefulSet."""
    return int(pod.rpartition("-")[2])


def _counts(pod: Pod, revision: str) -> bool:
    return pod.ready and not pod.leaving and pod.revision == revision
