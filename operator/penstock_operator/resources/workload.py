"""StatefulSets, Services and PodDisruptionBudgets of a job that runs.

StatefulSets use the strategy OnDelete: pods are replaced when the controller has brought the job to a stop, never
because a template was written anew. So a newer controller, whose templates differ, disturbs no running job.
"""

from typing import Any, Final

from penstock_operator import names
from penstock_operator.border import storage_of
from penstock_operator.deciding.steps import Workload
from penstock_operator.moments import seconds_of
from penstock_operator.resources.pods import Owner, pod_template
from penstock_operator.spec.flowjob import FlowJobSpec, JobManagerSpec, TaskManagerSpec

_PORTS: Final = [
    {"name": "rpc", "port": names.RPC_PORT, "targetPort": names.RPC_PORT, "protocol": "TCP"},
    {"name": "rest", "port": names.REST_PORT, "targetPort": names.REST_PORT, "protocol": "TCP"},
]


def manifests(owner: Owner, spec: FlowJobSpec, workload: Workload) -> list[dict[str, Any]]:
    """All of it, in the order in which it is applied."""
    return [
        _service(owner, names.JOBMANAGER, _PORTS),
        _service(owner, names.TASKMANAGER, []),
        _budget(owner, names.JOBMANAGER, {"maxUnavailable": 1}),
        _budget(owner, names.TASKMANAGER, {"maxUnavailable": 1}),
        _jobmanager(owner, spec, workload),
        _taskmanager(owner, spec, workload),
    ]


def revision(owner: Owner, raw_spec: dict[str, Any], name: str, number: int) -> dict[str, Any]:
    """Remembers what a revision was made of, to go back to it."""
    return {
        "apiVersion": "apps/v1",
        "kind": "ControllerRevision",
        "metadata": owner.metadata(f"{owner.name}-{name}", names.REVISION, **{names.REVISION_LABEL: name}),
        "data": {"spec": raw_spec},
        "revision": number,
    }


def _jobmanager(owner: Owner, spec: FlowJobSpec, workload: Workload) -> dict[str, Any]:
    given = spec.job_manager or JobManagerSpec()
    probe = {"httpGet": {"path": "/healthz", "port": "rest"}, "timeoutSeconds": 5}
    command = [
        "penstock",
        "jobmanager",
        "--host=0.0.0.0",
        f"--port={names.RPC_PORT}",
        f"--rest-port={names.REST_PORT}",
        f"--state-dir={storage_of(spec)}",
    ]
    template = pod_template(
        owner,
        spec,
        component=names.JOBMANAGER,
        revision=workload.revision,
        command=command,
        resources=given.resources,
        template=given.pod_template,
        container={
            "ports": [{"name": each["name"], "containerPort": each["port"], "protocol": "TCP"} for each in _PORTS],
            "startupProbe": {**probe, "periodSeconds": 1, "failureThreshold": 120},
            "readinessProbe": {**probe, "periodSeconds": 2, "failureThreshold": 3},
            "livenessProbe": {**probe, "periodSeconds": 10, "failureThreshold": 6},
        },
        pod={"terminationGracePeriodSeconds": 30},
    )
    return _stateful_set(owner, names.JOBMANAGER, workload.jobmanagers, template)


def _taskmanager(owner: Owner, spec: FlowJobSpec, workload: Workload) -> dict[str, Any]:
    given = spec.task_manager or TaskManagerSpec()
    command = [
        "penstock",
        "taskmanager",
        f"--jobmanager={names.jobmanager(owner.name)}:{names.RPC_PORT}",
        f"--slots={given.slots or 1}",
        "--host=$(POD_IP)",
        "--id=$(POD_NAME)",
    ]
    template = pod_template(
        owner,
        spec,
        component=names.TASKMANAGER,
        revision=workload.revision,
        command=command,
        resources=given.resources,
        template=given.pod_template,
        container={},
        pod={"terminationGracePeriodSeconds": int(seconds_of(given.termination_grace_period or "30s"))},
    )
    return _stateful_set(owner, names.TASKMANAGER, workload.taskmanagers, template)


def _stateful_set(owner: Owner, component: str, replicas: int, template: dict[str, Any]) -> dict[str, Any]:
    name = f"{owner.name}-{component}"
    return {
        "apiVersion": "apps/v1",
        "kind": "StatefulSet",
        "metadata": owner.metadata(name, component),
        "spec": {
            "replicas": replicas,
            "serviceName": name,
            "podManagementPolicy": "Parallel",
            "updateStrategy": {"type": "OnDelete"},
            "selector": {"matchLabels": names.selector(owner.name, component)},
            "template": template,
        },
    }


def _service(owner: Owner, component: str, ports: list[dict[str, Any]]) -> dict[str, Any]:
    spec: dict[str, Any] = {
        "clusterIP": "None",
        "selector": names.selector(owner.name, component),
        # TaskManagers look for a JobManager that has just started, and are told by it whether it leads.
        "publishNotReadyAddresses": True,
    }
    if ports:
        spec["ports"] = ports
    return {
        "apiVersion": "v1",
        "kind": "Service",
        "metadata": owner.metadata(f"{owner.name}-{component}", component),
        "spec": spec,
    }


def _budget(owner: Owner, component: str, limits: dict[str, Any]) -> dict[str, Any]:
    return {
        "apiVersion": "policy/v1",
        "kind": "PodDisruptionBudget",
        "metadata": owner.metadata(f"{owner.name}-{component}", component),
        "spec": {"selector": {"matchLabels": names.selector(owner.name, component)}, **limits},
    }
