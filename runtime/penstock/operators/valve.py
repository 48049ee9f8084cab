"""The watermark of many inputs: splits of a source, or channels of a subtask.

Owns: what each input has said about event time, and what follows for all of them.
Pure: no clock; who calls decides when an input is idle.
Invariant: the output watermark is the minimum over the inputs that are active, and never goes back. An input that
wakes up with an older watermark holds the output where it is until it has caught up. When all are idle, nobody holds
back the one that is ahead: in whatever order they fell silent, time is the same afterwards.
"""

from collections.abc import Container, Hashable, Iterable
from dataclasses import dataclass
from typing import Generic, TypeVar

from penstock.model.clocks import MAX_WATERMARK, MIN_WATERMARK

InputId = TypeVar("InputId", bound=Hashable)


@dataclass(frozen=True, slots=True)
class ValveChange:
    """What is new at the output; None: as it was."""

    watermark: int | None = None
    idle: bool | None = None


_NO_CHANGE = ValveChange()


@dataclass(slots=True)
class _Input:
    watermark: int = MIN_WATERMARK
    idle: bool = False
    ended: bool = False


class Valve(Generic[InputId]):
    """Lets a watermark through when all active inputs have reached it."""

    def __init__(self, inputs: Iterable[InputId] = ()) -> None:
        self._inputs = {name: _Input() for name in inputs}
        self.watermark = MIN_WATERMARK
        self.idle = False
        """All inputs that have not ended are idle."""

    def __contains__(self, name: InputId) -> bool:
        return name in self._inputs

    def on_watermark(self, name: InputId, watermark: int) -> ValveChange:
        """An input has reached `watermark`; one that is older than its last is ignored."""
        source = self._inputs[name]
        if watermark <= source.watermark:
            return _NO_CHANGE
        source.watermark = watermark
        return self._update()

    def on_idleness(self, name: InputId, idle: bool) -> ValveChange:
        """An input has gone idle, or is active again."""
        self._inputs[name].idle = idle
        return self._update()

    def on_end(self, name: InputId) -> ValveChange:
        """An input holds nothing back any more; after the last one, event time has ended."""
        self._inputs[name].ended = True
        return self._update()

    def add(self, name: InputId) -> ValveChange:
        """A new input, active, of which nothing is known: the output waits for it."""
        self._inputs.setdefault(name, _Input())
        return self._update()

    def remove(self, name: InputId) -> ValveChange:
        """Forget an input. Without any, the output stays as it is: more may come."""
        self._inputs.pop(name, None)
        return self._update()

    def replaced(
        self, inputs: Iterable[InputId], *, restarted: Container[InputId]
    ) -> "tuple[Valve[InputId], ValveChange]":
        """A valve of other inputs that goes on from here: those that stay are as they were, unless they begin anew."""
        valve: Valve[InputId] = Valve()
        for name in inputs:
            known = self._inputs.get(name)
            valve._inputs[name] = _Input() if known is None or name in restarted else known
        valve.watermark, valve.idle = self.watermark, self.idle
        return valve, valve._update()

    def _update(self) -> ValveChange:
        unfinished = [each for each in self._inputs.values() if not each.ended]
        active = [each.watermark for each in unfinished if not each.idle]
        idle = bool(unfinished) and not active
        if self._inputs and not unfinished:
            reached = MAX_WATERMARK
        elif idle:
            reached = max(each.watermark for each in unfinished)
        else:
            reached = min(active, default=self.watermark)
        if reached == MAX_WATERMARK and any(each.watermark < MAX_WATERMARK for each in unfinished):
            # Idle inputs are left out of time, but not of its end: what they still give would be late for everything.
            reached = self.watermark
        change = ValveChange(
            watermark=reached if reached > self.watermark else None,
            idle=idle if idle != self.idle else None,
        )
        self.watermark, self.idle = max(self.watermark, reached), idle
        return change
