"""A client of the JobManager's REST interface, on the standard library alone."""

import http.client
import urllib.error
import urllib.parse
import urllib.request
from collections.abc import Mapping, Sequence
from typing import Any, TypeVar

import msgspec

from penstock.model.errors import RetryableError, UserError
from penstock.model.views import CheckpointView, ClusterView, JobView, RescaleView, SavepointView, StateView

_SECONDS = 5.0
"""Answers come from memory; a JobManager that takes longer is in trouble."""

_STANDBY = 307

_SUBMIT_SECONDS = 120.0
"""A submission is stored first, and may copy the state that it starts from."""

_STATE_SECONDS = 60.0
"""State is read from the store."""

T = TypeVar("T")
_MOST_REDIRECTS = 3
"""From a standby to the leader; one more when that has just changed."""


class _ByHand(urllib.request.HTTPRedirectHandler):
    """A standby redirects POST, too, which urllib does not follow; so none is followed here."""

    def redirect_request(self, *_args: Any, **_named: Any) -> None:
        """No."""


_OPENER = urllib.request.build_opener(urllib.request.ProxyHandler({}), _ByHand())


class UnreachableError(RetryableError):
    """Nobody answers; a JobManager that is being restarted looks like this for a moment."""


class _Problem(msgspec.Struct, frozen=True):
    code: str
    what: str
    where: str | None = None
    fix: str | None = None


class _Unsent(UnreachableError):
    """It was not even heard: asking another one cannot do anything twice."""


class RestClient:
    """All calls block, for at most some seconds. UserError: the JobManager refused and says why.

    Given several JobManagers, with commas between, it asks the next when one does not answer; standbys send it on to
    the leader.
    """

    def __init__(self, urls: str) -> None:
        self._urls = [each.rstrip("/") if "://" in each else f"http://{each}".rstrip("/") for each in urls.split(",")]

    @property
    def url(self) -> str:
        """Of the JobManager that answered last, or is asked first."""
        return self._urls[0]

    def health(self) -> dict[str, Any]:
        """Answers when the JobManager does."""
        return self._get("/healthz", dict[str, Any])

    def cluster(self) -> ClusterView:
        """Processes, slots and jobs."""
        return self._get("/cluster", ClusterView)

    def jobs(self) -> list[JobView]:
        """All jobs, the newest last."""
        return self._get("/jobs", list[JobView])

    def job(self, job: str) -> JobView:
        """One job."""
        return self._get(f"/jobs/{_quoted(job)}", JobView)

    def checkpoints(self, job: str) -> list[CheckpointView]:
        """Of one job."""
        return self._get(f"/jobs/{_quoted(job)}/checkpoints", list[CheckpointView])

    def graph(self, job: str) -> bytes:
        """JSON of the job graph that was submitted."""
        return self._call("GET", f"/jobs/{_quoted(job)}/graph")

    def submit(
        self,
        graph: bytes,
        *,
        name: str | None = None,
        origin: str | None = None,
        restore: Sequence[tuple[str, str]] = (),
        job_id: str | None = None,
    ) -> JobView:
        """Start a job from the JSON of a job graph. `restore`: what is allowed on the way from `origin`.

        With a `job_id` it can be done again: the job that has it is the answer.
        """
        given = [("name", name), ("from", origin), ("id", job_id), *restore]
        query = urllib.parse.urlencode([(key, value) for key, value in given if value])
        return self._post(f"/jobs?{query}" if query else "/jobs", graph, seconds=_SUBMIT_SECONDS)

    def cancel(self, job: str) -> JobView:
        """End it now; nothing happens when it has ended."""
        return self._post(f"/jobs/{_quoted(job)}/cancel")

    def stop(self, job: str) -> JobView:
        """End it with a checkpoint to go on from."""
        return self._post(f"/jobs/{_quoted(job)}/stop")

    def savepoints(self, job: str) -> list[SavepointView]:
        """Of one job, those that this JobManager was asked for."""
        return self._get(f"/jobs/{_quoted(job)}/savepoints", list[SavepointView])

    def take_savepoint(
        self, job: str, *, folder: str | None = None, stop: bool = False, name: str | None = None
    ) -> SavepointView:
        """Begin to take one below `folder`; with `stop` the job ends with it. The same `name` is not taken twice."""
        given = {"to": folder, "stop": "true" if stop else None, "name": name}
        query = urllib.parse.urlencode({key: value for key, value in given.items() if value})
        data = self._call("POST", f"/jobs/{_quoted(job)}/savepoints?{query}", b"")
        return msgspec.json.decode(data, type=SavepointView)

    def state(self, job: str, name: str, *key: object, checkpoint: int | None = None) -> StateView:
        """The rows of one key of `uid.state`, as the latest checkpoint holds them, or that one."""
        given = [("key", _text(value)) for value in key]
        given += [("checkpoint", str(checkpoint))] if checkpoint is not None else []
        path = f"/jobs/{_quoted(job)}/state/{_quoted(name)}?{urllib.parse.urlencode(given)}"
        return msgspec.json.decode(self._call("GET", path, seconds=_STATE_SECONDS), type=StateView)

    def rescales(self, job: str) -> list[RescaleView]:
        """Of one job, the newest last."""
        return self._get(f"/jobs/{_quoted(job)}/rescales", list[RescaleView])

    def rescale(
        self, job: str, *, parallelism: int | None = None, operators: Mapping[str, int] | None = None
    ) -> RescaleView:
        """Begin to run it with another parallelism; of single operators by uid."""
        given = {"parallelism": parallelism, "operators": operators}
        body = msgspec.json.encode({name: value for name, value in given.items() if value is not None})
        return msgspec.json.decode(self._call("POST", f"/jobs/{_quoted(job)}/rescale", body), type=RescaleView)

    def checkpoint(self, job: str) -> JobView:
        """Take a checkpoint now."""
        return self._post(f"/jobs/{_quoted(job)}/checkpoint")

    def _get(self, path: str, answer: type[T]) -> T:
        return msgspec.json.decode(self._call("GET", path), type=answer)

    def _post(self, path: str, body: bytes = b"", *, seconds: float = _SECONDS) -> JobView:
        return msgspec.json.decode(self._call("POST", path, body, seconds=seconds), type=JobView)

    def _call(self, method: str, path: str, body: bytes | None = None, *, seconds: float = _SECONDS) -> bytes:
        for last in (*[False] * (len(self._urls) - 1), True):
            try:
                return self._ask(method, self._urls[0] + path, body, seconds)
            except UnreachableError as error:
                if last or (method != "GET" and not isinstance(error, _Unsent)):
                    raise
                self._urls.append(self._urls.pop(0))
        raise AssertionError("unreachable")

    def _ask(self, method: str, url: str, body: bytes | None, seconds: float, redirects: int = 0) -> bytes:
        request = urllib.request.Request(url, data=body, method=method)
        if body is not None:
            request.add_header("Content-Type", "application/json")
        try:
            with _OPENER.open(request, timeout=seconds) as response:
                data: bytes = response.read()
                return data
        except urllib.error.HTTPError as error:
            with error:
                leader = error.headers.get("location")
                if error.code != _STANDBY or leader is None or redirects == _MOST_REDIRECTS:
                    raise _refusal(error.code, error.read(), url) from error
            return self._ask(method, leader, body, seconds, redirects + 1)
        except (OSError, http.client.HTTPException) as error:
            reason = getattr(error, "reason", error)
            parts = urllib.parse.urlsplit(url)
            raise (_Unsent if isinstance(reason, ConnectionRefusedError) else UnreachableError)(
                "C002",
                f"no JobManager answers at {parts.scheme}://{parts.netloc} ({reason})",
                fix="start one with `penstock jobmanager`, or name another with --jobmanager URL",
            ) from error


def _refusal(status: int, body: bytes, url: str) -> UserError | RetryableError:
    try:
        problem = msgspec.json.decode(body, type=_Problem)
    except msgspec.DecodeError:
        return UserError("C002", f"{url} answered {status}, and not as a JobManager does", fix="check the URL")
    kind = RetryableError if status in (503, _STANDBY) else UserError
    return kind(problem.code, problem.what, where=problem.where, fix=problem.fix)


def _text(value: object) -> str:
    """A value of a key, as JSON has it, without the quotes of a text."""
    return str(value).lower() if isinstance(value, bool) else str(value)


def _quoted(job: str) -> str:
    return urllib.parse.quote(job, safe="")
