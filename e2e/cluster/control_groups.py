"""Control groups: one for the cluster's own processes, one below which each node's kubelet puts its pods.

Version 1 of the kernel's interface, a hierarchy per controller. Where there is only version 2 (most desktops), docker
and kind are at hand as well, and `make e2e` takes those.
"""

import contextlib
import os
import time
from pathlib import Path

from cluster import layout

_CONTROLLERS = ("cpu", "cpuacct", "cpuset", "memory", "devices", "freezer", "blkio", "pids", "systemd")
_ACCOUNTED = ("cpu", "cpuacct", "memory", "pids")


def missing() -> list[str]:
    """Controllers that this machine does not offer in version 1."""
    return [name for name in _CONTROLLERS if not (layout.CONTROL_GROUPS / name / "cgroup.procs").exists()]


def make_system() -> None:
    """Where the control plane and the daemons of nodes are accounted."""
    for name in _ACCOUNTED:
        (_top(name) / "system").mkdir(parents=True, exist_ok=True)


def enter_system() -> None:
    """Called in a child between fork and exec."""
    for name in _ACCOUNTED:
        descriptor = os.open(_top(name) / "system" / "cgroup.procs", os.O_WRONLY)
        os.write(descriptor, b"0")
        os.close(descriptor)


def make_node(node: str) -> None:
    """The root of a node's pods."""
    for name in _CONTROLLERS:
        (_top(name) / node).mkdir(parents=True, exist_ok=True)
    # A fresh cpuset group has no processors, and a process in it could never run.
    for folder in (_top("cpuset"), _top("cpuset") / node):
        for setting in ("cpuset.cpus", "cpuset.mems"):
            (folder / setting).write_text((folder.parent / setting).read_text())


def remove(node: str | None = None) -> None:
    """Of one node, or all. A group is busy for a moment after its last process has ended."""
    deadline = time.monotonic() + 10
    for name in _CONTROLLERS:
        top = _top(name) / node if node else _top(name)
        while top.exists():
            folders = [Path(path) for path, _, _ in os.walk(top, topdown=False)]
            for folder in folders:
                with contextlib.suppress(OSError):
                    folder.rmdir()
            if time.monotonic() > deadline:
                break
            if top.exists():
                time.sleep(0.1)


def _top(controller: str) -> Path:
    return layout.CONTROL_GROUPS / controller / layout.CONTROL_GROUP
