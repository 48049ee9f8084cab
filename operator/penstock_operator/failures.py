"""From a pod to what is wrong with it, in words that say what to do. No I/O."""

from collections.abc import Mapping
from typing import Any, Final

from penstock_operator.deciding.facts import Problem
from penstock_operator.names import COMPONENT_LABEL

_FIXES: Final = {
    "ErrImagePull": "check spec.image and spec.imagePullSecrets",
    "ImagePullBackOff": "check spec.image and spec.imagePullSecrets",
    "InvalidImageName": "correct spec.image",
    "ErrImageNeverPull": "load the image onto the nodes, or set spec.imagePullPolicy to IfNotPresent",
    "CreateContainerConfigError": "create the Secret or ConfigMap that spec.env, envFrom or program names",
    "CreateContainerError": "see kubectl describe pod",
    "RunContainerError": "see kubectl describe pod",
    "OOMKilled": "raise resources.limits.memory of this component, or use settings state.backend: rocksdb",
    "Unschedulable": "ask for less (resources.requests), free room, or add nodes",
    "Evicted": "raise resources.requests of this component",
    "CrashLoopBackOff": "see kubectl logs --previous",
    "Error": "see kubectl logs --previous",
}
_ENDS: Final = frozenset({"CrashLoopBackOff", "Error", "OOMKilled"})
_WAITS: Final = {reason: reason for reason in _FIXES if reason not in _ENDS} | {"ErrImagePull": "ImagePullBackOff"}
"""One word for two that take turns: whoever watches is told once."""


def pod_problem(pod: Mapping[str, Any]) -> Problem | None:
    """What keeps a pod from doing its work; None: nothing that is known."""
    meta, status = pod["metadata"], pod.get("status") or {}
    component, name = (meta.get("labels") or {}).get(COMPONENT_LABEL, ""), meta["name"]

    def problem(reason: str, message: str) -> Problem:
        fix = _FIXES.get(reason, "see kubectl describe pod")
        text = f"{reason}: {message}" if message else reason
        return Problem(reason=reason, message=text[:800], fix=fix, component=component, pod=name)

    if meta.get("deletionTimestamp"):
        return None
    if status.get("phase") == "Failed" and status.get("reason"):
        return problem(status["reason"], status.get("message", ""))
    for condition in status.get("conditions") or ():
        if condition["type"] == "PodScheduled" and condition["status"] == "False":
            return problem(condition.get("reason", "Unschedulable"), condition.get("message", ""))
    again = (pod.get("spec") or {}).get("restartPolicy", "Always") != "Never"
    containers = (status.get("initContainerStatuses") or []) + (status.get("containerStatuses") or [])
    for container in containers:
        state = container.get("state") or {}
        waiting, terminated = state.get("waiting"), state.get("terminated")
        # While it is started again it fails no less: its last end is told until it is ready.
        ended = terminated or (container.get("lastState") or {}).get("terminated")
        if waiting and waiting.get("reason") in _WAITS:
            return problem(_WAITS[waiting["reason"]], waiting.get("message", ""))
        if ended and ended.get("exitCode") and not container.get("ready"):
            known = ended.get("reason") if ended.get("reason") in _FIXES else "Error"
            return problem("CrashLoopBackOff" if known == "Error" and again else str(known), _ended(ended))
    return None


def last_words(pod: Mapping[str, Any]) -> str:
    """What a pod that has ended said at last: its message, else the end of its log."""
    for container in (pod.get("status") or {}).get("containerStatuses") or ():
        for state in (container.get("state") or {}, container.get("lastState") or {}):
            if ended := state.get("terminated"):
                return str(ended.get("message") or "").strip()
    return ""


def _ended(terminated: Mapping[str, Any]) -> str:
    words = str(terminated.get("message") or "").strip()
    return f"exit code {terminated.get('exitCode')}" + (f": {words[-600:]}" if words else "")
