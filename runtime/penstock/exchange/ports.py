"""The network between slots as a port: real sockets in `exchange.sockets`, simulated ones in `testing`.

A link is one ordered connection from a sending slot to a receiving slot. Frames of all channels between
the two share it; credits travel back on it. A link that breaks is never reopened: the attempt has failed.
"""

from collections.abc import Sequence
from typing import Protocol

from penstock.model.ids import Attempt, JobId, SlotId

Buffer = bytes | bytearray | memoryview


class Link(Protocol):
    """One end of a connection."""

    def send(self, parts: Sequence[Buffer]) -> None:
        """Queue one frame (header, then body). Ask `writable` first, else memory grows."""
        ...

    @property
    def writable(self) -> bool:
        """False while earlier frames wait for the network."""
        ...

    def close(self) -> None:
        """End it; the other side sees it as lost."""
        ...


class LinkHandler(Protocol):
    """The slot, as the transport sees it. All calls come from within `Transport.poll`."""

    def on_accept(self, link: Link, job: JobId, attempt: Attempt, sender: SlotId) -> None:
        """Another slot has connected."""
        ...

    def on_frame(self, link: Link, header: Buffer, body: memoryview) -> None:
        """A whole frame but the hello. `body` stays valid as long as it is referenced."""
        ...

    def on_lost(self, link: Link, reason: str) -> None:
        """The connection ended: by the peer, by an error, never by our own `close`."""
        ...


class Transport(Protocol):
    """Makes links and moves their bytes."""

    @property
    def address(self) -> str:
        """Where other slots reach this one."""
        ...

    def connect(self, address: str, job: JobId, attempt: Attempt, sender: SlotId) -> Link:
        """Open a link; returns at once, frames may be queued right away."""
        ...
