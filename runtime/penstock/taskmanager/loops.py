"""When a loop is over: its input has ended, and no row is under way in it.

Heads find out together, in rounds. In each, every head whose input has ended sends a mark; a task of the loop passes
it on when it has come on all channels of the loop; the tails send it to every head, and when all have come, the next
round may begin. A mark is dirty when a task on its way has sent a row on inside the loop since the mark before, or
may yet do so without being given one: it has timers or calls under way, or an input from outside that has not ended.

A clean round means that the loop is empty. Take the moments at which the tasks sent their marks of that round. No row
was on its way from a task's past to another's future: in front of a mark a channel has been read, and the tails had
sent nothing behind the mark of the round before, which the heads had read. And no task could make a row of nothing.
All heads get the same marks, so all end in the same round.

Nothing of this is part of a snapshot: after a restore the rounds begin anew.
"""

from collections.abc import Iterable, Sequence

from penstock.exchange.channels import ReceiveChannel
from penstock.model.elements import LoopMark
from penstock.model.ids import ChannelId, Uid

_FIRST_PAUSE = 0.001
_LONGEST_PAUSE = 0.05
"""Seconds between two rounds in which nothing came back here: the loop may wait for others for a long time."""


class HeadRounds:
    """The rounds of one subtask of a loop's head."""

    def __init__(self, loop: Uid, feedback: Iterable[ChannelId]) -> None:
        self._loop = loop
        self._channels = frozenset(feedback)
        self._round = 0
        self._under_way = False
        self._arrived: dict[int, dict[ChannelId, bool]] = {}
        """By round and channel: whether the mark was dirty. Other heads may be a round ahead of this one."""
        self._pause = 0.0
        self._not_before = 0.0

    def on_rows(self) -> None:
        """Rows were fed back: something is going on here."""
        self._pause = self._not_before = 0.0

    def next_mark(self, now: float) -> LoopMark | None:
        """The mark to send, once input has ended here and no round is under way."""
        if self._under_way or now < self._not_before:
            return None
        self._round += 1
        self._under_way = True
        return LoopMark(self._loop, self._round, dirty=False)

    def on_mark(self, channel: ChannelId, mark: LoopMark, now: float) -> bool:
        """A mark has come round. True when it was the last one of its round, and none was dirty: the loop is over."""
        arrived = self._arrived.setdefault(mark.round, {})
        arrived[channel] = mark.dirty
        if arrived.keys() != self._channels:
            return False
        del self._arrived[mark.round]
        self._under_way = False
        self._pause = min(_LONGEST_PAUSE, self._pause * 2 or _FIRST_PAUSE)
        self._not_before = now + self._pause
        return not any(arrived.values())

    def wait(self, now: float) -> float | None:
        """Seconds until the next mark is due; None: something else has to happen first."""
        return None if self._under_way else max(0.0, self._not_before - now)


class PassingMarks:
    """Marks on their way through a task inside a loop."""

    def __init__(self, inputs: Sequence[ReceiveChannel]) -> None:
        self._inside = frozenset(channel.id for channel in inputs if channel.loop is not None)
        self._outside = tuple(channel for channel in inputs if channel.loop is None)
        self._arrived: dict[ChannelId, bool] = {}

    def on_mark(self, channel: ChannelId, mark: LoopMark) -> LoopMark | None:
        """Returns the mark to pass on, when it has come on all channels of the loop."""
        self._arrived[channel] = mark.dirty
        if self._arrived.keys() != self._inside:
            return None
        dirty = any(self._arrived.values()) or any(not each.ended for each in self._outside)
        self._arrived = {}
        return LoopMark(mark.loop, mark.round, dirty)
