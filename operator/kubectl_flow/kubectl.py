"""kubectl as the way to the API server: its contexts, its credentials, its proxies, its plugins for logging in."""

import json
import subprocess
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Annotated, Any, Final

import typer

from penstock.model.errors import PenstockError, RetryableError, UserError

Object = dict[str, Any]

NamespaceOption = Annotated[
    str | None, typer.Option("--namespace", "-n", metavar="NS", help="Default: that of the context.")
]
ContextOption = Annotated[str | None, typer.Option("--context", metavar="NAME", help="Of kubeconfig.")]
JobArgument = Annotated[str, typer.Argument(metavar="JOB", help="Name of the FlowJob.")]
NoWaitOption = Annotated[bool, typer.Option("--no-wait", help="Do not wait until it is done.")]

_SECONDS: Final = 60.0
_UNREACHABLE: Final = ("connection refused", "i/o timeout", "no such host", "unable to connect", "TLS handshake")


@dataclass(frozen=True, slots=True)
class Kubectl:
    """Commands in one namespace of one cluster."""

    namespace: str | None = None
    context: str | None = None

    @property
    def words(self) -> list[str]:
        """Program and options that all commands begin with."""
        given = {"--namespace": self.namespace, "--context": self.context}
        return ["kubectl", *(f"{name}={value}" for name, value in given.items() if value)]

    def __call__(self, *words: str, stdin: str | None = None, seconds: float = _SECONDS) -> str:
        """What it prints; K-errors when it fails."""
        try:
            done = subprocess.run(
                [*self.words, *words],
                input=stdin,
                stdin=subprocess.DEVNULL if stdin is None else None,
                capture_output=True,
                text=True,
                timeout=seconds,
                check=False,
            )
        except FileNotFoundError as error:
            raise UserError("K001", "kubectl is not on the path", fix="install kubectl") from error
        except subprocess.TimeoutExpired as error:
            raise RetryableError("K002", f"no answer within {seconds:.0f} s", where=" ".join(words)) from error
        if done.returncode:
            raise _refusal(done.stderr.strip(), words)
        return done.stdout

    def get(self, kind: str, name: str) -> Object:
        """One object."""
        return _loaded(self("get", kind, name, "--output=json"))

    def items(self, kind: str, *, labels: str = "") -> list[Object]:
        """All of a kind, with these labels."""
        words = [f"--selector={labels}"] if labels else []
        items: list[Object] = _loaded(self("get", kind, *words, "--output=json"))["items"]
        return items

    def job(self, name: str) -> Object:
        """A FlowJob; an error that names those that there are."""
        try:
            return self.get("flowjob", name)
        except UserError as error:
            if error.code != "K003":
                raise
            there = [job["metadata"]["name"] for job in self.items("flowjobs")]
            known = f"there are {', '.join(sorted(there))}" if there else "there is none; try another --namespace"
            raise UserError("K003", f'there is no FlowJob "{name}"', fix=known) from error

    def create(self, manifest: Object) -> Object:
        """As the API server made it."""
        return _loaded(self("create", "--filename=-", "--output=json", stdin=json.dumps(manifest)))

    def patch(self, name: str, operations: Sequence[Object]) -> Object:
        """A FlowJob, field by field."""
        words = ["patch", "flowjob", name, "--type=json", f"--patch={json.dumps(list(operations))}", "--output=json"]
        return _loaded(self(*words))

    def ask_jobmanager(self, pod: str, path: str) -> Any:
        """Its REST interface, through the API server; None when it cannot be reached, or must not be."""
        namespace = self.namespace or self.current_namespace()
        try:
            return json.loads(self("get", "--raw", f"/api/v1/namespaces/{namespace}/pods/{pod}:8081/proxy{path}"))
        except (PenstockError, ValueError):
            return None

    def current_namespace(self) -> str:
        """Of the context."""
        return self("config", "view", "--minify", "--output=jsonpath={..namespace}").strip() or "default"


def cluster(namespace: str | None, context: str | None) -> Kubectl:
    """What the options of a command name."""
    return Kubectl(namespace, context)


def _loaded(text: str) -> Object:
    found: Object = json.loads(text)
    return found


def _refusal(said: str, words: Sequence[str]) -> PenstockError:
    what = said.removeprefix("Error from server ").removeprefix("error: ") or "kubectl failed"
    where = f"kubectl {' '.join(words[:3])}"
    if "(NotFound)" in said:
        return UserError("K003", what.removeprefix("(NotFound): "), where=where, fix="look with kubectl flow status")
    if "(Forbidden)" in said:
        fix = "ask for the role that lets you; docs/kubernetes.md has a table of rights"
        return UserError("K004", what.removeprefix("(Forbidden): "), where=where, fix=fix)
    if "the server doesn't have a resource type" in said:
        return UserError("K005", "this cluster does not know FlowJobs", where=where, fix="install charts/penstock")
    if any(sign.lower() in said.lower() for sign in _UNREACHABLE):
        return RetryableError("K002", what, where=where, fix="is the cluster up, and is it the right --context?")
    return UserError("K006", what, where=where)
