"""Value state: reads, writes and snapshots in any order give what a plain dict gives."""

import copy
import datetime
import gc
import math
from dataclasses import dataclass
from typing import Any

import polars as pl
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule

from penstock.model.errors import UserError
from penstock.state.key_groups import KEY_GROUP, key_groups
from penstock.state.keys import KeyCodec
from penstock.state.value_types import value_type
from penstock.state.values import MakeTable, ValueTable

M = 16


@dataclass
class Point:
    x: int
    tags: list[str]


def make_table(kind: Any = int, default: Any = None, keys: tuple[str, ...] = ("k",)) -> ValueTable:
    return ValueTable("v", value_type(kind, where=""), default, KeyCodec(keys), max_parallelism=M)


def frame_of(keys: list[int]) -> pl.DataFrame:
    return pl.DataFrame({"k": keys}, schema={"k": pl.Int64})


def content(table: pl.DataFrame | None) -> dict[Any, Any]:
    return {} if table is None else dict(table.select("k", "v").iter_rows())


KEYS = st.integers(0, 6)


class ValueMachine(RuleBasedStateMachine):
    """A table of lists, changed in place and by replacement, with any number of snapshots on their way."""

    def __init__(self) -> None:
        super().__init__()
        self.table = make_table(list[int])
        self.table.keys.learn([pl.Int64()])
        self.model: dict[int, list[int]] = {}
        self.pending: list[tuple[MakeTable, dict[int, list[int]]]] = []

    @rule(key=KEYS, value=st.lists(st.integers(0, 9), max_size=3))
    def write(self, key: int, value: list[int]) -> None:
        self.table.values.front[key] = list(value)
        self.model[key] = list(value)

    @rule(key=KEYS, value=st.integers(0, 9))
    def change_in_place(self, key: int, value: int) -> None:
        seen = self.table.values.front[key]
        if seen is None:
            assert key not in self.model
            return
        seen.append(value)
        self.table.values.front[key] = seen
        self.model[key].append(value)

    @rule(key=KEYS)
    def clear(self, key: int) -> None:
        self.table.values.clear(key)
        self.model.pop(key, None)

    @rule()
    def snapshot(self) -> None:
        self.pending.append((self.table.snapshot(), copy.deepcopy(self.model)))

    @rule(index=st.integers(0, 3))
    def encode_later(self, index: int) -> None:
        if index < len(self.pending):
            make, expected = self.pending.pop(index)
            assert content(make()) == expected

    @rule(index=st.integers(0, 3))
    def throw_away(self, index: int) -> None:
        if index < len(self.pending):
            self.pending.pop(index)

    @rule()
    def merge(self) -> None:
        assert self.table.values.merge() or self.pending

    @invariant()
    def reads_as_the_model(self) -> None:
        for key in range(7):
            assert self.table.values.front[key] == self.model.get(key)
            assert self.table.values.front.holds(key) == (key in self.model)


TestValuesAgainstADict = ValueMachine.TestCase


def test_layers_are_merged_when_the_last_snapshot_is_encoded() -> None:
    table = make_table()
    table.set_many(frame_of([1, 2]), [10, 20])
    first, second = table.snapshot(), table.snapshot()
    table.set_many(frame_of([2, 3]), [None, 30])
    assert not table.values.merge()
    assert content(second()) == {1: 10, 2: 20}
    assert not table.values.merge()
    assert content(first()) == {1: 10, 2: 20}
    assert table.values.merge()
    assert dict(table.values.front) == {1: 10, 3: 30}


def test_a_snapshot_that_is_dropped_unread_does_not_keep_layers_apart() -> None:
    table = make_table()
    table.set_many(frame_of([1]), [1])
    make = table.snapshot()
    assert not table.values.merge()
    del make
    gc.collect()
    assert table.values.merge()


def test_a_table_is_sorted_by_key_group_and_comes_back_in_parts() -> None:
    table = make_table()
    keys = list(range(1000))
    table.set_many(frame_of(keys), [key * 2 for key in keys])
    frame = table.snapshot()()
    assert frame is not None
    assert frame.columns == [KEY_GROUP, "k", "v"]
    assert frame[KEY_GROUP].is_sorted()
    assert frame[KEY_GROUP].to_list() == key_groups(frame, ["k"], M).tolist()
    restored = make_table()
    restored.restore(frame.filter(pl.col(KEY_GROUP) < 5))
    restored.restore(frame.filter(pl.col(KEY_GROUP) >= 5))
    assert dict(restored.values.front) == {key: key * 2 for key in keys}


def test_an_empty_state_makes_no_table() -> None:
    assert make_table().snapshot()() is None


def test_more_entries_than_a_chunk_are_all_kept() -> None:
    table = make_table()
    keys = pl.DataFrame({"k": range(150_000)})
    table.set_many(keys, keys["k"])
    frame = table.snapshot()()
    assert frame is not None
    assert frame["v"].sum() == sum(range(150_000))


def test_defaults_are_read_but_not_kept() -> None:
    table = make_table(default=7)
    table.set_many(frame_of([1]), [1])
    assert table.get_many(frame_of([1, 2])).to_list() == [1, 7]
    assert content(table.snapshot()()) == {1: 1}


def test_a_mutable_default_is_not_shared_between_keys() -> None:
    table = make_table(list[int], default=[])
    table.values.front[1].append(5)
    assert table.values.front[2] == []


def test_dataclasses_go_through_a_table_and_back() -> None:
    table = make_table(Point)
    table.set_many(frame_of([1, 2]), [Point(1, ["a"]), Point(2, [])])
    frame = table.snapshot()()
    assert frame is not None
    assert frame.schema["v"] == pl.Struct({"x": pl.Int64, "tags": pl.List(pl.String)})
    restored = make_table(Point)
    restored.restore(frame)
    assert dict(restored.values.front) == {1: Point(1, ["a"]), 2: Point(2, [])}


def test_several_key_columns_are_a_tuple() -> None:
    table = make_table(keys=("a", "v"))
    keys = pl.DataFrame({"a": ["x", None], "v": [1, 2]})
    table.set_many(keys, [1, 2])
    frame = table.snapshot()()
    assert frame is not None
    assert frame.columns == [KEY_GROUP, "a", "v", "v_"]
    restored = make_table(keys=("a", "v"))
    restored.restore(frame)
    assert dict(restored.values.front) == {("x", 1): 1, (None, 2): 2}


@settings(deadline=None)
@given(st.lists(st.floats(allow_nan=True), min_size=1, max_size=20))
def test_nan_and_both_zeros_are_one_key_each(keys: list[float]) -> None:
    table = make_table()
    frame = pl.DataFrame({"k": keys}, schema={"k": pl.Float64})
    for row in range(len(keys)):
        one = frame.slice(row, 1)
        table.set_many(one, [(table.get_many(one)[0] or 0) + 1])
    distinct = {"nan" if math.isnan(key) else key + 0.0 for key in keys}
    assert len(table.values.front) == len(distinct)
    made = table.snapshot()()
    restored = make_table()
    assert made is not None
    restored.restore(made)
    assert restored.get_many(frame).equals(table.get_many(frame))


@pytest.mark.parametrize(
    ("dtype", "value"),
    [
        (pl.Datetime("us"), datetime.datetime(2026, 1, 2, 3, 4, 5, 6)),  # noqa: DTZ001
        (pl.Datetime("us", "Europe/Berlin"), datetime.datetime(2026, 10, 25, 0, 30, tzinfo=datetime.UTC)),
        (pl.Date(), datetime.date(2026, 1, 2)),
        (pl.String(), "ä"),
        (pl.Binary(), b"\0x"),
        (pl.Boolean(), True),
    ],
)
def test_keys_of_many_types_come_back(dtype: pl.DataType, value: Any) -> None:
    keys = pl.DataFrame({"k": pl.Series([value, None], dtype=dtype)})
    table = make_table()
    table.set_many(keys, [1, 2])
    frame = table.snapshot()()
    assert frame is not None
    assert frame.schema["k"] == dtype
    restored = make_table()
    restored.restore(frame)
    assert restored.get_many(keys).to_list() == [1, 2]


@pytest.mark.parametrize("dtype", [pl.Datetime("ns"), pl.List(pl.Int64), pl.Time()])
def test_keys_that_python_cannot_tell_apart_are_refused(dtype: pl.DataType) -> None:
    with pytest.raises(UserError, match="P005"):
        KeyCodec(["k"]).learn([dtype])


def test_a_value_of_another_type_is_named_with_its_state() -> None:
    table = make_table()
    table.set_many(frame_of([1, 2]), [1, "two"])
    with pytest.raises(UserError, match=r'P014 state "v": \'two\' \(str\)'):
        table.snapshot()()


def test_state_of_another_type_is_refused_unless_nothing_is_lost() -> None:
    table = make_table(pl.Int32)
    table.set_many(frame_of([1]), [5])
    frame = table.snapshot()()
    assert frame is not None
    wider = make_table(int)
    wider.restore(frame)
    assert wider.get_many(frame_of([1])).to_list() == [5]
    with pytest.raises(UserError, match=r"S005 .*Int32 -> String"):
        make_table(str).restore(frame)


def test_a_type_without_a_column_type_is_refused() -> None:
    with pytest.raises(UserError, match="P017"):
        value_type(object, where="state x")
