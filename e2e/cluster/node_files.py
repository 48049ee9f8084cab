"""What a node finds in its /var/lib/node: keys and the configuration of its three daemons."""

import json
import shutil
from pathlib import Path

from cluster import keys, layout, packages

INSIDE = Path("/var/lib/node")

SHOWN_SETTINGS = {
    "vm/overcommit_memory": "1",
    "vm/panic_on_oom": "0",
    "kernel/panic": "10",
    "kernel/panic_on_oops": "1",
    "kernel/keys/root_maxkeys": "1000000",
    "kernel/keys/root_maxbytes": "25000000",
}
"""The kubelet insists on these settings, which are the machine's. It is shown files that say so; nothing changes."""


def write(node: str) -> Path:
    """The folder that becomes the node's /var/lib and /var/log."""
    number = layout.node_number(node)
    folder = layout.NODES / node
    ours = folder / "lib" / "node"
    for path in (ours / "settings", folder / "lib" / "cni", folder / "lib" / "kubelet", folder / "log"):
        path.mkdir(parents=True, exist_ok=True)
    keys.certificate(
        node, f"/O=system:nodes/CN=system:node:{node}", f"DNS:{node},IP:{layout.node_ip(number)},IP:127.0.0.1"
    )
    keys.kubeconfig(node)
    for source in (keys.path_of("ca.crt"), keys.path_of(f"{node}.crt"), keys.path_of(f"{node}.key")):
        shutil.copy(source, ours)
    shutil.copy(layout.STATE / f"{node}.kubeconfig", ours / "kubelet.kubeconfig")
    shutil.copy(layout.STATE / "proxy.kubeconfig", ours)
    for setting, value in SHOWN_SETTINGS.items():
        shown_as(ours, setting).write_text(f"{value}\n")
    (ours / "resolv.conf").write_text(f"nameserver {layout.DNS_IP}\n")
    (ours / "containerd.toml").write_text(_containerd())
    (ours / "cni").mkdir(exist_ok=True)
    (ours / "cni" / "10-penstock.conflist").write_text(json.dumps(_pod_network(number), indent=1))
    # A configuration that begins with a brace would be taken for JSON of another kind of file.
    (ours / "kubelet.yaml").write_text("---\n" + json.dumps(_kubelet(node), indent=1))
    (ours / "proxy.yaml").write_text("---\n" + json.dumps(_proxy(), indent=1))
    return folder


def shown_as(folder: Path, setting: str) -> Path:
    """The file that is shown in place of a setting of the kernel."""
    return folder / "settings" / setting.replace("/", "-")


def _containerd() -> str:
    return f"""version = 2
disabled_plugins = ["io.containerd.internal.v1.opt"]
[plugins."io.containerd.grpc.v1.cri"]
  sandbox_image = "{layout.PAUSE_IMAGE}"
  restrict_oom_score_adj = true  # a machine may not let even root lower it
  cni = {{bin_dir = "{packages.CNI_PLUGINS}", conf_dir = "{INSIDE}/cni"}}
"""


def _pod_network(number: int) -> dict[str, object]:
    addresses = {"type": "host-local", "ranges": [[{"subnet": layout.pod_network(number)}]]}
    bridge = {"type": "bridge", "bridge": "cni0", "isDefaultGateway": True, "hairpinMode": True, "ipam": addresses}
    ports = {"type": "portmap", "capabilities": {"portMappings": True}}
    return {"cniVersion": "1.0.0", "name": "penstock-e2e", "plugins": [bridge, ports]}


def _kubelet(node: str) -> dict[str, object]:
    return {
        "apiVersion": "kubelet.config.k8s.io/v1beta1",
        "kind": "KubeletConfiguration",
        "authentication": {
            "anonymous": {"enabled": False},
            "webhook": {"enabled": True},
            "x509": {"clientCAFile": f"{INSIDE}/ca.crt"},
        },
        "authorization": {"mode": "Webhook"},
        "tlsCertFile": f"{INSIDE}/{node}.crt",
        "tlsPrivateKeyFile": f"{INSIDE}/{node}.key",
        "containerRuntimeEndpoint": "unix:///run/containerd/containerd.sock",
        "cgroupDriver": "cgroupfs",
        "cgroupRoot": f"/{layout.CONTROL_GROUP}/{node}",
        "clusterDNS": [layout.DNS_IP],
        "clusterDomain": "cluster.local",
        "resolvConf": f"{INSIDE}/resolv.conf",
        "failSwapOn": False,
        "oomScoreAdj": 0,
        # Images are loaded, and cannot be pulled again: they are never collected, and pods are evicted for want of
        # space only near the end of the disk, however full it was before.
        "imageGCHighThresholdPercent": 100,
        "evictionHard": {
            "memory.available": "200Mi",
            "nodefs.available": "2Gi",
            "imagefs.available": "2Gi",
            "nodefs.inodesFree": "1%",
        },
    }


def _proxy() -> dict[str, object]:
    return {
        "apiVersion": "kubeproxy.config.k8s.io/v1alpha1",
        "kind": "KubeProxyConfiguration",
        "mode": "nftables",
        "clusterCIDR": layout.POD_NETWORK,
        "clientConnection": {"kubeconfig": f"{INSIDE}/proxy.kubeconfig"},
        "oomScoreAdj": 0,
        # The table of connections belongs to the machine's first network namespace: it cannot be resized here.
        "conntrack": {"maxPerCore": 0, "min": 0, "tcpEstablishedTimeout": "0s", "tcpCloseWaitTimeout": "0s"},
    }
