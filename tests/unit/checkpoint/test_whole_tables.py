"""State that lies in chunks, some of them in the store, comes out as one table: what there was at the barrier."""

import polars as pl
import pytest

from penstock.checkpoint import state_objects
from penstock.checkpoint.whole_tables import whole_tables
from penstock.model import specs
from penstock.model.clocks import SystemClock
from penstock.model.ids import Attempt, CheckpointId, JobId, SubtaskId, Uid, VertexId
from penstock.model.settings import JobSettings
from penstock.operators.base import ChunkSection, OperatorContext, StateHome
from penstock.operators.keyed_rows import KeyedRows
from penstock.state.chunks import Chunk
from penstock.state.keys import KeyCodec
from penstock.state.tables import KeyedTable
from penstock.state.value_types import value_type
from penstock.state.values import ValueTable
from penstock.storage import MemoryStore

SUBTASK = SubtaskId(VertexId("v"), 0)
SPEC = specs.Deduplicate(keys=("key",), keep="first")
FUNCTION = specs.Process(
    keys=("key",),
    function=specs.Function(name="f", pickled=b""),
    states=(specs.StateField(name="total", type="i64"),),
    output=(),
)
UID = Uid("f")


def context() -> OperatorContext:
    return OperatorContext(
        job=JobId("j"),
        attempt=Attempt(1),
        uid=UID,
        subtask=SUBTASK,
        parallelism=1,
        max_parallelism=16,
        clock=SystemClock(),
        settings=JobSettings(),
        state=StateHome(incremental_rows=1),
    )


@pytest.fixture
def store() -> MemoryStore:
    return MemoryStore("chunks")


def checkpointed(store: MemoryStore, number: int, sections: list) -> None:
    named = [(UID, section) for section in sections]
    state_objects.write(store, CheckpointId(number), Attempt(1), SUBTASK, named)


def rows(store: MemoryStore, sections: list, spec: specs.OperatorSpec = SPEC) -> list[tuple]:
    (table,) = whole_tables(store, spec, sections, 16)
    assert table.frame["key_group"].is_sorted()
    return sorted(table.frame.drop("key_group").rows())


def test_values_that_changed_and_went(store):
    keys = KeyCodec(("key",))
    keys.decode(pl.DataFrame({"key": [1]}))
    table = ValueTable("total", value_type(int, where=""), None, keys, max_parallelism=16, incremental_rows=1)

    def snapshot() -> list:
        made = table.snapshot_chunks()()
        table.merge()
        return [ChunkSection("total", chunk, frame) for chunk, frame in made]

    for key in range(50):
        table.put(key, key)
    checkpointed(store, 1, snapshot())
    table.put(3, 300)
    table.put(4, None)
    checkpointed(store, 2, snapshot())
    table.put(5, 500)
    table.put(100, 1)
    sections = snapshot()
    assert [section.frame is None for section in sections] == [True, True, False]
    expected = {key: key for key in range(50)} | {3: 300, 5: 500, 100: 1}
    del expected[4]
    assert rows(store, sections, FUNCTION) == sorted(expected.items())


def test_rows_of_a_table_that_changed_and_went(store):
    table = KeyedTable(["key"])
    kept = KeyedRows("seen", table)

    def put(frame: pl.DataFrame) -> None:
        table.put(frame, table.find(frame), 7)

    put(pl.DataFrame({"key": range(50), "value": range(50)}))
    checkpointed(store, 1, list(kept.snapshot(context())()))
    put(pl.DataFrame({"key": [3, 100], "value": [300, 1]}))
    table.remove(table.find(pl.DataFrame({"key": [4], "value": [4]})))
    sections = list(kept.snapshot(context())())
    assert [section.frame is None for section in sections] == [True, False]
    expected = {key: key for key in range(50)} | {3: 300, 100: 1}
    del expected[4]
    assert rows(store, sections) == sorted((key, value, 7) for key, value in expected.items())


def test_blocks_of_rows_lie_side_by_side(store):
    """A key has a row in each pane, and the same pane may be in several blocks."""

    def block(*rows: tuple[int, int, int]) -> pl.DataFrame:
        schema = {"key_group": pl.UInt16, "key": pl.Int64, "__pane": pl.Int64, "__n.count": pl.Int64}
        return pl.DataFrame([(key % 16, key, pane, count) for key, pane, count in rows], schema=schema, orient="row")

    older, younger = Chunk(), Chunk()
    frame = block((1, 0, 5), (1, 10, 7), (2, 0, 1))
    checkpointed(store, 1, [ChunkSection("panes", older, lambda: frame)])
    sections = [
        ChunkSection("panes", older, None),
        ChunkSection("panes", younger, lambda: block((1, 0, 2), (1, 20, 3))),
    ]
    assert rows(store, sections) == [(1, 0, 2), (1, 0, 5), (1, 10, 7), (1, 20, 3), (2, 0, 1)]
