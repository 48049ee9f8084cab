"""The controller, for the namespace of one test: installed by its chart, or as a process of this machine.

$PENSTOCK_E2E_OPERATOR=local starts it from this tree, without an image: for work on it, where pods can be reached.
"""

import contextlib
import os
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import BinaryIO

from harness import helm
from harness.clusters import TREE
from harness.images import Images
from harness.kubectl import Kubectl

RELEASE = "penstock"
NAME = "penstock-operator"
"""Of Deployment, Lease and account: what the chart calls them for this release."""
POD_LABELS = "app.kubernetes.io/name=penstock-operator"


def install_definitions(admin: Kubectl) -> None:
    """The kinds of this tree, as people install them who leave that out of the release."""
    for path in sorted((TREE / "crds").glob("*.yaml")):
        admin("apply", "--server-side", "--force-conflicts", f"--filename={path}")
    names = ["crd/flowjobs.penstock.dev", "crd/flowsavepoints.penstock.dev"]
    admin("wait", "--for=condition=Established", "--timeout=30s", *names)


def values(images: Images, **more: str) -> dict[str, str]:
    """Of the chart: the images of this tree."""
    repository, _, tag = images.operator.rpartition(":")
    return {"image.repository": repository, "image.tag": tag, "jobImage": images.penstock, **more}


@contextlib.contextmanager
def operator(kubectl: Kubectl, images: Images, log: Path, *, replicas: int = 2) -> Iterator[None]:
    """Works while the block does; then its FlowJobs are let go, since nobody would any more."""
    if os.environ.get("PENSTOCK_E2E_OPERATOR") == "local":
        with local_operator(kubectl, log):
            yield
            let_go(kubectl)
        return
    given = {
        "watchNamespaces": f"{{{kubectl.namespace}}}",
        "replicas": str(replicas),
        "crds.install": "false",
        "rbac.userRoles": "false",
    }
    helm.install(kubectl, RELEASE, values(images, **given))
    try:
        yield
    finally:
        let_go(kubectl)


@contextlib.contextmanager
def local_operator(kubectl: Kubectl, log: Path, *words: str) -> Iterator["subprocess.Popen[bytes]"]:
    """A process; killed when the block ends, as it may be at any time."""
    with log.open("ab") as file, _started(kubectl, file, ["-m", "penstock_operator"], words) as process:
        yield process


@contextlib.contextmanager
def mortal_operator(kubectl: Kubectl, log: Path, cuts: Path) -> Iterator[None]:
    """One that is killed after each change that it makes, and started again, while the block lasts."""
    over = threading.Event()
    ends: list[int] = []

    def keep_starting() -> None:
        while not over.is_set():
            program = [str(Path(__file__).with_name("mortal_operator.py")), str(cuts)]
            with log.open("ab") as file, _started(kubectl, file, program, ["--no-leader-election"]) as process:
                while process.poll() is None and not over.wait(0.05):
                    pass
                if process.returncode is not None:
                    ends.append(process.returncode)

    keeper = threading.Thread(target=keep_starting)
    keeper.start()
    try:
        yield
    finally:
        over.set()
        keeper.join(60)
    assert set(ends) <= {-signal.SIGKILL}, f"it also ended by itself: {ends}; see {log}"


@contextlib.contextmanager
def _started(
    kubectl: Kubectl, log: BinaryIO, program: Sequence[str], words: Sequence[str]
) -> Iterator["subprocess.Popen[bytes]"]:
    command = [sys.executable, *program, "run", f"--namespace={kubectl.namespace}", "--port=0", *words]
    environment = {**kubectl.environment, "POD_NAMESPACE": kubectl.namespace}
    with subprocess.Popen(command, env=environment, stdout=log, stderr=log) as process:
        try:
            yield process
        finally:
            process.send_signal(signal.SIGKILL)
            process.wait()


def let_go(kubectl: Kubectl) -> None:
    """Without waiting for jobs to end in order: a namespace that goes with finalizers in it stays for ever."""
    kubectl.attempt("annotate", "flowjobs,flowsavepoints", "--all", "--overwrite", "penstock.dev/force-delete=true")
    kubectl.attempt("delete", "flowjobs,flowsavepoints", "--all", "--timeout=60s", seconds=70)
    for kind in ("flowjobs", "flowsavepoints"):
        for left in kubectl.attempt("get", kind, "--output=name").stdout.split():
            finalizers = '{"metadata": {"finalizers": null}}'
            kubectl.attempt("patch", left, "--type=merge", f"--patch={finalizers}")
