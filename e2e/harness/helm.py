"""helm, against the cluster that kubectl names."""

import subprocess
from collections.abc import Mapping
from pathlib import Path

from harness.clusters import TREE
from harness.kubectl import Kubectl, KubectlError

CHART = TREE / "charts" / "penstock"


def run(kubectl: Kubectl, *words: str, seconds: float = 180) -> str:
    """What it prints; in the namespace of this kubectl."""
    done = attempt(kubectl, *words, seconds=seconds)
    if done.returncode:
        raise KubectlError(f"helm {' '.join(words)}: exit code {done.returncode}\n{done.stdout}{done.stderr}")
    return done.stdout


def attempt(kubectl: Kubectl, *words: str, seconds: float = 180) -> "subprocess.CompletedProcess[str]":
    """How it ended, well or not."""
    command = ["helm", f"--namespace={kubectl.namespace}", *words]
    return subprocess.run(
        command,
        env=kubectl.environment,
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=seconds,
        check=False,
    )


def install(kubectl: Kubectl, release: str, values: Mapping[str, str], *words: str, chart: Path = CHART) -> str:
    """Or upgrade it; its pods are ready when this returns."""
    given = [f"--set={name}={value}" for name, value in values.items()]
    return run(kubectl, "upgrade", "--install", release, str(chart), "--wait", "--timeout=120s", *given, *words)
