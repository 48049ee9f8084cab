"""Tables of one operator in one database, and what the database says about them.

A row under a key that no group has says which types keys and values were written with: whoever opens the files can
read them without the program, and a program that declares other types gets its rows converted, or a clear refusal.
"""

from collections.abc import Iterator, Mapping, Sequence

import msgspec
import polars as pl

from penstock.model import schemas
from penstock.model.errors import UserError
from penstock.state.key_groups import KEY_GROUP
from penstock.state.keys import KeyCodec
from penstock.state.rocks import Database, LinkedFiles, LinkedRows
from penstock.state.rows import KeyBytes, ValueBytes, group_prefix
from penstock.state.stored_timers import Timer, stored_timers
from penstock.state.timers import Timers, timer_table
from penstock.state.values import ValueTable, own_name

_ABOUT = b"\xff\xff\xffabout"
_ROWS_AT_ONCE = 50_000


class AboutState(msgspec.Struct, frozen=True):
    """How the values of one state are written."""

    type: str
    expires: bool


class About(msgspec.Struct, frozen=True):
    """How the rows of a database are written."""

    keys: tuple[str, ...]
    states: dict[str, AboutState]
    timers: tuple[str, ...] = ()
    """Kinds of timers that have rows."""


def describe(database: Database, tables: Sequence[ValueTable], timers: Sequence[str], keys: KeyCodec) -> None:
    """Write how rows are written now; before each snapshot, since key types are known late."""
    states = {t.name: AboutState(schemas.type_to_text(t.kind.dtype), t.ttl is not None) for t in tables}
    about = About(tuple(schemas.type_to_text(dtype) for dtype in keys.types), states, tuple(timers))
    database.write(iter([(_ABOUT, msgspec.json.encode(about))]))


def read_about(database: Database | LinkedRows) -> About | None:
    """What `describe` wrote last; None when nothing was ever written."""
    (found,) = database.get([_ABOUT])
    return None if found is None else msgspec.json.decode(found, type=About)


def adopt(database: Database, tables: Sequence[ValueTable], keys: KeyCodec, groups: range, *, where: str) -> None:
    """Make restored rows those of the declared tables: converted where types differ, refused where they cannot be.

    Tables that are not in a database get the rows as objects.
    """
    about = read_about(database)
    if about is None:
        return
    types = [schemas.type_from_text(text) for text in about.keys]
    if types:
        keys.learn(types)
    declared = {table.name: table for table in tables}
    for name, state in about.states.items():
        table = declared.get(name)
        if table is None:
            if next(scan_state(database, name, state, keys, groups), None) is None:
                continue
            raise UserError(
                "S004",
                f'the checkpoint has state "{name}", which the function does not declare any more',
                where=where,
                fix=f"declare it again: {name} = ValueState(...)",
            )
        same = schemas.type_from_text(state.type) == table.kind.dtype and state.expires == (table.ttl is not None)
        if table.is_stored and same:
            continue
        frames = list(scan_state(database, name, state, keys, groups))
        if table.is_stored:
            for group in groups:
                prefix = group_prefix(group) + KeyBytes(name, keys, groups.stop).state
                database.delete(prefix, prefix + b"\xff")
        for frame in frames:
            table.restore(frame)


def adopt_timers(database: Database, timers: Mapping[str, Timers], keys: KeyCodec, groups: range) -> None:
    """Timers that are not in a database get those that are. After `adopt`, which knows what keys are."""
    about = read_about(database)
    for name in about.timers if about is not None and about.keys else ():
        if not timers[name].is_stored:
            for some in stored_timers(database, name, keys, groups, groups.stop):
                timers[name].set_many(*zip(*some, strict=True))


def read_linked(
    linked: LinkedFiles, keys: Sequence[str], max_parallelism: int
) -> Iterator[tuple[str, Iterator[pl.DataFrame]]]:
    """All states in linked files, each as tables in the order of their key groups, while the next is not asked for."""
    rows = LinkedRows(linked)
    try:
        about, codec = read_about(rows), KeyCodec(keys)
        if about is None or not about.keys:
            return
        codec.learn([schemas.type_from_text(text) for text in about.keys])
        groups = range(linked.groups.start, min(linked.groups.stop, max_parallelism))
        for name, state in about.states.items():
            yield name, scan_state(rows, name, state, codec, groups)
        for name in about.timers:
            parts = stored_timers(rows, name, codec, groups, max_parallelism)
            yield name, (_timer_table(some, codec, max_parallelism) for some in parts)
    finally:
        rows.close()


def _timer_table(timers: Sequence[Timer], keys: KeyCodec, max_parallelism: int) -> pl.DataFrame:
    return timer_table([time for time, _ in timers], [key for _, key in timers], keys, max_parallelism)


def scan_state(
    database: Database | LinkedRows, name: str, state: AboutState, keys: KeyCodec, groups: range
) -> Iterator[pl.DataFrame]:
    """The rows of one state as tables: key group, keys, value, expiry."""
    if not keys.types:
        return
    key_bytes, value_bytes = KeyBytes(name, keys, groups.stop), ValueBytes(schemas.type_from_text(state.type))
    value_name = own_name(name, keys.names)
    for group in groups:
        prefix = group_prefix(group) + key_bytes.state
        rows = list(database.scan(prefix, prefix + b"\xff"))
        for start in range(0, len(rows), _ROWS_AT_ONCE):
            part = rows[start : start + _ROWS_AT_ONCE]
            column, expiries = value_bytes.decode([value for _, value in part], expiring=state.expires)
            made = [
                pl.Series(KEY_GROUP, [group], pl.UInt16()).new_from_index(0, len(part)),
                *keys.encode(key_bytes.decode([key for key, _ in part])),
                column.alias(value_name),
            ]
            if expiries is not None:
                made.append(pl.Series(own_name("expires", (*keys.names, value_name)), expiries, pl.Int64()))
            yield pl.DataFrame(made)
