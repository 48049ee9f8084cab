"""A JobManager and TaskManagers as plain StatefulSets: what the operator makes, made by hand."""

from harness.kubectl import Kubectl, Object
from harness.s3 import CREDENTIALS

POD_SECURITY: Object = {
    "runAsNonRoot": True,
    "runAsUser": 10001,
    "fsGroup": 10001,
    "seccompProfile": {"type": "RuntimeDefault"},
}
CONTAINER_SECURITY: Object = {
    "allowPrivilegeEscalation": False,
    "readOnlyRootFilesystem": True,
    "capabilities": {"drop": ["ALL"]},
}
PROGRAMS = "programs"
"""A ConfigMap of this name is mounted on /opt/programs."""


def start_session(
    kubectl: Kubectl, image: str, state_dir: str, programs: dict[str, str], *, task_managers: int = 2, slots: int = 1
) -> None:
    """All pods are ready when this returns."""
    jobmanager = ["jobmanager", "--host=0.0.0.0", "--port=6123", "--rest-port=8081", f"--state-dir={state_dir}"]
    taskmanager = ["taskmanager", "--jobmanager=session-jobmanager:6123", f"--slots={slots}", "--host=$(POD_IP)"]
    kubectl.apply(
        {"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": PROGRAMS}, "data": programs},
        *_stateful_set("jobmanager", image, jobmanager, replicas=1, ports={"rpc": 6123, "rest": 8081}),
        *_stateful_set("taskmanager", image, taskmanager, replicas=task_managers, ports={}),
    )
    for component in ("jobmanager", "taskmanager"):
        kubectl("rollout", "status", f"statefulset/session-{component}", "--timeout=120s", seconds=130)


def penstock(kubectl: Kubectl, *words: str, seconds: float = 120) -> str:
    """A command, in the JobManager's pod."""
    return kubectl.execute("session-jobmanager-0", "penstock", *words, seconds=seconds)


def pod_spec(image: str, words: list[str], ports: dict[str, int]) -> Object:
    """As the standard `restricted` asks."""
    container: Object = {
        "name": "penstock",
        "image": image,
        "args": words,
        "env": [{"name": "POD_IP", "valueFrom": {"fieldRef": {"fieldPath": "status.podIP"}}}],
        "envFrom": [{"secretRef": {"name": CREDENTIALS}}],
        "ports": [{"name": name, "containerPort": port} for name, port in ports.items()],
        "securityContext": CONTAINER_SECURITY,
        "resources": {"requests": {"cpu": "50m", "memory": "256Mi"}, "limits": {"memory": "1Gi"}},
        "volumeMounts": [
            {"name": "tmp", "mountPath": "/tmp"},
            {"name": "work", "mountPath": "/var/penstock"},
            {"name": "programs", "mountPath": "/opt/programs"},
        ],
    }
    if "rest" in ports:
        container["readinessProbe"] = {"httpGet": {"path": "/healthz", "port": "rest"}, "periodSeconds": 1}
    return {
        "containers": [container],
        "securityContext": POD_SECURITY,
        "automountServiceAccountToken": False,
        "terminationGracePeriodSeconds": 20,
        "volumes": [
            {"name": "tmp", "emptyDir": {}},
            {"name": "work", "emptyDir": {}},
            {"name": "programs", "configMap": {"name": PROGRAMS}},
        ],
    }


def _stateful_set(
    component: str, image: str, words: list[str], *, replicas: int, ports: dict[str, int]
) -> tuple[Object, Object]:
    name = f"session-{component}"
    labels = {"app.kubernetes.io/instance": "session", "app.kubernetes.io/component": component}
    service = {
        "apiVersion": "v1",
        "kind": "Service",
        "metadata": {"name": name},
        "spec": {
            "clusterIP": "None",
            "selector": labels,
            "publishNotReadyAddresses": True,
            "ports": [{"name": port, "port": number} for port, number in ports.items()] or None,
        },
    }
    workload = {
        "apiVersion": "apps/v1",
        "kind": "StatefulSet",
        "metadata": {"name": name},
        "spec": {
            "serviceName": name,
            "replicas": replicas,
            "podManagementPolicy": "Parallel",
            "selector": {"matchLabels": labels},
            "template": {"metadata": {"labels": labels}, "spec": pod_spec(image, words, ports)},
        },
    }
    return service, workload
