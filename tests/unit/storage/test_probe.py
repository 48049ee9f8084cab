"""The probe against stores that break the promise in all the ways that have been seen."""

import random
import threading

import pytest

from penstock.model.errors import RetryableError, UserError
from penstock.storage import MemoryStore, check_conditional_writes


class IgnoringStore(MemoryStore):
    """Takes each write."""

    def create(self, path: str, data: bytes) -> bool:
        self.put(path, data)
        return True


class RacingStore(MemoryStore):
    """Looks first and writes then; all who look at the same time find nothing."""

    def __init__(self) -> None:
        super().__init__()
        self._looked = threading.Barrier(2)

    def create(self, path: str, data: bytes) -> bool:
        if self.get(path) is not None:
            return False
        try:
            self._looked.wait(0.2)
        except threading.BrokenBarrierError:
            return super().create(path, data)
        self.put(path, data)
        return True


class OverwritingStore(MemoryStore):
    """Tells the truth about who was first, and stores what came last."""

    def create(self, path: str, data: bytes) -> bool:
        won = super().create(path, data)
        self.put(path, data)
        return won


class ForgetfulStore(MemoryStore):
    """Knows of conflicts only while they happen: a late writer finds nothing in its way."""

    def create(self, path: str, data: bytes) -> bool:
        if data == b"late":
            self.put(path, data)
            return True
        return super().create(path, data)


class AbsentStore(MemoryStore):
    def create(self, path: str, data: bytes) -> bool:
        raise RetryableError("S083", "it does not answer")


@pytest.mark.parametrize(
    ("store", "what"),
    [
        (IgnoringStore(), "16 writers created the same object at once, and 16 were told yes"),
        (RacingStore(), r"16 writers created the same object at once, and \d+ were told yes"),
        (OverwritingStore(), "one was told that it had created the object, but another one had|created again"),
        (ForgetfulStore(), "an object that was there could be created again"),
    ],
    ids=lambda value: type(value).__name__,
)
def test_a_store_that_breaks_the_promise_is_refused_and_left_clean(store: MemoryStore, what: str) -> None:
    with pytest.raises(UserError, match=f"S080 memory://unnamed: .*({what})"):
        check_conditional_writes(store, random.Random(1))
    assert list(store.list("")) == []


def test_a_store_that_does_not_answer_is_not_called_a_liar() -> None:
    with pytest.raises(RetryableError, match="S083"):
        check_conditional_writes(AbsentStore(), random.Random(1))
