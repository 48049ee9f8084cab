"""Tables in snapshots: whole or in chunks, on any number of subtasks, what comes back is what was there."""

from collections import Counter
from collections.abc import Sequence

import numpy as np
import polars as pl
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from penstock.model.handles import Redistribution, SectionHandle
from penstock.model.ids import Attempt, JobId, SubtaskId, Uid, VertexId
from penstock.model.settings import JobSettings
from penstock.operators.base import ChunkSection, OperatorContext, Section, StateHome
from penstock.operators.keyed_rows import KeyedRows
from penstock.state import row_stores, tables
from penstock.state.chunks import Chunk
from penstock.state.key_groups import group_range, key_groups, slice_groups
from penstock.state.row_stores import RowStore
from penstock.state.tables import NONE, KeyedTable

MAX_PARALLELISM = 8


class StillClock:
    def now_us(self) -> int:
        return 0

    def monotonic(self) -> float:
        return 0.0


def context(index: int, parallelism: int) -> OperatorContext:
    return OperatorContext(
        job=JobId("job"),
        attempt=Attempt(1),
        uid=Uid("table"),
        subtask=SubtaskId(VertexId("vertex"), index),
        parallelism=parallelism,
        max_parallelism=MAX_PARALLELISM,
        clock=StillClock(),
        settings=JobSettings(),
        state=StateHome(incremental_rows=4),
    )


class Store:
    """What checkpoints have written: chunks once, and named again."""

    def __init__(self) -> None:
        self.frames: dict[int, pl.DataFrame] = {}
        self.chunks: list[Chunk] = []
        self.rows_written = 0

    def write(self, kept: KeyedRows, where: OperatorContext) -> list[pl.DataFrame]:
        frames = []
        for section in kept.snapshot(where)():
            match section:
                case ChunkSection(chunk=chunk, frame=None):
                    assert chunk.handle is not None
                    frames.append(self.frames[id(chunk)])
                case ChunkSection(chunk=chunk, frame=pl.DataFrame() as frame):
                    chunk.handle = handle(frame)
                    self.chunks.append(chunk)
                    self.frames[id(chunk)] = frame
                    frames.append(frame)
                    self.rows_written += frame.height
                case Section(frame=frame):
                    frames.append(frame)
                    self.rows_written += frame.height
        return frames


def handle(frame: pl.DataFrame) -> SectionHandle:
    return SectionHandle(
        uid=Uid("table"),
        state="rows",
        redistribution=Redistribution.KEYED,
        offset=0,
        length=frame.height,
        rows=frame.height,
        first_group=0,
        group_offsets=(),
        size=frame.height,
    )


def restored(kept: KeyedRows, written: Sequence[pl.DataFrame], groups: range) -> None:
    kept.restore({"rows": [slice_groups(frame, groups) for frame in written]})


keys = st.lists(st.integers(0, 12), min_size=1, max_size=8)
steps = st.lists(
    st.one_of(
        st.tuples(st.just("add"), keys),
        st.tuples(st.just("remove"), keys),
        st.tuples(st.just("mark"), keys),
        st.tuples(st.just("barrier"), st.just([0])),
    ),
    min_size=1,
    max_size=40,
)


@pytest.fixture(autouse=True)
def _compact_early(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(row_stores, "_SPARE_ROWS", 6)
    monkeypatch.setattr(tables, "_SPARE_ROWS", 6)


@settings(max_examples=100, deadline=None)
@given(steps=steps, old=st.integers(1, 3), new=st.integers(1, 3))
def test_rows_come_back_in_order_with_their_times_and_marks(
    steps: list[tuple[str, list[int]]], old: int, new: int
) -> None:
    stores = [RowStore(["k"]) for _ in range(old)]
    kept = [KeyedRows("rows", store) for store in stores]
    homes = [context(index, old) for index in range(old)]
    disk, value = Store(), 0
    written: list[pl.DataFrame] = []
    for step, some in [*steps, ("barrier", [0])]:
        if step == "barrier":
            written = [frame for each, home in zip(kept, homes, strict=True) for frame in disk.write(each, home)]
            continue
        groups = key_groups(pl.DataFrame({"k": some}), ["k"], MAX_PARALLELISM)
        for store, home in zip(stores, homes, strict=True):
            own = [key for key, group in zip(some, groups, strict=True) if group in home.groups]
            if not own:
                continue
            value += 1
            if step == "add":
                store.add(pl.DataFrame({"k": own, "v": [value] * len(own)}), value)
                continue
            _, found = store.find([pl.Series([own[0]])], 1)
            store.remove(found[:1]) if step == "remove" else store.mark(found[:1])
    expected = [rows_of(store) for store in stores]
    for index in range(new):
        store = RowStore(["k"])
        restored(KeyedRows("rows", store), written, group_range(index, new, MAX_PARALLELISM))
        for key, rows in rows_of(store).items():
            assert rows == next(each.pop(key) for each in expected if key in each)
    assert not any(expected)


def rows_of(store: RowStore) -> dict[int, list[tuple[int, int, bool]]]:
    """By key, in order: value, time and mark."""
    found: dict[int, list[tuple[int, int, bool]]] = {}
    for key in range(13):
        _, numbers = store.find([pl.Series([key])], 1)
        if len(numbers):
            values = store.rows(numbers).get_column("v").to_list()
            found[key] = list(zip(values, store.times(numbers).tolist(), store.marks(numbers).tolist(), strict=True))
    return found


@settings(max_examples=100, deadline=None)
@given(steps=steps, new=st.integers(1, 3))
def test_the_last_row_of_each_key_comes_back(steps: list[tuple[str, list[int]]], new: int) -> None:
    table, home, disk = KeyedTable(["k"]), context(0, 1), Store()
    kept = KeyedRows("rows", table)
    model: dict[int, int] = {}
    written: list[pl.DataFrame] = []
    for number, (step, some) in enumerate([*steps, ("barrier", [0])]):
        frame = pl.DataFrame({"k": list(dict.fromkeys(some)), "v": number})
        if step == "barrier":
            written = disk.write(kept, home)
        elif step == "remove":
            slots = table.find(frame)
            table.remove(slots[slots != NONE])
            for key in some:
                model.pop(key, None)
        else:
            table.put(frame, table.find(frame), number)
            model |= dict.fromkeys(some, number)
    held: Counter[tuple[int, int, int]] = Counter()
    for index in range(new):
        other = KeyedTable(["k"])
        restored(KeyedRows("rows", other), written, group_range(index, new, MAX_PARALLELISM))
        if (frozen := other.freeze()) is not None:
            held.update(frozen.frame().rows())
    assert held == Counter((key, value, value) for key, value in model.items())


def test_of_a_large_table_only_what_is_new_is_written() -> None:
    store, home, disk = RowStore(["k"]), context(0, 1), Store()
    kept = KeyedRows("rows", store)
    for number in range(10):
        store.add(pl.DataFrame({"k": np.arange(100), "v": np.full(100, number)}))
        disk.write(kept, home)
    assert disk.rows_written == 1_000


def test_a_table_that_was_small_in_between_starts_anew() -> None:
    store, home, disk = RowStore(["k"]), context(0, 1), Store()
    kept = KeyedRows("rows", store)
    numbers = store.add(pl.DataFrame({"k": [1, 2, 3, 4, 5]}))
    disk.write(kept, home)
    store.remove(numbers[:4])
    disk.write(kept, home)
    disk.frames.clear()  # nobody names the chunk any more
    store.add(pl.DataFrame({"k": [6, 7, 8, 9]}))
    (frame,) = disk.write(kept, home)
    assert sorted(frame["k"]) == [5, 6, 7, 8, 9]
