"""The kinds of keyed state that a process function declares and uses.

Owns: what users see of a state. Does not own: where values are kept (state.values), which key is current (context).
A ValueState without a time to live holds its value as a plain attribute, which the loop loads and stores
(operators.loops); all others ask their table when they are used.
"""

import copy
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any, ClassVar, Generic, Protocol, TypeVar, cast, overload

import polars as pl

from penstock.model.errors import UserError
from penstock.operators.contexts import no_current_key
from penstock.state.columns import to_objects
from penstock.state.ttl import Duration, TimeToLive, as_ttl
from penstock.state.value_types import Codec, ValueType, list_type, map_type, value_type
from penstock.state.values import ValueTable

T = TypeVar("T")
K = TypeVar("K")
V = TypeVar("V")
Input = TypeVar("Input")
Result = TypeVar("Result")
Taken = TypeVar("Taken", contravariant=True)
Given = TypeVar("Given", covariant=True)

Ttl = TimeToLive | Duration | None


class HasKey(Protocol):
    """Where a state learns which key it is asked about."""

    key: Any


class State(Generic[T]):
    """What all kinds share."""

    __slots__ = ("_context", "_table", "codec", "declared", "default", "ttl")

    kind: ClassVar[str]

    def __init__(self, declared: Any, *, default: Any = None, ttl: Ttl = None, codec: Codec | None = None) -> None:
        self.declared, self.default, self.codec = declared, default, codec
        self.ttl = as_ttl(ttl)
        self._table: ValueTable | None = None
        self._context: HasKey | None = None

    def value_type(self, where: str) -> ValueType:
        """How values are stored."""
        return value_type(self.declared, where=where, codec=self.codec)

    def bind(self, table: ValueTable | None = None, context: HasKey | None = None) -> "State[T]":
        """The same declaration for one instance of a function; without a table: not running yet."""
        bound = copy.copy(self)
        bound._table, bound._context = table, context
        return bound

    def clear(self) -> None:
        """Forget what is held for the current key."""
        self._running().put(self._key(), None)

    def get_many(self, keys: pl.DataFrame) -> pl.Series:
        """In `process_batch`: what is held for the keys in the rows of a frame."""
        return self._running().get_many(keys)

    def _running(self) -> ValueTable:
        if self._table is None:
            raise UserError("P016", "state can be used only inside a running process function")
        return self._table

    def _key(self) -> Any:
        if self._context is None:
            raise UserError("P016", "state can be used only inside a running process function")
        return self._context.key


class ValueState(State[T]):
    """One value per key: `total = ValueState(int, default=0)` in the class, `self.total.value` in its methods.

    `value` is a plain attribute: it holds the current key's value while a method runs, and what it holds
    afterwards is kept. None, or `clear()`, removes the value; the next time the default is seen again.
    With a `ttl`, only assigning counts as a write.
    """

    __slots__ = ("value",)

    kind = "value"
    value: T

    @overload
    def __init__(
        self: "ValueState[T]",
        kind: type[T] | pl.DataType | None = None,
        *,
        default: T,
        ttl: Ttl = None,
        codec: Codec | None = None,
    ) -> None: ...

    @overload
    def __init__(
        self: "ValueState[T | None]", kind: type[T], *, ttl: Ttl = None, codec: Codec | None = None
    ) -> None: ...

    @overload
    def __init__(
        self: "ValueState[Any]", kind: Any = None, *, ttl: Ttl = None, codec: Codec | None = None
    ) -> None: ...

    def __init__(self, kind: Any = None, *, default: Any = None, ttl: Ttl = None, codec: Codec | None = None) -> None:
        declared = type(default) if kind is None and default is not None else kind
        super().__init__(declared, default=default, ttl=ttl, codec=codec)
        self.value = default

    def bind(self, table: ValueTable | None = None, context: HasKey | None = None) -> "ValueState[T]":
        """See `State.bind`. With a time to live, `value` looks at the clock each time."""
        if self.ttl is None or table is None:
            return cast("ValueState[T]", super().bind(table, context))
        return ExpiringValueState(self, table, context)

    @property
    def is_loaded(self) -> bool:
        """Whether the loop puts the value of the current key into `value`, and stores it afterwards."""
        return self.ttl is None

    def unload(self) -> None:
        """There is no current key: until the loop loads one, `value` must be neither read nor assigned."""
        if self.holds_value():
            del self.value

    def holds_value(self) -> bool:
        """Whether there is something in `value`."""
        try:
            object.__getattribute__(self, "value")
        except AttributeError:
            return False
        return True

    if not TYPE_CHECKING:  # else every misspelt attribute would be one of this class

        def __getattr__(self, name: str) -> Any:
            """Asked only when `value` is not there."""
            if name != "value":
                raise AttributeError(f"ValueState has no {name!r}")
            raise no_current_key()

    def clear(self) -> None:
        """Remove the current key's value."""
        self.value = None  # type: ignore[assignment]

    def get_many(self, keys: pl.DataFrame) -> pl.Series:
        """In `process_batch`: the values of the keys in the rows of a frame, the default where there is none."""
        return super().get_many(keys)

    def set_many(self, keys: pl.DataFrame, values: pl.Series | Sequence[Any]) -> None:
        """In `process_batch`: set the values of the keys in the rows of a frame; None removes."""
        self._running().set_many(keys, values)


class ExpiringValueState(ValueState[T]):
    """A running ValueState with a time to live."""

    __slots__ = ()

    def __init__(self, declared: ValueState[T], table: ValueTable, context: HasKey | None) -> None:
        State.__init__(self, declared.declared, default=declared.default, ttl=declared.ttl, codec=declared.codec)
        self._table, self._context = table, context

    @property
    def value(self) -> T:
        """The current key's value, or the default when there is none or it has expired."""
        table, key = self._running(), self._key()
        value = table.peek(key)
        copier = table.kind.copy
        if value is None:
            return cast(T, self.default if copier is None or self.default is None else copier(self.default))
        if copier is None:
            return cast(T, value)
        front = table.values.front
        front[key] = front[key]  # a copy of what is frozen below, so that a change in place is kept
        return cast(T, front[key][0])

    @value.setter
    def value(self, value: T) -> None:
        self._running().put(self._key(), value)


class ListState(State[T]):
    """A list per key: `seen = ListState(str)` in the class; `self.seen.add(x)`, `for x in self.seen` in methods."""

    __slots__ = ()

    kind = "list"

    def __init__(self, kind: type[T] | Any = None, *, ttl: Ttl = None, codec: Codec | None = None) -> None:
        super().__init__(kind, default=[], ttl=ttl, codec=codec)

    def value_type(self, where: str) -> ValueType:
        """A list of what was declared."""
        return list_type(value_type(self.declared, where=where, codec=self.codec))

    def add(self, item: T) -> None:
        """Append to the current key's list."""
        self.extend((item,))

    def extend(self, items: Sequence[T]) -> None:
        """Append several."""
        if items:
            table, key = self._running(), self._key()
            held = table.take(key) or []
            held.extend(items)
            table.put(key, held)

    def update(self, items: Sequence[T]) -> None:
        """Replace the current key's list; an empty one removes it."""
        self._running().put(self._key(), list(items) or None)

    def get(self) -> list[T]:
        """The current key's list, a copy; empty when there is none."""
        return list(self)

    def __iter__(self) -> Iterator[T]:
        """Over the current key's list."""
        return iter(self._running().peek(self._key()) or ())

    def __len__(self) -> int:
        """Items in the current key's list."""
        return len(self._running().peek(self._key()) or ())

    def add_many(self, keys: pl.DataFrame, items: pl.Series | Sequence[T]) -> None:
        """In `process_batch`: append one item to the list of the key of each row of a frame."""
        table = self._running()
        for key, item in zip(table.prepared(keys), _plain(items), strict=True):
            held = table.take(key) or []
            held.append(item)
            table.put(key, held)

    def set_many(self, keys: pl.DataFrame, lists: pl.Series | Sequence[Sequence[T] | None]) -> None:
        """In `process_batch`: replace the lists of the keys in the rows of a frame; None removes."""
        self._running().set_many(keys, lists)


class MapState(State[V], Generic[K, V]):
    """A dictionary per key: `carts = MapState(str, int)` in the class; used like a dict in its methods."""

    __slots__ = ("declared_key",)

    kind = "map"

    def __init__(
        self, key: type[K] | Any, value: type[V] | Any = None, *, ttl: Ttl = None, codec: Codec | None = None
    ) -> None:
        super().__init__(value, default={}, ttl=ttl, codec=codec)
        self.declared_key = key

    def value_type(self, where: str) -> ValueType:
        """Entries of key and value."""
        value = value_type(self.declared, where=where, codec=self.codec)
        return map_type(value_type(self.declared_key, where=where), value)

    def get(self, name: K, default: V | None = None) -> V | None:
        """The value of `name` in the current key's map."""
        return cast("V | None", self._held().get(name, default))

    def put(self, name: K, value: V) -> None:
        """Set one entry of the current key's map."""
        self.update({name: value})

    def update(self, entries: Mapping[K, V]) -> None:
        """Set several entries."""
        if entries:
            table, key = self._running(), self._key()
            held = table.take(key) or {}
            held.update(entries)
            table.put(key, held)

    def remove(self, name: K) -> None:
        """Remove one entry, if it is there."""
        if name in self._held():
            table, key = self._running(), self._key()
            held = table.take(key)
            del held[name]
            table.put(key, held or None)

    def __getitem__(self, name: K) -> V:
        """The value of `name`; KeyError when there is none."""
        return cast(V, self._held()[name])

    def __setitem__(self, name: K, value: V) -> None:
        """Set one entry."""
        self.put(name, value)

    def __delitem__(self, name: K) -> None:
        """Remove one entry; KeyError when there is none."""
        if name not in self._held():
            raise KeyError(name)
        self.remove(name)

    def __contains__(self, name: object) -> bool:
        """Whether the current key's map has this entry."""
        return name in self._held()

    def __iter__(self) -> Iterator[K]:
        """Over the names in the current key's map."""
        return iter(self._held())

    def __len__(self) -> int:
        """Entries in the current key's map."""
        return len(self._held())

    def keys(self) -> list[K]:
        """The names in the current key's map."""
        return list(self._held())

    def values(self) -> list[V]:
        """The values in the current key's map."""
        return list(self._held().values())

    def items(self) -> list[tuple[K, V]]:
        """All entries of the current key's map."""
        return list(self._held().items())

    def put_many(self, keys: pl.DataFrame, names: pl.Series | Sequence[K], values: pl.Series | Sequence[V]) -> None:
        """In `process_batch`: set one entry in the map of the key of each row of a frame."""
        table = self._running()
        for key, name, value in zip(table.prepared(keys), _plain(names), _plain(values), strict=True):
            held = table.take(key) or {}
            held[name] = value
            table.put(key, held)

    def _held(self) -> dict[Any, Any]:
        return self._running().peek(self._key()) or {}


class ReducingState(State[T]):
    """One value per key, put together by a function: `top = ReducingState(max, int)`; `add(x)`, `get()`."""

    __slots__ = ("function",)

    kind = "reducing"

    def __init__(
        self,
        function: Callable[[T, T], T],
        kind: type[T] | Any = None,
        *,
        ttl: Ttl = None,
        codec: Codec | None = None,
    ) -> None:
        super().__init__(kind, ttl=ttl, codec=codec)
        self.function = function

    def add(self, value: T) -> None:
        """Put a value together with what is held for the current key."""
        self._add(self._running(), self._key(), value)

    def get(self) -> T | None:
        """What has come of the current key's values; None when there were none."""
        return cast("T | None", self._running().peek(self._key()))

    def add_many(self, keys: pl.DataFrame, values: pl.Series | Sequence[T]) -> None:
        """In `process_batch`: add one value to the key of each row of a frame."""
        table = self._running()
        for key, value in zip(table.prepared(keys), _plain(values), strict=True):
            self._add(table, key, value)

    def _add(self, table: ValueTable, key: Any, value: T) -> None:
        held = table.take(key)
        table.put(key, value if held is None else self.function(held, value))


class Aggregator(Protocol[Taken, Given]):
    """How an AggregatingState puts values together. The accumulator is what is stored."""

    def create(self) -> Any:
        """An accumulator of nothing."""
        ...

    def add(self, accumulator: Any, value: Taken) -> Any:
        """The accumulator with one more value; may change the one that is given."""
        ...

    def result(self, accumulator: Any) -> Given:
        """What `get` returns."""
        ...


class AggregatingState(State[Any], Generic[Input, Result]):
    """An accumulator per key: `mean = AggregatingState(Mean(), list[float])`; `add(x)`, `get()`.

    The second argument is the type of the accumulator.
    """

    __slots__ = ("aggregator",)

    kind = "aggregating"

    def __init__(
        self,
        aggregator: Aggregator[Input, Result],
        accumulator: Any = None,
        *,
        ttl: Ttl = None,
        codec: Codec | None = None,
    ) -> None:
        super().__init__(accumulator, ttl=ttl, codec=codec)
        self.aggregator = aggregator

    def add(self, value: Input) -> None:
        """Add a value to the current key's accumulator."""
        self._add(self._running(), self._key(), value)

    def get(self) -> Result | None:
        """The result for the current key; None when nothing was added."""
        return self._result(self._running(), self._key())

    def add_many(self, keys: pl.DataFrame, values: pl.Series | Sequence[Input]) -> None:
        """In `process_batch`: add one value to the key of each row of a frame."""
        table = self._running()
        for key, value in zip(table.prepared(keys), _plain(values), strict=True):
            self._add(table, key, value)

    def results(self, keys: pl.DataFrame) -> list[Result | None]:
        """In `process_batch`: the results of the keys in the rows of a frame."""
        table = self._running()
        return [self._result(table, key) for key in table.prepared(keys)]

    def _result(self, table: ValueTable, key: Any) -> Result | None:
        if table.ttl is not None:
            table.peek(key)  # so that it counts as used
        held = table.take(key)
        return None if held is None else self.aggregator.result(held)

    def _add(self, table: ValueTable, key: Any, value: Input) -> None:
        held = table.take(key)
        table.put(key, self.aggregator.add(self.aggregator.create() if held is None else held, value))


def _plain(values: pl.Series | Sequence[Any]) -> Sequence[Any]:
    return to_objects(values) if isinstance(values, pl.Series) else values
