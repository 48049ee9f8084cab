import pytest

from penstock.model.errors import RetryableError
from penstock.storage import MemoryStore, UnknownResultError
from penstock.testing.stores import FaultyStore
from penstock.testing.world import World


def make(seed: int = 0) -> tuple[World, FaultyStore, list[str]]:
    world, written = World(seed), list[str]()
    store = FaultyStore(world, MemoryStore(), observe=lambda path, _: written.append(path))
    return world, store, written


def test_without_faults_it_is_the_store_inside() -> None:
    _, store, written = make()
    assert store.create("a/b", b"1")
    assert not store.create("a/b", b"2")
    store.put("a/c", b"345")
    assert store.get("a/b") == b"1"
    assert store.get_range("a/c", 1, 2) == b"45"
    assert [info.path for info in store.list("a/")] == ["a/b", "a/c"]
    store.delete("a/b")
    assert store.get("a/b") is None
    assert written == ["a/b", "a/c"]
    assert store.uri == store.inner.uri


def test_a_store_that_is_away_changes_nothing() -> None:
    _, store, written = make()
    store.conditions.unavailable = True
    for call in (lambda: store.create("a", b""), lambda: store.put("a", b""), lambda: store.get("a")):
        with pytest.raises(RetryableError):
            call()
    assert written == []


def test_a_write_whose_answer_is_lost_has_happened_or_not_or_happens_later() -> None:
    seen = set()
    for seed in range(20):
        world, store, written = make(seed)
        store.conditions.unknown = 1.0
        with pytest.raises(UnknownResultError):
            store.create("a", b"x")
        at_once = bool(written)
        world.run(until=lambda: False, limit_us=10**9)
        seen.add((at_once, bool(written)))
    assert seen == {(True, True), (False, False), (False, True)}
