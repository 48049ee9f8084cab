"""Nodes from outside: start, power off, look inside, load images."""

import contextlib
import hashlib
import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

from cluster import control_groups, layout, node_files, processes
from cluster.control_plane import kubectl
from cluster.shell import CommandError, die, run, say, succeeds, wait_for

_LOAD_SECONDS = 300.0


def start(node: str) -> None:
    """Its namespaces and daemons, when they are not there; it becomes Ready a little later."""
    number = layout.node_number(node)
    if processes.find(node) is not None:
        return
    node_files.write(node)
    control_groups.make_node(node)
    launcher = processes.start(
        f"{node}.launcher",
        *("unshare", "--net", "--mount", "--pid", "--uts", "--ipc", "--fork", "--mount-proc", "--kill-child"),
        *("--propagation", "private", sys.executable, layout.SOURCE, "_node", node),
    )
    processes.remember(node, _only_child(launcher, node))
    init = processes.find(node)
    with contextlib.suppress(CommandError):
        run("ip", "link", "delete", _cable(node))
    run("ip", "link", "add", _cable(node), "type", "veth", "peer", "name", "eth0", "netns", str(init))
    run("ip", "link", "set", _cable(node), "master", layout.BRIDGE, "up")
    run("ip", "route", "replace", layout.pod_network(number), "via", layout.node_ip(number))


def power_off(node: str) -> None:
    """At once, as when a machine is switched off: nothing on it is told."""
    layout.node_number(node)
    processes.stop(node, signal.SIGKILL)
    processes.stop(f"{node}.launcher")
    if succeeds("ip", "link", "show", _cable(node)):
        run("ip", "link", "delete", _cable(node))
    control_groups.remove(node)


def running() -> list[str]:
    """Those whose first process lives."""
    named = [name for name in processes.names() if name.startswith("node") and "." not in name]
    return [name for name in named if processes.find(name) is not None]


def wait_until_ready(node: str, since: str) -> None:
    """Ready by what its kubelet has said after `since`: what the API says may be older than the node."""

    def ready() -> bool:
        lease = ("--namespace=kube-node-lease", "get", "lease", node, "--output=jsonpath={.spec.renewTime}")
        with contextlib.suppress(CommandError):
            if kubectl(*lease) > since:
                kubectl("wait", "--for=condition=Ready", "--timeout=1s", f"node/{node}")
                return True
        return False

    wait_for(f"{node} becomes Ready", ready, seconds=120, hint=f"logs: {layout.NODES / node / 'log'}")


def inside(node: str, *words: object, stdin: Path | None = None, seconds: float = 60) -> str:
    """What a command prints that runs on a node."""
    pid = processes.find(node)
    if pid is None:
        raise CommandError(f"{node} does not run")
    command = [*_enter(pid), *map(str, words)]
    with contextlib.ExitStack() as files:
        source = files.enter_context(stdin.open("rb")) if stdin else subprocess.DEVNULL
        done = subprocess.run(command, stdin=source, capture_output=True, timeout=seconds, check=False)
    if done.returncode:
        raise CommandError(f"{node}: {' '.join(map(str, words))}: {done.stderr.decode()[-2000:]}")
    return done.stdout.decode()


def enter(node: str, words: list[str]) -> None:
    """Become a command on a node."""
    pid = processes.find(node)
    if pid is None:
        die(f"{node} does not run")
    os.execvp("nsenter", [*_enter(pid), *words])


def load(archive: Path) -> None:
    """Put the images of an archive on every running node that has not got just these."""
    with archive.open("rb") as content:
        digest = hashlib.file_digest(content, "sha256").hexdigest()
    found = running()
    if not found:
        die("no node runs: `python3 e2e/cluster up` starts one")
    for node in found:
        record = layout.NODES / node / "loaded.json"
        loaded = json.loads(record.read_text()) if record.exists() else {}
        if loaded.get(archive.name) == digest:
            continue
        started = time.monotonic()
        inside(node, "ctr", "--namespace=k8s.io", "images", "import", "-", stdin=archive, seconds=_LOAD_SECONDS)
        record.write_text(json.dumps({**loaded, archive.name: digest}))
        say(f"{archive.name} is on {node} after {time.monotonic() - started:.0f} s")


def _only_child(launcher: int, node: str) -> int:
    children = Path(f"/proc/{launcher}/task/{launcher}/children")
    deadline = time.monotonic() + 20
    while not (found := children.read_text().split() if children.exists() else []):
        if time.monotonic() > deadline or processes.find(f"{node}.launcher") is None:
            die(f"{node} did not start; see {layout.LOGS / f'{node}.launcher.log'}")
        time.sleep(0.02)
    return int(found[0])


def _enter(pid: int) -> list[str]:
    return ["nsenter", f"--target={pid}", "--net", "--mount", "--pid", "--uts", "--ipc", "--"]


def _cable(node: str) -> str:
    return f"{layout.BRIDGE}-{node.removeprefix('node')}"
