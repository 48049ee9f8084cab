"""The JobManager's side of its talk with one TaskManager: an ordered queue of messages."""

import asyncio
from collections.abc import Callable

from penstock.model.ids import Epoch
from penstock.model.messages import Deploy, Directed
from penstock.rpc import Channel, Reply, RpcError, ToldTaskManager, taskmanager_channel

Connect = Callable[[str], Channel[ToldTaskManager, Reply]]
"""From the address of a TaskManager to the way there."""


class Peer:
    """One registration of one TaskManager; a new registration is a new peer."""

    def __init__(
        self, address: str, *, epoch: Epoch, call_seconds: float, connect: Connect = taskmanager_channel
    ) -> None:
        self._address, self._epoch, self._call_seconds, self._connect = address, epoch, call_seconds, connect
        self._queue: asyncio.Queue[Directed] = asyncio.Queue()
        self._current: Directed | None = None
        self.task: asyncio.Task[None] | None = None

    def send(self, directed: Directed) -> None:
        """Queue; in order, each once."""
        self._queue.put_nowait(directed)

    def inherit(self, before: "Peer") -> None:
        """Say what the peer of an earlier registration had yet to say. A deployment that was not heard of is lost."""
        queued = [before._queue.get_nowait() for _ in range(before._queue.qsize())]
        for directed in (before._current, *queued):
            if directed is not None and not isinstance(directed.message, Deploy):
                self.send(directed)

    def cancel(self) -> None:
        """Send nothing more."""
        if self.task is not None:
            self.task.cancel()

    async def run(self) -> str:
        """Send what is queued until it cannot be delivered; says why."""
        channel = self._connect(self._address)

        async def call(directed: Directed) -> Reply:
            told = ToldTaskManager(epoch=self._epoch, directed=directed)
            return await channel.call(told, seconds=self._call_seconds)

        try:
            while True:
                directed = self._current = await self._queue.get()
                try:
                    reply = await call(directed)
                except RpcError:
                    # One more try tells a hiccup from a loss; receivers take a message twice in their stride.
                    reply = await call(directed)
                self._current = None
                if not reply.accepted:
                    return "it follows another JobManager"
        except RpcError as error:
            return error.what
        finally:
            await channel.close()
