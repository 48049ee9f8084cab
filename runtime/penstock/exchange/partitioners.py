"""Which subtask each row goes to."""

from collections.abc import Sequence
from typing import Protocol

import numpy as np
import polars as pl

from penstock.model import specs
from penstock.model.frames import gathered
from penstock.state.key_groups import key_groups

Routed = list[tuple[int, pl.DataFrame]]
"""Index of the channel, rows for it."""


class Partitioner(Protocol):
    """Cuts a batch by receiver."""

    def split(self, frame: pl.DataFrame) -> Routed:
        """The rows of `frame`, each once (broadcast: once per channel), in order per channel."""
        ...


class ToOne:
    """A single receiver: forward edges, and any edge to a parallelism of one."""

    def split(self, frame: pl.DataFrame) -> Routed:
        """Everything to channel 0."""
        return [(0, frame)]


class RoundRobin:
    """Whole batches in turn. Large ones are cut, so that one batch does not make one subtask late."""

    def __init__(self, channels: int, first: int) -> None:
        self._channels, self._next = channels, first % channels

    def split(self, frame: pl.DataFrame) -> Routed:
        """Even slices of large batches, small ones whole."""
        if frame.height < 1024 * self._channels:
            pieces = [frame]
        else:
            size = -(-frame.height // self._channels)
            pieces = [frame.slice(start, size) for start in range(0, frame.height, size)]
        routed = []
        for piece in pieces:
            routed.append((self._next, piece))
            self._next = (self._next + 1) % self._channels
        return routed


class ToAll:
    """Every row to every receiver."""

    def __init__(self, channels: int) -> None:
        self._channels = channels

    def split(self, frame: pl.DataFrame) -> Routed:
        """The same frame to each."""
        return [(channel, frame) for channel in range(self._channels)]


class ToSame:
    """To the receiver of the sender's own index."""

    def __init__(self, index: int) -> None:
        self._index = index

    def split(self, frame: pl.DataFrame) -> Routed:
        """Everything to one channel."""
        return [(self._index, frame)]


class ByKeyGroup:
    """A table key group -> receiver, so that a rescale can switch it and one group can move alone."""

    def __init__(self, keys: Sequence[str], routing: Sequence[int], channels: int) -> None:
        self._keys = tuple(keys)
        # NumPy sorts small unsigned integers by radix: 3-12 times as fast as int64.
        self._routing = np.asarray(routing, dtype=np.uint8 if channels <= 256 else np.uint16)
        self._channels = channels

    def split(self, frame: pl.DataFrame) -> Routed:
        """One stable sort by receiver, one gather, then slices: flat in the number of receivers."""
        groups = key_groups(frame, self._keys, len(self._routing))
        targets = self._routing[groups]
        counts = np.bincount(targets, minlength=self._channels).tolist()
        if frame.height in counts:
            return [(counts.index(frame.height), frame)]
        sorted_ = gathered(frame, np.argsort(targets, kind="stable"))
        routed, start = [], 0
        for channel, count in enumerate(counts):
            if count:
                routed.append((channel, sorted_.slice(start, count)))
                start += count
        return routed


def make_partitioner(
    partitioning: specs.Partitioning, *, channels: int, routing: Sequence[int], sender_index: int
) -> Partitioner:
    """The partitioner of one output edge."""
    match partitioning:
        case specs.Forward():
            return ToOne()
        case _ if channels == 1:
            return ToOne()
        case specs.Rebalance():
            return RoundRobin(channels, sender_index)
        case specs.Broadcast():
            return ToAll(channels)
        case specs.Feedback():
            return ToSame(sender_index)
        case specs.Hash(keys=keys):
            return ByKeyGroup(keys, routing, channels)
