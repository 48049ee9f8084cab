"""Which cluster the tests run on, and what differs between clusters: how images get there, and who can break what.

`KUBECONFIG` names one; else kind where docker works; else `e2e/cluster`, on this machine, as root.
"""

import json
import os
import shutil
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

from cluster import layout
from harness.kubectl import Kubectl

TREE = Path(__file__).resolve().parents[2]
LOAD_SECONDS = 600.0
OWN = [sys.executable, str(TREE / "e2e" / "cluster")]
KIND_NAME = "penstock-e2e"


class Cluster(Protocol):
    """What tests need of one."""

    environment: dict[str, str]
    """For kubectl and helm."""

    can_break: bool
    """Whether nodes and the control plane are ours to stop."""

    def load(self, archive: Path) -> None:
        """Images onto all nodes."""

    def close(self) -> None:
        """Leave the machine as it was, when we started it."""


@dataclass
class Given:
    """Somebody's. Images get there by $PENSTOCK_E2E_LOAD, a command that takes an archive, or were pushed before."""

    environment: dict[str, str]
    can_break: bool = False

    def load(self, archive: Path) -> None:
        """By the command that was given."""
        if command := os.environ.get("PENSTOCK_E2E_LOAD"):
            _run(*command.split(), str(archive))

    def close(self) -> None:
        """Leave it."""


@dataclass
class Kind:
    """Nodes are docker containers."""

    environment: dict[str, str]
    started: bool
    can_break: bool = False

    def load(self, archive: Path) -> None:
        """By kind."""
        _run("kind", "load", "image-archive", str(archive), f"--name={KIND_NAME}")

    def close(self) -> None:
        """Remove it, when it is ours."""
        if self.started:
            _run("kind", "delete", "cluster", f"--name={KIND_NAME}")


@dataclass
class Own:
    """`e2e/cluster`."""

    environment: dict[str, str]
    started: bool
    can_break: bool = True

    def load(self, archive: Path) -> None:
        """Where they are not yet."""
        _run(*OWN, "load", str(archive))

    def restart(self, part: str) -> None:
        """Kill a part of the control plane, and start it again."""
        _run(*OWN, "part-down", part, "--kill")
        _run(*OWN, "part-up", part)

    def node_up(self, node: str) -> None:
        """It is Ready when this returns."""
        _run(*OWN, "node-up", node)

    def node_down(self, node: str) -> None:
        """As by a cut of power."""
        _run(*OWN, "node-down", node)

    def close(self) -> None:
        """Stop it, when we started it."""
        if self.started:
            _run(*OWN, "down")


def open_cluster(*, keep: bool) -> Cluster:
    """`keep`: what this starts goes on running."""
    if named := os.environ.get("KUBECONFIG"):
        if Path(named).resolve() != layout.KUBECONFIG:
            return Given(dict(os.environ))
        return _own(keep=True)
    if _works("docker", "info") and shutil.which("kind"):
        return _kind(keep=keep)
    return _own(keep=keep)


def _own(*, keep: bool) -> Own:
    ran_before = _works(*OWN, "status")
    _run(*OWN, "up", "2", seconds=3600)
    environment = {
        **os.environ,
        "KUBECONFIG": str(layout.KUBECONFIG),
        "PATH": f"{layout.BIN}:{os.environ['PATH']}",
    }
    return Own(environment, started=not ran_before and not keep)


def _kind(*, keep: bool) -> Kind:
    folder = layout.CACHE / "kind"
    folder.mkdir(parents=True, exist_ok=True)
    kubeconfig = folder / "kubeconfig"
    clusters = subprocess.run(["kind", "get", "clusters"], capture_output=True, text=True, check=True).stdout.split()
    started = KIND_NAME not in clusters
    if started:
        nodes = [{"role": "control-plane"}, {"role": "worker"}, {"role": "worker"}]
        config = {"kind": "Cluster", "apiVersion": "kind.x-k8s.io/v1alpha4", "nodes": nodes}
        (folder / "kind.json").write_text(json.dumps(config))
        _run("kind", "create", "cluster", f"--name={KIND_NAME}", f"--config={folder / 'kind.json'}", "--wait=180s")
    _run("kind", "export", "kubeconfig", f"--name={KIND_NAME}", f"--kubeconfig={kubeconfig}")
    return Kind({**os.environ, "KUBECONFIG": str(kubeconfig)}, started=started and not keep)


def administrator(cluster: Cluster) -> Kubectl:
    """Of the whole cluster."""
    return Kubectl(cluster.environment)


def _works(*words: str) -> bool:
    try:
        done = subprocess.run(words, stdin=subprocess.DEVNULL, capture_output=True, timeout=60, check=False)
    except (OSError, subprocess.TimeoutExpired):
        return False
    return done.returncode == 0


def _run(*words: str, seconds: float = LOAD_SECONDS) -> None:
    """Its progress is shown; it fails the session when it fails."""
    subprocess.run(words, stdin=subprocess.DEVNULL, stdout=sys.stderr, timeout=seconds, check=True)
