"""`kubectl flow status`: a job as a tree."""

from typing import Annotated, Any

import typer
from rich.markup import escape
from rich.tree import Tree

from kubectl_flow.jobs import ago, change_line, condition, status_of
from kubectl_flow.kubectl import ContextOption, Kubectl, NamespaceOption, Object, cluster
from penstock.cli.tables import console, new_table, print_json
from penstock.local import figures
from penstock_operator import names
from penstock_operator.failures import pod_problem
from penstock_operator.spec.status import FlowJobStatus


def status(
    job: Annotated[str | None, typer.Argument(metavar="[JOB]", help="Default: all, a line each.")] = None,
    namespace: NamespaceOption = None,
    context: ContextOption = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON, for programs.")] = False,
) -> None:
    """Show a job with its pods, checkpoints, savepoints and its last change; or all jobs.

    Examples: `kubectl flow status`, `kubectl flow status hot-items -n shop`
    """
    kubectl = cluster(namespace, context)
    if job is None:
        _all(kubectl, as_json=as_json)
        return
    found = kubectl.job(job)
    pods = kubectl.items("pods", labels=f"{names.JOB_LABEL}={job}")
    savepoints = [each for each in kubectl.items("flowsavepoints") if each["spec"]["jobRef"]["name"] == job]
    checkpoints = _checkpoints(kubectl, found, pods)
    if as_json:
        print_json({"job": found, "pods": pods, "savepoints": savepoints, "checkpoints": checkpoints})
        return
    console().print(_tree(found, pods, savepoints, checkpoints))


def _all(kubectl: Kubectl, *, as_json: bool) -> None:
    found = kubectl.items("flowjobs")
    if as_json:
        print_json(found)
        return
    table = new_table("job", "phase", "ready", "parallelism", "restarts", "checkpoint", "what")
    for each in found:
        said = status_of(each)
        ready, _, message = condition(said, "Ready")
        table.add_row(
            each["metadata"]["name"],
            said.phase or "new",
            ready,
            said.parallelism.summary if said.parallelism else "",
            str(said.engine.restarts) if said.engine else "",
            f"{ago(said.last_checkpoint.time)} ago" if said.last_checkpoint else "",
            escape(message),
        )
    console().print(table if found else "there are no FlowJobs here; try another --namespace")


def _checkpoints(kubectl: Kubectl, job: Object, pods: list[Object]) -> list[Any]:
    """The last ones, from the JobManager itself, when whoever asks may reach it."""
    said = status_of(job)
    leaders = [pod for pod in pods if pod["metadata"]["labels"].get(names.COMPONENT_LABEL) == names.JOBMANAGER]
    if said.job is None:
        return []
    for pod in leaders:
        answer = kubectl.ask_jobmanager(pod["metadata"]["name"], f"/jobs/{said.job.id}/checkpoints")
        if isinstance(answer, list):
            return answer[-3:]
    return []


def _tree(job: Object, pods: list[Object], savepoints: list[Object], checkpoints: list[Any]) -> Tree:
    said = status_of(job)
    ready = condition(said, "Ready")
    size = said.parallelism.summary if said.parallelism else "?"
    age = ago(job["metadata"]["creationTimestamp"])
    head = f"[bold]{job['metadata']['name']}[/bold]  {said.phase or 'new'}, parallelism {size}, {age} old"
    tree = Tree(head, highlight=False)
    if ready[0] != "True":
        tree.add(f"[yellow]not ready[/yellow] ({ready[1]}): {escape(ready[2])}")
    _troubles(tree, said)
    if said.change is not None:
        tree.add(f"under way: {said.change.kind}, {said.change.step}, {escape(said.change.message)}")
    if said.job is not None and said.engine is not None:
        origin = said.job.origin or "the beginning"
        restarts = figures.restarts(said.engine.restarts)
        tree.add(f"job {said.job.id}: {said.engine.state}, {restarts}, revision {said.job.revision}, from {origin}")
    tree.add(f"last change: {escape(change_line(said))}")
    _add_checkpoints(tree, said, checkpoints)
    _add_pods(tree, pods)
    _add_savepoints(tree, savepoints)
    return tree


def _troubles(tree: Tree, said: FlowJobStatus) -> None:
    for kind in ("Stalled", "ScalingLimited", "Paused", "Warning"):
        truth, reason, message = condition(said, kind)
        if truth == "True":
            tree.add(f"[red]{kind}[/red] {reason}: {escape(message)}")
    if (failure := said.last_failure) is not None:
        place = f"{failure.component} {failure.pod}".strip()
        branch = tree.add(
            f"[red]{failure.reason}[/red], {place}, since {ago(failure.time)}: {escape(failure.message)}"
        )
        if failure.fix:
            branch.add(f"to do: {escape(failure.fix)}")


def _add_checkpoints(tree: Tree, said: FlowJobStatus, found: list[Any]) -> None:
    last = said.last_checkpoint
    if last is None:
        tree.add("checkpoints: none was completed yet")
        return
    took = figures.duration(last.duration_ms * 1000)
    branch = tree.add(f"checkpoint {last.id}: {ago(last.time)} ago, {figures.size(last.bytes)} in {took}")
    for each in found:
        reason = f": {each['reason']}" if each.get("reason") else ""
        branch.add(escape(f"{each['id']} {each['kind']} {each['status']}, {figures.size(each['size'])}{reason}"))


def _add_pods(tree: Tree, pods: list[Object]) -> None:
    branch = tree.add(f"pods: {len(pods)}")
    for pod in sorted(pods, key=lambda each: str(each["metadata"]["name"])):
        said = pod.get("status") or {}
        containers = said.get("containerStatuses") or ()
        state = "leaving" if pod["metadata"].get("deletionTimestamp") else said.get("phase", "?")
        if state == "Running" and not all(each.get("ready") for each in containers):
            state = "not ready"
        restarts = sum(each.get("restartCount", 0) for each in containers)
        line = f"{pod['metadata']['name']}  {state}, {pod['spec'].get('nodeName') or 'no node yet'}"
        leaf = branch.add(line + (f", {figures.restarts(restarts)}" if restarts else ""))
        if (problem := pod_problem(pod)) is not None:
            leaf.add(f"[red]{escape(problem.message)}[/red]. {escape(problem.fix)}")


def _add_savepoints(tree: Tree, found: list[Object]) -> None:
    branch = tree.add(f"savepoints: {len(found)}")
    for each in sorted(found, key=lambda one: str(one["metadata"]["creationTimestamp"])):
        said = each.get("status") or {}
        place = said.get("location") or said.get("message") or ""
        size = f", {said['sizeText']}" if said.get("sizeText") else ""
        age = ago(each["metadata"]["creationTimestamp"])
        branch.add(escape(f"{each['metadata']['name']}  {said.get('phase', 'new')}, {age} old{size}  {place}"))
