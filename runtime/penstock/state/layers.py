"""A dictionary that can be frozen in no time, and goes on.

Owns: the layers of one dictionary, and when they are put together again.
Freezing lays an empty layer on top, which takes all writes; what lies below is never changed while a frozen view
of it is in use. When no view is in use the layers are merged, by the thread that writes.
Invariant: one thread writes; views are read by any.
"""

import weakref
from collections.abc import Callable, Container, Iterator
from itertools import compress, islice
from typing import Any, Generic, TypeVar

Key = TypeVar("Key")
Value = TypeVar("Value")

CHUNK = 65_536
"""Entries that a view hands out at once: a few milliseconds under the interpreter's lock."""

_ABSENT = object()


class Layer(dict[Key, Value]):
    """The top layer is read by plain `layer[key]`, which costs no more than a dict's own while the key is in it.

    A key that is nowhere reads as the default. Values that can be changed in place are copied when they are
    read from a lower layer, so that the frozen ones stay as they were; store them back to keep the change.
    """

    __slots__ = ("below", "cleared", "copy_value", "default")

    def __init__(
        self, below: "Layer[Key, Value] | None", default: Any, copy_value: Callable[[Any], Any] | None
    ) -> None:
        super().__init__()
        self.below, self.default, self.copy_value = below, default, copy_value
        self.cleared: set[Key] = set()
        """Keys of lower layers that are gone, unless they are in this layer again."""

    def __missing__(self, key: Key) -> Any:
        value = self._find_below(key)
        if value is _ABSENT or value is None:
            value = self.default
        return value if self.copy_value is None or value is None else self.copy_value(value)

    def _find_below(self, key: Key) -> Any:
        layer = self
        while layer.below is not None and key not in layer.cleared:
            layer = layer.below
            value = layer.get(key, _ABSENT)
            if value is not _ABSENT:
                return value
        return _ABSENT

    def peek(self, key: Key) -> Any:
        """The value itself, not a copy: only to be looked at. None when the key has none of its own."""
        value = self.get(key, _ABSENT)
        if value is _ABSENT:
            value = self._find_below(key)
        return None if value is _ABSENT else value

    def holds(self, key: Key) -> bool:
        """Whether the key has a value of its own, here or below."""
        return self.peek(key) is not None


class View(Generic[Key, Value]):
    """The dictionary as it was when it was frozen."""

    def __init__(self, top: Layer[Key, Value]) -> None:
        self._top: Layer[Key, Value] | None = top

    @property
    def in_use(self) -> bool:
        """Whether the layers must stay as they are."""
        return self._top is not None

    def changes(self, size: int = CHUNK) -> Iterator[tuple[list[Key], list[Value | None]]]:
        """Only the top layer: what had changed since it was laid. A value of None: the key is gone."""
        top = self._top
        if top is None:
            return
        all_keys, all_values = iter(top.keys()), iter(top.values())
        while keys := list(islice(all_keys, size)):
            yield keys, list(islice(all_values, size))
        gone = [key for key in top.cleared if key not in top]
        for start in range(0, len(gone), size):
            part = gone[start : start + size]
            yield part, [None] * len(part)

    def release(self) -> None:
        """The view has been read; its layers may be merged."""
        self._top = None

    def chunks(self, size: int = CHUNK) -> Iterator[tuple[list[Key], list[Value]]]:
        """All entries, as keys and their values, at most `size` at once.

        In two lists, since a tuple for each entry would set off the garbage collector in the middle of it.
        """
        above: list[Container[Key]] = []
        layer = self._top
        while layer is not None:
            all_keys, all_values = iter(layer.keys()), iter(layer.values())
            while keys := list(islice(all_keys, size)):
                values = list(islice(all_values, size))
                if above:
                    seen = [not any(key in hiding for hiding in above) for key in keys]
                    keys, values = list(compress(keys, seen)), list(compress(values, seen))
                if keys:
                    yield keys, values
            above += layer, layer.cleared
            layer = layer.below


class LayeredDict(Generic[Key, Value]):
    """Reads and writes go to `front`, which must be looked up again after `freeze` and `merge`."""

    def __init__(self, default: Any = None, copy_value: Callable[[Any], Any] | None = None) -> None:
        self.front: Layer[Key, Value] = Layer(None, default, copy_value)
        self._views: list[weakref.ref[View[Key, Value]]] = []

    def clear(self, key: Key) -> None:
        """Remove a key, if it is there."""
        front = self.front
        front.pop(key, None)
        if front.below is not None:
            front.cleared.add(key)

    def freeze(self) -> View[Key, Value]:
        """The content as it is now, for another thread to read."""
        top = self.front
        self.front = Layer(top, top.default, top.copy_value)
        view = View(top)
        # Weak: a snapshot that is thrown away unread must not keep the layers apart for ever.
        self._views.append(weakref.ref(view))
        return view

    @property
    def base(self) -> Layer[Key, Value]:
        """The lowest layer, the one that holds most."""
        layer = self.front
        while layer.below is not None:
            layer = layer.below
        return layer

    def merge(self, *, keep_changes: bool = False) -> bool:
        """Put the layers together if no view needs them. True when that is done.

        With `keep_changes` the top layer stays what it is: all that has changed since it was laid.
        """
        if self.front.below is None or (keep_changes and self.front.below.below is None):
            return True
        self._views = [ref for ref in self._views if (view := ref()) is not None and view.in_use]
        if self._views:
            return False
        layers = [self.front]
        while (below := layers[-1].below) is not None:
            layers.append(below)
        base = layers.pop()
        for layer in reversed(layers[1:] if keep_changes else layers):
            for key in layer.cleared:
                base.pop(key, None)
            base.update(layer)
        if keep_changes:
            self.front.below = base
        else:
            self.front = base
        return True
