"""Control calls between processes: the two services of `penstock.rpc` in virtual time.

A call may be late, and it may be lost on the way there or on the way back: the caller then only knows that its time
ran out, and may try again what has already been heard. A channel stays with the process that it reached first until
that one is gone, as a real connection does, also when a new process has taken the address over.
"""

import asyncio
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from typing import Any

from penstock.rpc import RpcError
from penstock.testing.processes import Process, VirtualLoop
from penstock.testing.world import World

Handle = Callable[[Any], Awaitable[Any]]


@dataclass(slots=True)
class CallConditions:
    """How well processes hear each other now."""

    latency_us: int = 300
    jitter_us: int = 1_500
    loss: float = 0.0
    """Chance that a request or an answer is lost."""
    cut_off: dict[str, None] = field(default_factory=dict)
    """Processes, by name, that nobody hears and who hear nobody."""


@dataclass(frozen=True, slots=True)
class Server:
    """Who answers at an address."""

    process: Process
    loop: VirtualLoop
    handle: Handle


class Calls:
    """All addresses of a world."""

    def __init__(self, world: World) -> None:
        self.conditions = CallConditions()
        self._world = world
        self._random = world.stream("calls")
        self._servers: dict[str, Server] = {}

    def serve(self, address: str, server: Server) -> None:
        """Answer here from now on; new channels reach nobody else."""
        self._servers[address] = server

    def find(self, address: str) -> Server | None:
        """Who answers there now."""
        server = self._servers.get(address)
        return server if server is not None and server.process.alive else None

    def carry(self, sender: Process, receiver: Process, label: str, arrive: Callable[[], None]) -> None:
        """Let something arrive, unless it is lost."""
        now = self.conditions
        cut = sender.name in now.cut_off or receiver.name in now.cut_off
        if cut or self._random.random() < now.loss:
            self._world.trace(f"lost: {sender.name} -> {receiver.name} {label}")
            return
        receiver.after(now.latency_us + self._random.randrange(now.jitter_us + 1), label, arrive)

    def looks_elsewhere(self) -> bool:
        """Whether a caller that got no answer gives its connection up."""
        return self._random.random() < 0.5


class Channel:
    """One caller's way to one address; stands in for `rpc.Channel`."""

    def __init__(self, calls: Calls, process: Process, loop: VirtualLoop, address: str) -> None:
        self.address = address
        self._calls, self._process, self._loop = calls, process, loop
        self._server: Server | None = None

    async def call(self, request: Any, *, seconds: float) -> Any:
        """The answer; RpcError when there is none in time."""
        if self._server is None or not self._server.process.alive:
            self._server = self._calls.find(self.address)
        answer: asyncio.Future[Any] = self._loop.create_future()
        server = self._server
        if server is None:
            self._process.after(1_000, "", lambda: _settle(answer, self._error("UNAVAILABLE", "refused")))
            return await answer
        timed_out = self._error("DEADLINE_EXCEEDED", f"no answer in {seconds} s")
        self._process.after(round(seconds * 1_000_000), "", lambda: _settle(answer, timed_out))

        def reply(result: Any) -> None:
            self._calls.carry(server.process, self._process, "", lambda: _settle(answer, result))

        async def serve() -> None:
            reply(await server.handle(request))

        self._calls.carry(self._process, server.process, describe(request), lambda: _start(server.loop, serve))
        try:
            return await answer
        except RpcError:
            if self._calls.looks_elsewhere():
                self._server = None
            raise

    async def close(self) -> None:
        """Hang up."""

    def _error(self, status: str, details: str) -> RpcError:
        return RpcError(self.address, status, details)


def describe(request: Any) -> str:
    """A call in a few words, for the trace: who, what, and the facts that decide."""
    directed = getattr(request, "directed", None)
    message = directed.message if directed is not None else request.message
    facts = [type(message).__name__]
    for name in ("attempt", "checkpoint", "subtask", "slot", "code"):
        value = getattr(message, name, None)
        if value is not None:
            facts.append(f"{name}={value}")
    deployment = getattr(message, "deployment", None)
    if deployment is not None:
        facts.append(f"attempt={deployment.attempt} tasks={len(deployment.tasks)}")
    if directed is not None:
        facts.append(f"for {directed.slot}")
    return " ".join(facts)


def _start(loop: VirtualLoop, serve: Callable[[], Any]) -> None:
    task = loop.create_task(serve())
    task.add_done_callback(_raise_in_loop)


def _raise_in_loop(task: "asyncio.Task[Any]") -> None:
    if not task.cancelled() and (error := task.exception()) is not None:
        task.get_loop().call_exception_handler({"exception": error})


def _settle(answer: "asyncio.Future[Any]", result: Any) -> None:
    if answer.done():
        return
    if isinstance(result, Exception):
        answer.set_exception(result)
    else:
        answer.set_result(result)
