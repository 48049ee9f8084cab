"""Short-lived pods in the image of a job: what concerns its code or its store is done with the job's own rights."""

import contextlib
import json
import threading
from collections.abc import Iterator, Mapping
from typing import Any, Final

from kubectl_flow.kubectl import Kubectl, Object
from penstock.model.clocks import SystemClock
from penstock.model.errors import UserError
from penstock_operator import names
from penstock_operator.failures import pod_problem
from penstock_operator.moments import seconds_of
from penstock_operator.resources.pods import Owner

_MANAGED: Final = "kubectl-flow"
_POLL_SECONDS: Final = 1.0


def owner_of(job: Mapping[str, Any], kubectl: Kubectl) -> Owner:
    """For manifests that the controller makes, too. The image of jobs that name none is that of their pods."""
    meta = job["metadata"]
    default = ""
    if "image" not in job["spec"]:
        pods = kubectl.items("pods", labels=f"{names.JOB_LABEL}={meta['name']}")
        default = next((pod["spec"]["containers"][0]["image"] for pod in pods), "")
        if not default:
            raise UserError("K012", "the job names no image, and has no pod to see it from", fix="give spec.image")
    return Owner(namespace=meta["namespace"], name=meta["name"], uid=meta.get("uid", ""), default_image=default)


@contextlib.contextmanager
def run(kubectl: Kubectl, manifest: Object, *, timeout: str) -> Iterator[tuple[bool, str]]:
    """Whether it ended well, and what it printed. It is gone when the block ends."""
    made = kubectl.create(_ours(manifest))
    name = made["metadata"]["name"]
    try:
        yield _result(kubectl, name, seconds_of(timeout))
    finally:
        kubectl("delete", "job", name, "--cascade=background", "--ignore-not-found")


def _ours(manifest: Object) -> Object:
    """Without the controller's labels: it is not to take what somebody else asked for as its own."""
    made: Object = json.loads(json.dumps(manifest))
    meta = made["metadata"]
    made["metadata"] = {
        "generateName": f"{meta['name']}-",
        "namespace": meta["namespace"],
        "labels": {names.MANAGED_BY: _MANAGED},
    }
    made["spec"]["template"]["metadata"]["labels"] = {names.MANAGED_BY: _MANAGED}
    made["spec"]["backoffLimit"] = 0
    return made


def _result(kubectl: Kubectl, name: str, seconds: float) -> tuple[bool, str]:
    clock, pause = SystemClock(), threading.Event()
    deadline = clock.monotonic() + seconds
    while True:
        found = kubectl.get("job", name).get("status") or {}
        ended = {each["type"] for each in found.get("conditions") or () if each["status"] == "True"}
        if ended & {"Complete", "Failed"}:
            text = kubectl("logs", f"job/{name}", "--tail=-1")
            return "Complete" in ended, text
        if clock.monotonic() > deadline:
            pods = kubectl.items("pods", labels=f"batch.kubernetes.io/job-name={name}")
            problem = next(filter(None, map(pod_problem, pods)), None)
            what = problem.text if problem is not None else "its pod has not ended"
            raise UserError("K007", f"not within {seconds:.0f} s: {what}", where=f"job/{name}")
        pause.wait(_POLL_SECONDS)
