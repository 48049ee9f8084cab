"""kubectl, for tests: objects as plain data, errors with what the server said."""

import contextlib
import json
import re
import subprocess
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any

Object = dict[str, Any]


class KubectlError(AssertionError):
    """A command failed that should not have."""


@dataclass(frozen=True, slots=True)
class Kubectl:
    """Commands against one cluster, in one namespace."""

    environment: dict[str, str]
    namespace: str = "default"

    def within(self, namespace: str) -> "Kubectl":
        """The same, in another namespace."""
        return replace(self, namespace=namespace)

    def __call__(self, *words: str, stdin: str | None = None, seconds: float = 120) -> str:
        """What it prints."""
        done = self.attempt(*words, stdin=stdin, seconds=seconds)
        if done.returncode:
            raise KubectlError(f"kubectl {' '.join(words)}: exit code {done.returncode}\n{done.stdout}{done.stderr}")
        return done.stdout

    def attempt(
        self, *words: str, stdin: str | None = None, seconds: float = 120
    ) -> "subprocess.CompletedProcess[str]":
        """How it ended, well or not."""
        command = ["kubectl", f"--namespace={self.namespace}", *words]
        return subprocess.run(
            command,
            input=stdin,
            env=self.environment,
            stdin=subprocess.DEVNULL if stdin is None else None,
            capture_output=True,
            text=True,
            timeout=seconds,
            check=False,
        )

    def get(self, *words: str) -> Object:
        """An object, or a list of them."""
        found: Object = json.loads(self("get", *words, "--output=json"))
        return found

    def find(self, kind: str, name: str) -> Object | None:
        """None: it is not there."""
        text = self("get", kind, name, "--ignore-not-found", "--output=json")
        return json.loads(text) if text.strip() else None

    def items(self, kind: str, *, labels: str = "") -> list[Object]:
        """All of a kind, with these labels."""
        words = [f"--selector={labels}"] if labels else []
        items: list[Object] = self.get(kind, *words)["items"]
        return items

    def apply(self, *objects: Object, manager: str = "penstock-e2e") -> None:
        """On the server's side."""
        text = json.dumps({"apiVersion": "v1", "kind": "List", "items": list(objects)})
        self("apply", "--server-side", f"--field-manager={manager}", "--filename=-", stdin=text)

    def delete(self, kind: str, name: str, *words: str, seconds: float = 120) -> None:
        """And wait until it is gone."""
        self("delete", kind, name, "--ignore-not-found", f"--timeout={seconds:.0f}s", *words, seconds=seconds + 10)

    def execute(self, pod: str, *words: str, seconds: float = 60) -> str:
        """What a command prints in a pod."""
        return self("exec", pod, "--", *words, seconds=seconds)

    @contextlib.contextmanager
    def forwarded(self, target: str, port: int) -> Iterator[int]:
        """A port of this machine that leads to a port of a pod or service (`service/s3`)."""
        command = ["kubectl", f"--namespace={self.namespace}", "port-forward", target, f":{port}"]
        with subprocess.Popen(
            command, env=self.environment, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
        ) as process:
            try:
                assert process.stdout is not None
                line = process.stdout.readline()
                found = re.search(r"127\.0\.0\.1:(\d+)", line)
                if found is None:
                    raise KubectlError(f"{' '.join(command)}: {line}{process.stdout.read()}")
                yield int(found[1])
            finally:
                process.kill()
                process.wait()


def condition(resource: Object, kind: str) -> Object | None:
    """One of its status conditions."""
    conditions: Sequence[Object] = resource.get("status", {}).get("conditions", [])
    return next((each for each in conditions if each["type"] == kind), None)


def is_ready(pod: Object) -> bool:
    """Whether a pod says so, and is to stay."""
    ready = condition(pod, "Ready")
    return "deletionTimestamp" not in pod["metadata"] and ready is not None and ready["status"] == "True"


def schedulable_nodes(kubectl: Kubectl) -> list[str]:
    """Names of nodes that take pods of anybody, in order."""
    nodes = kubectl.items("nodes")
    return sorted(node["metadata"]["name"] for node in nodes if not node["spec"].get("taints"))
