"""Another attribute for a while: how bugs are put into the engine, and taken out again."""

import contextlib
from collections.abc import Callable, Iterator
from typing import Any

Patch = contextlib.AbstractContextManager[object]
Plant = Callable[[], Patch]


@contextlib.contextmanager
def patched(owner: Any, name: str, replacement: Any) -> Iterator[None]:
    """`owner.name` is `replacement` inside the block."""
    original = getattr(owner, name)
    setattr(owner, name, replacement)
    try:
        yield
    finally:
        setattr(owner, name, original)
