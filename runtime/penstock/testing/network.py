"""The data network between slots: `exchange.ports` in virtual time.

A connection is ordered and has limited room, as TCP has: frames arrive after a delay, a slow connection makes the
sender wait, and a process that reads nothing fills it. Connections break; the two ends learn of it at different
times, and one may not learn of it for long (half-open). The address of a slot outlives its process, so a frame for
the process before may reach the one after.
"""

import random
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial

from penstock.exchange import wire
from penstock.exchange.ports import Buffer, LinkHandler
from penstock.model.ids import Attempt, JobId, SlotId
from penstock.testing.processes import Process
from penstock.testing.world import World

HALF_OPEN_US = 12_000_000
"""How long an end may believe in a dead connection: keep-alive of a cluster, shortened."""

STRAYS = 8
STRAY_US = 50_000
"""Frames that wander about when the receiver of a connection dies, and how long after the next one connects."""


@dataclass(frozen=True, slots=True)
class Conditions:
    """How good the network is in an episode."""

    latency_us: int = 200
    jitter_us: int = 400
    bytes_per_ms: int = 100_000
    room_bytes: int = 64 * 1024
    """What a connection takes before `writable` says no."""


class Link:
    """One end of a connection: what this end sends waits here until the other end's process has read it."""

    def __init__(self, connection: "Connection", process: Process, handler: LinkHandler, wake: Callable[[], None]):
        self.connection, self.process, self.handler, self.wake = connection, process, handler, wake
        self.peer: Link = self
        self.closed = False
        self.lost = False
        self.accepted = True
        self.in_flight: deque[bytes] = deque()
        self._bytes = 0
        self._last_arrival_us = 0

    @property
    def writable(self) -> bool:
        """The connection has room."""
        return self._bytes < self.connection.network.conditions.room_bytes

    def send(self, parts: Sequence[Buffer]) -> None:
        """One frame."""
        if self.closed or self.lost or self.connection.broken:
            return
        data = b"".join(bytes(part) for part in parts)
        self.in_flight.append(data)
        self._bytes += len(data)
        self.connection.network.on_send(self.process.name, data)
        self.connection.network.carry(self, len(data), self._arrive)

    def close(self) -> None:
        """Hang up: the other end is told; our own is not."""
        if not self.closed:
            self.closed = True
            self.connection.break_up(own=None if self.lost else self, reason="closed by peer")

    def arrival(self, size: int) -> int:
        """When a frame sent now arrives: never before one that was sent earlier."""
        network = self.connection.network
        conditions = network.conditions
        delay = conditions.latency_us + network.random.randrange(conditions.jitter_us + 1)
        delay += size * 1000 * self.connection.slowness // conditions.bytes_per_ms
        self._last_arrival_us = max(self._last_arrival_us + 1, network.world.now_us + delay)
        return self._last_arrival_us

    def _arrive(self) -> None:
        if self.connection.broken or not self.in_flight:
            return
        was_writable = self.writable
        data = self.in_flight.popleft()
        self._bytes -= len(data)
        if not was_writable and self.writable:
            self.process.after(0, "", self.wake)
        receiver = self.peer
        if not receiver.closed and not receiver.lost:
            view = memoryview(data)
            receiver.handler.on_frame(receiver, view[: wire.HEADER_BYTES], view[wire.HEADER_BYTES :])
            receiver.wake()


class Connection:
    """Two links."""

    def __init__(self, network: "Network", caller: "Transport", called: "Transport") -> None:
        self.network = network
        self.broken = False
        self.slowness = 1
        self.names = (caller.address, called.address)
        self.ends = (
            Link(self, caller.process, caller.handler, caller.wake),
            Link(self, called.process, called.handler, called.wake),
        )
        self.ends[0].peer, self.ends[1].peer = self.ends[1], self.ends[0]
        self.ends[1].accepted = False

    def break_up(self, *, reason: str, own: Link | None = None, late: Link | None = None) -> None:
        """Frames on the way are lost. Each end but `own` learns of it, `late` only after a long time."""
        if self.broken:
            return
        self.broken = True
        self.network.forget(self)
        for end in self.ends:
            if end is not own:
                delay = HALF_OPEN_US if end is late else self.network.random.randrange(100, 5_000)
                end.process.after(delay, "", lambda end=end: self._tell(end, reason))  # type: ignore[misc]

    @staticmethod
    def _tell(end: Link, reason: str) -> None:
        if end.closed or end.lost or not end.accepted:
            return
        end.lost = True
        end.handler.on_lost(end, reason)
        end.wake()


class Transport:
    """The network as one slot process sees it."""

    def __init__(
        self, network: "Network", address: str, process: Process, handler: LinkHandler, wake: Callable[[], None]
    ) -> None:
        self.network, self.address, self.process, self.handler, self.wake = network, address, process, handler, wake

    def connect(self, address: str, job: JobId, attempt: Attempt, sender: SlotId) -> Link:
        """Call whoever listens there now."""
        return self.network.connect(self, address, job, attempt, sender)


class Network:
    """All transports and connections of a world."""

    def __init__(self, world: World, conditions: Conditions) -> None:
        self.world, self.conditions = world, conditions
        self.random: random.Random = world.stream("network")
        self._listeners: dict[str, Transport] = {}
        self._strays: dict[str, list[bytes]] = {}
        self.connections: list[Connection] = []
        self.on_send: Callable[[str, bytes], None] = lambda _sender, _data: None

    def listen(self, address: str, process: Process, handler: LinkHandler, wake: Callable[[], None]) -> Transport:
        """A process takes the address over."""
        transport = Transport(self, address, process, handler, wake)
        self._listeners[address] = transport
        process.at_end(lambda: self._process_ended(transport))
        return transport

    def connect(self, caller: Transport, address: str, job: JobId, attempt: Attempt, sender: SlotId) -> Link:
        """Both ends exist at once; the called one hears of it after a delay."""
        called = self._listeners.get(address, caller)
        connection = Connection(self, caller, called)
        self.connections.append(connection)
        calling, answering = connection.ends
        if called is caller or not called.process.alive:
            connection.break_up(own=answering, reason="connection refused")
            return calling

        def accept() -> None:
            if not connection.broken:
                answering.accepted = True
                called.handler.on_accept(answering, job, attempt, sender)
                called.wake()

        self.carry(calling, 64, accept)
        for transport in (caller, called):
            self._release_strays(transport)
        return calling

    def carry(self, link: Link, size: int, arrive: Callable[[], None]) -> None:
        """Let something arrive at the other end of the link, in order."""
        link.peer.process.after(link.arrival(size) - self.world.now_us, "", arrive)

    def forget(self, connection: Connection) -> None:
        """It is broken."""
        self.connections.remove(connection)

    def lose_host(self, addresses: Sequence[str]) -> None:
        """Power loss: nobody hangs up, so the other ends go on waiting."""
        for connection in list(self.connections):
            for end, name in zip(connection.ends, connection.names, strict=True):
                if name in addresses:
                    connection.break_up(own=end, late=end.peer, reason="no answer for too long")

    def _process_ended(self, transport: Transport) -> None:
        """The kernel closes what the process had open."""
        for connection in list(self.connections):
            for end in connection.ends:
                if end.process is transport.process:
                    self._strays.setdefault(transport.address, []).extend(list(end.peer.in_flight)[:STRAYS])
                    connection.break_up(own=end, reason="connection reset by peer")

    def _release_strays(self, transport: Transport) -> None:
        """What was sent to the process before arrives when this one has just begun to work."""
        for data in self._strays.pop(transport.address, []):
            delay = self.random.randrange(STRAY_US)
            action = partial(self._deliver_stray, transport, data)
            transport.process.after(delay, "stray frame", action)

    def _deliver_stray(self, transport: Transport, data: bytes) -> None:
        connection = Connection(self, transport, transport)
        self.world.sometimes("frame of an old attempt reached a new process")
        view = memoryview(data)
        transport.handler.on_frame(connection.ends[1], view[: wire.HEADER_BYTES], view[wire.HEADER_BYTES :])
        transport.wake()
