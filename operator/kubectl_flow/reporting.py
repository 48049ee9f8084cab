"""`kubectl flow report`: everything that somebody needs who is to help, in one file, without secrets."""

import io
import json
import re
import zipfile
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Annotated, Any, Final

import typer
import yaml

from kubectl_flow.jobs import status_of
from kubectl_flow.kubectl import ContextOption, JobArgument, Kubectl, NamespaceOption, Object, cluster
from kubectl_flow.looking import events_of
from penstock.model.errors import PenstockError
from penstock_operator import names
from penstock_operator.moments import utc_now

HIDDEN: Final = "(hidden)"
_SECRET_NAME: Final = re.compile(
    r"secret|token|passw|credential|(access|private|api|account)[_-]?key|auth", re.IGNORECASE
)
_IN_TEXT: Final = (
    (re.compile(r"(://[^/\s:@]+:)[^/\s@]+(@)"), rf"\1{HIDDEN}\2"),
    (
        re.compile(r"(?i)((?:secret|token|password|access_key)[\w-]*[\"']?\s*[:=]\s*[\"']?)[^\s\"',;&]+"),
        rf"\1{HIDDEN}",
    ),
    (re.compile(r"(?i)(bearer\s+)[\w.~+/=-]+"), rf"\1{HIDDEN}"),
)
_ONLY_A_NAME: Final = re.compile(r"(?i)name|ref$|mount")
_NOISE: Final = frozenset({"managedFields", "kubectl.kubernetes.io/last-applied-configuration"})
_SHORTEST: Final = 4
_KINDS: Final = ("statefulsets", "controllerrevisions", "jobs", "services", "poddisruptionbudgets")
_ENGINE: Final = ("checkpoints", "savepoints", "rescales")


def report(
    job: JobArgument,
    output: Annotated[
        str | None, typer.Option("--output", "-o", metavar="FILE", help="Default: JOB-report.zip.")
    ] = None,
    tail: Annotated[int, typer.Option("--tail", help="Lines of each log.")] = 5000,
    namespace: NamespaceOption = None,
    context: ContextOption = None,
) -> None:
    """Write objects, events, logs and what the JobManager says into one file, for whoever is to help.

    Secrets are never read. Values of variables and settings that are called like secrets are hidden, and so is what
    looks like one in logs; look into the file before you send it.

    Example: `kubectl flow report hot-items -o hot-items.zip`
    """
    kubectl = cluster(namespace, context)
    parts = dict(_parts(kubectl, job, tail))
    path = Path(output or f"{job}-report.zip")
    path.write_bytes(packed(f"{job}-report", parts))
    print(f"{path}: {len(parts)} files, {path.stat().st_size // 1024} KiB; look into it before you send it")


def packed(folder: str, parts: Mapping[str, Any]) -> bytes:
    """One archive of texts and objects, secrets hidden: what is hidden in an object is hidden wherever it stands."""
    known = sorted({each for part in parts.values() for each in secrets_in(part)}, key=len, reverse=True)
    content = io.BytesIO()
    with zipfile.ZipFile(content, "w", zipfile.ZIP_DEFLATED) as archive:
        for name, part in parts.items():
            text = part if isinstance(part, str) else _text(name, redacted(part))
            for secret in known:
                text = text.replace(secret, HIDDEN)
            archive.writestr(f"{folder}/{name}", without_secrets(text))
    return content.getvalue()


def redacted(value: Any, name: str = "") -> Any:
    """An object, with what is called like a secret hidden; references to Secrets stay, they are only names."""
    if isinstance(value, dict):
        if _is_secret_variable(value):
            return {**value, "value": HIDDEN}
        return {key: redacted(each, key) for key, each in value.items() if key not in _NOISE}
    if isinstance(value, list):
        return [redacted(each) for each in value]
    return HIDDEN if _is_secret(name, value) else value


def secrets_in(value: Any, name: str = "") -> Iterator[str]:
    """What `redacted` hides, if it is long enough to be found elsewhere by it."""
    if isinstance(value, dict):
        if _is_secret_variable(value):
            yield from (str(value["value"]),) if len(str(value["value"])) >= _SHORTEST else ()
            return
        for key, each in value.items():
            yield from secrets_in(each, key)
    elif isinstance(value, list):
        for each in value:
            yield from secrets_in(each)
    elif _is_secret(name, value) and len(value) >= _SHORTEST:
        yield value


def without_secrets(text: str) -> str:
    """A text, with what looks like a secret hidden."""
    for pattern, replacement in _IN_TEXT:
        text = pattern.sub(replacement, text)
    return text


def _is_secret_variable(value: Mapping[str, Any]) -> bool:
    return "value" in value and _SECRET_NAME.search(str(value.get("name", ""))) is not None


def _is_secret(name: str, value: Any) -> bool:
    return isinstance(value, str) and _SECRET_NAME.search(name) is not None and not _ONLY_A_NAME.search(name)


def _parts(kubectl: Kubectl, job: str, tail: int) -> Iterator[tuple[str, Any]]:
    found = kubectl.job(job)
    yield "about.txt", f"job {job}, written {utc_now():%Y-%m-%d %H:%M:%S} UTC\n{_or_why(kubectl, 'version')}"
    yield "flowjob.yaml", found
    yield "flowsavepoints.yaml", kubectl.items("flowsavepoints")
    yield "events.yaml", events_of(kubectl, job)
    labels = f"{names.JOB_LABEL}={job}"
    for kind in _KINDS:
        yield f"{kind}.yaml", kubectl.items(kind, labels=labels)
    pods = kubectl.items("pods", labels=labels)
    yield "pods.yaml", pods
    said = status_of(found)
    for pod in pods:
        yield from _of_pod(kubectl, pod, said.job.id if said.job is not None else "", tail)
    words = ("get", "pods", "--all-namespaces", "--selector=app.kubernetes.io/name=penstock-operator")
    yield "operators.txt", _or_why(kubectl, *words)


def _of_pod(kubectl: Kubectl, pod: Object, job_id: str, tail: int) -> Iterator[tuple[str, Any]]:
    name = pod["metadata"]["name"]
    yield f"logs/{name}.log", _or_why(kubectl, "logs", name, "--all-containers", f"--tail={tail}")
    if any(each.get("restartCount") for each in (pod.get("status") or {}).get("containerStatuses") or ()):
        words = ("logs", name, "--all-containers", "--previous", f"--tail={tail}")
        yield f"logs/{name}.previous.log", _or_why(kubectl, *words)
    if pod["metadata"]["labels"].get(names.COMPONENT_LABEL) == names.JOBMANAGER:
        views = ("cluster", *(f"jobs/{job_id}/{view}" for view in _ENGINE if job_id))
        for view in views:
            answer = kubectl.ask_jobmanager(name, f"/{view}")
            part = f"engine/{name}/{view.rpartition('/')[2]}.json"
            yield part, answer if answer is not None else "it could not be asked\n"


def _or_why(kubectl: Kubectl, *words: str) -> str:
    """What a command prints, or why it does not."""
    try:
        return kubectl(*words)
    except PenstockError as error:
        return f"not here: {error}\n"


def _text(name: str, value: Any) -> str:
    if name.endswith(".json"):
        return json.dumps(value, indent=2)
    return yaml.safe_dump(value, sort_keys=False, allow_unicode=True, width=160)
