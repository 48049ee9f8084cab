"""Logs and events of a job and of everything that belongs to it."""

import subprocess
from typing import Annotated

import typer

from kubectl_flow.jobs import ago
from kubectl_flow.kubectl import ContextOption, JobArgument, Kubectl, NamespaceOption, Object, cluster
from penstock.cli.tables import console, new_table
from penstock.model.errors import UserError
from penstock_operator import names

COMPONENTS = (names.JOBMANAGER, names.TASKMANAGER, names.RUN)


def logs(
    job: JobArgument,
    component: Annotated[
        str | None, typer.Option("--component", "-c", help=f"One of {', '.join(COMPONENTS)}. Default: all.")
    ] = None,
    more: Annotated[
        list[str] | None, typer.Argument(metavar="[OPTIONS]", help="Of `kubectl logs`: --follow, --previous, --since.")
    ] = None,
    tail: Annotated[int, typer.Option("--tail", help="Lines of each pod; -1: all.")] = 200,
    namespace: NamespaceOption = None,
    context: ContextOption = None,
) -> None:
    """Print the logs of all pods of a job, each line with its pod.

    Examples: `kubectl flow logs hot-items`, `kubectl flow logs hot-items -c taskmanager --follow --since=5m`
    """
    kubectl = cluster(namespace, context)
    kubectl.job(job)
    if component is not None and component not in COMPONENTS:
        raise UserError("K011", f'there is no component "{component}"', fix=f"one of {', '.join(COMPONENTS)}")
    labels = f"{names.JOB_LABEL}={job}" + (f",{names.COMPONENT_LABEL}={component}" if component else "")
    words = [f"--selector={labels}", "--all-containers", "--prefix", "--max-log-requests=100", f"--tail={tail}"]
    raise typer.Exit(subprocess.run([*kubectl.words, "logs", *words, *(more or ())], check=False).returncode)


def events(
    job: JobArgument,
    namespace: NamespaceOption = None,
    context: ContextOption = None,
) -> None:
    """Show what has happened to a job, its pods and its savepoints, the newest last.

    Example: `kubectl flow events hot-items`
    """
    kubectl = cluster(namespace, context)
    kubectl.job(job)
    table = new_table("age", "type", "reason", "object", "message")
    for event in events_of(kubectl, job):
        about = event["involvedObject"]
        table.add_row(
            ago(_time(event)),
            event.get("type", ""),
            event.get("reason", ""),
            f"{about['kind']}/{about['name']}",
            event.get("message", "").strip(),
        )
    console().print(table)


def events_of(kubectl: Kubectl, job: str) -> list[Object]:
    """Of the FlowJob and of what is made for it."""
    own = {job, *(each["metadata"]["name"] for each in _savepoints(kubectl, job))}
    made = tuple(f"{job}-{part}" for part in (*COMPONENTS, "submit", "check"))
    found = [
        event
        for event in kubectl.items("events")
        if event["involvedObject"].get("name") in own or str(event["involvedObject"].get("name")).startswith(made)
    ]
    return sorted(found, key=_time)


def _savepoints(kubectl: Kubectl, job: str) -> list[Object]:
    return [each for each in kubectl.items("flowsavepoints") if each["spec"]["jobRef"]["name"] == job]


def _time(event: Object) -> str:
    return str(event.get("lastTimestamp") or event.get("eventTime") or event["metadata"]["creationTimestamp"])
