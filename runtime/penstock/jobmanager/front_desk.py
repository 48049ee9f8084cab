"""The ports of a JobManager, which are the same for a standby and a leader, and who answers there.

A standby sends everybody to the leader: TaskManagers by its gRPC address, people and tools by a redirect.
"""

import asyncio
import contextlib
import socket
from collections.abc import AsyncIterator, Callable, Iterator
from typing import Any

import msgspec
import uvicorn
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route
from starlette.types import ASGIApp, Receive, Scope, Send

from penstock.config import JobManagerSettings
from penstock.jobmanager.leases import Claim
from penstock.model.errors import UserError
from penstock.model.ids import NO_EPOCH
from penstock.rpc import Reply, Server, TellJobManager, ToldJobManager, serve_jobmanager

_METHODS = ["GET", "POST", "PUT", "DELETE"]


class FrontDesk:
    """Made by `reception`."""

    def __init__(self, *, grpc: str, rest: str) -> None:
        self.grpc, self.rest = grpc, rest
        self._leader: Callable[[], Claim | None] = lambda: None
        self._tell: TellJobManager | None = None
        self._application: ASGIApp = Starlette()

    def stand_by(self, leader: Callable[[], Claim | None]) -> None:
        """Send everybody to the leader."""
        self._leader = leader
        self._application = Starlette(
            routes=[
                Route("/healthz", self._health, methods=["GET"]),
                Route("/{path:path}", self._redirect, methods=_METHODS),
            ]
        )

    def lead(self, tell: TellJobManager, application: ASGIApp) -> None:
        """Answer oneself."""
        self._tell, self._application = tell, application

    def close(self) -> None:
        """Answer nobody any more."""
        self._tell = None

    async def tell(self, told: ToldJobManager) -> Reply:
        """A message of a TaskManager."""
        if self._tell is not None:
            return await self._tell(told)
        leader = self._leader()
        return Reply(accepted=False, epoch=NO_EPOCH, leader=leader.grpc if leader else "")

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """ASGI."""
        await self._application(scope, receive, send)

    async def _health(self, _request: Request) -> Response:
        leader = self._leader()
        return _json({"status": "ok", "role": "standby", "leader": leader and leader.rest}, 200)

    async def _redirect(self, request: Request) -> Response:
        leader = self._leader()
        if leader is None:
            problem = _problem("this JobManager does not lead, and does not know who does", "ask again in a moment")
            return _json(problem, 503)
        query = f"?{request.url.query}" if request.url.query else ""
        problem = _problem(f"this JobManager is a standby; the leader is at {leader.rest}", "ask that one")
        return _json(problem, 307, location=f"{leader.rest}{request.url.path}{query}")


@contextlib.asynccontextmanager
async def reception(settings: JobManagerSettings) -> AsyncIterator[FrontDesk]:
    """Listen on both ports, from now on."""
    with _listen(settings) as rest_socket:
        server = Server(settings.host, settings.port, share_port=settings.share_ports)
        known_as = settings.advertise or settings.host
        front = FrontDesk(grpc=f"{known_as}:{server.port}", rest=f"http://{known_as}:{rest_socket.getsockname()[1]}")
        serve_jobmanager(server, front.tell)
        rest = _RestServer(
            uvicorn.Config(front, log_config=None, access_log=False, lifespan="off", timeout_graceful_shutdown=1)
        )
        await server.start()
        web = asyncio.create_task(rest.serve(sockets=[rest_socket]))
        try:
            yield front
        finally:
            await server.stop()
            rest.should_exit = True
            await web


class _RestServer(uvicorn.Server):
    """Leaves signals to the process that it is part of."""

    @contextlib.contextmanager
    def capture_signals(self) -> Iterator[None]:
        """None."""
        yield


@contextlib.contextmanager
def _listen(settings: JobManagerSettings) -> Iterator[socket.socket]:
    listener = socket.socket(socket.AF_INET6 if ":" in settings.host else socket.AF_INET)
    with listener:
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        if settings.share_ports:
            listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
        try:
            listener.bind((settings.host, settings.rest_port))
            listener.listen()
        except OSError as error:
            raise UserError(
                "C004",
                f"cannot listen on {settings.host}:{settings.rest_port} (REST): {error.strerror}",
                fix="give another --rest-port (0: any free one) or --host",
            ) from error
        yield listener


def _problem(what: str, fix: str) -> dict[str, Any]:
    return {"code": "C028", "what": what, "where": None, "fix": fix}


def _json(value: object, status: int, **headers: str) -> Response:
    return Response(msgspec.json.encode(value), status_code=status, media_type="application/json", headers=headers)
