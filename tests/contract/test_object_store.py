"""What every object store promises, checked on each of them."""

import shutil
import tempfile
import threading
from collections.abc import Callable
from pathlib import Path

import pytest
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule, run_state_machine_as_test

from penstock.storage import LocalStore, MemoryStore, ObjectInfo, ObjectStore, Prefixed

MakeStore = Callable[[Path], ObjectStore]

STORES: dict[str, MakeStore] = {
    "local": LocalStore,
    "memory": lambda _: MemoryStore(),
    "folder of local": lambda root: Prefixed(LocalStore(root), "jobs/a"),
    "folder of memory": lambda _: Prefixed(MemoryStore(), "jobs/a"),
}


@pytest.fixture(params=STORES, ids=str)
def store(request: pytest.FixtureRequest, tmp_path: Path) -> ObjectStore:
    return STORES[request.param](tmp_path / "store")


def test_an_object_is_read_back_as_it_was_written(store: ObjectStore) -> None:
    assert store.get("a/b.bin") is None
    store.put("a/b.bin", b"\x00\xff" * 1000)
    assert store.get("a/b.bin") == b"\x00\xff" * 1000


def test_the_first_create_wins_and_the_second_changes_nothing(store: ObjectStore) -> None:
    assert store.create("journal/1", b"mine")
    assert not store.create("journal/1", b"theirs")
    assert store.get("journal/1") == b"mine"


def test_a_path_can_be_created_again_after_it_was_deleted(store: ObjectStore) -> None:
    assert store.create("a/b/c", b"1")
    store.delete("a/b/c")
    assert store.get("a/b/c") is None
    assert store.create("a/b/c", b"2")


def test_delete_of_a_missing_object_does_nothing(store: ObjectStore) -> None:
    store.delete("never/there")


def test_a_range_is_read_without_the_rest(store: ObjectStore) -> None:
    store.put("x", b"0123456789")
    assert store.get_range("x", 3, 4) == b"3456"
    assert store.get_range("x", 8, 100) == b"89"
    with pytest.raises(FileNotFoundError):
        store.get_range("y", 0, 1)


def test_a_listing_is_in_order_of_paths_and_filters_by_prefix(store: ObjectStore) -> None:
    for path in ("b/2", "a-b", "a/b", "b/10", "a/b2"):
        store.put(path, path.encode())
    assert [info.path for info in store.list("")] == ["a-b", "a/b", "a/b2", "b/10", "b/2"]
    assert list(store.list("a/b")) == [ObjectInfo("a/b", 3), ObjectInfo("a/b2", 4)]
    assert list(store.list("b/1")) == [ObjectInfo("b/10", 4)]
    assert list(store.list("c/")) == []


@pytest.mark.parametrize("path", ["", "/etc/passwd", "../x", "a/../b", "a//b", "a/", "./a", "a\0b", "a\\..\\b"])
def test_paths_that_lead_elsewhere_are_refused(store: ObjectStore, path: str) -> None:
    for operation in (store.get, store.delete, lambda p: store.put(p, b""), lambda p: store.create(p, b"")):
        with pytest.raises(ValueError, match="not an object path"):
            operation(path)


def test_of_twenty_racing_creators_exactly_one_wins(store: ObjectStore) -> None:
    for round_number in range(20):
        path, winners, start = f"race/{round_number}", [], threading.Barrier(20)

        def create(me: int, path: str = path, winners: list[int] = winners, start: threading.Barrier = start) -> None:
            start.wait()
            if store.create(path, str(me).encode()):
                winners.append(me)

        threads = [threading.Thread(target=create, args=(me,)) for me in range(20)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert [str(winner).encode() for winner in winners] == [store.get(path)]


def test_creators_and_deleters_of_one_folder_do_not_disturb_each_other(store: ObjectStore) -> None:
    """A local store removes empty folders, just when another writer may need them."""
    failures: list[BaseException] = []

    def churn(me: int) -> None:
        try:
            for number in range(60):
                path = f"deep/er/{me}-{number}"
                assert store.create(path, b"x")
                assert store.get(path) == b"x"
                store.delete(path)
        except BaseException as error:
            failures.append(error)

    threads = [threading.Thread(target=churn, args=(me,)) for me in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert failures == []
    assert list(store.list("")) == []


FOLDERS = st.sampled_from(["", "a/", "a/b/", "a/b/c/", "z/"])
NAMES = st.sampled_from(["1.json", "2.json", "10.json", "é.json"])
PATHS = st.builds(str.__add__, FOLDERS, NAMES)
PREFIXES = st.one_of(FOLDERS, PATHS, st.sampled_from(["a", "a/b", "1"]))
DATA = st.binary(max_size=20)


class StoreAgainstDict(RuleBasedStateMachine):
    """A store behaves like a dict of paths."""

    make: MakeStore

    def __init__(self) -> None:
        super().__init__()
        self.root = Path(tempfile.mkdtemp())
        self.store = type(self).make(self.root)
        self.model: dict[str, bytes] = {}

    def teardown(self) -> None:
        shutil.rmtree(self.root)

    @rule(path=PATHS, data=DATA)
    def create(self, path: str, data: bytes) -> None:
        assert self.store.create(path, data) == (path not in self.model)
        self.model.setdefault(path, data)

    @rule(path=PATHS, data=DATA)
    def put(self, path: str, data: bytes) -> None:
        self.store.put(path, data)
        self.model[path] = data

    @rule(path=PATHS)
    def delete(self, path: str) -> None:
        self.store.delete(path)
        self.model.pop(path, None)

    @rule(path=PATHS)
    def get(self, path: str) -> None:
        assert self.store.get(path) == self.model.get(path)

    @rule(prefix=PREFIXES)
    def list_prefix(self, prefix: str) -> None:
        expected = [ObjectInfo(path, len(data)) for path, data in self.model.items() if path.startswith(prefix)]
        assert list(self.store.list(prefix)) == sorted(expected)

    @invariant()
    def everything_is_listed(self) -> None:
        assert {info.path for info in self.store.list("")} == self.model.keys()


@pytest.mark.parametrize("name", STORES)
def test_a_store_behaves_like_a_dict(name: str) -> None:
    machine = type("Machine", (StoreAgainstDict,), {"make": staticmethod(STORES[name])})
    run_state_machine_as_test(
        machine,
        settings=settings(
            max_examples=30,
            stateful_step_count=25,
            deadline=None,
            database=None,
            suppress_health_check=list(HealthCheck),
        ),
    )
