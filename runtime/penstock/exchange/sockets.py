"""Links over TCP: one thread, non-blocking, driven by `poll`.

A frame is written with one `sendmsg` when the socket takes it; what it does not take waits in order. Bodies are
read straight into Arrow memory, so that a batch is used where it was received.
"""

import contextlib
import errno
import selectors
import socket
from collections import deque
from collections.abc import Callable, Sequence

import msgspec
import pyarrow as pa

from penstock.exchange import wire
from penstock.exchange.ports import Buffer, LinkHandler
from penstock.model.ids import Attempt, ChannelId, JobId, SlotId

SOCKET_BUFFER_BYTES = 4 * 1024 * 1024
"""Kernel buffers large enough that a batch is written in one call."""

READS_PER_POLL = 16
"""Frames taken from one socket before the others get their turn."""

MAX_HELLO_BYTES = 64 * 1024
"""A first frame above this is not from a slot."""


class SocketLink:
    """One TCP connection, either side."""

    def __init__(self, transport: "SocketTransport", sock: socket.socket, *, connecting: bool) -> None:
        self.socket = sock
        self.greeted = connecting
        """The calling side knows whom it calls; the called side waits for the hello."""
        self._transport = transport
        self._unsent: deque[memoryview] = deque()
        self._connecting = connecting
        self._header = bytearray(wire.HEADER_BYTES)
        self._filling = memoryview(self._header)
        self._filled = 0
        self._body: pa.Buffer | None = None

    def fileno(self) -> int:
        """For selectors."""
        return self.socket.fileno()

    @property
    def writable(self) -> bool:
        """Nothing waits for the network."""
        return not self._unsent

    @property
    def wants_write(self) -> bool:
        """Tell us when the socket takes bytes again."""
        return self._connecting or bool(self._unsent)

    def send(self, parts: Sequence[Buffer]) -> None:
        """Write what the socket takes now; the rest follows from `poll`."""
        views = [memoryview(part).cast("B") for part in parts if len(part)]
        if self._unsent or self._connecting:
            self._unsent.extend(views)
            return
        with contextlib.suppress(OSError):  # a broken connection is noticed, and told, by `poll` alone
            self._write(views)
        self._unsent.extend(views)
        if self._unsent:
            self._transport.update(self)

    def close(self) -> None:
        """End the connection without telling our own handler."""
        self._transport.forget(self)

    def on_writable(self) -> None:
        """The socket takes bytes again, or the connection is there (an error is raised by the write)."""
        self._connecting = False
        views = list(self._unsent)
        self._unsent.clear()
        self._unsent.extend(self._write(views))

    def _write(self, views: list[memoryview]) -> list[memoryview]:
        """Write from the front of `views`, which keeps what was not taken."""
        while views:
            try:
                sent = self.socket.sendmsg(views[:64])
            except (BlockingIOError, InterruptedError):
                return views
            while views and sent >= len(views[0]):
                sent -= len(views[0])
                views.pop(0)
            if sent:
                views[0] = views[0][sent:]
        return views

    def read_frame(self) -> tuple[bytearray, memoryview] | None:
        """The next whole frame, or None when the socket has no more bytes now. EOFError at the end."""
        while True:
            try:
                count = self.socket.recv_into(self._filling[self._filled :])
            except (BlockingIOError, InterruptedError):
                return None
            if count == 0:
                raise EOFError("connection closed by peer")
            self._filled += count
            if self._filled < len(self._filling):
                continue
            if self._body is None:
                length = wire.unpack_header(self._header).length
                if not self.greeted and length > MAX_HELLO_BYTES:
                    raise ValueError("the peer does not speak this protocol")
                if length:
                    self._body = pa.allocate_buffer(length)
                    self._filling, self._filled = memoryview(self._body).cast("B"), 0
                    continue
                return self._next_frame(memoryview(b""))
            return self._next_frame(memoryview(self._body).cast("B"))

    def _next_frame(self, body: memoryview) -> tuple[bytearray, memoryview]:
        header = self._header
        self._header = bytearray(wire.HEADER_BYTES)
        self._filling, self._filled, self._body = memoryview(self._header), 0, None
        return header, body


class SocketTransport:
    """The links of one slot process, and any other file it must watch."""

    def __init__(self, host: str, handler: LinkHandler) -> None:
        self._handler = handler
        self._selector = selectors.DefaultSelector()
        self._links: dict[SocketLink, int] = {}
        self._stillborn: list[tuple[SocketLink, OSError]] = []
        """Connections that were refused on the spot; told from `poll`, when the caller knows its link."""
        family = socket.AF_INET6 if ":" in host else socket.AF_INET
        self._listener = socket.create_server((host, 0), family=family, backlog=256)
        self._listener.setblocking(False)
        self._host = host
        self._selector.register(self._listener, selectors.EVENT_READ, self._accept)

    @property
    def address(self) -> str:
        """`host:port` of the data listener."""
        return f"{self._host}:{self._listener.getsockname()[1]}"

    def watch(self, sock: socket.socket, on_readable: Callable[[], None]) -> None:
        """Call back from `poll` when `sock` has something to read."""
        self._selector.register(sock, selectors.EVENT_READ, on_readable)

    def connect(self, address: str, job: JobId, attempt: Attempt, sender: SlotId) -> SocketLink:
        """Start a connection; its hello is the first thing that it sends."""
        host, _, port = address.rpartition(":")
        sock = socket.socket(socket.AF_INET6 if ":" in host else socket.AF_INET)
        _tune(sock)
        code = sock.connect_ex((host, int(port)))
        link = SocketLink(self, sock, connecting=True)
        self._add(link)
        if code not in (0, errno.EINPROGRESS):
            self._stillborn.append((link, OSError(code, f"cannot connect to {address}")))
            return link
        body = msgspec.json.encode(wire.Hello(job, attempt, sender))
        header = wire.pack_header(wire.FrameKind.HELLO, attempt, ChannelId(0), 0, len(body))
        link.send([header, body])
        return link

    def poll(self, timeout: float | None) -> None:
        """Move bytes and call handlers; waits up to `timeout` seconds (None: for ever) when there is nothing."""
        while self._stillborn:
            self._lose(*self._stillborn.pop())
        for key, mask in self._selector.select(timeout):
            if isinstance(key.data, SocketLink):
                self._serve(key.data, mask)
            else:
                key.data()

    def update(self, link: SocketLink) -> None:
        """Match what the selector watches with what the link wants."""
        events = selectors.EVENT_READ | (selectors.EVENT_WRITE if link.wants_write else 0)
        if link in self._links and self._links[link] != events:
            self._selector.modify(link, events, link)
            self._links[link] = events

    def forget(self, link: SocketLink) -> None:
        """Close and stop watching."""
        if self._links.pop(link, None) is not None:
            self._selector.unregister(link)
            link.socket.close()

    def close(self) -> None:
        """Close everything."""
        for link in list(self._links):
            self.forget(link)
        self._selector.unregister(self._listener)
        self._listener.close()
        self._selector.close()

    def _add(self, link: SocketLink) -> None:
        events = selectors.EVENT_READ | (selectors.EVENT_WRITE if link.wants_write else 0)
        self._links[link] = events
        self._selector.register(link, events, link)

    def _accept(self) -> None:
        try:
            sock, _ = self._listener.accept()
        except BlockingIOError:
            return
        _tune(sock)
        self._add(SocketLink(self, sock, connecting=False))

    def _serve(self, link: SocketLink, mask: int) -> None:
        try:
            if mask & selectors.EVENT_WRITE:
                link.on_writable()
                self.update(link)
            if mask & selectors.EVENT_READ:
                for _ in range(READS_PER_POLL):
                    if link not in self._links or (frame := link.read_frame()) is None:
                        break
                    self._handle(link, *frame)
        except (OSError, EOFError, ValueError, msgspec.MsgspecError) as error:
            self._lose(link, error)

    def _handle(self, link: SocketLink, header: bytearray, body: memoryview) -> None:
        if link.greeted:
            self._handler.on_frame(link, header, body)
            return
        if wire.unpack_header(header).kind is not wire.FrameKind.HELLO:
            raise ValueError("the peer did not say hello")
        hello = msgspec.json.decode(body, type=wire.Hello)
        link.greeted = True
        self._handler.on_accept(link, hello.job, hello.attempt, hello.sender)

    def _lose(self, link: SocketLink, error: Exception) -> None:
        if link in self._links:
            self.forget(link)
            self._handler.on_lost(link, str(error) or type(error).__name__)


def _tune(sock: socket.socket) -> None:
    sock.setblocking(False)
    sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, SOCKET_BUFFER_BYTES)
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, SOCKET_BUFFER_BYTES)
