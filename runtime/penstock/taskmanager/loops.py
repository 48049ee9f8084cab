"""When a loop is over: its input has ended, and no row is under way in it.

Heads find out together, in rounds. In each, every head sends a mark behind all its rows; a task of the loop passes it
on when it has come on all channels of the loop; the tails send it to every head. A mark is dirty when a head, or a
task with rows from outside or with timers, has seen or may yet see a row since the mark before. So in a round that
comes back clean no row was fed back anywhere between two marks, and what was in front of the first of them is gone:
the loop is empty. All heads get the same answer, and end in the same round.

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

    def __init__(self, loop: Uid, feedback: Iterable[ReceiveChannel]) -> None:
        self._loop = loop
        self._channels = tuple(feedback)
        self._round = 0
        self._dirty = True
        self._under_way = False
        self._arrived: dict[int, dict[ChannelId, bool]] = {}
        """By round and channel: whether the mark was dirty. Other heads may be a round ahead of this one."""
        self._pause = 0.0
        self._not_before = 0.0

    def on_rows(self) -> None:
        """Rows were fed back."""
        self._dirty = True
        self._pause = self._not_before = 0.0

    def next_mark(self, now: float) -> LoopMark | None:
        """The mark to send, once input has ended here and no round is under way."""
        if self._under_way or any(self._channels) or now < self._not_before:
            return None
        self._round += 1
        mark = LoopMark(self._loop, self._round, self._dirty)
        self._dirty, self._under_way = False, True
        return mark

    def on_mark(self, channel: ChannelId, mark: LoopMark, now: float) -> bool:
        """A mark has come round. True when it was the last one of its round, and none was dirty: the loop is over."""
        arrived = self._arrived.setdefault(mark.round, {})
        arrived[channel] = mark.dirty
        if len(arrived) < len(self._channels):
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
        self._outside_open = bool(self._outside)
        """Rows may have come from outside since the last mark."""
        self._arrived: dict[ChannelId, LoopMark] = {}

    def on_mark(self, channel: ChannelId, mark: LoopMark, *, owes_rows: bool) -> LoopMark | None:
        """Returns the mark to pass on, when it has come on all channels of the loop."""
        self._arrived[channel] = mark
        if len(self._arrived) < len(self._inside):
            return None
        dirty = owes_rows or self._outside_open or any(each.dirty for each in self._arrived.values())
        self._arrived = {}
        self._outside_open = any(not each.ended for each in self._outside)
        return LoopMark(mark.loop, mark.round, dirty)
