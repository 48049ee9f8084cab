"""The first process of a node: it makes the node's world, starts its daemons, starts again what ends, and reaps.

It runs in fresh namespaces (see `nodes.start`). Its end, for whatever reason, is that of everything on the node.
"""

import os
import signal
import socket
import subprocess
import time
from pathlib import Path

from cluster import layout, node_files
from cluster.shell import run, succeeds

_INSIDE = node_files.INSIDE
_AGAIN_AFTER_SECONDS = 1.0


def main(node: str) -> None:
    """Never returns."""
    _mounts(node)
    _network(node)
    daemons = {"containerd": _spawn("containerd", "containerd", f"--config={_INSIDE}/containerd.toml")}
    while not succeeds("ctr", "version"):
        time.sleep(0.1)
    loaded = run("ctr", "--namespace=k8s.io", "images", "list", "--quiet")
    for archive, image in (("pause.tar", layout.PAUSE_IMAGE), ("coredns.tar", layout.COREDNS_IMAGE)):
        if image not in loaded:
            run("ctr", "--namespace=k8s.io", "images", "import", layout.BIN / archive)
    words = _kubernetes_daemons(node)
    daemons |= {name: _spawn(name, *command) for name, command in words.items()}
    words["containerd"] = ["containerd", f"--config={_INSIDE}/containerd.toml"]
    signal.signal(signal.SIGTERM, lambda *_: os._exit(0))
    while True:
        pid, _ = os.wait()
        for name, process in daemons.items():
            if process == pid:
                time.sleep(_AGAIN_AFTER_SECONDS)
                daemons[name] = _spawn(name, *words[name])


def _mounts(node: str) -> None:
    socket.sethostname(node)
    folder = layout.NODES / node
    run("mount", "--make-rshared", "/")
    for setting in node_files.SHOWN_SETTINGS:
        shown = node_files.shown_as(folder / "lib" / "node", setting)
        run("mount", "--bind", shown, Path("/proc/sys") / setting)
    run("mount", "--bind", folder / "log", "/var/log")
    run("mount", "--bind", folder / "lib", "/var/lib")
    run("mount", "-t", "tmpfs", "-o", "mode=755", "tmpfs", "/run")


def _network(node: str) -> None:
    number = layout.node_number(node)
    while not succeeds("ip", "link", "show", "eth0"):
        time.sleep(0.05)  # `nodes.start` puts it here
    run("ip", "link", "set", "lo", "up")
    run("ip", "address", "add", f"{layout.node_ip(number)}/24", "dev", "eth0")
    run("ip", "link", "set", "eth0", "up")
    # Never taken: kube-proxy rewrites the address first. But without a route there is nothing to rewrite.
    run("ip", "route", "add", layout.SERVICE_NETWORK, "via", layout.HOST_IP)
    for other in range(1, layout.MOST_NODES + 1):
        if other != number:
            run("ip", "route", "add", layout.pod_network(other), "via", layout.node_ip(other))
    Path("/proc/sys/net/ipv4/ip_forward").write_text("1")


def _kubernetes_daemons(node: str) -> dict[str, list[str]]:
    named = f"--hostname-override={node}"
    return {
        "kubelet": [
            str(layout.BIN / "kubelet"),
            f"--config={_INSIDE}/kubelet.yaml",
            f"--kubeconfig={_INSIDE}/kubelet.kubeconfig",
            f"--node-ip={layout.node_ip(layout.node_number(node))}",
            named,
        ],
        "kube-proxy": [str(layout.BIN / "kube-proxy"), f"--config={_INSIDE}/proxy.yaml", named],
    }


def _spawn(name: str, *words: str) -> int:
    with Path(f"/var/log/{name}.log").open("ab") as log:
        return subprocess.Popen(words, stdin=subprocess.DEVNULL, stdout=log, stderr=log).pid
