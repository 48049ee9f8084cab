"""What all pods of a job have in common. They meet the Pod Security standard `restricted`."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Final

from penstock_operator import names
from penstock_operator.spec.flowjob import FlowJobSpec, Resources
from penstock_operator.templates import MAIN, with_template

USER: Final = 10001
PROGRAM_FOLDER: Final = "/opt/programs"
_DEFAULTS: Final[dict[str, dict[str, Any]]] = {
    names.JOBMANAGER: {"requests": {"cpu": "250m", "memory": "512Mi"}, "limits": {"memory": "1Gi"}},
    names.TASKMANAGER: {"requests": {"cpu": "500m", "memory": "1Gi"}, "limits": {"memory": "2Gi"}},
    names.RUN: {"requests": {"cpu": "100m", "memory": "512Mi"}, "limits": {"memory": "1Gi"}},
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Owner:
    """The FlowJob that a manifest belongs to."""

    namespace: str
    name: str
    uid: str
    default_image: str = ""
    kind: str = names.FLOWJOB

    @property
    def reference(self) -> dict[str, Any]:
        """So that children go with it."""
        return {
            "apiVersion": names.API_VERSION,
            "kind": self.kind,
            "name": self.name,
            "uid": self.uid,
            "controller": True,
        }

    def metadata(self, name: str, component: str, **labels: str) -> dict[str, Any]:
        """Of a child."""
        return {
            "name": name,
            "namespace": self.namespace,
            "labels": names.labels(self.name, component) | labels,
            "ownerReferences": [self.reference],
        }


def pod_template(
    owner: Owner,
    spec: FlowJobSpec,
    *,
    component: str,
    revision: str,
    command: Sequence[str],
    resources: Resources | None,
    template: dict[str, Any] | None,
    container: dict[str, Any],
    pod: dict[str, Any],
) -> dict[str, Any]:
    """Metadata and spec of a pod. `container` and `pod`: what is special about it."""
    volumes: list[dict[str, Any]] = [{"name": "tmp", "emptyDir": {}}, {"name": "work", "emptyDir": {}}]
    mounts: list[dict[str, Any]] = [
        {"name": "tmp", "mountPath": "/tmp"},
        {"name": "work", "mountPath": "/var/penstock"},
    ]
    if spec.program is not None:
        volumes.append({"name": "program", "configMap": {"name": spec.program.config_map.name}})
        mounts.append({"name": "program", "mountPath": PROGRAM_FOLDER, "readOnly": True})
    environment: list[dict[str, Any]] = [
        {"name": "POD_NAME", "valueFrom": {"fieldRef": {"fieldPath": "metadata.name"}}},
        {"name": "POD_IP", "valueFrom": {"fieldRef": {"fieldPath": "status.podIP"}}},
        {"name": "HOME", "value": "/var/penstock"},
        {"name": "TMPDIR", "value": "/tmp"},
    ]
    given = {each["name"] for each in spec.env or ()}
    main: dict[str, Any] = {
        "name": MAIN,
        "image": spec.image or owner.default_image,
        "imagePullPolicy": spec.image_pull_policy or "IfNotPresent",
        "command": list(command),
        "env": [each for each in environment if each["name"] not in given] + list(spec.env or ()),
        "volumeMounts": mounts,
        "resources": _resources(resources, component),
        "terminationMessagePolicy": "FallbackToLogsOnError",
        "securityContext": {
            "allowPrivilegeEscalation": False,
            "capabilities": {"drop": ["ALL"]},
            "readOnlyRootFilesystem": True,
        },
        **container,
    }
    if spec.env_from:
        main["envFrom"] = list(spec.env_from)
    made: dict[str, Any] = {
        "metadata": {"labels": names.labels(owner.name, component) | {names.REVISION_LABEL: revision}},
        "spec": {
            "automountServiceAccountToken": False,
            "enableServiceLinks": False,
            "serviceAccountName": spec.service_account_name or "default",
            "securityContext": {
                "runAsNonRoot": True,
                "runAsUser": USER,
                "runAsGroup": USER,
                "fsGroup": USER,
                "seccompProfile": {"type": "RuntimeDefault"},
            },
            "containers": [main],
            "volumes": volumes,
            **({"imagePullSecrets": list(spec.image_pull_secrets)} if spec.image_pull_secrets else {}),
            **pod,
        },
    }
    return with_template(made, template)


def _resources(given: Resources | None, component: str) -> dict[str, Any]:
    if given is None:
        return _DEFAULTS[component]
    return given.model_dump(exclude_none=True)
