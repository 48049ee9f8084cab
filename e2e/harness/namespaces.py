"""A namespace per test, in which the Pod Security Standard `restricted` is enforced."""

import contextlib
from collections.abc import Callable, Iterator

from harness.kubectl import Kubectl
from harness.s3 import credentials


@contextlib.contextmanager
def restricted_namespace(kubectl: Kubectl, name: str, keep: Callable[[], bool]) -> Iterator[Kubectl]:
    """It goes with everything in it when the block ends, unless it is to be kept; nobody waits for that."""
    labels = {f"pod-security.kubernetes.io/{mode}": "restricted" for mode in ("enforce", "warn")}
    ours = kubectl.within(name)
    ours.apply({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": name, "labels": labels}}, credentials())
    try:
        yield ours
    finally:
        if not keep():
            kubectl("delete", "namespace", name, "--wait=false")
