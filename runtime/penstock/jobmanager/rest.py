"""The JobManager's REST interface, for people, the CLI and the controller.

Answers are the structs of `model.views` as JSON; every error is `{code, what, where, fix}`. There is no login:
it listens on the loopback interface unless told otherwise, and refuses what a foreign web page may have sent.
"""

from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import Annotated, Any, Protocol
from urllib.parse import urlsplit

import msgspec
from starlette.applications import Starlette
from starlette.datastructures import QueryParams
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from penstock.jobmanager import dashboard, metrics
from penstock.jobmanager.lifecycle import TERMINAL
from penstock.model.errors import PenstockError, UserError
from penstock.model.ids import JobId
from penstock.model.views import (
    CheckpointView,
    ClusterView,
    JobView,
    PlanView,
    RescaleView,
    SavepointView,
    StateView,
)
from penstock.savepoints.checks import RestoreOptions

_RESCALE_EXAMPLE = 'send {"parallelism": 4}, {"operators": {"uid": 3}} or both; numbers from 1'

ENDED = frozenset(state.value for state in TERMINAL)


class Jobs(Protocol):
    """What the interface shows and asks for; `jobmanager.server.JobManager`."""

    def health(self) -> dict[str, Any]:
        """Small and cheap."""
        ...

    def cluster(self) -> ClusterView:
        """Processes, slots and jobs."""
        ...

    def job_ids(self) -> list[JobId]:
        """All that are known, ended ones too."""
        ...

    def job(self, job: JobId) -> JobView:
        """A known job."""
        ...

    def checkpoints(self, job: JobId) -> tuple[CheckpointView, ...]:
        """Of a known job."""
        ...

    async def graph(self, job: JobId) -> bytes:
        """JSON of what was submitted."""
        ...

    def plan(self, job: JobId) -> PlanView:
        """What runs now, to be drawn."""
        ...

    async def submit(
        self, body: bytes, *, name: str | None, origin: str | None, restore: RestoreOptions, job_id: str | None
    ) -> JobId:
        """Start a job; UserError when it cannot be one. The same `job_id` again is the same job."""
        ...

    def cancel(self, job: JobId) -> None:
        """End it now."""
        ...

    def stop(self, job: JobId) -> None:
        """End it with a checkpoint."""
        ...

    def trigger_checkpoint(self, job: JobId) -> None:
        """Take one now."""
        ...

    def savepoints(self, job: JobId) -> tuple[SavepointView, ...]:
        """Of a known job, those that this JobManager was asked for."""
        ...

    async def take_savepoint(self, job: JobId, *, folder: str | None, stop: bool, name: str | None) -> SavepointView:
        """Begin to take one in a folder of its own below `folder`; UserError when nothing can be written there."""
        ...

    async def state(self, job: JobId, name: str, key: Sequence[str], checkpoint: int | None) -> StateView:
        """The rows of one key, as a checkpoint holds them; None: the latest one."""
        ...

    def rescales(self, job: JobId) -> tuple[RescaleView, ...]:
        """Of a known job."""
        ...

    def rescale(self, job: JobId, parallelism: int | None, operators: Mapping[str, int]) -> RescaleView:
        """Begin to run it at another size; UserError when it cannot have that."""
        ...


class RescaleBody(msgspec.Struct, forbid_unknown_fields=True):
    """What is posted: either or both."""

    parallelism: Annotated[int, msgspec.Meta(ge=1)] | None = None
    """Of operators that name none."""
    operators: dict[str, Annotated[int, msgspec.Meta(ge=1)]] = {}
    """uid -> parallelism."""


Handler = Callable[[Request], Awaitable[Response]]


def application(jobs: Jobs, *, max_body_bytes: int, local_only: bool) -> Starlette:
    """The ASGI application."""
    api = _Api(jobs, max_body_bytes)
    get: dict[str, Handler] = {
        "/healthz": api.health,
        "/metrics": api.metrics,
        "/cluster": api.cluster,
        "/jobs": api.list_jobs,
        "/jobs/{id}": api.job,
        "/jobs/{id}/checkpoints": api.checkpoints,
        "/jobs/{id}/graph": api.graph,
        "/jobs/{id}/plan": api.plan,
        "/jobs/{id}/savepoints": api.savepoints,
        "/jobs/{id}/rescales": api.rescales,
        "/jobs/{id}/state/{name:path}": api.state,
    }
    post: dict[str, Handler] = {
        "/jobs": api.submit,
        "/jobs/{id}/cancel": api.cancel,
        "/jobs/{id}/stop": api.stop,
        "/jobs/{id}/checkpoint": api.trigger_checkpoint,
        "/jobs/{id}/savepoints": api.take_savepoint,
        "/jobs/{id}/rescale": api.rescale,
    }
    guard = _guard(local_only)
    routes = [Route(path, guard(handler), methods=["GET"]) for path, handler in get.items()]
    routes += [Route(path, guard(handler), methods=["POST"]) for path, handler in post.items()]
    routes += [Route(path, guard(handler), methods=["GET"]) for path, handler in dashboard.handlers().items()]
    return Starlette(routes=routes, exception_handlers={HTTPException: _http_error, PenstockError: _penstock_error})


class _Api:
    def __init__(self, jobs: Jobs, max_body_bytes: int) -> None:
        self._jobs, self._max_body_bytes = jobs, max_body_bytes

    async def health(self, _request: Request) -> Response:
        return _json(self._jobs.health())

    async def metrics(self, _request: Request) -> Response:
        return Response(metrics.render(self._jobs.cluster()), media_type="text/plain; version=0.0.4")

    async def cluster(self, _request: Request) -> Response:
        return _json(self._jobs.cluster())

    async def list_jobs(self, _request: Request) -> Response:
        return _json([self._jobs.job(job) for job in self._jobs.job_ids()])

    async def job(self, request: Request) -> Response:
        return _json(self._jobs.job(self._known(request)))

    async def checkpoints(self, request: Request) -> Response:
        return _json(self._jobs.checkpoints(self._known(request)))

    async def graph(self, request: Request) -> Response:
        return Response(await self._jobs.graph(self._known(request)), media_type="application/json")

    async def plan(self, request: Request) -> Response:
        return _json(self._jobs.plan(self._known(request)))

    async def submit(self, request: Request) -> Response:
        kind = request.headers.get("content-type", "").partition(";")[0].strip()
        if kind != "application/json":
            raise _Refused(415, "H005", f'content type is "{kind}"', fix="send the job graph as application/json")
        body = await self._body(request)
        query = request.query_params
        job = await self._jobs.submit(
            body,
            name=query.get("name"),
            origin=query.get("from"),
            restore=_restore_options(query),
            job_id=query.get("id"),
        )
        return _json(self._jobs.job(job), status=201)

    async def cancel(self, request: Request) -> Response:
        return self._end(request, self._jobs.cancel)

    async def stop(self, request: Request) -> Response:
        return self._end(request, self._jobs.stop)

    async def savepoints(self, request: Request) -> Response:
        return _json(self._jobs.savepoints(self._known(request)))

    async def take_savepoint(self, request: Request) -> Response:
        query = request.query_params
        name = query.get("name")
        for view in self._jobs.savepoints(self._known(request)):
            if name is not None and urlsplit(view.uri).path.rpartition("/")[2] == name:
                return _json(view, status=202)
        job = self._running(request, "no savepoint can be taken")
        for view in self._jobs.savepoints(job):
            if view.status == "pending":
                raise _Refused(
                    409,
                    "S028",
                    f"job {job} is taking a savepoint already: {view.uri}",
                    fix="wait until that one is complete",
                )
        view = await self._jobs.take_savepoint(
            job, folder=query.get("to"), stop=query.get("stop") == "true", name=name
        )
        return _json(view, status=202)

    async def state(self, request: Request) -> Response:
        query, job = request.query_params, self._known(request)
        number = query.get("checkpoint", "")
        if number and not number.isdigit():
            raise UserError("H006", f'"{number}" is no checkpoint', fix="?checkpoint=12, or none for the latest")
        key = query.getlist("key")
        if not key:
            raise UserError("H006", "no key is given", fix="?key=VALUE, once for each column of the key")
        return _json(await self._jobs.state(job, request.path_params["name"], key, int(number) if number else None))

    async def rescales(self, request: Request) -> Response:
        return _json(self._jobs.rescales(self._known(request)))

    async def rescale(self, request: Request) -> Response:
        try:
            wanted = msgspec.json.decode(await self._body(request), type=RescaleBody)
        except msgspec.DecodeError as error:
            raise UserError("H006", f"the body is no size: {error}", fix=_RESCALE_EXAMPLE) from error
        if wanted.parallelism is None and not wanted.operators:
            raise UserError("H006", "the body names no parallelism", fix=_RESCALE_EXAMPLE)
        job = self._running(request, "its parallelism cannot be changed")
        if (present := self._jobs.job(job).rescale) is not None:
            raise _Refused(
                409,
                "S062",
                f"job {job} is being rescaled from {present.parallelism_before} to {present.parallelism_after}",
                fix=f"wait until that is done: {present.reason or 'it is under way'}",
            )
        return _json(self._jobs.rescale(job, wanted.parallelism, wanted.operators), status=202)

    def _running(self, request: Request, otherwise: str) -> JobId:
        job = self._known(request)
        state = self._jobs.job(job).state
        if state != "running":
            raise _Refused(409, "S008", f"job {job} is {state}: {otherwise}", fix="wait until it is running")
        return job

    async def trigger_checkpoint(self, request: Request) -> Response:
        job = self._running(request, "no checkpoint can be taken")
        self._jobs.trigger_checkpoint(job)
        return _json(self._jobs.job(job), status=202)

    def _end(self, request: Request, act: Callable[[JobId], None]) -> Response:
        job = self._known(request)
        if self._jobs.job(job).state in ENDED:
            return _json(self._jobs.job(job))
        act(job)
        return _json(self._jobs.job(job), status=202)

    def _known(self, request: Request) -> JobId:
        job, known = JobId(request.path_params["id"]), self._jobs.job_ids()
        if job not in known:
            raise _Refused(
                404, "H003", f'there is no job "{job}"', fix=f"known jobs: {', '.join(known) or 'none yet'}"
            )
        return job

    async def _body(self, request: Request) -> bytes:
        parts, size = [], 0
        async for part in request.stream():
            size += len(part)
            if size > self._max_body_bytes:
                raise _Refused(
                    413,
                    "H004",
                    f"the body is larger than {self._max_body_bytes} bytes",
                    fix="let functions read large data where they run, instead of closing over it",
                )
            parts.append(part)
        return b"".join(parts)


def _restore_options(query: QueryParams) -> RestoreOptions:
    pairs = [each.partition("=") for each in query.getlist("map_uid")]
    return RestoreOptions(
        allow_non_restored=query.get("allow_non_restored") == "true",
        allow_foreign=query.get("allow_foreign") == "true",
        evolve=query.get("evolve") == "true",
        map_uid=tuple((old, new) for old, _, new in pairs),
    )


class _Refused(UserError):
    def __init__(self, status: int, code: str, what: str, *, fix: str | None = None) -> None:
        self.status = status
        super().__init__(code, what, fix=fix)


def _guard(local_only: bool) -> Callable[[Handler], Handler]:
    """Refuse requests that a web page in the user's browser may have made for somebody else."""

    def wrap(handler: Handler) -> Handler:
        async def guarded(request: Request) -> Response:
            host = request.headers.get("host", "")
            origin = request.headers.get("origin")
            if origin is not None and urlsplit(origin).netloc != host:
                raise _Refused(403, "H008", f"request of a foreign page: {origin}")
            if local_only and (urlsplit(f"//{host}").hostname or "") not in {"localhost", "127.0.0.1", "::1"}:
                raise _Refused(403, "H008", f'"{host}" is not a name of this machine', fix="use 127.0.0.1")
            return await handler(request)

        return guarded

    return wrap


def _json(value: object, status: int = 200) -> Response:
    return Response(msgspec.json.encode(value), status_code=status, media_type="application/json")


def _error(status: int, code: str, what: str, where: str | None, fix: str | None) -> Response:
    return _json({"code": code, "what": what, "where": where, "fix": fix}, status)


async def _penstock_error(_request: Request, error: Exception) -> Response:
    assert isinstance(error, PenstockError)
    status = error.status if isinstance(error, _Refused) else 400 if isinstance(error, UserError) else 503
    return _error(status, error.code, error.what, error.where, error.fix)


async def _http_error(request: Request, error: Exception) -> Response:
    assert isinstance(error, HTTPException)
    response = _error(error.status_code, "H002", f"{request.method} {request.url.path}: {error.detail}", None, None)
    response.headers.update(error.headers or {})
    return response
