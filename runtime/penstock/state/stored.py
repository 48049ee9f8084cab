"""A dictionary whose content lies in RocksDB, with a write-back cache of rows in front.

Reads and writes go to layers of Python objects, as with `state.layers`; a batch's missing rows are fetched with one
look-up, and changed rows are written with one write when there are many of them, and at each barrier.

    front      rows changed since the last barrier or write, the only layer that is written to
    frozen     rows changed before a barrier, until they are written
    cache      rows as they are in the database, in two generations of which the older is dropped as a whole
    database
Invariant: what came after a barrier is not written before all that was frozen at it, and linked (state.links).

Rows that are used again and again should stay in the front, since each return costs a write and, until it is changed
again, a look-up in several layers: so the front may take as much as the cache.
"""

import weakref
from collections.abc import Callable, Iterable, Iterator, Sequence
from itertools import filterfalse, islice
from typing import Any

from penstock.state.layers import Layer
from penstock.state.object_sizes import object_bytes
from penstock.state.rocks import Database

_WRITE_ROWS = 16_384
"""Rows per write: the other thread gets its turn in between."""

_PLACE_BYTES = 64
"""Of a row in a dictionary, beside its two objects."""

_SAMPLE_ROWS = 64
_FRONT_SHARE = 0.4
_YOUNG_SHARE = 0.2
"""Of the budget. An older generation of the cache is a former front or young one, and has what is left."""

Encode = Callable[[Sequence[Any], Sequence[Any]], tuple[list[bytes], list[bytes]]]
EncodeKeys = Callable[[Sequence[Any]], list[bytes]]
Decode = Callable[[Sequence[bytes]], list[Any]]


class RowCache(Layer[Any, Any]):
    """What is in the database, as far as it was looked at. A key that is not there has the value None."""

    __slots__ = ("fetch_one", "hits", "limit", "misses", "older")

    def __init__(self, default: Any, copy_value: Callable[[Any], Any] | None, fetch_one: Callable[[Any], Any]) -> None:
        super().__init__(None, default, copy_value)
        self.older: dict[Any, Any] = {}
        self.fetch_one = fetch_one
        self.limit = 1 << 60
        """Rows that the younger generation may have."""
        self.hits = self.misses = 0

    def get(self, key: Any, default: Any = None) -> Any:
        """The row of a key; None is what stands for none."""
        if key in self:
            return self[key]
        value = self.older[key] if key in self.older else self.fetch_one(key)
        self[key] = value
        return value

    def missing(self, keys: Iterable[Any]) -> list[Any]:
        """Which of these keys have to be fetched. Those of the older generation become young again."""
        absent = list(filterfalse(self.__contains__, keys))
        again = list(filter(self.older.__contains__, absent))
        self.update(zip(again, map(self.older.__getitem__, again), strict=True))
        return list(filterfalse(self.older.__contains__, absent)) if again else absent

    def take(self, written: Layer[Any, Any]) -> None:
        """The database has these rows now."""
        if len(written) > self.limit:
            self.older = dict(written)
            self.clear()
        else:
            self.update(written)
        self.update(dict.fromkeys(written.cleared - written.keys()))

    def trim(self) -> None:
        """Drop the older generation when the younger one is full."""
        if len(self) > self.limit:
            self.older = dict(self)
            self.clear()


class StoredView:
    """The dictionary as it was when it was frozen, to be written by another thread."""

    def __init__(self, owner: "StoredDict", layer: Layer[Any, Any]) -> None:
        self._owner, self.layer = owner, layer
        self.in_use = True

    def write(self) -> None:
        """Write what was frozen, and whatever was frozen before and never written."""
        for layer in self._owner.unwritten(self.layer):
            self._owner.write_layer(layer)

    def release(self) -> None:
        """The database has it all."""
        self.in_use = False


class StoredDict:
    """Has the face of a LayeredDict. Look `front` up again after `freeze` and `merge`."""

    def __init__(
        self,
        database: Database,
        *,
        encode: Encode,
        encode_keys: EncodeKeys,
        decode: Decode,
        budget: int,
        default: Any = None,
        copy_value: Callable[[Any], Any] | None = None,
        keeps_written: bool = True,
    ) -> None:
        """Without `keeps_written`, rows are not at hand any more when they have been written."""
        self._keeps_written = keeps_written
        self.folds = 0
        """How often rows have gone from the layers into the database."""
        self._database, self._encode, self._encode_keys, self._decode = database, encode, encode_keys, decode
        self._default, self._copy_value, self._budget = default, copy_value, budget
        self.cache = RowCache(default, copy_value, self._fetch_one)
        self.front: Layer[Any, Any] = Layer(self.cache, default, copy_value)
        self._frozen: list[Layer[Any, Any]] = []
        self._written: set[int] = set()
        self._views: list[weakref.ref[StoredView]] = []
        self._row_bytes = 4.0 * _PLACE_BYTES
        self._resize()

    # ------------------------------------------------------------ rows

    def load(self, keys: Iterable[Any]) -> None:
        """Have the rows of these keys at hand, with one look-up for all that are not."""
        # Key by key: the difference of a set and a layer would go through all rows of the layer.
        wanted = set(filterfalse(self.front.__contains__, keys))
        for layer in self._frozen:
            wanted = set(filterfalse(layer.__contains__, wanted))
        missing = self.cache.missing(wanted)
        self.cache.hits += len(wanted) - len(missing)
        if missing:
            self.cache.misses += len(missing)
            self.cache.update(zip(missing, self._fetch(missing), strict=True))

    def clear(self, key: Any) -> None:
        """Remove a key, if it is there."""
        self.front.pop(key, None)
        self.front.cleared.add(key)

    def _fetch(self, keys: Sequence[Any]) -> list[Any]:
        rows = self._database.get(self._encode_keys(keys))
        there = [row for row in rows if row is not None]
        if not there:
            return [None] * len(keys)
        values = self._decode(there)
        self._learn_size(keys, values)
        if len(there) == len(rows):
            return values
        found = iter(values)
        return [None if row is None else next(found) for row in rows]

    def _fetch_one(self, key: Any) -> Any:
        self.cache.misses += 1
        return self._fetch([key])[0]

    def unwritten_keys(self) -> tuple[set[Any], set[Any]]:
        """Keys that have changed since the database was last written, and those that are gone since."""
        changed: set[Any] = set()
        gone: set[Any] = set()
        for layer in (*self._frozen, self.front):
            gone |= layer.cleared
            changed = (changed - layer.cleared) | layer.keys()
        return changed, gone - changed

    def is_unwritten(self, key: Any) -> bool:
        """Whether a key has changed, or gone, since the database was last written."""
        return any(key in layer or key in layer.cleared for layer in (self.front, *self._frozen))

    def scan(self, start: bytes, end: bytes) -> Iterator[tuple[bytes, bytes]]:
        """Rows of the database."""
        return self._database.scan(start, end)

    # ------------------------------------------------------------ layers

    def freeze(self) -> StoredView:
        """The content as it is now, for another thread to write."""
        top = self.front
        self.front = Layer(top, self._default, self._copy_value)
        self._frozen.append(top)
        view = StoredView(self, top)
        self._views.append(weakref.ref(view))
        return view

    def merge(self) -> bool:
        """Fold what was written into the cache, write when much has changed, and keep the cache small."""
        self._views = [ref for ref in self._views if (view := ref()) is not None and view.in_use]
        if self._views:
            return False
        if self._frozen:
            self._fold(self.unwritten(self._frozen[-1]))
        if self.is_full:
            self.write_back()
        self.cache.trim()
        return True

    @property
    def is_full(self) -> bool:
        """Whether the rows that were changed since the last barrier or write have to be written."""
        front = self.front
        return (len(front) + len(front.cleared)) * self._row_bytes > self._budget * _FRONT_SHARE

    def write_back(self) -> None:
        """Write all that has changed. Only while no view is in use."""
        self._frozen.append(self.front)
        self._fold(self.unwritten(self.front))

    def _fold(self, unwritten: list[Layer[Any, Any]]) -> None:
        for layer in unwritten:
            self.write_layer(layer)
        for layer in self._frozen if self._keeps_written else ():
            self.cache.take(layer)
        self.folds += 1
        is_front = bool(self._frozen) and self._frozen[-1] is self.front
        self._frozen, self._written = [], set()
        if is_front:
            self.front = Layer(self.cache, self._default, self._copy_value)
        else:
            self.front.below = self.cache

    def unwritten(self, last: Layer[Any, Any]) -> list[Layer[Any, Any]]:
        """Frozen layers up to this one that the database does not have, oldest first."""
        layers = []
        for layer in self._frozen:
            if id(layer) not in self._written:
                layers.append(layer)
            if layer is last:
                break
        return layers

    def write_layer(self, layer: Layer[Any, Any]) -> None:
        """Write one layer's rows, in parts."""
        gone = [key for key in layer.cleared if key not in layer]
        all_keys, all_values = iter(layer.keys()), iter(layer.values())
        while keys := list(islice(all_keys, _WRITE_ROWS)):
            values = list(islice(all_values, _WRITE_ROWS))
            self._learn_size(keys, values)
            self._database.write(zip(*self._encode(keys, values), strict=True))
        for start in range(0, len(gone), _WRITE_ROWS):
            self._database.write(iter(()), self._encode_keys(gone[start : start + _WRITE_ROWS]))
        self._written.add(id(layer))

    # ------------------------------------------------------------ size

    @property
    def cached_rows(self) -> int:
        """Rows held as objects."""
        return len(self.front) + sum(map(len, self._frozen)) + len(self.cache) + len(self.cache.older)

    @property
    def cached_bytes(self) -> int:
        """What they take, about."""
        return round(self.cached_rows * self._row_bytes)

    def _learn_size(self, keys: Sequence[Any], values: Sequence[Any]) -> None:
        mean = _PLACE_BYTES + _mean_bytes(keys[:_SAMPLE_ROWS]) + _mean_bytes(values[:_SAMPLE_ROWS])
        self._row_bytes += (mean - self._row_bytes) / 4
        self._resize()

    def _resize(self) -> None:
        self.cache.limit = int(self._budget * _YOUNG_SHARE / self._row_bytes)


def _mean_bytes(objects: Sequence[Any]) -> float:
    return sum(map(object_bytes, objects)) / max(1, len(objects))
