"""Kubernetes, CoreDNS and helm, built from their Go modules once per version.

Every part of Kubernetes and etcd is one program under seven names: linked once, mapped into memory once.
"""

import fcntl
import json
import os
import re
import shutil
import subprocess
import tempfile
import time
from pathlib import Path

from cluster import layout
from cluster.archives import write_image
from cluster.shell import die, say

_NAMES = ("etcd", "kubectl", "kubelet", "kube-apiserver", "kube-controller-manager", "kube-proxy", "kube-scheduler")
_MODULES_OF_VERSION = ("k8s.io/component-base/version", "k8s.io/client-go/pkg/version")
_BUILD_SECONDS = 3600.0
_SMALL = ("-trimpath", "-ldflags", "-s -w")


def build() -> None:
    """Once, whoever asks at the same time; a build that was interrupted begins again where Go's own cache is."""
    if (layout.BIN / "done").exists():
        return
    if shutil.which("go") is None:
        die("Kubernetes is built with Go, which is not here (1.25 or newer: https://go.dev/doc/install)")
    layout.BIN.mkdir(parents=True, exist_ok=True)
    with (layout.CACHE / "build.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if (layout.BIN / "done").exists():
            return
        started = time.monotonic()
        say(f"building Kubernetes {layout.KUBERNETES}, CoreDNS {layout.COREDNS}, helm {layout.HELM} (once, minutes)")
        with tempfile.TemporaryDirectory() as folder:
            _kubernetes(Path(folder) / "kube")
            _coredns(Path(folder) / "coredns")
            _pause(Path(folder) / "pause")
        _go(layout.BIN, "install", *_SMALL, f"helm.sh/helm/v3/cmd/helm@v{layout.HELM}", GOBIN=str(layout.BIN))
        (layout.BIN / "done").touch()
        say(f"built in {time.monotonic() - started:.0f} s")


def _kubernetes(folder: Path) -> None:
    shutil.copytree(layout.SOURCE / "go" / "kube", folder)
    module = f"k8s.io/kubernetes@v{layout.KUBERNETES}"
    published = Path(json.loads(_go(folder, "mod", "download", "-json", module))["GoMod"]).read_text()
    (folder / "go.mod").write_text(_module_file(published))
    minor = layout.KUBERNETES.split(".")[1]
    stamps = {"gitVersion": f"v{layout.KUBERNETES}", "gitMajor": "1", "gitMinor": minor, "gitTreeState": "archive"}
    flags = " ".join(f"-X {path}.{name}={value}" for path in _MODULES_OF_VERSION for name, value in stamps.items())
    _go(folder, "build", "-trimpath", "-ldflags", f"-s -w {flags}", "-o", str(layout.BIN / "kubernetes"), ".")
    for name in _NAMES:
        link = layout.BIN / name
        link.unlink(missing_ok=True)
        link.symlink_to("kubernetes")


def _module_file(published: str) -> str:
    """Kubernetes replaces its own libraries by folders that no module archive has; we, by their releases."""
    library_version = f"v0.{layout.KUBERNETES.removeprefix('1.')}"
    lines = ["module penstock.local/kube"]
    lines += [line for line in published.splitlines() if line.startswith(("go ", "godebug "))]
    lines.append(f"require k8s.io/kubernetes v{layout.KUBERNETES}")
    for library in re.findall(r"^\s*(?:replace )?(k8s\.io/[a-z-]+) => \./staging", published, re.MULTILINE):
        lines.append(f"replace {library} => {library} {library_version}")
    return "\n".join(lines) + "\n"


def _coredns(folder: Path) -> None:
    shutil.copytree(layout.SOURCE / "go" / "coredns", folder)
    required = f"require github.com/coredns/coredns v{layout.COREDNS}"
    (folder / "go.mod").write_text(f"module penstock.local/coredns\n\ngo 1.25.0\n\n{required}\n")
    _go(folder, "build", *_SMALL, "-o", "coredns", ".")
    write_image(layout.BIN / "coredns.tar", layout.COREDNS_IMAGE, {"coredns": folder / "coredns"}, ["/coredns"])


def _pause(folder: Path) -> None:
    shutil.copytree(layout.SOURCE / "go" / "pause", folder)
    (folder / "go.mod").write_text("module penstock.local/pause\n\ngo 1.25.0\n")
    _go(folder, "build", *_SMALL, "-o", "pause", ".")
    write_image(layout.BIN / "pause.tar", layout.PAUSE_IMAGE, {"pause": folder / "pause"}, ["/pause"])


def _go(folder: Path, *words: str, **variables: str) -> str:
    environment = {**os.environ, "GOFLAGS": "-mod=mod -buildvcs=false", "CGO_ENABLED": "0", **variables}
    done = subprocess.run(
        ["nice", "-n", "5", "go", *words],
        cwd=folder,
        env=environment,
        capture_output=True,
        text=True,
        timeout=_BUILD_SECONDS,
        check=False,
    )
    if done.returncode:
        die(f"go {words[0]} failed in {folder.name}:\n{done.stderr[-3000:]}")
    return done.stdout
