"""Timers, in memory and in a database, against a sorted set of (time, key)."""

import shutil
import tempfile
import tracemalloc
from collections.abc import Sequence
from itertools import islice
from pathlib import Path
from typing import Any

import polars as pl
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule

from penstock.state.frozen_databases import FrozenDatabase
from penstock.state.key_groups import KEY_GROUP, key_groups
from penstock.state.keys import KeyCodec
from penstock.state.rocks import Database, RestoredFiles
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


class StoredTimerMachine(RuleBasedStateMachine):
    """With so small a budget that every merge writes, and snapshots that are taken up at other key groups."""

    def __init__(self) -> None:
        super().__init__()
        self.folder = Path(tempfile.mkdtemp(prefix="penstock-timers-"))
        self.model: set[tuple[int, int]] = set()
        self.frozen: list[FrozenDatabase] = []
        self.open((), range(8), budget=1)

    def open(self, restored: Sequence[RestoredFiles], groups: range, *, budget: int) -> None:
        self.database = Database(self.folder / "database", groups=groups, budget=1 << 20, restored=restored)
        self.groups = groups
        self.timers = make_timers()
        self.timers.store_in(self.database, "timers", groups, budget)

    @rule(time=TIMES, key=KEYS)
    def set_timer(self, time: int, key: int) -> None:
        if group_of(key) in self.groups:
            self.timers.set(time, key)
            self.model.add((time, key))

    @rule(time=TIMES, key=KEYS)
    def delete(self, time: int, key: int) -> None:
        self.timers.delete(time, key)
        self.model.discard((time, key))

    @rule(watermark=TIMES, limit=st.integers(1, 20))
    def pop(self, watermark: int, limit: int) -> None:
        wanted = {pair for pair in self.model if pair[0] <= watermark}
        soon = self.timers.upcoming(watermark, 100)
        due = list(islice(self.timers.due(watermark), limit))
        assert [time for time, _ in due] == sorted(time for time, _ in due)
        assert len(due) == len(set(due)) == min(limit, len(wanted))
        assert set(due) <= wanted
        assert {key for _, key in due} <= set(soon)
        self.model.difference_update(due)
        assert not due or due[-1][0] <= min((time for time, _ in wanted - set(due)), default=due[-1][0])

    @rule()
    def merge(self) -> None:
        self.timers.merge()

    @rule()
    def freeze(self) -> None:
        self.frozen.append(FrozenDatabase(self.database, [self.timers.freeze()], lambda: None))

    @rule()
    def link(self) -> None:
        if self.frozen:
            shutil.rmtree(self.frozen.pop(0).link().folder)

    @rule(split=st.integers(1, 7), budget=st.sampled_from([1, 1 << 20]))
    def take_up_half_of_the_groups(self, split: int, budget: int) -> None:
        for frozen in self.frozen:
            frozen.link()
        self.frozen.clear()
        linked = FrozenDatabase(self.database, [self.timers.freeze()], lambda: None).link()
        kept = self.folder / "kept"
        shutil.rmtree(kept, ignore_errors=True)
        linked.folder.rename(kept)
        self.database.close()
        groups = range(min(split, self.groups.stop))
        self.open([RestoredFiles(kept, self.groups, ())], groups, budget=budget)
        self.model = {(time, key) for time, key in self.model if group_of(key) in groups}

    @invariant()
    def nothing_is_due_too_early(self) -> None:
        first = min((time for time, _ in self.model), default=None)
        if first is not None:
            assert self.timers.next_time is not None
            assert self.timers.next_time <= first

    def teardown(self) -> None:
        self.database.close()
        shutil.rmtree(self.folder)


def group_of(key: int) -> int:
    return int(key_groups(pl.DataFrame({"k": [key]}), ["k"], 8)[0])


TestStoredTimersAgainstASortedSet = StoredTimerMachine.TestCase
TestStoredTimersAgainstASortedSet.settings = settings(max_examples=10, stateful_step_count=20, deadline=None)


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


def test_timers_that_are_written_are_not_in_memory_any_more(tmp_path: Path) -> None:
    database = Database(tmp_path / "database", groups=range(8), budget=1 << 20)
    timers = make_timers()
    timers.store_in(database, "timers", range(8), 1)
    tracemalloc.start()
    try:
        for first in range(0, 20_000, 1_000):
            timers.set_many(range(first, first + 1_000), range(first, first + 1_000))
            timers.merge()
        held, _ = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert held < 500_000
    assert len(list(timers.due(30_000))) == 20_000
    database.close()
