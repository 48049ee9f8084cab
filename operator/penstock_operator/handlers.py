"""kopf watches; what it hears goes to the controller. No handler decides anything.

kopf's own finalizer and annotations are not used: handlers of events need neither. Children are watched by label, on
the side of the API server, so that other people's pods cost nothing.
"""

import asyncio
from collections.abc import Mapping, Sequence
from typing import Any

import kopf

from penstock_operator import names
from penstock_operator.controller import Controller

_RESOURCES = {
    "StatefulSet": ("apps", "v1", "statefulsets"),
    "ControllerRevision": ("apps", "v1", "controllerrevisions"),
    "Job": ("batch", "v1", "jobs"),
    "PodDisruptionBudget": ("policy", "v1", "poddisruptionbudgets"),
    "Service": ("", "v1", "services"),
    "Pod": ("", "v1", "pods"),
}


def registry(controller: Controller) -> kopf.OperatorRegistry:
    """What is watched."""
    handlers = kopf.OperatorRegistry()
    own = {
        "FlowJob": (names.GROUP, names.VERSION, "flowjobs"),
        "FlowSavepoint": (names.GROUP, names.VERSION, "flowsavepoints"),
    }
    for kind, (group, version, plural) in {**own, **_RESOURCES}.items():

        async def heard(event: Mapping[str, Any], body: Mapping[str, Any], _kind: str = kind, **_: Any) -> None:
            controller.heard(_kind, event.get("type"), dict(event["object"]))

        kopf.on.event(group, version, plural, id=f"heard-{plural}", registry=handlers)(heard)
    kopf.on.startup(registry=handlers, id="settings")(_configure)
    kopf.on.login(registry=handlers, id="login")(_login)
    return handlers


def _configure(settings: kopf.OperatorSettings, **_: Any) -> None:
    settings.posting.enabled = False
    settings.peering.standalone = True
    settings.scanning.disabled = True
    settings.watching.server_timeout = 600
    settings.watching.client_timeout = 660
    settings.networking.request_timeout = 30
    settings.persistence.finalizer = f"{names.GROUP}/kopf"
    settings.persistence.progress_storage = kopf.AnnotationsProgressStorage(prefix=names.GROUP)
    settings.persistence.diffbase_storage = kopf.AnnotationsDiffBaseStorage(prefix=names.GROUP)
    for group, version, plural in _RESOURCES.values():
        settings.watching.label_selectors[group, version, plural] = names.MANAGED_SELECTOR


def _login(**kwargs: Any) -> kopf.ConnectionInfo | None:
    return kopf.login_with_service_account(**kwargs) or kopf.login_with_kubeconfig(**kwargs)


async def watch(controller: Controller, namespaces: Sequence[str], stop: asyncio.Event) -> None:
    """Until `stop`."""
    await kopf.operator(
        registry=registry(controller),
        clusterwide=not namespaces,
        namespaces=list(namespaces),
        standalone=True,
        stop_flag=stop,
    )
