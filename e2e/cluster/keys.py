"""Certificates and kubeconfigs. Everything is signed by one authority, which is made once and kept with the state."""

import base64
import json
from pathlib import Path

from cluster import layout
from cluster.shell import run

_DAYS = "3650"
_NEW_KEY = ("-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-nodes")

API_SERVER_NAMES = (
    "DNS:kubernetes,DNS:kubernetes.default,DNS:kubernetes.default.svc,DNS:kubernetes.default.svc.cluster.local,"
    f"DNS:localhost,IP:{layout.KUBERNETES_SERVICE_IP},IP:{layout.HOST_IP},IP:127.0.0.1"
)


def make_all() -> None:
    """Of the control plane and for people; what is there stays."""
    layout.KEYS.mkdir(parents=True, exist_ok=True, mode=0o700)
    _authority()
    _service_account_key()
    certificate("apiserver", "/CN=kube-apiserver", API_SERVER_NAMES)
    certificate("kubelet-client", "/O=system:masters/CN=kube-apiserver-kubelet-client")
    certificate("admin", "/O=system:masters/CN=admin")
    kubeconfig("admin")
    for part in ("controller-manager", "scheduler", "proxy"):
        certificate(part, f"/CN=system:kube-{part}")
        kubeconfig(part)


def certificate(name: str, subject: str, names: str = "") -> None:
    """NAME.key and NAME.crt, for both ends of a connection."""
    key, request, signed = (path_of(f"{name}.{suffix}") for suffix in ("key", "csr", "crt"))
    if signed.exists():
        return
    run("openssl", "req", "-new", *_NEW_KEY, "-keyout", key, "-subj", subject, "-out", request)
    extensions = path_of(f"{name}.ext")
    lines = ["keyUsage=critical,digitalSignature", "extendedKeyUsage=serverAuth,clientAuth"]
    extensions.write_text("\n".join(lines + ([f"subjectAltName={names}"] if names else [])))
    authority = ("-CA", path_of("ca.crt"), "-CAkey", path_of("ca.key"), "-CAcreateserial")
    run("openssl", "x509", "-req", "-in", request, *authority, "-days", _DAYS, "-out", signed, "-extfile", extensions)


def kubeconfig(name: str) -> Path:
    """NAME.kubeconfig, for the certificate of that name, with everything inside."""
    path = layout.STATE / f"{name}.kubeconfig"
    user = {"client-certificate-data": _encoded(f"{name}.crt"), "client-key-data": _encoded(f"{name}.key")}
    server = {
        "server": f"https://{layout.HOST_IP}:{layout.API_PORT}",
        "certificate-authority-data": _encoded("ca.crt"),
    }
    context = {"cluster": "penstock-e2e", "user": name}
    document = {
        "apiVersion": "v1",
        "kind": "Config",
        "clusters": [{"name": "penstock-e2e", "cluster": server}],
        "users": [{"name": name, "user": user}],
        "contexts": [{"name": "penstock-e2e", "context": context}],
        "current-context": "penstock-e2e",
    }
    path.touch(mode=0o600)
    path.write_text(json.dumps(document))
    return path


def path_of(name: str) -> Path:
    """A file of ours."""
    return layout.KEYS / name


def _authority() -> None:
    if path_of("ca.crt").exists():
        return
    usage = "keyUsage=critical,keyCertSign,cRLSign,digitalSignature"
    files = ("-keyout", path_of("ca.key"), "-out", path_of("ca.crt"))
    run("openssl", "req", "-x509", *_NEW_KEY, *files, "-subj", "/CN=penstock-e2e", "-days", _DAYS, "-addext", usage)


def _service_account_key() -> None:
    if path_of("service-accounts.pub").exists():
        return
    key = path_of("service-accounts.key")
    run("openssl", "genpkey", "-algorithm", "RSA", "-pkeyopt", "rsa_keygen_bits:2048", "-out", key)
    run("openssl", "pkey", "-in", key, "-pubout", "-out", path_of("service-accounts.pub"))


def _encoded(name: str) -> str:
    return base64.b64encode(path_of(name).read_bytes()).decode()
