"""What every object store promises. Whoever has a store derives from `Promises`, and gives `make_store`."""

import random
import shutil
import tempfile
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule, run_state_machine_as_test

from penstock.model.clocks import SystemClock
from penstock.storage import ObjectStore, UploadStore, check_conditional_writes, open_store, open_uploads

MakeStore = Callable[[Path], ObjectStore]

FOLDERS = st.sampled_from(["", "a/", "a/b/", "a/b/c/", "z/"])
NAMES = st.sampled_from(["1.json", "2.json", "10.json", "é.json"])
PATHS = st.builds(str.__add__, FOLDERS, NAMES)
PREFIXES = st.one_of(FOLDERS, PATHS, st.sampled_from(["a", "a/b", "1"]))
DATA = st.binary(max_size=20)
CLOCKS_AGREE_US = 60_000_000


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
        expected = [(path, len(data)) for path, data in self.model.items() if path.startswith(prefix)]
        assert sizes(self.store, prefix) == sorted(expected)

    @invariant()
    def everything_is_listed(self) -> None:
        assert {info.path for info in self.store.list("")} == self.model.keys()


def sizes(store: ObjectStore, prefix: str) -> list[tuple[str, int]]:
    return [(info.path, info.size) for info in store.list(prefix)]


def race(store: ObjectStore, path: str, *, writers: int) -> list[int]:
    """Which of several writers are told that they have created the object."""
    winners: list[int] = []
    start = threading.Barrier(writers)

    def create(me: int) -> None:
        start.wait()
        if store.create(path, str(me).encode()):
            winners.append(me)

    threads = [threading.Thread(target=create, args=(me,)) for me in range(writers)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return winners


class Promises:
    """Tests of one store; `store` is an empty one."""

    @pytest.fixture
    def make_store(self) -> MakeStore:
        """Makes empty stores, each in a folder of its own."""
        raise NotImplementedError

    @pytest.fixture
    def store(self, make_store: MakeStore, tmp_path: Path) -> ObjectStore:
        return make_store(tmp_path / "store")

    def test_an_object_is_read_back_as_it_was_written(self, store: ObjectStore) -> None:
        assert store.get("a/b.bin") is None
        store.put("a/b.bin", b"\x00\xff" * 1000)
        assert store.get("a/b.bin") == b"\x00\xff" * 1000

    def test_the_first_create_wins_and_the_second_changes_nothing(self, store: ObjectStore) -> None:
        assert store.create("journal/1", b"mine")
        assert not store.create("journal/1", b"theirs")
        assert store.get("journal/1") == b"mine"

    def test_a_path_can_be_created_again_after_it_was_deleted(self, store: ObjectStore) -> None:
        assert store.create("a/b/c", b"1")
        store.delete("a/b/c")
        assert store.get("a/b/c") is None
        assert store.create("a/b/c", b"2")

    def test_delete_of_a_missing_object_does_nothing(self, store: ObjectStore) -> None:
        store.delete("never/there")

    def test_a_range_is_read_without_the_rest(self, store: ObjectStore) -> None:
        store.put("x", b"0123456789")
        assert store.get_range("x", 3, 4) == b"3456"
        assert store.get_range("x", 8, 100) == b"89"
        with pytest.raises(FileNotFoundError):
            store.get_range("y", 0, 1)

    def test_a_listing_is_in_order_of_paths_and_filters_by_prefix(self, store: ObjectStore) -> None:
        for path in ("b/2", "a-b", "a/b", "b/10", "a/b2"):
            store.put(path, path.encode())
        assert [info.path for info in store.list("")] == ["a-b", "a/b", "a/b2", "b/10", "b/2"]
        assert sizes(store, "a/b") == [("a/b", 3), ("a/b2", 4)]
        assert sizes(store, "b/1") == [("b/10", 4)]
        assert list(store.list("c/")) == []

    def test_a_listing_says_when_an_object_was_written(self, store: ObjectStore) -> None:
        now_us = SystemClock().now_us()
        store.put("x", b"1")
        [info] = store.list("")
        assert abs(info.modified_us - now_us) < CLOCKS_AGREE_US

    @pytest.mark.parametrize("path", ["", "/etc/passwd", "../x", "a/../b", "a//b", "a/", "./a", "a\0b", "a\\..\\b"])
    def test_paths_that_lead_elsewhere_are_refused(self, store: ObjectStore, path: str) -> None:
        for operation in (store.get, store.delete, lambda p: store.put(p, b""), lambda p: store.create(p, b"")):
            with pytest.raises(ValueError, match="not an object path"):
                operation(path)

    def test_folders_are_named_once_and_only_while_something_is_in_them(self, store: ObjectStore) -> None:
        for path in ("jobs/b/graph", "jobs/b/journal/1", "jobs/a/x/y", "jobs/top", "other/z"):
            store.put(path, b"1")
        assert list(store.folders("jobs/")) == ["a", "b"]
        assert list(store.folders("")) == ["jobs", "other"]
        assert list(store.folders("nothing/")) == []
        store.delete("jobs/a/x/y")
        assert list(store.folders("jobs/")) == ["b"]
        with pytest.raises(ValueError, match="not a folder"):
            store.folders("jobs")

    def test_an_empty_object_and_an_empty_range_are_objects_too(self, store: ObjectStore) -> None:
        assert store.create("empty", b"")
        assert store.get("empty") == b""
        assert store.get_range("empty", 0, 10) == b""
        store.put("x", b"0123456789")
        assert store.get_range("x", 4, 0) == b""
        assert store.get_range("x", 10, 5) == b""

    def test_a_large_object_is_whole(self, store: ObjectStore) -> None:
        data = random.Random(1).randbytes(70 * 1024 * 1024)
        assert store.create("large", data)
        assert not store.create("large", b"small")
        assert store.get("large") == data
        assert store.get_range("large", 50_000_000, 1000) == data[50_000_000:50_001_000]
        store.put("large", data[:-1])
        assert store.get("large") == data[:-1]
        assert sizes(store, "") == [("large", len(data) - 1)]

    def test_a_listing_of_many_objects_has_each_of_them(self, store: ObjectStore) -> None:
        paths = sorted(f"many/{number % 7}/{number:04d}" for number in range(1100))
        with ThreadPoolExecutor(8) as pool:
            list(pool.map(lambda path: store.put(path, b"x"), paths))
        assert [info.path for info in store.list("many/")] == paths
        assert [info.path for info in store.list("many/3/")] == [path for path in paths if path.startswith("many/3/")]

    def test_the_uri_opens_the_same_store(self, store: ObjectStore) -> None:
        store.put("a/b", b"1")
        assert open_store(store.uri).get("a/b") == b"1"

    def test_it_passes_the_probe_which_leaves_nothing_behind(self, store: ObjectStore) -> None:
        check_conditional_writes(store, random.Random(1))
        assert list(store.list("")) == []

    def test_of_twenty_racing_creators_exactly_one_wins(self, store: ObjectStore) -> None:
        for round_number in range(20):
            path, winners, start = f"race/{round_number}", [], threading.Barrier(20)

            def create(
                me: int, path: str = path, winners: list[int] = winners, start: threading.Barrier = start
            ) -> None:
                start.wait()
                if store.create(path, str(me).encode()):
                    winners.append(me)

            threads = [threading.Thread(target=create, args=(me,)) for me in range(20)]
            for thread in threads:
                thread.start()
            for thread in threads:
                thread.join()
            assert [str(winner).encode() for winner in winners] == [store.get(path)]

    def test_creators_and_deleters_of_one_folder_do_not_disturb_each_other(self, store: ObjectStore) -> None:
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
        assert failures == [], failures
        assert list(store.list("")) == []

    def test_it_behaves_like_a_dict(self, make_store: MakeStore) -> None:
        machine = type("Machine", (StoreAgainstDict,), {"make": staticmethod(make_store)})
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


class UploadPromises:
    """Tests of a store that can show objects later than it takes them; `store` is an empty one."""

    @pytest.fixture
    def store(self) -> UploadStore:
        """Empty."""
        raise NotImplementedError

    @pytest.mark.parametrize("size", [0, 10, 40_000_000])
    def test_what_is_staged_is_seen_once_it_is_published(self, store: UploadStore, size: int) -> None:
        data = random.Random(size).randbytes(size)
        staged = store.stage("out/a", data)
        assert store.get("out/a") is None
        assert list(store.list("")) == []
        assert open_uploads(store.uri).publish("out/a", staged)
        assert store.get("out/a") == data
        assert list(store.unfinished("out/a")) == []

    def test_publishing_again_changes_nothing(self, store: UploadStore) -> None:
        staged = store.stage("a", b"1")
        assert [store.publish("a", staged) for _ in range(3)] == [True] * 3
        store.delete("a")
        assert not store.publish("a", staged)
        assert store.get("a") is None

    def test_what_was_discarded_cannot_be_published(self, store: UploadStore) -> None:
        staged, other = store.stage("a", b"1"), store.stage("a", b"2")
        uploads = list(store.unfinished("a"))
        assert [upload.path for upload in uploads] == ["a", "a"]
        for upload in uploads:
            store.discard(upload)
            store.discard(upload)
        assert list(store.unfinished("a")) == []
        assert not store.publish("a", staged)
        assert not store.publish("a", other)
        assert store.get("a") is None

    def test_another_object_at_the_path_is_not_ours(self, store: UploadStore) -> None:
        staged = store.stage("a", b"1")
        [upload] = store.unfinished("a")
        store.discard(upload)
        store.put("a", b"other")
        assert not store.publish("a", staged)
        assert store.get("a") == b"other"

    def test_of_many_who_publish_at_once_all_are_told_that_it_is_there(self, store: UploadStore) -> None:
        staged = store.stage("a", b"1")
        with ThreadPoolExecutor(8) as pool:
            assert all(pool.map(lambda _: store.publish("a", staged), range(8)))
        assert store.get("a") == b"1"
