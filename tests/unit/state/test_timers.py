"""Timers, against a sorted set of (time, key)."""

from typing import Any

import polars as pl
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule

from penstock.state.key_groups import KEY_GROUP
from penstock.state.keys import KeyCodec
from penstock.state.timers import Timers
from penstock.state.values import MakeTable

KEYS = st.integers(0, 3)
TIMES = st.integers(-3, 12)


def make_timers() -> Timers:
    keys = KeyCodec(["k"])
    keys.learn([pl.Int64()])
    return Timers(keys, max_parallelism=8)


def pairs(table: pl.DataFrame | None) -> set[tuple[int, int]]:
    return set() if table is None else set(table.select("time", "k").iter_rows())


class TimerMachine(RuleBasedStateMachine):
    def __init__(self) -> None:
        super().__init__()
        self.timers = make_timers()
        self.model: set[tuple[int, int]] = set()
        self.pending: list[tuple[MakeTable, set[tuple[int, int]]]] = []

    @rule(time=TIMES, key=KEYS)
    def set_timer(self, time: int, key: int) -> None:
        self.timers.set(time, key)
        self.model.add((time, key))

    @rule(time=TIMES, key=KEYS)
    def delete(self, time: int, key: int) -> None:
        self.timers.delete(time, key)
        self.model.discard((time, key))

    @rule(watermark=TIMES)
    def pop(self, watermark: int) -> None:
        due = list(self.timers.due(watermark))
        assert [time for time, _ in due] == sorted(time for time, _ in due)
        assert len(due) == len(set(due))
        assert set(due) == {pair for pair in self.model if pair[0] <= watermark}
        self.model.difference_update(due)

    @rule()
    def snapshot(self) -> None:
        self.pending.append((self.timers.snapshot(), set(self.model)))

    @rule(index=st.integers(0, 2))
    def encode_later(self, index: int) -> None:
        if index < len(self.pending):
            make, expected = self.pending.pop(index)
            assert pairs(make()) == expected

    @rule()
    def merge(self) -> None:
        assert self.timers.merge() or self.pending

    @rule()
    def restore_elsewhere(self) -> None:
        table = self.timers.snapshot()()
        self.timers = make_timers()
        self.pending.clear()
        if table is not None:
            assert table[KEY_GROUP].is_sorted()
            self.timers.restore(table)

    @invariant()
    def nothing_is_due_too_early(self) -> None:
        first = min((time for time, _ in self.model), default=None)
        if first is not None:
            assert self.timers.next_time is not None
            assert self.timers.next_time <= first


TestTimersAgainstASortedSet = TimerMachine.TestCase


def test_timers_that_are_set_and_deleted_while_others_fire_are_respected() -> None:
    timers = make_timers()
    timers.set_many([10, 10, 20, 40], [1, 2, 3, 4])
    fired: list[tuple[int, Any]] = []
    for time, key in timers.due(30):
        fired.append((time, key))
        if (time, key) == (10, 1):
            timers.set(5, 9)
            timers.delete(20, 3)
            timers.set(25, 7)
            timers.set(31, 8)
    assert fired == [(10, 1), (5, 9), (10, 2), (25, 7)]
    assert list(timers.due(100)) == [(31, 8), (40, 4)]


def test_a_large_bucket_fires_in_the_order_of_registration() -> None:
    timers = make_timers()
    keys = list(range(50_000))
    timers.set_many([1] * len(keys), keys)
    assert [key for _, key in timers.due(1)] == keys
    assert timers.next_time is None
