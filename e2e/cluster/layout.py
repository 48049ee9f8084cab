"""Where everything is: versions, folders, addresses. Nothing here does anything."""

import os
from pathlib import Path

KUBERNETES = "1.34.4"
"""The last minor version whose kubelet accepts control groups of version 1 without being asked to."""
COREDNS = "1.14.3"
HELM = "3.19.5"

SOURCE = Path(__file__).resolve().parent

CACHE = Path(os.environ.get("PENSTOCK_E2E_CACHE") or Path.home() / ".cache" / "penstock-e2e").absolute()
"""What was built; kept from run to run."""
BIN = CACHE / f"bin-{KUBERNETES}"
STATE = CACHE / "cluster"
"""What belongs to the one cluster: keys, etcd's data, logs, nodes with their images."""
KEYS = STATE / "keys"
LOGS = STATE / "logs"
RUNNING = STATE / "running"
NODES = STATE / "nodes"
KUBECONFIG = STATE / "admin.kubeconfig"

BRIDGE = "penstock0"
HOST_IP = "10.90.0.1"
POD_NETWORK = "10.245.0.0/16"
SERVICE_NETWORK = "10.97.0.0/16"
KUBERNETES_SERVICE_IP = "10.97.0.1"
DNS_IP = "10.97.0.10"
API_PORT = 6443
ETCD_PORT, ETCD_PEER_PORT = 23795, 23805
CONTROLLER_MANAGER_PORT, SCHEDULER_PORT = 10277, 10279
"""Other than the usual ones, so that a Kubernetes that this machine already runs is not in the way."""

CONTROL_GROUP = "penstock-e2e"
CONTROL_GROUPS = Path("/sys/fs/cgroup")

PAUSE_IMAGE = "penstock.local/pause:1"
COREDNS_IMAGE = f"penstock.local/coredns:{COREDNS}"

HIDDEN_IN_NODES = ("/run", "/var/lib", "/var/log")
"""A node has folders of its own there, so nothing that it needs to see may be below them."""

MOST_NODES = 9


def node_number(name: str) -> int:
    """node1 is 1."""
    digits = name.removeprefix("node")
    if name == digits or not digits.isdigit() or not 1 <= int(digits) <= MOST_NODES:
        raise ValueError(f'there is no node "{name}": nodes are called node1 to node{MOST_NODES}')
    return int(digits)


def node_ip(number: int) -> str:
    """Its address on the bridge."""
    return f"10.90.0.{10 + number}"


def pod_network(number: int) -> str:
    """The addresses of its pods."""
    return f"10.245.{number}.0/24"
