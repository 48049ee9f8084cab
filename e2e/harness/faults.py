"""What goes wrong on clusters. Each works on any cluster but those that need `Own`, which say so by their argument."""

import contextlib
from collections.abc import Iterator

from harness.clusters import Own
from harness.kubectl import Kubectl, Object
from harness.s3 import S3Server


def kill_pod(kubectl: Kubectl, pod: str) -> None:
    """As when its node has taken it away without a word; another one of its name may come."""
    kubectl("delete", "pod", pod, "--grace-period=0", "--force", "--wait=false")


def delete_pod(kubectl: Kubectl, pod: str) -> None:
    """In order: it is told to end, and has its grace period."""
    kubectl("delete", "pod", pod, "--wait=false")


def end_main_process(kubectl: Kubectl, pod: str) -> None:
    """SIGTERM to the first process of a pod: the kubelet starts the container again, in the same pod.

    (The kernel keeps SIGKILL from a first process unless it comes from outside; `fill_memory` brings that about.)
    """
    kubectl.execute(pod, "python3", "-c", "import os; os.kill(1, 15)")


def fill_memory(kubectl: Kubectl, pod: str) -> None:
    """Takes memory in a pod, in small processes, until the kernel has ended a large one that was there before.

    With control groups of version 1 that is a slot or its TaskManager; with version 2 all of the container goes.
    """
    done = kubectl.attempt("exec", pod, "--", "python3", "-c", _EATERS, seconds=120)
    if done.returncode not in (0, 137):
        raise AssertionError(f"the memory of {pod} was not filled: {done.stderr}")


_EATERS = """
import os, signal, sys, time
before = {pid for pid in os.listdir("/proc") if pid.isdigit()}
eaters = []
deadline = time.monotonic() + 90
while before <= set(os.listdir("/proc")):
    if time.monotonic() > deadline:
        sys.exit("nothing was ended in 90 s")
    eater = os.fork()
    if eater == 0:
        eaten = b"x" * (16 << 20)
        time.sleep(100)
    eaters.append(eater)
    time.sleep(0.1)
for eater in eaters:
    os.kill(eater, signal.SIGKILL)
"""


def restarts(kubectl: Kubectl, pod: str) -> int:
    """How often the containers of a pod were started again."""
    found = kubectl.find("pod", pod)
    statuses: list[Object] = (found or {}).get("status", {}).get("containerStatuses", [])
    return sum(int(status["restartCount"]) for status in statuses)


def drain(kubectl: Kubectl, node: str) -> None:
    """As before maintenance: pods are evicted, budgets respected."""
    words = ("--ignore-daemonsets", "--delete-emptydir-data", "--force", "--timeout=180s")
    kubectl("drain", node, *words, seconds=200)


@contextlib.contextmanager
def cordoned(kubectl: Kubectl, node: str) -> Iterator[None]:
    """Pods go elsewhere, until the block ends; a drain is undone, too."""
    kubectl("cordon", node)
    try:
        yield
    finally:
        kubectl("uncordon", node)


@contextlib.contextmanager
def without_node(cluster: Own, node: str) -> Iterator[None]:
    """It is switched off, until the block ends. The API shows it as Ready for another 50 s."""
    cluster.node_down(node)
    try:
        yield
    finally:
        cluster.node_up(node)


@contextlib.contextmanager
def without_s3(server: S3Server) -> Iterator[None]:
    """Nobody answers there, until the block ends."""
    server.go_away()
    try:
        yield
    finally:
        server.come_back()


def restart_api_server(cluster: Own) -> None:
    """Killed and started again; open watches break."""
    cluster.restart("kube-apiserver")
