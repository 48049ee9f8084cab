"""An HTTP proxy in front of a real S3 server, which does to requests what networks and tired servers do.

One request per connection, so that each is on its own. It runs in a thread of the test, on a port that stays the same
while it refuses connections.
"""

import asyncio
import contextlib
import random
import threading
from collections import Counter
from collections.abc import Callable, Coroutine, Iterator
from concurrent.futures import Future
from dataclasses import dataclass, replace
from typing import Any, TypeVar

from s3_servers import free_port

T = TypeVar("T")

_TOLD = {
    "busy": ("503 Service Unavailable", "SlowDown", "Please reduce your request rate."),
    "denied": ("403 Forbidden", "AccessDenied", "Access Denied."),
}


@dataclass(frozen=True, slots=True)
class Request:
    method: str
    target: str
    headers: tuple[tuple[str, str], ...]
    body: bytes

    def header(self, name: str) -> str | None:
        return next((value for key, value in self.headers if key.lower() == name), None)

    @property
    def is_conditional(self) -> bool:
        return self.header("if-none-match") is not None

    def encode(self) -> bytes:
        hop = {"connection", "expect", "content-length", "transfer-encoding"}
        kept = [(name, value) for name, value in self.headers if name.lower() not in hop]
        lines = [f"{self.method} {self.target} HTTP/1.1", *(f"{name}: {value}" for name, value in kept)]
        lines += [f"Content-Length: {len(self.body)}", "Connection: close", "", ""]
        return "\r\n".join(lines).encode() + self.body


Which = Callable[[Request], bool]


def everything(_: Request) -> bool:
    return True


def conditional(request: Request) -> bool:
    return request.is_conditional


@dataclass(slots=True)
class Faults:
    """Chances are from 0 to 1, per request that `which` picks; at most one fault meets a request."""

    which: Which = everything
    busy: float = 0.0
    """Answered with 503 before anything has happened."""
    denied: float = 0.0
    """Answered with 403 before anything has happened."""
    lost_before: float = 0.0
    """The connection breaks, and nothing has happened."""
    lost_after: float = 0.0
    """The connection breaks when everything has happened."""
    late: float = 0.0
    """The connection breaks, and everything happens a little later."""
    torn: float = 0.0
    """The connection breaks in the middle of the answer."""
    latency: Callable[[], float] = lambda: 0.0
    """Seconds, asked for each request."""
    rewrite: Callable[[Request], Request] = lambda request: request


class FaultProxy:
    """Use `running_proxy`."""

    def __init__(self, upstream: int, seed: int = 1) -> None:
        self.faults = Faults()
        self.met: Counter[str] = Counter()
        """What has happened to requests."""
        self.port = free_port()
        self._upstream, self._random = upstream, random.Random(seed)
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, name="fault-proxy", daemon=True)
        self._server: asyncio.Server | None = None
        self._late: set[asyncio.Task[bytes]] = set()

    @property
    def endpoint(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    def uri(self, bucket: str, folder: str = "", **options: str) -> str:
        asked = "&".join(f"{name}={value}" for name, value in {"endpoint": self.endpoint, **options}.items())
        return f"s3://{bucket}{'/' if folder else ''}{folder}?{asked}"

    def accept(self) -> None:
        """From now on connections are taken."""
        self._do(self._accept())

    def refuse(self) -> None:
        """From now on connections are refused."""
        self._do(self._refuse())

    @contextlib.contextmanager
    def under(self, **faults: Any) -> Iterator[None]:
        """These faults, until the block ends."""
        before, self.faults = self.faults, replace(self.faults, **faults)
        try:
            yield
        finally:
            self.faults = before

    def start(self) -> None:
        self._thread.start()
        self.accept()

    def close(self) -> None:
        self.refuse()
        self._do(self._finish())
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()
        self._loop.close()

    def _do(self, work: Coroutine[Any, Any, T]) -> T:
        done: Future[T] = asyncio.run_coroutine_threadsafe(work, self._loop)
        return done.result(30)

    async def _accept(self) -> None:
        self._server = await asyncio.start_server(self._serve, "127.0.0.1", self.port, limit=1 << 20)

    async def _refuse(self) -> None:
        if self._server is not None:
            self._server.close()
            self._server = None

    async def _finish(self) -> None:
        rest = [task for task in asyncio.all_tasks() if task is not asyncio.current_task()]
        for task in rest:
            task.cancel()
        await asyncio.gather(*rest, return_exceptions=True)

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            answer, whole = await self._answer(await _read_request(reader, writer))
            writer.write(answer)
            await writer.drain()
            if not whole:
                writer.transport.abort()
        except (ConnectionError, asyncio.IncompleteReadError):
            pass  # whoever asked has gone; or the server has, and then so has the answer
        finally:
            writer.close()

    async def _answer(self, request: Request) -> tuple[bytes, bool]:
        """What is sent back, and whether that is all of it."""
        faults = self.faults
        await asyncio.sleep(faults.latency())
        fault = self._draw(faults) if faults.which(request) else "none"
        self.met[fault] += 1
        request = faults.rewrite(request)
        match fault:
            case "busy" | "denied":
                status, code, text = _TOLD[fault]
                body = f"<Error><Code>{code}</Code><Message>{text}</Message></Error>" * (request.method != "HEAD")
                head = f"HTTP/1.1 {status}\r\nContent-Length: {len(body)}\r\nConnection: close\r\n\r\n"
                return (head + body).encode(), True
            case "lost before":
                return b"", False
            case "late":
                task = asyncio.get_running_loop().create_task(self._forward(request, self._random.uniform(0, 0.3)))
                self._late.add(task)
                task.add_done_callback(self._late.discard)
                return b"", False
            case "lost after":
                await self._forward(request)
                return b"", False
            case "torn":
                answer = await self._forward(request)
                return answer[: len(answer) // 2], False
        return await self._forward(request), True

    def _draw(self, faults: Faults) -> str:
        drawn = self._random.random()
        chances = {
            "busy": faults.busy,
            "denied": faults.denied,
            "lost before": faults.lost_before,
            "lost after": faults.lost_after,
            "late": faults.late,
            "torn": faults.torn,
        }
        for name, chance in chances.items():
            if drawn < chance:
                return name
            drawn -= chance
        return "none"

    async def _forward(self, request: Request, delay: float = 0.0) -> bytes:
        await asyncio.sleep(delay)
        reader, writer = await asyncio.open_connection("127.0.0.1", self._upstream)
        try:
            writer.write(request.encode())
            await writer.drain()
            return await reader.read()
        finally:
            writer.close()


@contextlib.contextmanager
def running_proxy(upstream: int, seed: int = 1) -> Iterator[FaultProxy]:
    proxy = FaultProxy(upstream, seed)
    proxy.start()
    try:
        yield proxy
    finally:
        proxy.close()


async def _read_request(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> Request:
    head = (await reader.readuntil(b"\r\n\r\n")).decode("latin-1")
    first, *lines = head.removesuffix("\r\n\r\n").split("\r\n")
    method, target, _ = first.split(" ")
    headers = []
    for line in lines:
        name, _, value = line.partition(":")
        headers.append((name, value.strip()))
    request = Request(method, target, tuple(headers), b"")
    if (request.header("expect") or "").lower() == "100-continue":
        writer.write(b"HTTP/1.1 100 Continue\r\n\r\n")
        await writer.drain()
    if request.header("transfer-encoding"):
        raise ConnectionError("this proxy reads bodies of known length only")
    return replace(request, body=await reader.readexactly(int(request.header("content-length") or 0)))
