"""etcd, API server, controller manager, scheduler: four processes in the machine's own namespaces."""

import signal

from cluster import layout, processes
from cluster.keys import path_of
from cluster.shell import CommandError, run, succeeds, wait_for

_ETCD = f"http://127.0.0.1:{layout.ETCD_PORT}"
_ETCD_PEER = f"http://127.0.0.1:{layout.ETCD_PEER_PORT}"

ORDER = ("etcd", "kube-apiserver", "kube-controller-manager", "kube-scheduler")
"""Of start; they are stopped the other way round."""


def start() -> None:
    """All of it; what runs already is left alone."""
    for part in ORDER:
        start_part(part)


def start_part(part: str) -> None:
    """One of them; the API server is waited for."""
    processes.start(part, layout.BIN / part, *_flags(part))
    if part == "kube-apiserver":
        log = layout.LOGS / f"{part}.log"
        wait_for("the API server", lambda: succeeds(*_READY), seconds=120, hint=f"its log: {log}")


def stop() -> None:
    """All of it."""
    for part in reversed(ORDER):
        processes.stop(part)


def stop_part(part: str, number: signal.Signals = signal.SIGTERM) -> None:
    """One of them."""
    if part not in ORDER:
        raise CommandError(f'there is no "{part}"; the control plane is {", ".join(ORDER)}')
    processes.stop(part, number)


def kubectl(*words: object, stdin: str | None = None) -> str:
    """As the administrator."""
    return run(layout.BIN / "kubectl", f"--kubeconfig={layout.KUBECONFIG}", *words, stdin=stdin)


_READY = (layout.BIN / "kubectl", f"--kubeconfig={layout.KUBECONFIG}", "get", "--raw", "/readyz")


def _flags(part: str) -> list[str]:
    flags: dict[str, dict[str, object]] = {
        "etcd": {
            "name": "penstock-e2e",
            "data-dir": layout.STATE / "etcd",
            "listen-client-urls": _ETCD,
            "advertise-client-urls": _ETCD,
            "listen-peer-urls": _ETCD_PEER,
            "initial-advertise-peer-urls": _ETCD_PEER,
            "initial-cluster": f"penstock-e2e={_ETCD_PEER}",
            # Tests outlive no power cut; without it every write of the API server waits for the disk.
            "unsafe-no-fsync": "true",
            "log-level": "warn",
        },
        "kube-apiserver": {
            "etcd-servers": _ETCD,
            "bind-address": layout.HOST_IP,
            "advertise-address": layout.HOST_IP,
            "secure-port": layout.API_PORT,
            "client-ca-file": path_of("ca.crt"),
            "tls-cert-file": path_of("apiserver.crt"),
            "tls-private-key-file": path_of("apiserver.key"),
            "kubelet-certificate-authority": path_of("ca.crt"),
            "kubelet-client-certificate": path_of("kubelet-client.crt"),
            "kubelet-client-key": path_of("kubelet-client.key"),
            "kubelet-preferred-address-types": "InternalIP",
            "service-cluster-ip-range": layout.SERVICE_NETWORK,
            "service-account-issuer": "https://kubernetes.default.svc.cluster.local",
            "service-account-key-file": path_of("service-accounts.pub"),
            "service-account-signing-key-file": path_of("service-accounts.key"),
            "authorization-mode": "Node,RBAC",
            "enable-admission-plugins": "NodeRestriction",
            "anonymous-auth": "false",
            "allow-privileged": "true",
        },
        "kube-controller-manager": {
            **_client_of("controller-manager", layout.CONTROLLER_MANAGER_PORT),
            "use-service-account-credentials": "true",
            "root-ca-file": path_of("ca.crt"),
            "service-account-private-key-file": path_of("service-accounts.key"),
            "cluster-signing-cert-file": path_of("ca.crt"),
            "cluster-signing-key-file": path_of("ca.key"),
        },
        "kube-scheduler": _client_of("scheduler", layout.SCHEDULER_PORT),
    }
    return [f"--{name}={value}" for name, value in flags[part].items()]


def _client_of(name: str, port: int) -> dict[str, object]:
    kubeconfig = layout.STATE / f"{name}.kubeconfig"
    options = ("kubeconfig", "authentication-kubeconfig", "authorization-kubeconfig")
    return {**dict.fromkeys(options, kubeconfig), "bind-address": "127.0.0.1", "secure-port": port}
