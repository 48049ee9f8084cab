"""State objects: what was written comes back, to the right subtask, or not at all."""

import msgspec
import polars as pl
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from penstock.checkpoint import selection, state_objects
from penstock.model.errors import FatalJobError, UserError
from penstock.model.handles import Manifest, Redistribution, StateHandle
from penstock.model.ids import Attempt, CheckpointId, SubtaskId, Uid, VertexId
from penstock.operators.base import Section
from penstock.state.key_groups import group_range
from penstock.storage import MemoryStore

COUNT, SOURCE = Uid("count"), Uid("source")
MAX_PARALLELISM = 16


def subtask(index: int, vertex: str = "count") -> SubtaskId:
    return SubtaskId(VertexId(vertex), index)


def keyed(groups: list[int]) -> Section:
    values = [f"row of {group}" for group in groups]
    frame = pl.DataFrame({"key_group": groups, "value": values}, schema={"key_group": pl.UInt16, "value": pl.String})
    return Section("sums", Redistribution.KEYED, frame)


def numbers(state: str, redistribution: Redistribution, values: list[int]) -> Section:
    return Section(state, redistribution, pl.DataFrame({"n": values}, schema={"n": pl.Int64}))


def manifest(handles: list[StateHandle]) -> Manifest:
    return Manifest(
        checkpoint=CheckpointId(1),
        kind="checkpoint",
        parallelism={"count": len(handles)},
        max_parallelism=MAX_PARALLELISM,
        triggered_us=0,
        completed_us=1,
        handles=tuple(handles),
    )


def write(store: MemoryStore, index: int, *sections: tuple[Uid, Section]) -> StateHandle:
    return state_objects.write(store, CheckpointId(1), Attempt(2), subtask(index), sections)


def test_the_object_is_where_the_path_scheme_says() -> None:
    store = MemoryStore()
    handle = write(store, 3, (COUNT, keyed([1])))
    assert handle.path == "checkpoints/1/2-count-3.state"
    data = store.get(handle.path)
    assert data is not None
    assert len(data) == handle.size


def test_small_state_travels_in_its_handle() -> None:
    store = MemoryStore()
    sections = [(COUNT, keyed([1, 2])), (COUNT, numbers("all", Redistribution.UNION, [7]))]
    separate = write(store, 0, *sections)
    small = state_objects.write(store, CheckpointId(2), Attempt(2), subtask(0), sections, inline_bytes=separate.size)
    large = state_objects.write(
        store, CheckpointId(3), Attempt(2), subtask(0), sections, inline_bytes=separate.size - 1
    )
    assert (small.path, large.path) == ("", "checkpoints/3/2-count-0.state")
    assert [info.path for info in store.list("checkpoints/")] == [separate.path, large.path]
    assert small.total_size == separate.total_size
    assert not small.paths
    sent = msgspec.json.decode(msgspec.json.encode(small), type=StateHandle)
    for handle in (sent, large):
        read = state_objects.read(store, [handle], groups=range(2, 3), index=0, parallelism=1, uids={COUNT})[COUNT]
        assert pl.concat(read["sums"])["value"].to_list() == ["row of 2"]
        assert pl.concat(read["all"])["n"].to_list() == [7]


def test_small_state_that_was_changed_in_its_manifest_is_refused() -> None:
    handle = state_objects.write(
        MemoryStore(), CheckpointId(1), Attempt(2), subtask(0), [(COUNT, keyed([1]))], inline_bytes=10_000
    )
    flipped = msgspec.structs.replace(handle, data=handle.data[:-1] + bytes([handle.data[-1] ^ 1]))
    with pytest.raises(FatalJobError, match="count/0 in the manifest cannot be used: its SHA-256") as refused:
        state_objects.read(MemoryStore(), [flipped], groups=range(16), index=0, parallelism=1, uids={COUNT})
    assert refused.value.code == "S002"


@pytest.mark.parametrize("vertex", ["a b", "über/../x", "x" * 300, "a_b%"])
def test_names_of_vertices_are_made_safe(vertex: str) -> None:
    path = state_objects.object_path(CheckpointId(1), Attempt(1), subtask(0, vertex))
    name = path.removeprefix("checkpoints/1/")
    assert "/" not in name
    assert name.isascii()
    assert len(name) < 120


def test_two_vertices_never_share_a_path() -> None:
    paths = {
        state_objects.object_path(CheckpointId(1), Attempt(1), subtask(0, vertex))
        for vertex in ("a b", "a_b", "a/b", "x" * 200, "x" * 201)
    }
    assert len(paths) == 5


def test_a_subtask_without_state_writes_nothing() -> None:
    store = MemoryStore()
    handle = write(store, 0)
    assert handle.path == ""
    assert list(store.list("")) == []


def test_the_handle_says_where_each_group_begins() -> None:
    _, handle = state_objects.encode(subtask(0), [(COUNT, keyed([3, 3, 5]))], "p")
    section = handle.sections[0]
    assert (section.first_group, section.group_offsets) == (3, (0, 2, 2, 3))


def test_unsorted_keyed_state_is_refused() -> None:
    with pytest.raises(ValueError, match=r'"sums" of "count" is not sorted'):
        state_objects.encode(subtask(0), [(COUNT, keyed([3, 2]))], "p")


def test_only_the_operators_asked_for_are_read() -> None:
    store = MemoryStore()
    handle = write(store, 0, (COUNT, keyed([1])), (SOURCE, numbers("at", Redistribution.UNION, [7])))
    found = state_objects.read(store, [handle], groups=range(16), index=0, parallelism=1, uids={SOURCE})
    assert list(found) == [SOURCE]
    assert found[SOURCE]["at"][0]["n"].to_list() == [7]


def damaged(data: bytes) -> bytes:
    return data[:40] + bytes([data[40] ^ 1]) + data[41:]


@pytest.mark.parametrize(
    ("damage", "says"),
    [
        (lambda data: None, "not in the store"),
        (lambda data: b"", "0 bytes instead of"),
        (lambda data: data[:-1], "bytes instead of"),
        (damaged, "SHA-256 is"),
    ],
)
def test_a_broken_object_is_refused_by_name(damage, says) -> None:  # type: ignore[no-untyped-def]
    whole, store = MemoryStore(), MemoryStore()
    handle = write(whole, 0, (COUNT, keyed([1])))
    data = whole.get(handle.path)
    assert data is not None
    if (left := damage(data)) is not None:
        store.put(handle.path, left)
    with pytest.raises(FatalJobError, match="S002") as error:
        state_objects.read(store, [handle], groups=range(16), index=0, parallelism=1, uids={COUNT})
    assert handle.path in str(error.value)
    assert says in str(error.value)


@settings(deadline=None)
@given(
    parts=st.lists(
        st.tuples(st.lists(st.integers(0, MAX_PARALLELISM - 1)), st.lists(st.integers(), max_size=7)),
        min_size=1,
        max_size=4,
    ),
    parallelism=st.integers(1, 5),
)
def test_every_row_finds_its_subtask_at_any_parallelism(
    parts: list[tuple[list[int], list[int]]], parallelism: int
) -> None:
    parts = [(groups, [value % 2**40 for value in values]) for groups, values in parts]
    store = MemoryStore()
    handles = [
        write(
            store,
            index,
            (COUNT, keyed(sorted(groups))),
            (COUNT, numbers("pending", Redistribution.LIST, values)),
            (COUNT, numbers("all", Redistribution.UNION, values)),
        )
        for index, (groups, values) in enumerate(parts)
    ]
    expected_groups = sorted(group for groups, _ in parts for group in groups)
    expected_values = [value for _, values in parts for value in values]
    groups_found: list[int] = []
    shares: list[list[int]] = []
    for index in range(parallelism):
        own = group_range(index, parallelism, MAX_PARALLELISM)
        chosen = selection.handles_for(
            manifest(handles[::-1]),
            index=index,
            parallelism=parallelism,
            max_parallelism=MAX_PARALLELISM,
            uids={COUNT},
        )
        found = state_objects.read(store, chosen, groups=own, index=index, parallelism=parallelism, uids={COUNT})[
            COUNT
        ]
        mine = pl.concat(found["sums"])
        assert all(group in own for group in mine["key_group"])
        assert mine["value"].to_list() == [f"row of {group}" for group in mine["key_group"]]
        groups_found += mine["key_group"].to_list()
        shares.append(pl.concat(found["pending"])["n"].to_list())
        assert pl.concat(found["all"])["n"].to_list() == expected_values
    assert sorted(groups_found) == expected_groups
    assert shares == [expected_values[index::parallelism] for index in range(parallelism)]


def test_a_subtask_reads_only_objects_with_its_groups() -> None:
    store = MemoryStore()
    handles = [write(store, 0, (COUNT, keyed([0, 1]))), write(store, 1, (COUNT, keyed([8, 9]))), write(store, 2)]
    chosen = selection.handles_for(
        manifest(handles), index=1, parallelism=2, max_parallelism=MAX_PARALLELISM, uids={COUNT}
    )
    assert chosen == (handles[1],)


def test_a_checkpoint_with_homeless_state_is_refused() -> None:
    found = manifest([write(MemoryStore(), 0, (COUNT, keyed([1])))])
    selection.check_restorable(found, max_parallelism=MAX_PARALLELISM, uids={COUNT})
    with pytest.raises(UserError, match=r'S004 .*"count"'):
        selection.check_restorable(found, max_parallelism=MAX_PARALLELISM, uids={SOURCE})


def test_a_checkpoint_with_other_key_groups_is_refused() -> None:
    found = msgspec.structs.replace(manifest([]), max_parallelism=128)
    with pytest.raises(UserError, match="S009 checkpoint 1 has 128 key groups, the job 16"):
        selection.check_restorable(found, max_parallelism=MAX_PARALLELISM, uids=())
