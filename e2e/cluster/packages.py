"""What comes from the Linux distribution."""

import os
import shutil
import subprocess
from pathlib import Path

from cluster.shell import die, say

CNI_PLUGINS = Path("/usr/lib/cni")

_PACKAGE_OF = {
    "containerd": "containerd",
    "runc": "runc",
    "nft": "nftables",
    "iptables": "iptables",
    "conntrack": "conntrack",
    "ethtool": "ethtool",
    "socat": "socat",
    "ip": "iproute2",
    "nsenter": "util-linux",
    "openssl": "openssl",
}


def install() -> None:
    """Only what is missing."""
    missing = {package for command, package in _PACKAGE_OF.items() if shutil.which(command) is None}
    if not (CNI_PLUGINS / "bridge").exists():
        missing.add("containernetworking-plugins")
    if not missing:
        return
    words = " ".join(sorted(missing))
    if shutil.which("apt-get") is None:
        die(f"not here: {words}. Install them, or use kind, or a cluster of your own (KUBECONFIG)")
    say(f"installing {words}")
    environment = {**os.environ, "DEBIAN_FRONTEND": "noninteractive"}
    wait = ["-o", "DPkg::Lock::Timeout=300"]
    for command in (
        ["apt-get", *wait, "update", "-q"],
        ["apt-get", *wait, "install", "-yq", "--no-install-recommends", *sorted(missing)],
    ):
        done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=900, check=False)
        if done.returncode:
            die(f"{' '.join(command)} failed:\n{(done.stdout + done.stderr)[-2000:]}")
