"""One output edge of a subtask: a partitioner in front of its channels."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import polars as pl

from penstock.exchange.channels import SendChannel
from penstock.exchange.partitioners import Partitioner
from penstock.model.elements import Element, EndOfInput, Idleness, LoopMark
from penstock.model.ids import CheckpointId, Uid


@dataclass(frozen=True, slots=True, kw_only=True)
class Destination:
    """Where the rows of a gate go, as a snapshot has to know it."""

    operator: Uid
    port: int = 0
    keys: tuple[str, ...] = ()
    """Rows are spread by key group of these; empty: in another way."""
    first: int = 0
    """Subtask index of the first channel's receiver; the others follow."""
    in_order: bool = False
    """Barriers overtake nothing here."""
    loop: Uid | None = None
    """The loop that the edge is part of: only its marks pass here."""


class Gate:
    """Rows are routed; everything else goes to every receiver."""

    def __init__(
        self,
        partitioner: Partitioner,
        channels: Sequence[SendChannel],
        now: Callable[[], float],
        destination: Destination,
    ) -> None:
        self.channels = tuple(channels)
        self.destination = destination
        self._partitioner = partitioner
        self._now = now
        self._carried = False
        """Rows have come by since the last mark of a loop."""
        self._time: int | None = None
        self._idle = False
        self._ended = False

    @property
    def full(self) -> bool:
        """Some receiver has no room: the task waits, since rows cannot be put aside for one of many."""
        return any(channel.full for channel in self.channels)

    def emit(self, frame: pl.DataFrame) -> None:
        """Rows, to whom they belong."""
        now = self._now()
        self._carried = True
        for index, piece in self._partitioner.split(frame):
            self.channels[index].add(piece, now)

    def watermark(self, time: int) -> None:
        """Event time, to all."""
        self._time = time
        for channel in self.channels:
            channel.add_watermark(time)

    def control(self, element: Element) -> None:
        """A barrier, idleness or the end of input, to all."""
        if isinstance(element, Idleness):
            self._idle = element.idle
        self._ended = self._ended or isinstance(element, EndOfInput)
        for channel in self.channels:
            channel.add_control(element)

    @property
    def carried_rows(self) -> bool:
        """Whether rows have come by since the last mark of a loop, or ever."""
        return self._carried

    def mark(self, mark: LoopMark) -> None:
        """Behind all rows so far, to all."""
        self._carried = False
        self.control(mark)

    def switch(
        self,
        partitioner: Partitioner,
        channels: Sequence[SendChannel],
        *,
        tell: Sequence[SendChannel],
        time: bool,
        anew: bool,
    ) -> None:
        """From here on rows go by another table. Those in `tell` hear what all others have heard already.

        Without `time` they do not hear how far event time is; when all begins `anew`, there is nothing to tell.
        """
        self._partitioner, self.channels = partitioner, tuple(channels)
        self._time = self._time if time and not anew else None
        self._idle, self._ended = self._idle and not anew, self._ended and not anew
        for channel in tell:
            if self._idle:
                channel.add_control(Idleness(True))
            if self._time is not None:
                channel.add_watermark(self._time)
            if self._ended:
                channel.add_control(EndOfInput())

    def holds(self, checkpoint: CheckpointId) -> bool:
        """Whether the barrier has yet to leave."""
        return any(channel.holds(checkpoint) for channel in self.channels)

    def overtake(self, checkpoint: CheckpointId) -> list[tuple[int, pl.DataFrame]]:
        """Let the barrier pass by what waits; returns that, with the index of the subtask it was for."""
        if self.destination.in_order:
            return []
        return [
            (self.destination.first + number, frame)
            for number, channel in enumerate(self.channels)
            for frame in channel.overtake(checkpoint)
        ]

    def flush(self, now: float, *, input_paused: bool) -> float | None:
        """Let batches leave that are due; the seconds until the next one is."""
        waits = [wait for channel in self.channels if (wait := channel.flush(now, input_paused=input_paused))]
        return min(waits, default=None)
