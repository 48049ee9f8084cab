"""Keyed tables and their index, against a dictionary."""

from typing import Any

import numpy as np
import polars as pl
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from penstock.state import tables
from penstock.state.key_index import NULL_HASH, KeyIndex, key_hashes
from penstock.state.payloads import Payload
from penstock.state.tables import NONE, KeyedTable

INTEGERS = st.none() | st.sampled_from([0, 1, 2, -1, NULL_HASH, 2**62])
TEXTS = st.none() | st.sampled_from(["", "a", "b", "ab"])
FLOATS = st.none() | st.sampled_from([0.0, -0.0, 1.5, float("nan")])


def as_key(value: Any) -> Any:
    return "nan" if value != value else value


@settings(deadline=None)
@given(st.data(), st.sampled_from([(pl.Int64(), INTEGERS), (pl.String(), TEXTS), (pl.Float64(), FLOATS)]))
def test_a_table_is_a_dictionary(data: st.DataObject, column: tuple[pl.DataType, Any]) -> None:
    kind, values = column
    table, model, written = KeyedTable(["k", "n"]), dict[Any, int](), dict[Any, int]()
    for number in range(data.draw(st.integers(0, 6))):
        keys = data.draw(
            st.lists(st.tuples(values, st.booleans()), unique_by=lambda k: (as_key(k[0]), k[1]), max_size=6)
        )
        frame = pl.DataFrame(
            {"k": pl.Series([k for k, _ in keys], dtype=kind), "n": pl.Series([n for _, n in keys], dtype=pl.Boolean)}
        ).with_columns(v=pl.lit(number))
        slots = table.find(frame)
        plain = [(as_key(k), n) for k, n in keys]
        assert [slot != NONE for slot in slots] == [key in model for key in plain]
        known = slots[slots != NONE]
        if len(known):
            assert table.rows(known)["v"].to_list() == [model[key] for key in plain if key in model]
            assert table.written(known).tolist() == [written[key] for key in plain if key in written]
        if data.draw(st.booleans()):
            table.remove(known)
            for key in plain:
                model.pop(key, None)
                written.pop(key, None)
        else:
            table.put(frame, slots, number)
            model |= dict.fromkeys(plain, number)
            written |= dict.fromkeys(plain, number)
        assert len(table) == len(model)
    held = table.freeze()
    assert sorted(held.frame()["v"].to_list() if held else []) == sorted(model.values())


def test_expired_rows_are_not_found_and_are_given_when_they_are_forgotten() -> None:
    table = KeyedTable(["k"])
    frame = pl.DataFrame({"k": [1, 2, 3]})
    table.put(frame, table.find(frame), np.array([10, 20, 30]))
    assert (table.find(frame, expired=20) != NONE).tolist() == [False, False, True]
    gone = table.expire(20)
    assert gone is not None
    assert gone["k"].to_list() == [1, 2]
    assert table.expire(20) is None
    assert len(table) == 1


def test_dead_rows_are_dropped_when_there_are_many(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tables, "_SPARE_ROWS", 8)
    table = KeyedTable(["k"])
    frame = pl.DataFrame({"k": ["a", "b", "c"], "v": [1, 2, 3]})
    for _ in range(20):
        table.put(frame, table.find(frame))
    assert table._payload.height <= 2 * 3 + 8 + 3
    assert table.rows(table.find(frame)).rows() == frame.rows()
    table.remove(table.find(frame))
    assert (table.find(frame) == NONE).all()


@given(st.lists(st.lists(st.integers(-3, 3), max_size=20), max_size=10), st.lists(st.integers(-4, 4), max_size=10))
def test_the_index_finds_every_entry_once(batches: list[list[int]], needles: list[int]) -> None:
    index, entries, number = KeyIndex(), list[tuple[int, int]](), 0
    for batch in batches:
        index.add(np.array(batch, np.int64), np.arange(number, number + len(batch)))
        entries += zip(batch, range(number, number + len(batch)), strict=True)
        number += len(batch)
    positions, rows = index.find(np.array(needles, np.int64))
    expected = [(at, row) for at, needle in enumerate(needles) for key, row in entries if key == needle]
    assert sorted(zip(positions.tolist(), rows.tolist(), strict=True)) == sorted(expected)


def test_hashes_do_not_depend_on_what_else_is_in_the_batch() -> None:
    alone = key_hashes([pl.Series("k", [7], dtype=pl.Int64)], rows=1)
    beside_a_null = key_hashes([pl.Series("k", [None, 7], dtype=pl.Int64)], rows=2)
    assert alone[0] == beside_a_null[1]


@given(st.lists(st.integers(1, 30), min_size=1, max_size=40))
def test_a_payload_has_few_frames_of_one_chunk(heights: list[int]) -> None:
    payload, values = Payload(), list[int]()
    for height in heights:
        rows = list(range(len(values), len(values) + height))
        assert payload.append(pl.DataFrame({"v": rows})).tolist() == rows
        values += rows
    assert payload.whole()["v"].to_list() == values
    assert payload.whole().n_chunks() <= 2 + np.log2(len(values))
    wanted = np.array([len(values) - 1, 0])
    assert payload.gather(wanted)["v"].to_list() == [values[-1], values[0]]
