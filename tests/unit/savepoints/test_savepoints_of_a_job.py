"""What a savepoint holds, and that one which is not just as it was written is refused by the name of the object."""

import random
import sys
from pathlib import Path

import polars as pl
import pytest

sys.path.insert(0, str(Path(__file__).parent))
from made import calm, plain, take

import penstock as ps
from penstock.checkpoint import canonical, state_objects
from penstock.checkpoint.selection import handles_for
from penstock.model.errors import UserError
from penstock.model.ids import Uid
from penstock.savepoints import RestoreOptions, catalogue
from penstock.savepoints.checks import restore_report
from penstock.savepoints.frames import Savepoint
from penstock.savepoints.manifest import MANIFEST, read_manifest
from penstock.savepoints.restoring import adopt
from penstock.state.key_groups import KEY_GROUP, group_range, key_groups
from penstock.storage import MemoryStore

FLIPS = 1_000


@pytest.fixture(scope="module")
def taken():
    return take()


@pytest.fixture(scope="module")
def expected():
    return calm()


@pytest.mark.parametrize(("parallelism", "backend"), [(1, "memory"), (2, "rocksdb"), (5, "memory"), (5, "rocksdb")])
def test_what_was_taken_at_three_goes_on_at_any_size(parallelism, backend, expected):
    result = take(restored_at=parallelism, backend=backend).result
    assert result.restarts == 1
    for name in ("accounts", "counts"):
        assert plain(result[name]) == plain(expected[name])


@pytest.mark.parametrize("parallelism", [1, 2, 5, 128])
def test_every_row_finds_one_subtask_at_any_size(taken, parallelism):
    target = MemoryStore("new")
    manifest = read_manifest(taken.savepoint.store)
    report = restore_report(manifest, taken.graph, RestoreOptions())
    adopted = adopt(taken.savepoint.store, manifest, report, target, max_parallelism=128)
    uids = {Uid(operator.uid) for operator in manifest.operators}
    found: dict[str, list[pl.DataFrame]] = {}
    for index in range(parallelism):
        handles = handles_for(adopted, index=index, parallelism=parallelism, max_parallelism=128, uids=uids)
        groups = group_range(index, parallelism, 128)
        restored = state_objects.read(target, handles, groups=groups, index=index, parallelism=parallelism, uids=uids)
        for uid, states in restored.items():
            for state, frames in states.items():
                for frame in frames:
                    if KEY_GROUP in frame.columns:
                        assert frame[KEY_GROUP].is_between(groups.start, groups.stop - 1).all()
                        found.setdefault(f"{uid}.{state}", []).append(frame)
    for state in manifest.states:
        if state.redistribution.value == "keyed":
            rows = pl.concat(found[state.name]).drop(KEY_GROUP)
            whole = canonical.from_table(taken.savepoint.frame(state.name), state.columns, state.form)
            assert rows.sort(rows.columns[0]).height == whole.height
            assert sorted(map(str, rows.rows())) == sorted(map(str, whole.drop(KEY_GROUP).rows()))


def test_memory_and_rocksdb_give_the_same_tables(taken):
    other = take(backend="rocksdb").savepoint
    assert other.states == taken.savepoint.states
    for name in ("account.total", "account.names", "account.most", "account.timers:event"):
        one, two = taken.savepoint.frame(name), other.frame(name)
        by = [column for column in one.columns if column != "names" and column != "total" and column != "most"]
        assert one.sort(by).equals(two.sort(by))


def test_tables_are_in_the_order_of_key_groups_and_keys(taken):
    for state in taken.savepoint.manifest.states:
        if state.redistribution.value != "keyed":
            continue
        keys = [column.name for column in state.columns if column.role == canonical.KEY]
        assert keys == ["user"]
        assert state.columns[0].name == "key_group"
        for frame in taken.savepoint.frames(state.name):
            assert frame.select("key_group", *keys).equals(frame.select("key_group", *keys).sort("key_group", *keys))
            groups = key_groups(frame, keys, taken.savepoint.manifest.max_parallelism)
            assert frame["key_group"].to_list() == groups.tolist()


def test_the_columns_of_states(taken):
    columns = {name: taken.savepoint.frame(name).columns for name in taken.savepoint.states}
    assert columns["account.total"] == ["key_group", "user", "total"]
    assert columns["account.names"] == ["key_group", "user", "map_key", "names"]
    assert columns["account.seen"] == ["key_group", "user", "seen", "expires"]
    assert columns["account.timers:event"] == ["key_group", "user", "time"]
    assert columns["counts.panes"][:3] == ["key_group", "user", "pane"]
    assert "rows.splits" in columns
    assert taken.savepoint.manifest.sources["rows"][0]["position"]


def copied(savepoint: Savepoint) -> MemoryStore:
    store = MemoryStore("copy")
    for info in savepoint.store.list(""):
        store.put(info.path, savepoint.store.get(info.path) or b"")
    return store


def start_from(store: MemoryStore, graph) -> None:
    manifest = read_manifest(store)
    report = restore_report(manifest, graph, RestoreOptions())
    adopt(store, manifest, report, MemoryStore("new"), max_parallelism=graph.max_parallelism)


def test_a_copy_can_be_started_from(taken):
    start_from(copied(taken.savepoint), taken.graph)


def test_every_object_that_is_missing_or_cut_short_is_refused_by_name(taken):
    for _, table in taken.savepoint.manifest.tables:
        for damage in ("missing", "empty", "cut", "longer"):
            store = copied(taken.savepoint)
            data = store.get(table.path)
            store.delete(table.path)
            if damage != "missing":
                store.put(table.path, {"empty": b"", "cut": data[:-1], "longer": data + b"x"}[damage])
            with pytest.raises(UserError, match="S002") as refused:
                start_from(store, taken.graph)
            assert table.path in str(refused.value)
            problems = catalogue.verify(store, read_manifest(store), deep=False)
            assert [problem.path for problem in problems] == [table.path]


def test_every_object_with_a_flipped_bit_is_refused_by_name(taken):
    rng = random.Random(5)
    tables = [table for _, table in taken.savepoint.manifest.tables]
    store = copied(taken.savepoint)
    for number in range(FLIPS):
        table = tables[number % len(tables)]
        data = bytearray(taken.savepoint.store.get(table.path))
        data[rng.randrange(len(data))] ^= 1 << rng.randrange(8)
        store.put(table.path, bytes(data))
        with pytest.raises(UserError, match="S002") as refused:
            start_from(store, taken.graph)
        assert table.path in str(refused.value)
        problems = catalogue.verify(store, read_manifest(store), deep=True)
        assert [problem.path for problem in problems] == [table.path]
        store.put(table.path, taken.savepoint.store.get(table.path))


def test_a_manifest_that_is_missing_broken_or_too_new_is_refused(taken):
    store = copied(taken.savepoint)
    data = store.get(MANIFEST)
    store.put(MANIFEST, data[: len(data) // 2])
    with pytest.raises(UserError, match=r"S002 .*manifest.json cannot be used"):
        read_manifest(store)
    store.put(MANIFEST, data.replace(b'"format": 1', b'"format": 4'))
    with pytest.raises(UserError, match=r"S020 .*format 4; this version reads 1 to 1"):
        read_manifest(store)
    store.delete(MANIFEST)
    with pytest.raises(UserError, match="S001"):
        read_manifest(store)


def test_verify_tells_of_what_is_no_part_of_it(taken):
    store = copied(taken.savepoint)
    store.put("states/account.total/other.parquet", b"x")
    (problem,) = catalogue.verify(store, read_manifest(store), deep=True)
    assert (problem.path, problem.stray) == ("states/account.total/other.parquet", True)


def test_copies_and_differences(taken, tmp_path):
    uri = catalogue.copy(taken.savepoint, str(tmp_path / "copy"))
    (found,) = catalogue.find(str(tmp_path))
    assert found[0] == uri
    copy = Savepoint(taken.savepoint.store, taken.savepoint.manifest)
    assert all(each.added == each.removed == 0 for each in catalogue.compare(taken.savepoint, copy))
    later = take(after=30).savepoint
    changed = {each.name: each for each in catalogue.compare(taken.savepoint, later)}
    assert changed["account.total"].added == changed["account.total"].removed > 0
    with pytest.raises(UserError, match="S021"):
        catalogue.copy(taken.savepoint, str(tmp_path / "copy"))


def test_polars_and_one_key(taken):
    total = taken.savepoint.frame("account.total")
    assert isinstance(total, pl.DataFrame)
    one = taken.savepoint.key("account.total", total["user"][0])
    assert one.equals(total.head(1))
    assert taken.savepoint.arrow("account.total").num_rows == total.height
    with pytest.raises(UserError, match=r"S024 .*no state \"account.nothing\""):
        taken.savepoint.frame("account.nothing")


def test_names_that_no_folder_may_have():
    def odd(rows):
        return rows.key_by("user").window(ps.tumbling("5s")).agg(n=ps.count(), uid="a: b*?")

    found = take(odd)
    assert Uid("a: b*?") in {state.uid for state in found.savepoint.manifest.states}
    assert found.savepoint.frame("a: b*?.panes").height
