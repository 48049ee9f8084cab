"""The controller, for the namespace of one test: as a pod, or as a process of this machine.

$PENSTOCK_E2E_OPERATOR=local starts it from this tree, without an image: for work on it, where pods can be reached.
"""

import contextlib
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

from harness.clusters import TREE
from harness.kubectl import Kubectl, Object
from harness.sessions import CONTAINER_SECURITY, POD_SECURITY

NAME = "penstock-operator"
ALL = ["get", "list", "watch", "create", "patch", "update", "delete"]
RULES = [
    {"apiGroups": ["penstock.dev"], "resources": ["*"], "verbs": ALL},
    {"apiGroups": ["apps"], "resources": ["statefulsets", "controllerrevisions"], "verbs": ALL},
    {"apiGroups": ["batch"], "resources": ["jobs"], "verbs": ALL},
    {"apiGroups": ["policy"], "resources": ["poddisruptionbudgets"], "verbs": ALL},
    {"apiGroups": [""], "resources": ["services", "pods", "events"], "verbs": ALL},
    {"apiGroups": ["coordination.k8s.io"], "resources": ["leases"], "verbs": ALL},
]


def install_definitions(admin: Kubectl) -> None:
    """The kinds of this tree."""
    for path in sorted((TREE / "crds").glob("*.yaml")):
        admin("apply", "--server-side", "--force-conflicts", f"--filename={path}")
    names = ["crd/flowjobs.penstock.dev", "crd/flowsavepoints.penstock.dev"]
    admin("wait", "--for=condition=Established", "--timeout=30s", *names)


@contextlib.contextmanager
def operator(kubectl: Kubectl, image: str, log: Path, *, replicas: int = 1) -> Iterator[None]:
    """Works while the block does."""
    if os.environ.get("PENSTOCK_E2E_OPERATOR") == "local":
        with local_operator(kubectl, log):
            yield
        return
    kubectl.apply(*_objects(kubectl.namespace, image, replicas))
    kubectl("rollout", "status", f"deployment/{NAME}", "--timeout=60s", seconds=70)
    yield


@contextlib.contextmanager
def local_operator(kubectl: Kubectl, log: Path) -> Iterator["subprocess.Popen[bytes]"]:
    """A process; killed when the block ends, as it may be at any time."""
    command = [sys.executable, "-m", "penstock_operator", "run", f"--namespace={kubectl.namespace}", "--port=0"]
    environment = {**kubectl.environment, "POD_NAMESPACE": kubectl.namespace}
    with log.open("ab") as file, subprocess.Popen(command, env=environment, stdout=file, stderr=file) as process:
        try:
            yield process
        finally:
            process.send_signal(signal.SIGKILL)
            process.wait()


def _objects(namespace: str, image: str, replicas: int) -> list[Object]:
    labels = {"app.kubernetes.io/name": NAME}
    container: Object = {
        "name": "operator",
        "image": image,
        "env": [
            {"name": "PENSTOCK_OPERATOR_NAMESPACES", "value": namespace},
            {"name": "POD_NAME", "valueFrom": {"fieldRef": {"fieldPath": "metadata.name"}}},
            {"name": "POD_NAMESPACE", "valueFrom": {"fieldRef": {"fieldPath": "metadata.namespace"}}},
        ],
        "ports": [{"name": "metrics", "containerPort": 8080}],
        "readinessProbe": {"httpGet": {"path": "/readyz", "port": "metrics"}, "periodSeconds": 1},
        "livenessProbe": {"httpGet": {"path": "/healthz", "port": "metrics"}, "periodSeconds": 10},
        "resources": {"requests": {"cpu": "50m", "memory": "96Mi"}, "limits": {"memory": "256Mi"}},
        "securityContext": CONTAINER_SECURITY,
        "volumeMounts": [{"name": "tmp", "mountPath": "/tmp"}],
    }
    pod: Object = {
        "serviceAccountName": NAME,
        "containers": [container],
        "securityContext": POD_SECURITY,
        "volumes": [{"name": "tmp", "emptyDir": {}}],
    }
    role = {"apiVersion": "rbac.authorization.k8s.io/v1", "metadata": {"name": NAME}}
    return [
        {"apiVersion": "v1", "kind": "ServiceAccount", "metadata": {"name": NAME}},
        {**role, "kind": "Role", "rules": RULES},
        {
            **role,
            "kind": "RoleBinding",
            "roleRef": {"apiGroup": "rbac.authorization.k8s.io", "kind": "Role", "name": NAME},
            "subjects": [{"kind": "ServiceAccount", "name": NAME, "namespace": namespace}],
        },
        {
            "apiVersion": "apps/v1",
            "kind": "Deployment",
            "metadata": {"name": NAME},
            "spec": {
                "replicas": replicas,
                "selector": {"matchLabels": labels},
                "template": {"metadata": {"labels": labels}, "spec": pod},
            },
        },
    ]
