"""`manifest.json`: what a savepoint is, in plain words, and where everything in it lies. Written last of all.

A folder without it is no savepoint. Paths are relative to the folder, so that a savepoint can be copied as it is.
"""

import hashlib
from collections.abc import Iterable, Iterator
from typing import Any, Final

import msgspec

from penstock.model.errors import UserError
from penstock.model.handles import Column, Redistribution, SectionHandle
from penstock.model.ids import Uid
from penstock.storage import ObjectStore, folder_of, open_store

MANIFEST: Final = "manifest.json"
ABANDONED: Final = b'{"format": 0}'
"""In the place of a manifest: nobody may complete this savepoint any more, its tables are being removed."""

FORMAT: Final = 1
OLDEST_FORMAT: Final = 1


class SavedTable(msgspec.Struct, frozen=True, kw_only=True):
    """One Parquet file of a state."""

    path: str
    size: int
    sha256: str
    rows: int
    key_groups: tuple[int, int] = (0, 0)
    """Of keyed state: the first one, and the one behind the last, that may be in it."""


class SavedState(msgspec.Struct, frozen=True, kw_only=True):
    """One state of one operator."""

    uid: str
    state: str
    kind: str
    """value | list | map | ... as a function declares it; else timers, splits, rows ..."""
    redistribution: Redistribution
    form: str = ""
    columns: tuple[Column, ...]
    rows: int
    size: int
    tables: tuple[SavedTable, ...]

    @property
    def name(self) -> str:
        """What people call it."""
        return f"{self.uid}.{self.state}"


class SavedOperator(msgspec.Struct, frozen=True, kw_only=True):
    """One operator of the job."""

    uid: str
    name: str
    kind: str
    """The name of its description: Source, Process, WindowAggregate ..."""
    parallelism: int
    shape: dict[str, Any] = {}
    """What its state depends on; another shape cannot take the state."""
    states: tuple[dict[str, Any], ...] = ()
    """What a function declares."""


class Lineage(msgspec.Struct, frozen=True, kw_only=True):
    """Where a savepoint comes from."""

    restored_from: str = ""
    """What the job was started from."""
    checkpoint: int | None = None
    """Of the job, taken at the same barrier."""
    stopped: bool = False
    """The job was to end with it."""
    versions: dict[str, str] = {}
    """penstock, python, polars."""


class SavepointManifest(msgspec.Struct, frozen=True, kw_only=True):
    """The content of `manifest.json`."""

    format: int
    job: str
    job_name: str
    created_us: int
    triggered_us: int
    max_parallelism: int
    size: int
    """Bytes of all tables."""
    operators: tuple[SavedOperator, ...]
    states: tuple[SavedState, ...]
    sources: dict[str, tuple[dict[str, Any], ...]] = {}
    """By uid: the position of each split."""
    watermarks: dict[str, int] = {}
    """By uid: how far event time had come, in microseconds."""
    lineage: Lineage = Lineage()
    graph: Any = None
    """The job graph, without the code in it."""

    @property
    def tables(self) -> Iterator[tuple[SavedState, SavedTable]]:
        """All files."""
        for state in self.states:
            for table in state.tables:
                yield state, table

    def state(self, name: str) -> SavedState:
        """The state `uid.state`."""
        for state in self.states:
            if state.name == name:
                return state
        raise UserError(
            "S024",
            f'the savepoint has no state "{name}"',
            fix="it has: " + ", ".join(state.name for state in self.states),
        )


class _Format(msgspec.Struct, frozen=True):
    format: int


def gathered(handles: Iterable[SectionHandle], kinds: dict[tuple[Uid, str], str]) -> tuple[SavedState, ...]:
    """The states that these tables are parts of."""
    parts: dict[tuple[Uid, str], list[SectionHandle]] = {}
    for handle in handles:
        parts.setdefault((handle.uid, handle.state), []).append(handle)
    return tuple(
        SavedState(
            uid=uid,
            state=state,
            kind=kinds.get((uid, state), state),
            redistribution=held[0].redistribution,
            form=held[0].form,
            columns=held[0].columns,
            rows=sum(each.rows for each in held),
            size=sum(each.size for each in held),
            tables=tuple(map(_saved, sorted(held, key=lambda each: (each.first_group, each.path)))),
        )
        for (uid, state), held in sorted(parts.items())
    )


def section(state: SavedState, table: SavedTable) -> SectionHandle:
    """What finds the table when a job is restored."""
    first, end = table.key_groups
    return SectionHandle(
        uid=Uid(state.uid),
        state=state.state,
        redistribution=state.redistribution,
        offset=0,
        length=table.size,
        rows=table.rows,
        first_group=first,
        group_offsets=tuple(range(end - first + 1)) if end > first else (),
        path=table.path,
        size=table.size,
        sha256=table.sha256,
        columns=state.columns,
        form=state.form,
    )


def encode(manifest: SavepointManifest) -> bytes:
    """The bytes of `manifest.json`, for people too."""
    return msgspec.json.format(msgspec.json.encode(manifest), indent=2) + b"\n"


def digest(manifest: SavepointManifest) -> str:
    """SHA-256 of `manifest.json`, and by that of the whole savepoint."""
    return hashlib.sha256(encode(manifest)).hexdigest()


def open_savepoint(uri: str) -> ObjectStore:
    """The store of a savepoint to be read. Unlike `open_store` it makes no folder."""
    folder = folder_of(uri)
    if folder is not None and not folder.is_dir():
        raise UserError("S001", "there is no such folder", where=uri, fix="penstock savepoints ls FOLDER")
    return open_store(uri)


def read_manifest(store: ObjectStore) -> SavepointManifest:
    """The manifest of the savepoint in `store`; UserError when there is none that this version can read."""
    data = store.get(MANIFEST)
    if data is None:
        near = sorted({info.path.split("/")[0] for info in store.list("") if info.path.endswith(f"/{MANIFEST}")})
        there = f"; below it there are {', '.join(near[-5:])}" if near else ""
        raise UserError(
            "S001",
            f"no {MANIFEST}: this is no savepoint, or one that was never completed{there}",
            where=store.uri,
            fix="penstock savepoints ls FOLDER shows what there is",
        )
    return decode(data, where=store.uri)


def decode(data: bytes, *, where: str) -> SavepointManifest:
    """What `encode` wrote, also by other versions."""
    if data == ABANDONED:
        raise UserError(
            "S001", "this savepoint was never completed, and is being removed", where=where, fix="name another one"
        )
    try:
        found = msgspec.json.decode(data, type=_Format).format
        if not OLDEST_FORMAT <= found <= FORMAT:
            raise UserError(
                "S020",
                f"the savepoint has format {found}; this version reads {OLDEST_FORMAT} to {FORMAT}",
                where=where,
                fix="restore it with the version that wrote it, or a newer one",
            )
        return msgspec.json.decode(data, type=SavepointManifest)
    except msgspec.DecodeError as error:
        raise UserError(
            "S002",
            f"{MANIFEST} cannot be used: {error} ({len(data)} bytes)",
            where=where,
            fix="put it back from a copy, or name another savepoint",
        ) from error


def _saved(handle: SectionHandle) -> SavedTable:
    groups = (
        (handle.first_group, handle.first_group + len(handle.group_offsets) - 1) if handle.group_offsets else (0, 0)
    )
    return SavedTable(path=handle.path, size=handle.size, sha256=handle.sha256, rows=handle.rows, key_groups=groups)
