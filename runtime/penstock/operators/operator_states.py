"""State that belongs to an operator and to none of its keys: lists that are split or shared, what all subtasks know.

Owns: what users see of such a state, its content in one subtask, and how that becomes a table and comes back. It is
kept in memory on every backend, and is meant to be small.

    OperatorListState   a list per subtask; after a restore all items are dealt out evenly
    UnionListState      a list per subtask; after a restore every subtask sees the items of all
    BroadcastState      a dictionary that is the same in every subtask, written once into a checkpoint
"""

import copy
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any, ClassVar, Generic, Self, TypeVar

import polars as pl

from penstock.model.errors import UserError
from penstock.model.handles import Redistribution
from penstock.operators.base import OperatorContext, Section, Snapshot
from penstock.operators.user_errors import place
from penstock.state.columns import ValueMismatch, cast_lossless, to_column, to_objects
from penstock.state.value_types import Codec, ValueType, value_type

T = TypeVar("T")
K = TypeVar("K")
V = TypeVar("V")

_KEY, _VALUE = "key", "value"

MakeColumns = Callable[[], Sequence[pl.Series]]
"""The slow half of a snapshot."""


class OperatorState:
    """What all kinds share. In the class of a function it is a declaration; each instance has one of its own."""

    kind: ClassVar[str]
    redistribution: ClassVar[Redistribution]

    def __init__(self, declared: Any, codec: Codec | None) -> None:
        self.declared, self.codec = declared, codec
        self.name = ""

    def column_types(self, where: str) -> dict[str, ValueType]:
        """How the content is stored, by column."""
        return {_VALUE: value_type(self.declared, where=where, codec=self.codec)}

    def bind(self, name: str = "", context: OperatorContext | None = None) -> Self:
        """The same declaration for one instance of a function; without a context: not running yet."""
        bound = copy.copy(self)
        bound.name = name
        bound._begin(context)
        return bound

    def _begin(self, context: OperatorContext | None) -> None:
        self._context = context
        self._where = "" if context is None else place(context)
        self._types = {} if context is None else self.column_types(f"{self._where}: state {self.name}")

    def __len__(self) -> int:
        """How much is held in this subtask."""
        raise NotImplementedError

    def freeze(self) -> MakeColumns | None:
        """The content as it is now, for another thread to encode; None: others write it."""
        raise NotImplementedError

    def take_back(self, columns: Mapping[str, list[Any]]) -> None:
        """Fill with what subtasks have written; called once for each that has."""
        raise NotImplementedError

    def restore(self, frames: Sequence[pl.DataFrame]) -> None:
        """Take up what subtasks have left."""
        for frame in frames:
            self.take_back({name: self._objects(frame, name, kind) for name, kind in self._types.items()})

    def _objects(self, frame: pl.DataFrame, name: str, kind: ValueType) -> list[Any]:
        column = cast_lossless(frame.get_column(name), kind.dtype) if frame.columns == list(self._types) else None
        if column is None:
            there = ", ".join(f"{each} {dtype}" for each, dtype in frame.schema.items())
            raise UserError(
                "S005",
                f'state "{self.name}" was written as {there}, and {self.kind} of {kind.dtype} cannot take that',
                where=self._where,
                fix="declare what the state was written with, or give the state a new name",
            )
        values = to_objects(column)
        return values if kind.decode is None else list(map(kind.decode, values))

    def _copied(self, name: str, values: Iterable[Any]) -> list[Any]:
        """Values that go on being used may be changed in place."""
        copier = self._types[name].copy
        return list(values) if copier is None else list(map(copier, values))

    def _column(self, name: str, values: list[Any]) -> pl.Series:
        kind = self._types[name]
        try:
            return to_column(name, values if kind.encode is None else list(map(kind.encode, values)), kind.dtype)
        except ValueMismatch as mismatch:
            raise UserError(
                "P014",
                f'state "{self.name}": {mismatch}',
                where=self._where,
                fix="store what was declared, or declare another type",
            ) from None


class OperatorListState(OperatorState, Generic[T]):
    """A list of this subtask: `pending = ps.OperatorListState(int)`; add, extend, update, clear, iterate.

    All items of all subtasks are dealt out evenly when a job starts from a checkpoint, at whatever parallelism.
    """

    kind = "operator list"
    redistribution = Redistribution.LIST

    def __init__(self, kind: type[T] | Any, *, codec: Codec | None = None) -> None:
        super().__init__(kind, codec)

    def _begin(self, context: OperatorContext | None) -> None:
        super()._begin(context)
        self._items: list[T] = []

    def add(self, item: T) -> None:
        """Append."""
        self._items.append(item)

    def extend(self, items: Iterable[T]) -> None:
        """Append several."""
        self._items.extend(items)

    def update(self, items: Iterable[T]) -> None:
        """Replace all."""
        self._items = list(items)

    def clear(self) -> None:
        """Forget all."""
        self.update(())

    def get(self) -> list[T]:
        """All items, in a list of its own."""
        return list(self)

    def __iter__(self) -> Iterator[T]:
        """Over all items."""
        return iter(self._items)

    def __len__(self) -> int:
        """How many there are."""
        return len(self._items)

    def freeze(self) -> MakeColumns | None:
        """Items of this subtask."""
        items = self._copied(_VALUE, self._own())
        return lambda: [self._column(_VALUE, items)]

    def _own(self) -> Iterable[T]:
        return self._items

    def take_back(self, columns: Mapping[str, list[Any]]) -> None:
        """Items that are this subtask's now."""
        self._items += columns[_VALUE]


class UnionListState(OperatorListState[T]):
    """A list of which every subtask sees all when a job starts from a checkpoint: `ps.UnionListState(int)`.

    What came back and was not replaced since is written by one of the subtasks, so that nothing piles up; what a
    subtask adds is seen by the others after the next restore. `update` and `clear` replace what this subtask sees and
    its own share of what will be written, not the shares of others.
    """

    kind = "union list"
    redistribution = Redistribution.UNION

    def _begin(self, context: OperatorContext | None) -> None:
        super()._begin(context)
        self._everybodys: list[T] = []

    def update(self, items: Iterable[T]) -> None:
        """Replace all, for this subtask."""
        super().update(items)
        self._everybodys = []

    def __iter__(self) -> Iterator[T]:
        """Over what all had at the last restore, and what was added here."""
        yield from self._everybodys
        yield from self._items

    def __len__(self) -> int:
        """How many of them."""
        return len(self._everybodys) + len(self._items)

    def _own(self) -> Iterable[T]:
        assert self._context is not None
        return [*self._everybodys[self._context.subtask.index :: self._context.parallelism], *self._items]

    def take_back(self, columns: Mapping[str, list[Any]]) -> None:
        """Items of all subtasks."""
        self._everybodys += columns[_VALUE]


class BroadcastState(OperatorState, Generic[K, V]):
    """A dictionary that every subtask has alike: `rules = ps.BroadcastState(str, Rule)`; used like a dict.

    Written where rows come that go to every subtask, and there alone: all subtasks then make the same changes in the
    same order. Everywhere else it is to be read; values must not be changed in place there.
    """

    kind = "broadcast"
    redistribution = Redistribution.UNION

    def __init__(self, key: type[K] | Any, value: type[V] | Any = None, *, codec: Codec | None = None) -> None:
        super().__init__(value, codec)
        self.declared_key = key

    def column_types(self, where: str) -> dict[str, ValueType]:
        """A column for keys, one for values."""
        return {_KEY: value_type(self.declared_key, where=where), **super().column_types(where)}

    def _begin(self, context: OperatorContext | None) -> None:
        super()._begin(context)
        self._entries: dict[K, V] = {}
        self.writable = context is None
        """Whether a row that goes to every subtask is being processed."""

    def get(self, name: K, default: V | None = None) -> V | None:
        """The value of `name`."""
        return self._entries.get(name, default)

    def put(self, name: K, value: V) -> None:
        """Set one entry."""
        self._require_writable("put")
        self._entries[name] = value

    def update(self, entries: Mapping[K, V]) -> None:
        """Set several entries."""
        self._require_writable("update")
        self._entries.update(entries)

    def remove(self, name: K) -> None:
        """Remove one entry, if it is there."""
        self._require_writable("remove")
        self._entries.pop(name, None)

    def clear(self) -> None:
        """Remove all entries."""
        self._require_writable("clear")
        self._entries.clear()

    def keys(self) -> list[K]:
        """All names, in the order in which they came."""
        return list(self._entries)

    def values(self) -> list[V]:
        """All values."""
        return list(self._entries.values())

    def items(self) -> list[tuple[K, V]]:
        """All entries."""
        return list(self._entries.items())

    def __getitem__(self, name: K) -> V:
        """The value of `name`; KeyError when there is none."""
        return self._entries[name]

    def __setitem__(self, name: K, value: V) -> None:
        """Set one entry."""
        self.put(name, value)

    def __delitem__(self, name: K) -> None:
        """Remove one entry; KeyError when there is none."""
        self._require_writable("del")
        del self._entries[name]

    def __contains__(self, name: object) -> bool:
        """Whether there is such an entry."""
        return name in self._entries

    def __iter__(self) -> Iterator[K]:
        """Over all names."""
        return iter(self._entries)

    def __len__(self) -> int:
        """How many entries there are."""
        return len(self._entries)

    def freeze(self) -> MakeColumns | None:
        """All entries, written by the first subtask for all."""
        if self._context is None or self._context.subtask.index:
            return None
        names, values = list(self._entries), self._copied(_VALUE, self._entries.values())
        return lambda: [self._column(_KEY, names), self._column(_VALUE, values)]

    def take_back(self, columns: Mapping[str, list[Any]]) -> None:
        """Entries that all subtasks have."""
        self._entries.update(zip(columns[_KEY], columns[_VALUE], strict=True))

    def _require_writable(self, call: str) -> None:
        if not self.writable:
            raise UserError(
                "P046",
                f'broadcast state "{self.name}" is read only here: {call} in one subtask would not reach the others',
                fix="change it in process_broadcast, which every subtask calls with the same rows",
            )


class OperatorStates:
    """The operator states of one function in one subtask."""

    def __init__(self, function: object, declared: Mapping[str, OperatorState], context: OperatorContext) -> None:
        self._states = {name: state.bind(name, context) for name, state in declared.items()}
        for name, state in self._states.items():
            setattr(function, name, state)

    @property
    def names(self) -> tuple[str, ...]:
        """What they are called."""
        return tuple(self._states)

    @property
    def rows(self) -> int:
        """How much they hold."""
        return sum(map(len, self._states.values()))

    def let_broadcast(self, allowed: bool) -> None:
        """From now on broadcast states may be written, or not."""
        for state in self._states.values():
            if isinstance(state, BroadcastState):
                state.writable = allowed

    def snapshot(self) -> Snapshot:
        """Freeze all of them."""
        frozen = [(state, columns) for state in self._states.values() if (columns := state.freeze()) is not None]

        def sections() -> Sequence[Section]:
            made = [(state, pl.DataFrame(columns())) for state, columns in frozen]
            return [Section(state.name, state.redistribution, frame) for state, frame in made if frame.height]

        return sections

    def restore(self, sections: Mapping[str, Sequence[pl.DataFrame]]) -> None:
        """Take up what subtasks have left."""
        for name, state in self._states.items():
            state.restore(sections.get(name, ()))
