"""An object store that misbehaves on request: slow, away for a while, or silent about what it did.

A write whose answer is lost may have happened, may not have happened, or may happen later: the three cases that
`UnknownResultError` stands for. What is stored is always whole; a store that tears objects is no store.
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass

from penstock.model.errors import RetryableError
from penstock.storage import MemoryStore, ObjectInfo, UnknownResultError
from penstock.testing.world import World

Written = Callable[[str, bytes], None]


@dataclass(slots=True)
class StoreConditions:
    """How the store behaves now. Chances are from 0 to 1, per call."""

    delay_us: int = 3_000
    """Longest time of a call, without the faults below."""
    unavailable: bool = False
    fails: float = 0.0
    """Refused before anything happened."""
    unknown: float = 0.0
    """A write's answer is lost."""


class FaultyStore:
    """Wraps a MemoryStore. `observe` is told of every object that comes into being, whoever wrote it."""

    def __init__(
        self, world: World, inner: MemoryStore, *, observe: Written | None = None, name: str = "store"
    ) -> None:
        self.inner = inner
        self.conditions = StoreConditions()
        self._world, self._observe = world, observe
        self._random = world.stream(name)

    @property
    def uri(self) -> str:
        """Of the store inside."""
        return self.inner.uri

    def delay_us(self) -> int:
        """How long a call takes; drawn by whoever makes the call."""
        return self._random.randrange(100, 100 + self.conditions.delay_us)

    def create(self, path: str, data: bytes) -> bool:
        """Write once."""
        self._may_fail()
        if self._answer_is_lost():
            self._lose_write(path, data, lambda: self._create(path, data))
        return self._create(path, data)

    def put(self, path: str, data: bytes) -> None:
        """Write."""
        self._may_fail()
        if self._answer_is_lost():
            self._lose_write(path, data, lambda: self._put(path, data))
        self._put(path, data)

    def get(self, path: str) -> bytes | None:
        """Read."""
        self._may_fail()
        return self.inner.get(path)

    def get_range(self, path: str, offset: int, length: int) -> bytes:
        """Read a part."""
        self._may_fail()
        return self.inner.get_range(path, offset, length)

    def list(self, prefix: str) -> Iterator[ObjectInfo]:
        """List."""
        self._may_fail()
        return self.inner.list(prefix)

    def folders(self, prefix: str) -> Iterator[str]:
        """List folders."""
        self._may_fail()
        return self.inner.folders(prefix)

    def delete(self, path: str) -> None:
        """Remove."""
        self._may_fail()
        self.inner.delete(path)

    def _may_fail(self) -> None:
        if self.conditions.unavailable or self._random.random() < self.conditions.fails:
            raise RetryableError("C020", "the simulated store does not answer")

    def _answer_is_lost(self) -> bool:
        return self._random.random() < self.conditions.unknown

    def _lose_write(self, path: str, data: bytes, write: Callable[[], object]) -> None:
        case = self._random.choice(("happened", "not", "later"))
        self._world.trace(f"store: answer for {path} is lost, the write {case}")
        if case == "happened":
            write()
        elif case == "later":
            self._world.after(
                self._random.randrange(1_000, 400_000), f"store: late write of {path}", lambda: (write(), None)[1]
            )
        if "journal/" in path:
            self._world.sometimes(f"journal write with unknown result: {case}")
        raise UnknownResultError("C021", f"the answer to a write of {path} is lost")

    def _create(self, path: str, data: bytes) -> bool:
        created = self.inner.create(path, data)
        if created and self._observe is not None:
            self._observe(path, data)
        return created

    def _put(self, path: str, data: bytes) -> None:
        self.inner.put(path, data)
        if self._observe is not None:
            self._observe(path, data)
