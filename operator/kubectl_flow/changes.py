"""Commands that change a FlowJob, or have a savepoint of it taken, and wait until that is done."""

import threading
from typing import Annotated, Final

import typer

from kubectl_flow.jobs import change_line, status_of, wait_settled
from kubectl_flow.kubectl import (
    ContextOption,
    JobArgument,
    Kubectl,
    NamespaceOption,
    NoWaitOption,
    Object,
    cluster,
)
from penstock.model.clocks import SystemClock
from penstock.model.errors import UserError
from penstock_operator import names
from penstock_operator.border import REVISION_FIELDS
from penstock_operator.moments import seconds_of

_POLL_SECONDS: Final = 1.0
TimeoutOption = Annotated[str, typer.Option("--timeout", metavar="5m", help="How long to wait.")]


def savepoint(
    job: JobArgument,
    name: Annotated[
        str | None, typer.Option("--name", help="Of the FlowSavepoint. Default: JOB and five characters.")
    ] = None,
    to: Annotated[str | None, typer.Option("--to", metavar="PLACE", help="Default: what the job says.")] = None,
    delete_files: Annotated[
        bool, typer.Option("--delete-files", help="Its files go when the FlowSavepoint is deleted.")
    ] = False,
    no_wait: NoWaitOption = False,
    timeout: TimeoutOption = "10m",
    namespace: NamespaceOption = None,
    context: ContextOption = None,
) -> None:
    """Take a savepoint; the job goes on. It stays when the job goes, as an entry of the catalogue: `kubectl get fsp`.

    Examples: `kubectl flow savepoint hot-items`, `kubectl flow savepoint hot-items --name before-upgrade`
    """
    kubectl = cluster(namespace, context)
    kubectl.job(job)
    taken = kubectl.create(_savepoint(job, name, to, delete_files=delete_files, timeout=timeout))
    called = taken["metadata"]["name"]
    if no_wait:
        print(f"flowsavepoint/{called} was asked for")
        return
    status = _wait_taken(kubectl, called, seconds_of(timeout))
    print(f"flowsavepoint/{called}: {status.get('sizeText', '?')} at {status['location']}")
    print(f"a job that starts from it: spec.restore.from.savepointRef: {called}")


def rescale(
    job: JobArgument,
    parallelism: Annotated[int, typer.Option("--parallelism", "-p", min=1, help="Subtasks per operator.")],
    no_wait: NoWaitOption = False,
    timeout: TimeoutOption = "10m",
    namespace: NamespaceOption = None,
    context: ContextOption = None,
) -> None:
    """Change the parallelism of a job: pods first, then the job moves, then pods that are empty go.

    Example: `kubectl flow rescale hot-items --parallelism 4`
    """
    kubectl = cluster(namespace, context)
    kubectl.job(job)
    kubectl("scale", f"flowjob/{job}", f"--replicas={parallelism}")
    _finish(kubectl, job, timeout, no_wait=no_wait)


def suspend(
    job: JobArgument,
    no_wait: NoWaitOption = False,
    timeout: TimeoutOption = "10m",
    namespace: NamespaceOption = None,
    context: ContextOption = None,
) -> None:
    """Stop a job with a savepoint and let its pods go; its state waits.

    Example: `kubectl flow suspend hot-items`
    """
    _set(cluster(namespace, context), job, "state", "suspended", timeout, no_wait=no_wait)


def resume(
    job: JobArgument,
    no_wait: NoWaitOption = False,
    timeout: TimeoutOption = "10m",
    namespace: NamespaceOption = None,
    context: ContextOption = None,
) -> None:
    """Let a suspended job go on from where it was stopped.

    Example: `kubectl flow resume hot-items`
    """
    _set(cluster(namespace, context), job, "state", "running", timeout, no_wait=no_wait)


def rollback(
    job: JobArgument,
    to: Annotated[
        str | None, typer.Option("--to", metavar="REVISION", help="Default: the one before. --list shows them.")
    ] = None,
    listed: Annotated[bool, typer.Option("--list", help="Show the revisions that are remembered, and end.")] = False,
    savepoint: Annotated[
        str | None,
        typer.Option("--savepoint", metavar="NAME", help="Start from this FlowSavepoint. Default: from where it is."),
    ] = None,
    no_wait: NoWaitOption = False,
    timeout: TimeoutOption = "15m",
    namespace: NamespaceOption = None,
    context: ContextOption = None,
) -> None:
    """Put image, program and settings back to an earlier revision; the state goes along, as in every upgrade.

    What Git or Helm says stays as it is: change it, too, or it is put back.

    Examples: `kubectl flow rollback hot-items`, `kubectl flow rollback hot-items --savepoint before-upgrade`
    """
    kubectl = cluster(namespace, context)
    found = kubectl.job(job)
    revisions = _revisions(kubectl, job)
    running = status_of(found).job
    current = running.revision if running is not None else ""
    if listed:
        for revision, body in revisions.items():
            image = body["data"]["spec"].get("image", "(default image)")
            print(f"{'*' if revision == current else ' '} {revision}  generation {body['revision']}  {image}")
        return
    target = to or next((each for each in reversed(revisions) if each != current), None)
    if target not in revisions:
        known = ", ".join(revisions) or "none"
        what = f'no revision "{to}" is remembered' if to else "no earlier revision is remembered"
        raise UserError("K009", what, where=job, fix=f"remembered are {known}")
    operations = _back(found["spec"], revisions[target]["data"]["spec"])
    if savepoint is not None:
        restore = {"from": {"savepointRef": savepoint}}
        operations.append({"op": "add", "path": "/spec/restore", "value": restore})
    if not operations:
        print(f"{job} is as revision {target} says")
        return
    kubectl.patch(job, operations)
    _finish(kubectl, job, timeout, no_wait=no_wait)


def _back(now: Object, then: Object) -> list[Object]:
    operations: list[Object] = []
    for field in REVISION_FIELDS:
        if field in then and now.get(field) != then[field]:
            operations.append({"op": "add", "path": f"/spec/{field}", "value": then[field]})
        elif field in now and field not in then:
            operations.append({"op": "remove", "path": f"/spec/{field}"})
    return operations


def _revisions(kubectl: Kubectl, job: str) -> dict[str, Object]:
    """The oldest first."""
    labels = f"{names.JOB_LABEL}={job},{names.COMPONENT_LABEL}={names.REVISION}"
    bodies = sorted(kubectl.items("controllerrevisions", labels=labels), key=lambda body: int(body["revision"]))
    return {body["metadata"]["labels"][names.REVISION_LABEL]: body for body in bodies}


def _set(kubectl: Kubectl, job: str, field: str, value: str, timeout: str, *, no_wait: bool) -> None:
    kubectl.job(job)
    kubectl.patch(job, [{"op": "add", "path": f"/spec/{field}", "value": value}])
    _finish(kubectl, job, timeout, no_wait=no_wait)


def _finish(kubectl: Kubectl, job: str, timeout: str, *, no_wait: bool) -> None:
    if no_wait:
        print(f"flowjob/{job} was edited")
        return
    status = wait_settled(kubectl, job, seconds=seconds_of(timeout))
    print(f"{job} is {status.phase}: {change_line(status)}")


def _savepoint(job: str, name: str | None, to: str | None, *, delete_files: bool, timeout: str) -> Object:
    meta = {"name": name} if name else {"generateName": f"{job}-"}
    spec: Object = {"jobRef": {"name": job}, "timeout": timeout}
    if to:
        spec["location"] = to
    if delete_files:
        spec["deletionPolicy"] = "Delete"
    return {"apiVersion": names.API_VERSION, "kind": names.FLOWSAVEPOINT, "metadata": meta, "spec": spec}


def _wait_taken(kubectl: Kubectl, name: str, seconds: float) -> Object:
    clock, pause = SystemClock(), threading.Event()
    deadline = clock.monotonic() + seconds + 30
    while True:
        status: Object = kubectl.get("flowsavepoint", name).get("status") or {}
        if status.get("phase") == "Completed":
            return status
        said = status.get("message") or "waits for the controller"
        if status.get("phase") == "Failed" or clock.monotonic() > deadline:
            raise UserError("K010", f"the savepoint was not taken: {said}", where=name, fix="the job goes on")
        pause.wait(_POLL_SECONDS)
