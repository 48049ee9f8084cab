"""The declared keyed states of one function in one subtask.

Owns: the table behind each state, the database that they may share, and the time by which states expire.
Does not own: what users see of a state (operators.user_states), how values are kept (state.values).
"""

import weakref
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import Any

import polars as pl

from penstock.model.errors import UserError
from penstock.model.handles import Redistribution
from penstock.operators.base import AnySection, ChunkSection, FilesSection, OperatorContext, Section, Snapshot
from penstock.operators.contexts import ProcessContext
from penstock.operators.loops import BoundState
from penstock.operators.user_errors import place
from penstock.operators.user_functions import StatefulFunction, declared_states, state_type
from penstock.operators.user_states import State, ValueState
from penstock.state import databases
from penstock.state.chunks import Chunk
from penstock.state.frozen_databases import FrozenDatabase
from penstock.state.key_groups import KEY_GROUP
from penstock.state.keys import KeyCodec
from penstock.state.rocks import Database, RestoredFiles
from penstock.state.stored import StoredDict
from penstock.state.timers import Timers
from penstock.state.values import ValueTable

FILES = "rocksdb"
"""Name of the section that holds the database."""

_CACHE_SHARE = 4
"""A quarter of the budget is for rows as objects; block cache, write buffers and the process itself take the rest."""

_TIMERS_SHARE = 32
"""Of the budget, for timers of each kind that are not in the database yet: they are in memory twice."""

_AUTO_SHARE = 2


def no_time() -> int | None:
    """The time of rows that have none."""
    return None


class KeyedStates:
    """Binds the states of a function, and takes care of them between calls."""

    def __init__(
        self,
        function: StatefulFunction,
        keys: KeyCodec,
        *,
        operator: OperatorContext,
        context: ProcessContext,
        timers: Mapping[str, Timers],
    ) -> None:
        """`timers` go where the states go, each kind under its name."""
        self._timers = timers
        self._function, self._keys, self._operator, self._context = function, keys, operator, context
        self._home = operator.state
        self._database: Database | None = None
        self._frozen: weakref.ref[FrozenDatabase] | None = None
        """As it was at the last barrier, while its snapshot is under way."""
        self._counted_at = 0
        self.row_time: Callable[[], int | None] = no_time
        """Event time of what the function is called with, set in front of the calls."""
        self.expire_by_event_time = False
        self.tables: list[ValueTable] = []
        self.loaded: list[BoundState] = []
        """Those that the loop loads and stores."""
        for name, declared in declared_states(function).items():
            self._bind(name, declared)
        if self._home.backend == "rocksdb" and self.tables:
            self._store(self._open_database())

    def _bind(self, name: str, declared: State[Any]) -> None:
        where = place(self._operator)
        by_event_time = declared.ttl is not None and declared.ttl.event_time
        self.expire_by_event_time = self.expire_by_event_time or by_event_time
        table = ValueTable(
            name,
            state_type(name, declared, where=where),
            declared.default,
            self._keys,
            max_parallelism=self._operator.max_parallelism,
            where=where,
            ttl=declared.ttl,
            now=self._event_time if by_event_time else self._operator.clock.now_us,
            incremental_rows=self._home.incremental_rows,
        )
        handle = declared.bind(table, self._context)
        setattr(self._function, name, handle)
        self.tables.append(table)
        if isinstance(handle, ValueState) and handle.is_loaded:
            self.loaded.append(BoundState(handle, table))

    def _event_time(self) -> int:
        """Of the row that asks, or the watermark where that is later."""
        time = self.row_time()
        return self._context.watermark if time is None else max(time, self._context.watermark)

    def _open_database(self, restored: Sequence[RestoredFiles] = ()) -> Database:
        operator, home = self._operator, self._home
        if home.folder is None:
            raise UserError("P040", "RocksDB needs a folder, and there is none here", fix='state.backend = "memory"')
        self._close_database()
        database = Database(
            home.folder, groups=operator.groups, budget=home.budget, restored=restored, where=place(operator)
        )
        self._database = database
        return database

    def _store(self, database: Database) -> None:
        for table in self.tables:
            table.store_in(database, self._home.budget // _CACHE_SHARE // len(self.tables))
        for name, timers in self._timers.items():
            timers.store_in(database, name, self._operator.groups, self._home.budget // _TIMERS_SHARE)

    @property
    def _in_database(self) -> Sequence[ValueTable | Timers]:
        return [*self.tables, *self._timers.values()]

    # ------------------------------------------------------------ around calls

    def begin(self) -> None:
        """Before calls: put together what finished snapshots kept apart, forget some of what has expired."""
        self.row_time = no_time  # what a later, older row may still see is not swept
        if self._database is not None:
            self._make_room()
        for table in self.tables:
            table.merge()
            table.sweep()

    def _make_room(self) -> None:
        """When the background thread does not get to a barrier's rows in time, write them here."""
        frozen = self._frozen() if self._frozen is not None else None
        if frozen is not None and any(held.is_full for held in self._in_database):
            frozen.link()

    def prepare(self, keys: Sequence[Any]) -> None:
        """These keys are about to be current: have their rows at hand."""
        if self._database is not None:
            for table in self.tables:
                table.prepare(keys)

    def unload(self) -> None:
        """There is no current key: the states that the loop loads hold nothing."""
        for bound in self.loaded:
            bound.handle.unload()

    def table_of(self, state: object) -> ValueTable:
        """The table behind one of the function's keyed states."""
        for table in self.tables:
            if getattr(self._function, table.name, None) is state:
                return table
        raise UserError(
            "P046",
            f"{state!r} is not a keyed state of {type(self._function).__name__}",
            where=place(self._operator),
            fix="name one that the function declares: ctx.for_each_key(self.total, self.correct)",
        )

    def count(self, others: int = 0) -> None:
        """After calls: how much state there is, with so many rows that belong to no key."""
        counters = self._operator.counters
        if self._database is not None:
            stored = [table.values for table in self.tables if isinstance(table.values, StoredDict)]
            counters.cache_hits = sum(values.cache.hits for values in stored)
            counters.cache_misses = sum(values.cache.misses for values in stored)
            return
        if all(table.is_merged for table in self.tables):
            counters.state_rows = others + sum(table.rows for table in self.tables)
            self._weigh()

    def _weigh(self) -> None:
        """How many bytes it is, looked at again whenever it has grown; with `auto` it may be time to move."""
        counters = self._operator.counters
        rows = counters.state_rows
        if self._counted_at * 0.9 <= rows <= self._counted_at * 1.1:
            return
        self._counted_at = rows
        counters.state_bytes = round(sum(table.rows * table.row_bytes for table in self.tables))
        if self._home.backend == "auto" and counters.state_bytes > self._home.budget // _AUTO_SHARE > 0:
            self._store(self._open_database())

    # ------------------------------------------------------------ snapshot and restore

    def snapshot(self) -> Snapshot:
        """Freeze all states."""
        self.row_time = no_time
        if self._database is not None:
            return self._snapshot_database(self._database)
        tables = [(table.name, table.snapshot_chunks()) for table in self.tables]

        def sections() -> Sequence[AnySection]:
            return [_section(name, chunk, frame) for name, make in tables for chunk, frame in make()]

        return sections

    def _snapshot_database(self, database: Database) -> Snapshot:
        describe = partial(databases.describe, database, self.tables, tuple(self._timers), self._keys)
        views = [held.freeze() for held in self._in_database]
        frozen = FrozenDatabase(database, views, describe)
        self._frozen = weakref.ref(frozen)
        counters = self._operator.counters

        def files() -> Sequence[FilesSection]:
            linked = frozen.link()
            counters.state_rows, counters.state_bytes = linked.rows, database.size
            return [FilesSection(FILES, linked)]

        return files

    def restore_files(self, restored: Sequence[RestoredFiles]) -> None:
        """Take up the databases that earlier subtasks left."""
        database = self._open_database(restored)
        adopt = partial(
            databases.adopt, database, self.tables, self._keys, self._operator.groups, where=place(self._operator)
        )
        if self._home.backend != "memory":
            self._store(database)
        adopt()
        databases.adopt_timers(database, self._timers, self._keys, self._operator.groups)
        if self._home.backend != "memory":
            self._write_restored()
        else:
            self._close_database()

    def restore(self, sections: Mapping[str, Sequence[pl.DataFrame]]) -> None:
        """Take up what earlier subtasks left."""
        tables = {table.name: table for table in self.tables}
        for name, frames in sections.items():
            if name not in tables:
                function = type(self._function).__name__
                raise UserError(
                    "S004",
                    f'the checkpoint has state "{name}", which {function} does not declare any more',
                    where=place(self._operator),
                    fix=f"declare it again: {name} = ValueState(...)",
                )
            for frame in frames:
                if frame.columns[0] != KEY_GROUP:
                    raise UserError(
                        "S005",
                        f'state "{name}" was written as state of the operator, and is declared as state of a key',
                        where=place(self._operator),
                        fix="declare what the state was written with, or give the state a new name",
                    )
                tables[name].restore(frame)
                self._write_restored()

    def _write_restored(self) -> None:
        for table in self.tables:
            if isinstance(table.values, StoredDict):
                table.values.merge()

    def retain(self, groups: range) -> bool:
        """Only these key groups; False: state is in a database, or may go there, with all that is in it."""
        if self._home.backend != "memory":
            return False
        for table in self.tables:
            table.retain(groups)
        self._operator = replace(self._operator, part=groups)
        return True

    def close(self) -> None:
        """Leave no files behind."""
        self._close_database()

    def _close_database(self) -> None:
        if self._database is not None:
            self._database.close()
            self._database = None


def _section(name: str, chunk: Chunk | None, frame: pl.DataFrame | None) -> AnySection:
    if chunk is not None:
        return ChunkSection(name, chunk, frame)
    assert frame is not None
    return Section(name, Redistribution.KEYED, frame)
