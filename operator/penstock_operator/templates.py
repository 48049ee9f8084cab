"""What users may put into pod templates, and how it is merged: by name, never by position."""

from collections.abc import Mapping
from typing import Any, Final

from penstock_operator.deciding.facts import Problem

MAIN: Final = "main"
_BY_NAME: Final = {
    "containers": "name",
    "initContainers": "name",
    "volumes": "name",
    "env": "name",
    "volumeMounts": "mountPath",
    "imagePullSecrets": "name",
}
_KEPT: Final = ("labels", "annotations")


def template_problem(template: Mapping[str, Any], path: str) -> Problem | None:
    """What would take a pod out of the `restricted` standard, or away from the controller."""
    spec = template.get("spec") or {}
    if not isinstance(spec, Mapping):
        return _not_allowed(f"{path}.spec", "is not an object", "write a pod spec")
    for name in ("hostNetwork", "hostPID", "hostIPC"):
        if spec.get(name):
            return _not_allowed(f"{path}.spec.{name}", "is not allowed", "remove it")
    for name in ("serviceAccountName", "serviceAccount"):
        if name in spec:
            return _not_allowed(f"{path}.spec.{name}", "is not allowed", "use spec.serviceAccountName")
    for index, volume in enumerate(spec.get("volumes") or ()):
        if "hostPath" in volume:
            return _not_allowed(
                f"{path}.spec.volumes[{index}].hostPath", "is not allowed", "use a PersistentVolumeClaim"
            )
    for kind in ("containers", "initContainers"):
        for index, container in enumerate(spec.get(kind) or ()):
            security = container.get("securityContext") or {}
            for name in ("privileged", "allowPrivilegeEscalation"):
                if security.get(name):
                    where = f"{path}.spec.{kind}[{index}].securityContext.{name}"
                    return _not_allowed(where, "is not allowed", "remove it")
    return None


def merged(base: Any, over: Any, key: str = "") -> Any:
    """`over` on top of `base`: objects field by field, known lists by name, all else replaced."""
    if isinstance(base, Mapping) and isinstance(over, Mapping):
        result = dict(base)
        for name, value in over.items():
            result[name] = merged(base[name], value, name) if name in base else value
        return result
    if isinstance(base, list) and isinstance(over, list) and key in _BY_NAME:
        by = _BY_NAME[key]
        result_list = list(base)
        places = {item.get(by): index for index, item in enumerate(base) if isinstance(item, Mapping)}
        for item in over:
            index = places.get(item.get(by)) if isinstance(item, Mapping) else None
            if index is None:
                result_list.append(item)
            else:
                result_list[index] = merged(base[index], item)
        return result_list
    return over


def with_template(pod: Mapping[str, Any], template: Mapping[str, Any] | None) -> dict[str, Any]:
    """The controller's pod template with the user's on top; labels that the controller finds pods by stay."""
    if not template:
        return dict(pod)
    made: dict[str, Any] = {"metadata": dict(pod["metadata"]), "spec": merged(pod["spec"], template.get("spec") or {})}
    given = template.get("metadata") or {}
    for name in _KEPT:
        both = {**(given.get(name) or {}), **(pod["metadata"].get(name) or {})}
        if both:
            made["metadata"][name] = both
    return made


def _not_allowed(where: str, what: str, fix: str) -> Problem:
    return Problem(reason="InvalidSpec", message=f"M010 {where} {what}", fix=fix)
