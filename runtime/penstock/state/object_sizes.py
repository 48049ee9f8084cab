"""What Python objects take in memory, about, as the values of states are: numbers, text, containers, dataclasses."""

import sys
from collections.abc import Iterable, Mapping
from itertools import islice
from typing import Any

_SAMPLE_ITEMS = 32
"""Of a container: the others are taken to be like these."""

_DEEPEST = 4


def object_bytes(value: Any, depth: int = _DEEPEST) -> float:
    """The object with what it holds. Objects that several hold are counted each time."""
    size = float(sys.getsizeof(value))
    if depth == 0 or isinstance(value, str | bytes | int | float | None):
        return size
    if isinstance(value, Mapping):
        return size + _items_bytes(value.keys(), len(value), depth) + _items_bytes(value.values(), len(value), depth)
    if isinstance(value, list | tuple | set | frozenset):
        return size + _items_bytes(value, len(value), depth)
    if (fields := getattr(value, "__dict__", None)) is not None:
        return size + object_bytes(fields, depth - 1)
    return size


def _items_bytes(items: Iterable[Any], count: int, depth: int) -> float:
    some = list(islice(items, _SAMPLE_ITEMS))
    return sum(object_bytes(item, depth - 1) for item in some) * count / max(1, len(some))
