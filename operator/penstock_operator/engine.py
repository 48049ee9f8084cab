"""The engine's REST interface, as far as the controller needs it: the other half of a contract test."""

import asyncio
import json
from collections.abc import Mapping, Sequence
from typing import Any, Final
from urllib.parse import quote, urlsplit

import aiohttp

from penstock_operator.deciding.facts import Engine, EngineJob, EngineRescale, EngineSavepoint
from penstock_operator.names import REST_PORT

_SECONDS: Final = 4.0
_STOP_SECONDS: Final = 15.0
"""Opening the folder of a savepoint may ask the store."""


class EngineRefusedError(Exception):
    """The JobManager says no, and why."""

    def __init__(self, status: int, code: str, what: str, fix: str) -> None:
        self.status, self.code = status, code
        super().__init__(f"{code} {what}" + (f"; {fix}" if fix else ""))


class EngineUnreachableError(Exception):
    """Nobody answers."""


class Engines:
    """Calls to JobManagers by the address of their pod."""

    def __init__(self) -> None:
        self._session: aiohttp.ClientSession | None = None

    async def __aenter__(self) -> "Engines":
        """Open."""
        self._session = aiohttp.ClientSession(trust_env=False, connector=aiohttp.TCPConnector(limit=64))
        return self

    async def __aexit__(self, *_: object) -> None:
        """Close."""
        assert self._session is not None
        await self._session.close()

    async def look(self, addresses: Sequence[str], job_id: str | None) -> tuple[str, Engine] | None:
        """The first JobManager that answers as a leader, and what it says; None: none does."""
        for address in addresses:
            try:
                cluster = await self._call(address, "GET", "/cluster")
                if job_id is None or all(job["id"] != job_id for job in cluster["jobs"]):
                    return address, view(cluster, [], [])
                job = quote(job_id, safe="")
                savepoints = await self._call(address, "GET", f"/jobs/{job}/savepoints")
                try:
                    rescales = await self._call(address, "GET", f"/jobs/{job}/rescales")
                except EngineRefusedError as error:
                    if error.status not in {404, 405}:
                        raise
                    rescales = None
                return address, view(cluster, savepoints, rescales)
            except (EngineUnreachableError, EngineRefusedError):
                continue
        return None

    async def take_savepoint(self, address: str, job_id: str, *, name: str, folder: str, stop: bool) -> None:
        """Begin to take one; the same name again is the same savepoint."""
        query = {"to": folder, "name": name} | ({"stop": "true"} if stop else {})
        await self._call(address, "POST", f"/jobs/{quote(job_id, safe='')}/savepoints", query=query)

    async def savepoints(self, address: str, job_id: str) -> tuple[EngineSavepoint, ...]:
        """Those that this JobManager was asked for."""
        answer = await self._call(address, "GET", f"/jobs/{quote(job_id, safe='')}/savepoints")
        return tuple(map(_savepoint, answer))

    async def stop(self, address: str, job_id: str) -> None:
        """End it with a checkpoint."""
        await self._call(address, "POST", f"/jobs/{quote(job_id, safe='')}/stop")

    async def cancel(self, address: str, job_id: str) -> None:
        """End it now."""
        await self._call(address, "POST", f"/jobs/{quote(job_id, safe='')}/cancel")

    async def rescale(self, address: str, job_id: str, parallelism: int) -> None:
        """Begin to move key groups."""
        path = f"/jobs/{quote(job_id, safe='')}/rescale"
        await self._call(address, "POST", path, body={"parallelism": parallelism})

    async def _call(
        self,
        address: str,
        method: str,
        path: str,
        *,
        query: Mapping[str, str] | None = None,
        body: Mapping[str, Any] | None = None,
    ) -> Any:
        assert self._session is not None
        seconds = _SECONDS if method == "GET" else _STOP_SECONDS
        data = json.dumps(body).encode() if body is not None else b"" if method == "POST" else None
        headers = {"Content-Type": "application/json"} if data is not None else {}
        try:
            async with (
                asyncio.timeout(seconds),
                self._session.request(method, address + path, params=query, data=data, headers=headers) as response,
            ):
                text = await response.text()
                if response.status >= 400:
                    raise _refusal(response.status, text)
                return json.loads(text)
        except (aiohttp.ClientError, TimeoutError, OSError) as error:
            raise EngineUnreachableError(f"{method} {address}{path}: {error}") from error


def address_of(pod_ip: str) -> str:
    """REST of a JobManager."""
    return f"http://[{pod_ip}]:{REST_PORT}" if ":" in pod_ip else f"http://{pod_ip}:{REST_PORT}"


def view(
    cluster: Mapping[str, Any], savepoints: Sequence[Mapping[str, Any]], rescales: Sequence[Mapping[str, Any]] | None
) -> Engine:
    """From the JSON of the REST interface."""
    busy = {
        process["id"].rpartition("#")[0]
        for process in cluster["processes"]
        if process["role"] == "slot" and process["subtasks"]
    }
    return Engine(
        jobs=tuple(map(_job, cluster["jobs"])),
        savepoints=tuple(map(_savepoint, savepoints)),
        rescales=None if rescales is None else tuple(map(_rescale, rescales)),
        slots=cluster["slots_total"],
        busy_pods=frozenset(busy),
    )


def _job(job: Mapping[str, Any]) -> EngineJob:
    last = job.get("last_checkpoint") or {}
    return EngineJob(
        id=job["id"],
        state=job["state"],
        parallelism=job["parallelism"],
        checkpoints=job["checkpoints_completed"] or (1 if last else 0),
        attempt=job["attempt"],
        restarts=job["restarts"],
        reason=job["reason"],
        submitted_us=job["submitted_us"],
        running_us=job.get("running_us"),
        checkpoint_id=last.get("id"),
        checkpoint_us=last.get("triggered_us", 0),
        checkpoint_bytes=last.get("size", 0),
        checkpoint_duration_us=last.get("duration_us") or 0,
    )


def _savepoint(savepoint: Mapping[str, Any]) -> EngineSavepoint:
    return EngineSavepoint(
        name=urlsplit(savepoint["uri"]).path.rpartition("/")[2],
        uri=savepoint["uri"],
        status=savepoint["status"],
        reason=savepoint["reason"],
        size=savepoint["size"],
        sha256=savepoint["sha256"],
        checkpoint=savepoint.get("checkpoint"),
        acknowledged=savepoint["acknowledged"],
        subtasks=savepoint["subtasks"],
    )


def _rescale(rescale: Mapping[str, Any]) -> EngineRescale:
    return EngineRescale(
        status=rescale["status"],
        started_us=rescale["started_us"],
        parallelism_after=rescale["parallelism_after"],
        kind=rescale["kind"],
        reason=rescale.get("reason") or "",
        pause_us=rescale.get("pause_us_max") or 0,
        groups_moved=rescale.get("groups_moved") or 0,
        bytes_moved=rescale.get("bytes_moved") or 0,
    )


def _refusal(status: int, text: str) -> EngineRefusedError:
    try:
        answer = json.loads(text)
        return EngineRefusedError(status, answer["code"], answer["what"], answer.get("fix") or "")
    except (ValueError, KeyError, TypeError):
        return EngineRefusedError(status, "C002", text[:200], "")
