"""One output edge of a subtask: a partitioner in front of its channels."""

from collections.abc import Callable, Sequence

import polars as pl

from penstock.exchange.channels import SendChannel
from penstock.exchange.partitioners import Partitioner
from penstock.model.elements import Element


class Gate:
    """Rows are routed; everything else goes to every receiver."""

    def __init__(self, partitioner: Partitioner, channels: Sequence[SendChannel], now: Callable[[], float]) -> None:
        self.channels = tuple(channels)
        self._partitioner = partitioner
        self._now = now

    @property
    def full(self) -> bool:
        """Some receiver has no room: the task waits, since rows cannot be put aside for one of many."""
        return any(channel.full for channel in self.channels)

    def emit(self, frame: pl.DataFrame) -> None:
        """Rows, to whom they belong."""
        now = self._now()
        for index, piece in self._partitioner.split(frame):
            self.channels[index].add(piece, now)

    def watermark(self, time: int) -> None:
        """Event time, to all."""
        for channel in self.channels:
            channel.add_watermark(time)

    def control(self, element: Element) -> None:
        """A barrier, idleness or the end of input, to all."""
        for channel in self.channels:
            channel.add_control(element)

    def flush(self, now: float, *, input_paused: bool) -> float | None:
        """Let batches leave that are due; the seconds until the next one is."""
        waits = [wait for channel in self.channels if (wait := channel.flush(now, input_paused=input_paused))]
        return min(waits, default=None)
