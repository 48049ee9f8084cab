"""The watermark valve, against a model that recomputes everything from what was said."""

import pytest
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule

from penstock.model.clocks import MAX_WATERMARK, MIN_WATERMARK
from penstock.operators.valve import Valve, ValveChange

NAMES = st.integers(0, 3)


class ValveMachine(RuleBasedStateMachine):
    """The model keeps (watermark, idle, ended) per input, and looks at all of them after each step."""

    def __init__(self) -> None:
        super().__init__()
        self.valve: Valve[int] = Valve([0, 1])
        self.inputs = {0: (MIN_WATERMARK, False, False), 1: (MIN_WATERMARK, False, False)}
        self.watermark, self.idle = MIN_WATERMARK, False

    def expect(self, change: ValveChange) -> None:
        before = self.watermark, self.idle
        active = [time for time, idle, ended in self.inputs.values() if not idle and not ended]
        unfinished = [name for name, (_, _, ended) in self.inputs.items() if not ended]
        if self.inputs and not unfinished:
            self.watermark = MAX_WATERMARK
        elif unfinished:
            idle_times = [self.inputs[name][0] for name in unfinished]
            self.watermark = max(self.watermark, min(active) if active else max(idle_times))
        self.idle = bool(unfinished) and not active
        assert change.watermark == (self.watermark if self.watermark != before[0] else None)
        assert change.idle == (self.idle if self.idle != before[1] else None)

    @rule(name=NAMES, time=st.integers(-5, 20))
    def on_watermark(self, name: int, time: int) -> None:
        if name in self.inputs:
            old, idle, ended = self.inputs[name]
            self.inputs[name] = (max(old, time), idle, ended)
            self.expect(self.valve.on_watermark(name, time))

    @rule(name=NAMES, idle=st.booleans())
    def on_idleness(self, name: int, idle: bool) -> None:
        if name in self.inputs:
            self.inputs[name] = (self.inputs[name][0], idle, self.inputs[name][2])
            self.expect(self.valve.on_idleness(name, idle))

    @rule(name=NAMES)
    def on_end(self, name: int) -> None:
        if name in self.inputs:
            self.inputs[name] = (*self.inputs[name][:2], True)
            self.expect(self.valve.on_end(name))

    @rule(name=NAMES)
    def add(self, name: int) -> None:
        self.inputs.setdefault(name, (MIN_WATERMARK, False, False))
        self.expect(self.valve.add(name))

    @rule(name=NAMES)
    def remove(self, name: int) -> None:
        self.inputs.pop(name, None)
        self.expect(self.valve.remove(name))

    @invariant()
    def output_is_what_was_announced(self) -> None:
        assert (self.valve.watermark, self.valve.idle) == (self.watermark, self.idle)


TestValveAgainstItsModel = ValveMachine.TestCase


def test_the_slowest_active_input_decides() -> None:
    valve = Valve(["a", "b"])
    assert valve.on_watermark("a", 10) == ValveChange()
    assert valve.on_watermark("b", 7) == ValveChange(watermark=7)
    assert valve.on_idleness("b", True) == ValveChange(watermark=10)


def test_an_input_that_wakes_up_late_never_moves_time_back() -> None:
    valve = Valve(["a", "b"])
    valve.on_idleness("b", True)
    assert valve.on_watermark("a", 10) == ValveChange(watermark=10)
    assert valve.on_idleness("b", False) == ValveChange()
    assert valve.on_watermark("b", 5) == ValveChange()
    assert valve.on_watermark("a", 20) == ValveChange()
    assert valve.on_watermark("b", 15) == ValveChange(watermark=15)


def test_all_idle_is_idle_and_keeps_the_watermark() -> None:
    valve = Valve(["a", "b"])
    valve.on_watermark("a", 3)
    valve.on_watermark("b", 4)
    assert valve.on_idleness("a", True) == ValveChange(watermark=4)
    assert valve.on_idleness("b", True) == ValveChange(idle=True)
    assert valve.on_idleness("a", False) == ValveChange(idle=False)
    assert valve.watermark == 4


def test_event_time_ends_with_the_last_input() -> None:
    valve = Valve(["a", "b"])
    valve.on_idleness("b", True)
    assert valve.on_end("a") == ValveChange(idle=True)
    assert valve.on_end("b") == ValveChange(watermark=MAX_WATERMARK, idle=False)


def test_a_new_input_holds_time_and_the_removal_of_the_last_ends_nothing() -> None:
    valve = Valve(["a"])
    valve.on_watermark("a", 3)
    valve.add("b")
    assert valve.on_watermark("a", 9) == ValveChange()
    assert valve.remove("b") == ValveChange(watermark=9)
    assert valve.remove("a") == ValveChange()
    assert "a" not in valve


def test_event_time_does_not_end_while_an_idle_input_may_still_give_rows() -> None:
    valve: Valve[str] = Valve(["ending", "idle"])
    for name in ("ending", "idle"):
        valve.on_watermark(name, 5)
        valve.on_idleness(name, True)
    valve.on_watermark("ending", MAX_WATERMARK)
    assert valve.on_idleness("ending", False) == ValveChange(idle=False)
    assert valve.on_end("ending") == ValveChange(idle=True)
    assert valve.on_end("idle") == ValveChange(watermark=MAX_WATERMARK, idle=False)


@pytest.mark.parametrize("order", [("ahead", "behind"), ("behind", "ahead")])
def test_when_all_fall_silent_time_is_that_of_the_one_ahead_whoever_is_noticed_first(order: tuple[str, str]) -> None:
    valve = Valve(["ahead", "behind"])
    valve.on_watermark("ahead", 20)
    valve.on_watermark("behind", 5)
    for name in order:
        valve.on_idleness(name, True)
    assert (valve.watermark, valve.idle) == (20, True)
