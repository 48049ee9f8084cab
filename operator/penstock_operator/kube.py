"""The few calls of the Kubernetes API that the controller makes.

Server-side apply under its own field manager for everything that it makes; status by a whole `PUT` that names the
version it was read at, so that of two controllers, or of a stale one, only one can write down what is to be done.
A generated client would take more memory than the rest of the controller.
"""

import base64
import contextlib
import json
import os
import ssl
import tempfile
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import aiohttp
import yaml

from penstock_operator import names

_ACCOUNT: Final = Path("/var/run/secrets/kubernetes.io/serviceaccount")
_SECONDS: Final = 15.0

PLURALS: Final = {
    "FlowJob": ("apis/penstock.dev/v1alpha1", "flowjobs"),
    "FlowSavepoint": ("apis/penstock.dev/v1alpha1", "flowsavepoints"),
    "StatefulSet": ("apis/apps/v1", "statefulsets"),
    "ControllerRevision": ("apis/apps/v1", "controllerrevisions"),
    "Job": ("apis/batch/v1", "jobs"),
    "PodDisruptionBudget": ("apis/policy/v1", "poddisruptionbudgets"),
    "Service": ("api/v1", "services"),
    "Pod": ("api/v1", "pods"),
    "Event": ("api/v1", "events"),
    "Lease": ("apis/coordination.k8s.io/v1", "leases"),
}


class ApiError(Exception):
    """The API server refused."""

    def __init__(self, status: int, reason: str, message: str) -> None:
        self.status, self.reason, self.message = status, reason, message
        super().__init__(f"{status} {reason}: {message}")


class NotFoundError(ApiError):
    """There is no such object."""


class ConflictError(ApiError):
    """Somebody else has changed it since it was read, or it exists already."""


@dataclass(frozen=True, slots=True)
class Connection:
    """Where the API server is, and who we are."""

    server: str
    tls: ssl.SSLContext | None
    token_file: Path | None = None
    token: str | None = None

    def headers(self) -> dict[str, str]:
        """Tokens of service accounts are replaced every hour or so: the file is read each time."""
        token = self.token_file.read_text().strip() if self.token_file is not None else self.token
        return {"Authorization": f"Bearer {token}"} if token else {}


def connection() -> Connection:
    """From the pod's service account, else from KUBECONFIG."""
    if (_ACCOUNT / "token").exists():
        host, port = os.environ["KUBERNETES_SERVICE_HOST"], os.environ.get("KUBERNETES_SERVICE_PORT", "443")
        server = f"https://[{host}]:{port}" if ":" in host else f"https://{host}:{port}"
        return Connection(server, ssl.create_default_context(cafile=_ACCOUNT / "ca.crt"), _ACCOUNT / "token")
    path = Path(os.environ.get("KUBECONFIG", "").partition(os.pathsep)[0] or Path.home() / ".kube" / "config")
    config = yaml.safe_load(path.read_text())
    context = _named(config["contexts"], config["current-context"], "context")
    cluster = _named(config["clusters"], context["cluster"], "cluster")
    user = _named(config["users"], context["user"], "user")
    tls = None
    if cluster["server"].startswith("https"):
        tls = ssl.create_default_context()
        with _file_of(cluster, "certificate-authority") as authority:
            if authority is not None:
                tls.load_verify_locations(cafile=authority)
        with _file_of(user, "client-certificate") as certificate, _file_of(user, "client-key") as key:
            if certificate is not None:
                tls.load_cert_chain(certificate, key)
    return Connection(cluster["server"].rstrip("/"), tls, token=user.get("token"))


class Kube:
    """All calls raise ApiError when they are refused, and OSError or TimeoutError when nobody answers."""

    def __init__(self, where: Connection) -> None:
        self._where = where
        self._session: aiohttp.ClientSession | None = None
        self.calls = 0

    async def __aenter__(self) -> "Kube":
        """Open."""
        connector = aiohttp.TCPConnector(limit=32, ssl=self._where.tls) if self._where.tls else None
        self._session = aiohttp.ClientSession(
            connector=connector, timeout=aiohttp.ClientTimeout(total=_SECONDS), trust_env=False
        )
        return self

    async def __aexit__(self, *_: object) -> None:
        """Close."""
        assert self._session is not None
        await self._session.close()

    async def get(self, kind: str, namespace: str, name: str) -> dict[str, Any]:
        """One object."""
        return await self._call("GET", _path(kind, namespace, name))

    async def list(
        self, kind: str, namespace: str | None = None, *, labels: str = "", fields: str = ""
    ) -> list[dict[str, Any]]:
        """Of one namespace, or of all; with kind and version, which lists leave out."""
        query = {"labelSelector": labels, "fieldSelector": fields}
        answer = await self._call(
            "GET", _path(kind, namespace), query={key: value for key, value in query.items() if value}
        )
        group = PLURALS[kind][0].removeprefix("apis/").removeprefix("api/")
        return [{"apiVersion": group, "kind": kind, **item} for item in answer["items"]]

    async def apply(self, manifest: Mapping[str, Any]) -> dict[str, Any]:
        """Make it so, whoever has changed it."""
        meta = manifest["metadata"]
        return await self._call(
            "PATCH",
            _path(manifest["kind"], meta["namespace"], meta["name"]),
            body=manifest,
            content="application/apply-patch+yaml",
            query={"fieldManager": names.FIELD_MANAGER, "force": "true"},
        )

    async def create(self, manifest: Mapping[str, Any]) -> dict[str, Any]:
        """A new object; ConflictError when it exists."""
        path = _path(manifest["kind"], manifest["metadata"]["namespace"])
        return await self._call("POST", path, body=manifest, query={"fieldManager": names.FIELD_MANAGER})

    async def put_status(self, body: Mapping[str, Any]) -> dict[str, Any]:
        """Replace the status; ConflictError when the object is no longer as it was read."""
        meta = body["metadata"]
        path = _path(body["kind"], meta["namespace"], meta["name"]) + "/status"
        return await self._call("PUT", path, body=body, query={"fieldManager": names.FIELD_MANAGER})

    async def put(self, body: Mapping[str, Any]) -> dict[str, Any]:
        """Replace the object; ConflictError when it is no longer as it was read."""
        meta = body["metadata"]
        return await self._call("PUT", _path(body["kind"], meta["namespace"], meta["name"]), body=body)

    async def patch(self, kind: str, namespace: str, name: str, changes: Mapping[str, Any]) -> dict[str, Any]:
        """Merge."""
        return await self._call(
            "PATCH",
            _path(kind, namespace, name),
            body=changes,
            content="application/merge-patch+json",
            query={"fieldManager": names.FIELD_MANAGER},
        )

    async def delete(self, kind: str, namespace: str, name: str, *, uid: str | None = None) -> None:
        """Gone is gone: no error when there is none, or when the one that is there has another uid."""
        body: dict[str, Any] = {"propagationPolicy": "Background"}
        if uid is not None:
            body["preconditions"] = {"uid": uid}
        with contextlib.suppress(NotFoundError, ConflictError):
            await self._call("DELETE", _path(kind, namespace, name), body=body)

    async def _call(
        self,
        method: str,
        path: str,
        *,
        body: Mapping[str, Any] | None = None,
        content: str = "application/json",
        query: Mapping[str, str] | None = None,
    ) -> dict[str, Any]:
        assert self._session is not None
        self.calls += 1
        headers = {**self._where.headers(), "Content-Type": content, "Accept": "application/json"}
        data = None if body is None else json.dumps(body)
        url = f"{self._where.server}/{path}"
        try:
            async with self._session.request(method, url, data=data, headers=headers, params=query) as response:
                text = await response.text()
                if response.status >= 400:
                    raise _refusal(response.status, text)
                answer: dict[str, Any] = json.loads(text)
                return answer
        except aiohttp.ClientError as error:
            raise ConnectionError(f"{method} {path}: {error}") from error


def _path(kind: str, namespace: str | None, name: str = "") -> str:
    group, plural = PLURALS[kind]
    parts = [group, *(["namespaces", namespace] if namespace else []), plural, *([name] if name else [])]
    return "/".join(parts)


def _refusal(status: int, text: str) -> ApiError:
    try:
        answer = json.loads(text)
        reason, message = str(answer.get("reason", "")), str(answer.get("message", text))
    except (ValueError, AttributeError):
        reason, message = "", text[:500]
    kind = {404: NotFoundError, 409: ConflictError}.get(status, ApiError)
    return kind(status, reason, message)


def _named(items: list[dict[str, Any]], name: str, what: str) -> dict[str, Any]:
    found: dict[str, Any] = next(item[what] for item in items if item["name"] == name)
    return found


@contextlib.contextmanager
def _file_of(part: Mapping[str, str], key: str) -> Iterator[str | None]:
    """The path of a certificate; those that stand in the configuration itself become files for a moment."""
    if key in part:
        yield part[key]
    elif f"{key}-data" in part:
        with tempfile.NamedTemporaryFile() as file:
            file.write(base64.b64decode(part[f"{key}-data"]))
            file.flush()
            yield file.name
    else:
        yield None
