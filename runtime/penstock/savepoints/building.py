"""A savepoint from tables: to give a new job state that it did not compute, to repair state, to move it.

    builder = penstock.savepoints.Builder(max_parallelism=128)
    builder.add("totals.total", frame, keys="user")             # user, and one column with the value
    builder.write("s3://backups/bootstrap")                     # penstock run prog.py:fn --from s3://backups/bootstrap

    builder = penstock.savepoints.Builder.like(penstock.savepoints.open(uri))
    builder.replace("totals.total", repaired)                   # everything else stays as it is

Key groups are computed here, whatever a frame says. What is built is checked as any other savepoint when a job starts.
"""

from collections.abc import Mapping, Sequence
from typing import Self

import numpy as np
import polars as pl

from penstock.checkpoint import canonical
from penstock.checkpoint.state_objects import safe_name
from penstock.checkpoint.whole_tables import PART_BYTES
from penstock.config import installed_versions
from penstock.model import schemas
from penstock.model.clocks import Clock, SystemClock
from penstock.model.errors import UserError
from penstock.model.handles import Column, Redistribution, SectionHandle
from penstock.model.ids import Uid
from penstock.savepoints.frames import Savepoint
from penstock.savepoints.manifest import (
    FORMAT,
    MANIFEST,
    Lineage,
    SavedState,
    SavepointManifest,
    encode,
    gathered,
)
from penstock.savepoints.restoring import verified
from penstock.savepoints.writing import state_folder, table_handle
from penstock.state.columns import cast_lossless
from penstock.state.key_groups import KEY_GROUP, MAX_MAX_PARALLELISM, sort_by_group
from penstock.storage import ObjectStore, open_store

EXPIRES = "expires"
TIMERS = {"timers:event", "timers:processing"}
_KINDS = ("value", "list", "map", "reducing", "aggregating")


class Builder:
    """Collects states, writes them once."""

    def __init__(self, *, max_parallelism: int = 128, job_name: str = "") -> None:
        """`job_name`: only a job of this name may start from it; empty: any."""
        if not 1 <= max_parallelism <= MAX_MAX_PARALLELISM:
            raise UserError("S029", f"max_parallelism is {max_parallelism}", fix=f"1 to {MAX_MAX_PARALLELISM}")
        self._max_parallelism, self._job_name = max_parallelism, job_name
        self._base: Savepoint | None = None
        self._kept: dict[str, SavedState] = {}
        self._built: dict[str, tuple[SavedState, pl.DataFrame]] = {}

    @classmethod
    def like(cls, savepoint: Savepoint) -> Self:
        """Everything that `savepoint` has, to be changed."""
        manifest = savepoint.manifest
        builder = cls(max_parallelism=manifest.max_parallelism, job_name=manifest.job_name)
        builder._base = savepoint
        builder._kept = {state.name: state for state in manifest.states}
        return builder

    @property
    def states(self) -> tuple[str, ...]:
        """Names of all states that there are by now."""
        return tuple(sorted((*self._kept, *self._built)))

    def add(self, name: str, frame: pl.DataFrame, *, keys: str | Sequence[str], kind: str = "value") -> None:
        """A keyed state `uid.state` of a function: its keys, one column with the value, perhaps one called `expires`.

        `kind`: value | list | map | reducing | aggregating, as the function declares it. Of a map each entry is a row,
        with its name in the column in front of the value. Timers are the states `uid.timers:event` and
        `uid.timers:processing`, with one column of microseconds.
        """
        uid, _, state = name.rpartition(".")
        keys = [keys] if isinstance(keys, str) else list(keys)
        timers = state in TIMERS
        others = [column for column in frame.columns if column not in (*keys, KEY_GROUP, EXPIRES)]
        wanted = 2 if kind == canonical.MAP else 1
        missing = [key for key in keys if key not in frame.columns]
        if not uid or kind not in _KINDS or missing or len(others) != wanted:
            has = ", ".join(frame.columns)
            raise _unfit(name, f"a {kind} state with the keys {', '.join(keys)} cannot be made of the columns {has}")
        roles = dict.fromkeys(others, canonical.NAMESPACE if timers else canonical.VALUE)
        if kind == canonical.MAP:
            roles[others[0]] = canonical.NAMESPACE
        order = {KEY_GROUP: KEY_GROUP, **dict.fromkeys(keys, canonical.KEY), **roles}
        if EXPIRES in frame.columns:
            order[EXPIRES] = canonical.EXPIRY
        types = {**frame.schema, KEY_GROUP: pl.UInt16()}
        columns = tuple(
            Column(name=each, type=schemas.type_to_text(_type(types[each])), role=role, position=position)
            for position, (each, role) in enumerate(order.items())
        )
        saved = SavedState(
            uid=uid,
            state=state,
            kind=state if timers else kind,
            redistribution=Redistribution.KEYED,
            form=canonical.MAP if kind == canonical.MAP else "",
            columns=columns,
            rows=0,
            size=0,
            tables=(),
        )
        self._set(saved, frame)

    def replace(self, name: str, frame: pl.DataFrame) -> None:
        """Other rows for a state that is there. Its columns stay; `key_group` may be left out."""
        self._set(self._known(name), frame)

    def drop(self, name: str) -> None:
        """Leave a state out."""
        self._known(name)
        self._kept.pop(name, None)
        self._built.pop(name, None)

    def write(self, uri: str, *, clock: Clock | None = None) -> str:
        """Write the savepoint into a folder that has none; its manifest last. Gives where it is."""
        store = open_store(uri)
        if store.get(MANIFEST) is not None:
            raise UserError("S021", "another savepoint lies there already", where=store.uri, fix="name another folder")
        now_us = (clock or SystemClock()).now_us()
        for state in self._kept.values():
            assert self._base is not None
            for table in state.tables:
                store.put(table.path, verified(self._base.store, table))
        handles = [each for saved, frame in self._built.values() for each in self._write_state(store, saved, frame)]
        kinds = {(Uid(saved.uid), saved.state): saved.kind for saved, _ in self._built.values()}
        states = (*self._kept.values(), *gathered(handles, kinds))
        base = self._base.manifest if self._base is not None else None
        manifest = SavepointManifest(
            format=FORMAT,
            job=base.job if base else "",
            job_name=self._job_name,
            created_us=now_us,
            triggered_us=now_us,
            max_parallelism=self._max_parallelism,
            size=sum(state.size for state in states),
            operators=base.operators if base else (),
            states=tuple(sorted(states, key=lambda state: state.name)),
            sources=base.sources if base else {},
            watermarks=base.watermarks if base else {},
            lineage=Lineage(
                restored_from=self._base.uri if self._base else "",
                checkpoint=base.lineage.checkpoint if base else None,
                versions=installed_versions(),
            ),
            graph=base.graph if base else None,
        )
        if not store.create(MANIFEST, encode(manifest)):
            raise UserError("S021", "another savepoint lies there already", where=store.uri, fix="name another folder")
        return store.uri

    # ------------------------------------------------------------ inside

    def _known(self, name: str) -> SavedState:
        state = self._kept.get(name) or (self._built[name][0] if name in self._built else None)
        if state is None:
            raise UserError("S024", f'there is no state "{name}"', fix=f"there are: {', '.join(self.states)}")
        return state

    def _set(self, saved: SavedState, frame: pl.DataFrame) -> None:
        rows = self._typed(saved, frame)
        _check_rows(saved, rows)
        self._kept.pop(saved.name, None)
        self._built[saved.name] = (saved, rows)

    def _typed(self, saved: SavedState, frame: pl.DataFrame) -> pl.DataFrame:
        """The rows with the columns that the state has, in the order of tables."""
        made = []
        for column in saved.columns:
            if column.role == KEY_GROUP:
                continue
            dtype = schemas.type_from_text(column.type)
            if column.name not in frame.columns:
                raise _unfit(saved.name, f'there is no column "{column.name}" ({column.type})')
            cast = cast_lossless(frame.get_column(column.name), dtype)
            if cast is None:
                found = frame.schema[column.name]
                raise _unfit(saved.name, f'column "{column.name}" is {found}, and must be {column.type}')
            made.append(cast)
        rows = pl.DataFrame(made)
        if saved.redistribution is not Redistribution.KEYED:
            return rows
        keys = [column.name for column in saved.columns if column.role == canonical.KEY]
        grouped = sort_by_group(rows, keys, self._max_parallelism)
        return canonical.sorted_table(grouped, saved.columns).select(column.name for column in saved.columns)

    def _write_state(self, store: ObjectStore, saved: SavedState, frame: pl.DataFrame) -> list[SectionHandle]:
        written = []
        for number, part in enumerate(_parts(saved, frame)):
            groups = range(0)
            if saved.redistribution is Redistribution.KEYED:
                held = part.get_column(KEY_GROUP)
                groups = range(int(held[0]), int(held[-1]) + 1)
            data = canonical.encode(part)
            path = f"{state_folder(Uid(saved.uid), saved.state)}/{safe_name('built')}-{number}.parquet"
            store.put(path, data)
            written.append(
                table_handle(
                    Uid(saved.uid),
                    saved.state,
                    saved.redistribution,
                    path,
                    data,
                    part.height,
                    groups,
                    saved.columns,
                    saved.form,
                )
            )
        return written


def build(
    uri: str,
    frames: Mapping[str, pl.DataFrame],
    *,
    keys: str | Sequence[str],
    max_parallelism: int = 128,
) -> str:
    """A savepoint of value states with the same keys, in one call: `{"uid.state": frame}`. Gives where it is."""
    builder = Builder(max_parallelism=max_parallelism)
    for name, frame in frames.items():
        builder.add(name, frame, keys=keys)
    return builder.write(uri)


def _check_rows(saved: SavedState, rows: pl.DataFrame) -> None:
    """One value per key, and no value that stands for none."""
    by_key = [column.name for column in saved.columns if column.role in (canonical.KEY, canonical.NAMESPACE)]
    if saved.kind not in (*_KINDS, *TIMERS) or not by_key:
        return
    twice = rows.filter(pl.struct(by_key).is_duplicated())
    if twice.height:
        raise _unfit(saved.name, f"{twice.select(by_key).row(0)} is there {twice.height} times")
    for column in saved.columns:
        if column.role in (canonical.VALUE, canonical.NAMESPACE) and rows.get_column(column.name).null_count():
            raise _unfit(saved.name, f'column "{column.name}" has nulls')


def _parts(saved: SavedState, frame: pl.DataFrame) -> list[pl.DataFrame]:
    """Tables of about one size, each with key groups of its own."""
    count = int(frame.estimated_size() // PART_BYTES) + 1
    if not frame.height:
        return []
    if count == 1 or saved.redistribution is not Redistribution.KEYED:
        return [frame]
    groups = frame.get_column(KEY_GROUP).to_numpy()
    bounds = groups[np.linspace(0, frame.height, count, endpoint=False).astype(np.int64)]
    starts = np.unique(np.searchsorted(groups, bounds))
    ends = [*starts[1:].tolist(), frame.height]
    return [frame.slice(start, end - start) for start, end in zip(starts.tolist(), ends, strict=True)]


def _unfit(name: str, what: str) -> UserError:
    return UserError(
        "S029", f'state "{name}": {what}', fix="see docs/savepoint-format.md for the columns that a state has"
    )


def _type(kind: object) -> pl.DataType:
    dtype: pl.DataType = kind() if isinstance(kind, type) else kind  # type: ignore[assignment]
    return dtype
