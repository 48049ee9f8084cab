"""Keyed state of one operator: a dictionary per state, key -> value.

Owns: the values, their expiry, and how they become a table and come back.
Does not own: which key is current (operators.process), what a value means (operators.user_states).
A snapshot is O(1) (state.layers); its table is made later, on another thread, in chunks that let the slot's own
thread run in between. A value of None means that there is none. With a time to live an entry is (value, expiry).
"""

from collections.abc import Callable, Iterator, Sequence
from itertools import islice
from typing import Any

import polars as pl

from penstock.model.errors import UserError
from penstock.state.chunks import INCREMENTAL_ROWS, Chunk, ChunkChain
from penstock.state.columns import ValueMismatch, cast_lossless, to_column, to_objects
from penstock.state.key_groups import key_groups, slice_groups, sort_by_group
from penstock.state.keys import KeyCodec
from penstock.state.layers import Layer, LayeredDict, View
from penstock.state.rocks import Database
from penstock.state.rows import KeyBytes, ValueBytes, group_prefix
from penstock.state.stored import StoredDict, StoredView
from penstock.state.ttl import TimeToLive
from penstock.state.value_types import ValueType

Chunks = list[tuple[Chunk | None, pl.DataFrame | None]]
"""Parts of a state in order. Without a frame: it is in the store; without a chunk: it is for this time only."""

MakeChunks = Callable[[], Chunks]
MakeTable = Callable[[], pl.DataFrame | None]
"""The slow half of a snapshot; None: nothing to keep."""

ROW_OVERHEAD = 220
"""Bytes of a row in a dictionary beside its plain form: two objects and their places."""

KEYS_AT_ONCE = 16_384
"""Keys that are handed out at once when all are asked for."""

PURGE_KEYS = 2048
"""Keys that are looked at between calls after groups have left: about a millisecond."""

SWEEP_KEYS = 1024
"""Keys that are looked at per batch for expiry: below a tenth of what a batch itself costs."""


class ValueTable:
    """One state of one operator in one subtask."""

    def __init__(
        self,
        name: str,
        kind: ValueType,
        default: Any,
        keys: KeyCodec,
        *,
        max_parallelism: int,
        where: str = "",
        ttl: TimeToLive | None = None,
        now: Callable[[], int] = lambda: 0,
        incremental_rows: int = INCREMENTAL_ROWS,
    ) -> None:
        """`now` is asked for the time by which values expire."""
        self._incremental_rows = incremental_rows
        self.name, self.kind, self.keys, self.ttl = name, kind, keys, ttl
        self.default = default
        copy = kind.copy
        self._layer_default = default if ttl is None else None
        self._copy_entry: Callable[[Any], Any] | None = copy
        if ttl is not None and copy is not None:
            self._copy_entry = lambda entry: (copy(entry[0]), entry[1])
        self.values: LayeredDict[Any, Any] | StoredDict = LayeredDict(self._layer_default, self._copy_entry)
        self._now = now
        self._max_parallelism, self._where = max_parallelism, where
        self._chain = ChunkChain()
        self._tracks_changes = False
        """The top layer holds all that has changed since the last snapshot, and nothing else."""
        self._unswept: Iterator[Any] = iter(())
        self._next_sweep: int | None = None
        self._groups: range | None = None
        """None: all that there are. Else keys of other groups may be left, which count as gone."""
        self._unpurged: Iterator[Any] = iter(())

    # ------------------------------------------------------------ one key

    def peek(self, key: Any) -> Any:
        """The value of a key, only to be looked at; None when there is none, or it has expired."""
        front = self.values.front
        entry = front.peek(key)
        ttl = self.ttl
        if ttl is None or entry is None:
            return entry
        value, expires = entry
        now = self._now()
        if expires <= now:
            return None
        if ttl.on_read and now + ttl.duration_us > expires:
            # Out of the top layer, so that whoever changes it there does not change what is frozen below.
            front[key] = (front[key][0], now + ttl.duration_us)
        return value

    def take(self, key: Any) -> Any:
        """The value of a key, to be changed in place and given to `put`."""
        entry = self.values.front[key]
        if self.ttl is None or entry is None:
            return entry
        return entry[0] if entry[1] > self._now() else None

    def put(self, key: Any, value: Any) -> None:
        """Set the value of a key; None removes it."""
        if value is None:
            self.values.clear(key)
        elif self.ttl is None:
            self.values.front[key] = value
        else:
            front = self.values.front
            before = front.peek(key)
            expires = self._now() + self.ttl.duration_us
            front[key] = (value, expires if before is None or before[1] < expires else before[1])

    # ------------------------------------------------------------ many keys at once

    def prepare(self, keys: Sequence[Any]) -> None:
        """These keys are about to be asked for."""
        if isinstance(self.values, StoredDict):
            self.values.load(keys)

    def prepared(self, frame: pl.DataFrame) -> list[Any]:
        """The keys of a frame, ready to be asked for."""
        keys = self.keys.decode(frame)
        self.prepare(keys)
        return keys

    def held_keys(self, groups: range) -> Iterator[list[Any]]:
        """All keys of these groups that have a value, in parts; it may have expired.

        Values may change meanwhile. A key that comes or goes on the way may be missed, or be there.
        """
        values = self.values
        if isinstance(values, LayeredDict):
            while self._purge():
                pass
            yield from [keys for keys, _ in View(values.front).chunks()]
            return
        unwritten, gone = values.unwritten_keys()
        yield list(unwritten)
        hidden = unwritten | gone
        for group in groups:
            prefix = group_prefix(group) + self._key_bytes.state
            rows = (row for row, _ in values.scan(prefix, prefix + b"\xff"))
            while some := list(islice(rows, KEYS_AT_ONCE)):
                yield [key for key in self._key_bytes.decode(some) if key not in hidden]

    def is_alive(self, key: Any) -> bool:
        """Whether a key has a value that has not expired; asking does not count as use."""
        entry = self.values.front.peek(key)
        return entry is not None and (self.ttl is None or entry[1] > self._now())

    def get_many(self, frame: pl.DataFrame) -> pl.Series:
        """The values of the keys of `frame`, row by row; the default where there is none."""
        keys = self.prepared(frame)
        if self.ttl is None:
            return self.column(list(map(self.values.front.__getitem__, keys)))
        default = self.default
        return self.column([default if value is None else value for value in map(self.peek, keys)])

    def set_many(self, frame: pl.DataFrame, values: pl.Series | Sequence[Any]) -> None:
        """Set the values of the keys of `frame`, row by row; None removes."""
        objects = self.objects(values) if isinstance(values, pl.Series) else list(values)
        keys = self.keys.decode(frame)
        if self.ttl is not None:
            self.prepare(keys)
            for key, value in zip(keys, objects, strict=True):
                self.put(key, value)
            return
        self.values.front.update(zip(keys, objects, strict=True))
        if None in objects:
            for key, value in zip(keys, objects, strict=True):
                if value is None:
                    self.values.clear(key)

    def column(self, values: list[Any]) -> pl.Series:
        """Values as a column of the declared type."""
        encode = self.kind.encode
        try:
            return to_column(
                self._column_name(), values if encode is None else list(map(encode, values)), self.kind.dtype
            )
        except ValueMismatch as mismatch:
            raise UserError(
                "P014",
                f'state "{self.name}": {mismatch}',
                where=self._where,
                fix="store what was declared, or declare another type",
            ) from None

    def objects(self, column: pl.Series) -> list[Any]:
        """The values of a column, as users hold them."""
        values = to_objects(column)
        return values if self.kind.decode is None else list(map(self.kind.decode, values))

    # ------------------------------------------------------------ what has expired

    def sweep(self) -> None:
        """Forget some of what has expired; called between batches, and each time looks at a few more keys."""
        ttl = self.ttl
        if ttl is None or isinstance(self.values, StoredDict):
            return
        front = self.values.front
        now = self._now()
        looked_at = list(islice(self._unswept, SWEEP_KEYS))
        if not looked_at:
            if self._next_sweep is None or now >= self._next_sweep:
                self._unswept = iter(list(self.values.base))
                self._next_sweep = now + ttl.duration_us
            return
        for key in looked_at:
            entry = front.peek(key)
            if entry is not None and entry[1] <= now:
                self.values.clear(key)

    # ------------------------------------------------------------ fewer key groups

    def retain(self, groups: range) -> None:
        """Keys of other groups are gone; they are forgotten little by little. Only in memory."""
        assert isinstance(self.values, LayeredDict)
        self._groups = groups
        self._chain, self._tracks_changes = ChunkChain(), False
        layer: Layer[Any, Any] | None = self.values.front
        keys: list[Any] = []
        while layer is not None:
            keys.extend(layer)
            layer = layer.below
        self._unpurged = iter(keys)

    def _purge(self) -> bool:
        """Look at some of the keys that were there at `retain`; False: at all of them already."""
        some = list(islice(self._unpurged, PURGE_KEYS))
        if not some or self._groups is None:
            return False
        keys = pl.DataFrame(self.keys.encode(some))
        for key, group in zip(some, key_groups(keys, self.keys.names, self._max_parallelism).tolist(), strict=True):
            if group not in self._groups:
                self.values.clear(key)
        return True

    # ------------------------------------------------------------ snapshot and restore

    def snapshot(self) -> MakeTable:
        """Freeze the state as it is now."""
        assert isinstance(self.values, LayeredDict)
        view = self.values.freeze()
        now, groups = None if self.ttl is None else self._now(), self._groups
        return lambda: self._make_table(view, now, groups=groups)

    def snapshot_chunks(self) -> MakeChunks:
        """Freeze the state as it is now; if it is large, only what has changed is written."""
        values = self.values
        assert isinstance(values, LayeredDict)
        grows = self._tracks_changes and self._chain.can_grow
        large = len(values.base) >= self._incremental_rows
        now, groups = None if self.ttl is None else self._now(), self._groups
        view = values.freeze()
        self._tracks_changes = large
        if not large and not grows:
            return lambda: [(None, table)] if (table := self._make_table(view, now, groups=groups)) is not None else []
        before, chunk = self._chain.grow() if grows else self._chain.restart()

        def chunks() -> Chunks:
            frame = self._make_table(view, now, groups=groups, changes=grows)
            if frame is None:
                self._chain.drop(chunk)
            return [*((old, None) for old in before), *([] if frame is None else [(chunk, frame)])]

        return chunks

    def merge(self) -> None:
        """Between calls: put together what finished snapshots kept apart."""
        self._purge()
        if isinstance(self.values, LayeredDict):
            self.values.merge(keep_changes=self._tracks_changes)
        else:
            self.values.merge()

    def restore(self, frame: pl.DataFrame) -> None:
        """Take the rows of an earlier snapshot: key group, keys, value, and its expiry if it had a time to live.

        Rows without a value take away what earlier frames have brought.
        """
        columns = frame.get_columns()[1:]
        width = len(self.keys.names)
        column = cast_lossless(columns[width], self.kind.dtype)
        if column is None:
            raise UserError(
                "S005",
                f'state "{self.name}": {columns[width].dtype} -> {self.kind.dtype} has no migration',
                where=self._where,
                fix="declare the type that the state was written with, or give the state a new name",
            )
        gone = column.is_null()
        if gone.any():
            for key in self.keys.decode(pl.DataFrame(columns[:width]).filter(gone)):
                self.values.clear(key)
            columns = pl.DataFrame(columns).filter(~gone).get_columns()
            column = column.drop_nulls()
        objects = self.objects(column)
        if self.ttl is not None:
            since_now = [self._now() + self.ttl.duration_us] * len(objects)
            expiries = to_objects(columns[width + 1]) if len(columns) > width + 1 else since_now
            objects = list(zip(objects, expiries, strict=True))
        self.values.front.update(zip(self.keys.decode(pl.DataFrame(columns[:width])), objects, strict=True))

    # ------------------------------------------------------------ in a database

    def store_in(self, database: Database, budget: int) -> None:
        """Keep the rows there from now on, with `budget` bytes of them at hand. What there is moves."""
        held = self.values
        self._key_bytes = KeyBytes(self.name, self.keys, self._max_parallelism)
        self._value_bytes = ValueBytes(self.kind.dtype, where=self._where)
        stored = StoredDict(
            database,
            encode=self._encode_rows,
            encode_keys=self._key_bytes.encode,
            decode=self._decode_rows,
            budget=budget,
            default=self._layer_default,
            copy_value=self._copy_entry,
        )
        if isinstance(held, LayeredDict):
            for keys, values in held.freeze().chunks():
                stored.front.update(zip(keys, values, strict=True))
                stored.write_back()
                stored.cache.trim()
        self.values = stored

    @property
    def is_stored(self) -> bool:
        """Whether the rows are in a database."""
        return isinstance(self.values, StoredDict)

    @property
    def is_full(self) -> bool:
        """Whether rows in memory have to go to the database."""
        return isinstance(self.values, StoredDict) and self.values.is_full

    def freeze(self) -> StoredView:
        """State in a database as it is now."""
        assert isinstance(self.values, StoredDict)
        return self.values.freeze()

    def _encode_rows(self, keys: Sequence[Any], entries: Sequence[Any]) -> tuple[list[bytes], list[bytes]]:
        if self.ttl is None:
            return self._key_bytes.encode(keys), self._value_bytes.encode(self.column(list(entries)), None)
        column = self.column([entry[0] for entry in entries])
        return self._key_bytes.encode(keys), self._value_bytes.encode(column, [entry[1] for entry in entries])

    def _decode_rows(self, rows: Sequence[bytes]) -> list[Any]:
        column, expiries = self._value_bytes.decode(rows, expiring=self.ttl is not None)
        objects = self.objects(column)
        return objects if expiries is None else list(zip(objects, expiries, strict=True))

    # ------------------------------------------------------------ size

    @property
    def rows(self) -> int:
        """Rows in memory; of large state, as many as there were at the last snapshot."""
        return self.values.cached_rows if isinstance(self.values, StoredDict) else len(self.values.base)

    @property
    def is_merged(self) -> bool:
        """Whether the number of rows is known."""
        front = self.values.front
        return front.below is None or (self._tracks_changes and front.below.below is None)

    @property
    def row_bytes(self) -> float:
        """What a row takes in memory, about, from a few of them."""
        if isinstance(self.values, StoredDict):
            return 0.0
        some = list(islice(self.values.base.values(), 64))
        if not some:
            return 0.0
        values = some if self.ttl is None else [entry[0] for entry in some]
        return ROW_OVERHEAD + 2 * self.column(values).estimated_size() / len(some)

    def _make_table(
        self, view: View[Any, Any], now: int | None, *, groups: range | None, changes: bool = False
    ) -> pl.DataFrame | None:
        try:
            entries = view.changes() if changes else view.chunks()
            parts = [self._part(keys, values, now) for keys, values in entries]
        finally:
            view.release()
        if not any(part.height for part in parts):
            return None
        table = sort_by_group(pl.concat(parts, rechunk=True), self.keys.names, self._max_parallelism)
        if groups is not None:
            table = slice_groups(table, groups)
        return table if table.height else None

    def _part(self, keys: list[Any], values: list[Any], now: int | None) -> pl.DataFrame:
        if now is None:
            return pl.DataFrame([*self.keys.encode(keys), self.column(values)])
        gone = (None, now)
        entries = ((key, gone if entry is None else entry) for key, entry in zip(keys, values, strict=True))
        alive = [(key, *entry) for key, entry in entries if entry[0] is None or entry[1] > now]
        keys, values, expiries = (list(part) for part in zip(*alive, strict=True)) if alive else ([], [], [])
        name = own_name("expires", (*self.keys.names, self._column_name()))
        return pl.DataFrame([*self.keys.encode(keys), self.column(values), pl.Series(name, expiries, pl.Int64())])

    def _column_name(self) -> str:
        return own_name(self.name, self.keys.names)


def own_name(name: str, taken: Sequence[str]) -> str:
    """A column name that no key column has."""
    while name in taken:
        name += "_"
    return name
