"""Which JobManager a TaskManager talks to: one of those that it was given, or whom they name as the leader."""

from collections.abc import Callable, Sequence

from penstock.model.ids import NO_EPOCH, Epoch
from penstock.rpc import Channel, Reply, ToldJobManager

Connect = Callable[[str], Channel[ToldJobManager, Reply]]


class JobManagers:
    """One of them at a time. `turn` goes on to the next; `hear` looks at what one of them has answered."""

    def __init__(self, addresses: Sequence[str], connect: Connect) -> None:
        self._given, self._connect = list(addresses), connect
        self._next = 0
        self._channels: dict[str, Channel[ToldJobManager, Reply]] = {}
        self.address = self._given[0]
        self.epoch: Epoch = NO_EPOCH
        """The highest in which any of them said that it leads."""

    @property
    def several(self) -> bool:
        """There is another one to ask."""
        return len(self._given) > 1 or self.address not in self._given

    @property
    def channel(self) -> Channel[ToldJobManager, Reply]:
        """To the present one."""
        if self.address not in self._channels:
            self._channels[self.address] = self._connect(self.address)
        return self._channels[self.address]

    def turn(self) -> None:
        """The present one does not answer, or does not lead."""
        if self._given[self._next] == self.address:
            self._next = (self._next + 1) % len(self._given)
        self.address = self._given[self._next]

    def hear(self, reply: Reply) -> bool:
        """Whether the one that answered this leads, as far as anybody here knows. If not, ask another now."""
        if reply.accepted and reply.epoch >= self.epoch:
            self.epoch = reply.epoch
            return True
        if reply.leader and reply.leader != self.address:
            self.address = reply.leader
        else:
            self.turn()
        return False

    async def close(self) -> None:
        """Hang up on all."""
        for channel in self._channels.values():
            await channel.close()
