"""Barrier alignment of one subtask.

Owns: which input channels have delivered the barrier that is being aligned, and which barriers are behind.
Does not own: the reading of channels (the slot's loop asks `blocked`), nor what happens at the barrier.
Invariant: a blocked channel is not read until the barrier has come on all others, or rows of the next
checkpoint would leak into this one.

There is one checkpoint at a time and ids only grow, so a barrier tells all about the ones before it: when a
newer one arrives, whatever was being aligned has been given up. A channel whose input has ended still delivers
barriers, and needs no case of its own.

The head of a loop waits for no barrier that comes round, since it has to send it first. But one may come before its
own, sent round by another subtask of the head: then that channel is blocked like any other.

An unaligned barrier does not wait: it overtakes rows that were in front of it, and these become part of the
checkpoint, with those that still arrive on channels where the barrier has not come (`exchange.channels` sees to both).
"""

from collections.abc import Iterable, Set
from dataclasses import dataclass

from penstock.model.elements import Barrier
from penstock.model.ids import ChannelId, CheckpointId


@dataclass(frozen=True, slots=True)
class Aligned:
    """The barrier has come on every channel that is waited for: snapshot, pass it on. All channels are open again."""

    barrier: Barrier
    missing: frozenset[ChannelId] = frozenset()
    """Channels of a loop on which it has yet to come round."""


@dataclass(frozen=True, slots=True)
class Blocked:
    """The channel is not to be read until the barrier has come on the others too."""

    barrier: Barrier


@dataclass(frozen=True, slots=True)
class Stale:
    """The checkpoint was given up or is behind: no snapshot, nothing is blocked."""

    barrier: Barrier
    forward: bool
    """True once per checkpoint. A receiver that did not hear of the abort waits for this barrier, and while it
    waits it may hold back the very rows that are in front of the next one."""


class Aligner:
    """The channels of one subtask. A subtask without inputs has nothing to align and needs none."""

    def __init__(
        self,
        channels: Iterable[ChannelId],
        *,
        feedback: Iterable[ChannelId] = (),
        passed: CheckpointId = CheckpointId(0),  # noqa: B008 - a number
    ) -> None:
        self._awaited = frozenset(channels)
        self._feedback = frozenset(feedback)
        self._channels = self._awaited | self._feedback
        self._blocked: set[ChannelId] = set()
        self._pending: Barrier | None = None
        self._passed = passed
        """No barrier up to this one will be passed on again."""
        self._given_up = CheckpointId(0)

    @property
    def blocked(self) -> Set[ChannelId]:
        """Channels that must not be read now. A live view: ask it each time."""
        return self._blocked

    @property
    def pending(self) -> CheckpointId | None:
        """The checkpoint that is being aligned."""
        return self._pending.checkpoint if self._pending else None

    @property
    def pending_barrier(self) -> Barrier | None:
        """Its barrier, as it came first."""
        return self._pending

    def on_barrier(self, channel: ChannelId, barrier: Barrier) -> Aligned | Blocked | Stale:
        """A barrier was read from the channel, in its place between the batches."""
        if channel not in self._channels or channel in self._blocked:
            state = "is blocked" if channel in self._channels else "is not an input"
            raise ValueError(f"barrier {barrier.checkpoint} read from channel {channel}, which {state}")
        if barrier.checkpoint <= self._passed:
            return Stale(barrier, forward=False)
        if self._is_behind(barrier):
            if channel in self._feedback:
                return Stale(barrier, forward=False)
            self._passed = barrier.checkpoint
            return Stale(barrier, forward=True)
        if barrier.checkpoint != self.pending:
            self._blocked.clear()
            self._pending = barrier
        self._blocked.add(channel)
        if not self._awaited <= self._blocked:
            return Blocked(barrier)
        missing = self._channels - self._blocked
        self._open()
        self._passed = barrier.checkpoint
        return Aligned(barrier, missing)

    def overtake(self, barrier: Barrier) -> frozenset[ChannelId] | None:
        """The barrier waits for nothing more. Returns the channels where it has yet to come; None: it is behind.

        Afterwards all channels are open: rows in front of the barrier on the others are captured where they are.
        """
        if barrier.checkpoint <= self._passed or self._is_behind(barrier):
            return None
        missing = self._channels - self._blocked if barrier.checkpoint == self.pending else self._channels
        self._open()
        self._passed = barrier.checkpoint
        return missing

    def abort(self, checkpoint: CheckpointId) -> bool:
        """The checkpoint was given up. True when it was being aligned: its channels are open again."""
        self._given_up = max(self._given_up, checkpoint)
        if self._pending is None or self._pending.checkpoint > checkpoint:
            return False
        self._open()
        return True

    def _is_behind(self, barrier: Barrier) -> bool:
        newer_is_pending = self._pending is not None and barrier.checkpoint < self._pending.checkpoint
        return newer_is_pending or barrier.checkpoint <= self._given_up

    def _open(self) -> None:
        self._blocked.clear()
        self._pending = None
