"""Lines of text from a TCP server, as a source.

A socket cannot be read twice. Lines that were read but are not in a checkpoint are lost when the job is
restored: the position only counts lines. For tests, demonstrations, and the first steps.
"""

import contextlib
import socket
from collections.abc import Sequence
from typing import Any

import numpy as np
import polars as pl

from penstock.connectors import base
from penstock.connectors.text_files import MAX_ROW_BYTES, line_ends
from penstock.model.clocks import Clock
from penstock.model.errors import RecordError, UserError
from penstock.model.specs import Connector

SCHEMA = pl.Schema({"line": pl.String()})
FIRST_BACK_OFF_SECONDS, LONGEST_BACK_OFF_SECONDS = 0.05, 1.0
IDLE_US = 1_000
"""How long to wait for more when nothing has arrived."""
RECEIVE_BYTES = 256 * 1024
CONNECT_SECONDS = 0.2
"""One try may hold the task this long; a server that is there answers much sooner."""


class SocketSource:
    """Task side of `socket_lines`: one connection, one split."""

    sequential = False
    discovers = False

    def __init__(self, connector: Connector) -> None:
        self._options = connector.options

    def splits(self) -> Sequence[base.Split]:
        """Just one."""
        return (base.Split(id="socket"),)

    def discover(self, seen: frozenset[str], context: base.SourceContext) -> Sequence[base.Split]:
        """Never any."""
        return ()

    def open(
        self, split: base.Split, position: dict[str, Any] | None, context: base.SourceContext
    ) -> base.SplitReader:
        """Connects at the first read."""
        lines = position["lines"] if position else 0
        address = (self._options["host"], self._options["port"])
        return SocketReader(address, self._options["wait_seconds"], context.clock, context.place, lines)


class SocketReader:
    """Waits for the server, reads lines as they come, ends when the server closes the connection."""

    def __init__(self, address: tuple[str, int], wait_seconds: float, clock: Clock, place: str, lines: int) -> None:
        self._address, self._wait_seconds, self._clock, self._place = address, wait_seconds, clock, place
        self._lines = lines
        self._socket: socket.socket | None = None
        self._received = b""
        self._closed = False
        self._opened_at = clock.monotonic()
        self._next_try, self._back_off = self._opened_at, FIRST_BACK_OFF_SECONDS

    def read(self, max_rows: int) -> base.ReadResult:
        """Whole lines; the last one may lack its newline."""
        if self._socket is None and not self._closed and not self._connect():
            return base.ReadResult(wait_us=max(IDLE_US, round((self._next_try - self._clock.monotonic()) * 1_000_000)))
        self._receive()
        lines = self._take(max_rows)
        ended = self._closed and not self._received
        if lines.is_empty():
            return base.ReadResult(ended=ended, wait_us=0 if ended else IDLE_US)
        self._lines += len(lines)
        return base.ReadResult(frame=lines.to_frame(), ended=ended)

    def position(self) -> dict[str, Any]:
        """For people: a socket cannot go back."""
        return {"lines": self._lines}

    def close(self) -> None:
        """Hang up."""
        if self._socket is not None:
            self._socket.close()
        self._socket, self._closed = None, True

    def _connect(self) -> bool:
        now = self._clock.monotonic()
        if now < self._next_try:
            return False
        try:
            self._socket = socket.create_connection(self._address, timeout=CONNECT_SECONDS)
        except OSError as error:
            host, port = self._address
            if now - self._opened_at >= self._wait_seconds:
                raise UserError(
                    "C009",
                    f"nothing answers at {host}:{port} after {self._wait_seconds:g} s ({error})",
                    where=self._place,
                    fix=f"start the server first, for example: nc -lk {port}",
                ) from error
            self._next_try = now + self._back_off
            self._back_off = min(2 * self._back_off, LONGEST_BACK_OFF_SECONDS)
            return False
        self._socket.setblocking(False)
        return True

    def _receive(self) -> None:
        """What has arrived; a connection that breaks ends like one that is closed."""
        if self._socket is None:
            return
        with contextlib.suppress(BlockingIOError):
            try:
                data = self._socket.recv(RECEIVE_BYTES)
            except ConnectionError:
                data = b""
            self._received += data
            if not data:
                self.close()

    def _take(self, max_rows: int) -> pl.Series:
        """Whole lines out of what was received; at the end also the one without a newline."""
        ends = line_ends(self._received)
        if self._closed and not self._received.endswith(b"\n"):
            ends = np.append(ends, len(self._received))
        count = min(max_rows, len(ends))
        until = int(ends[count - 1]) if count else 0
        if not until and len(self._received) > MAX_ROW_BYTES:
            raise RecordError(
                "R002", f"line {self._lines + 1} exceeds {MAX_ROW_BYTES // 1024 // 1024} MiB", where=self._place
            )
        text, self._received = self._received[:until], self._received[until:]
        if not text:
            return pl.Series("line", dtype=pl.String)
        whole = pl.Series("line", [text.removesuffix(b"\n").decode(errors="replace")])
        return whole.str.split("\n").explode().str.strip_suffix("\r")
