"""What was there when a test failed: objects, events and logs of its namespace, in a folder and in short on screen."""

import json
from pathlib import Path

from harness.kubectl import Kubectl

_KINDS = (
    "flowjobs",
    "flowsavepoints",
    "statefulsets",
    "jobs",
    "pods",
    "configmaps",
    "leases",
    "events",
)
_SHOWN_LINES = 15


def collect(kubectl: Kubectl, folder: Path) -> str:
    """Writes everything; returns what to look at first."""
    folder.mkdir(parents=True, exist_ok=True)
    for kind in _KINDS:
        text = kubectl.attempt("get", kind, "--output=yaml").stdout
        if text.strip():
            (folder / f"{kind}.yaml").write_text(text)
    shown = [kubectl.attempt("get", "pods", "--output=wide").stdout]
    shown.append(kubectl.attempt("get", "events", "--sort-by=.lastTimestamp").stdout)
    for pod in json.loads(kubectl.attempt("get", "pods", "--output=json").stdout or '{"items": []}')["items"]:
        name = pod["metadata"]["name"]
        for previous in ("false", "true"):
            log = kubectl.attempt("logs", name, "--all-containers", f"--previous={previous}")
            if log.returncode == 0 and log.stdout:
                (folder / f"{name}{'.previous' if previous == 'true' else ''}.log").write_text(log.stdout)
                shown.append(f"--- {name}, previous={previous}\n" + _end(log.stdout))
    return f"namespace {kubectl.namespace}; all of it is in {folder}\n" + "\n".join(shown)


def _end(text: str) -> str:
    return "\n".join(text.splitlines()[-_SHOWN_LINES:])
