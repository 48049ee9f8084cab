"""What can be done with whole savepoints: find, verify, compare, copy and remove them."""

from collections.abc import Iterator

import msgspec
import polars as pl

from penstock.model.errors import UserError
from penstock.savepoints.frames import Savepoint, read_tables
from penstock.savepoints.manifest import (
    ABANDONED,
    MANIFEST,
    SavepointManifest,
    open_savepoint,
    read_manifest,
)
from penstock.savepoints.restoring import verified
from penstock.savepoints.shapes import differences
from penstock.storage import ObjectStore, Prefixed, open_store


class Problem(msgspec.Struct, frozen=True, kw_only=True):
    """Something that is not as the manifest says."""

    path: str
    what: str
    stray: bool = False
    """The savepoint is whole without it."""


class StateDifference(msgspec.Struct, frozen=True, kw_only=True):
    """One state in two savepoints."""

    name: str
    only_in: str = ""
    """first | second | both."""
    rows: tuple[int, int] = (0, 0)
    added: int = 0
    removed: int = 0
    """Rows that are only in the second, and only in the first. A changed value counts once in each."""
    columns: tuple[str, ...] = ()
    """What is different about the columns."""


def find(uri: str) -> Iterator[tuple[str, SavepointManifest]]:
    """The savepoint at `uri`, or those in folders below it; the oldest first."""
    store = open_savepoint(uri)
    folders = [info.path.removesuffix(MANIFEST).rstrip("/") for info in store.list("") if _is_manifest(info.path)]
    found = []
    for folder in folders:
        place: ObjectStore = Prefixed(store, folder) if folder else store
        if place.get(MANIFEST) not in (None, ABANDONED):
            found.append((place.uri, read_manifest(place)))
    yield from sorted(found, key=lambda each: each[1].created_us)


def verify(store: ObjectStore, manifest: SavepointManifest, *, deep: bool) -> list[Problem]:
    """Compare every object with the manifest: that it is there with its size; `deep`: its SHA-256 and rows, too."""
    problems, sizes = [], {info.path: info.size for info in store.list("")}
    for state, table in manifest.tables:
        size = sizes.pop(table.path, None)
        if size is None:
            problems.append(Problem(path=table.path, what="it is missing"))
        elif size != table.size:
            problems.append(Problem(path=table.path, what=f"it has {size} bytes instead of {table.size}"))
        elif deep:
            try:
                verified(store, table)
            except UserError as error:
                problems.append(Problem(path=table.path, what=error.what))
                continue
            rows = sum(frame.height for frame in read_tables(store, msgspec.structs.replace(state, tables=(table,))))
            if rows != table.rows:
                problems.append(Problem(path=table.path, what=f"it has {rows} rows instead of {table.rows}"))
    sizes.pop(MANIFEST, None)
    return problems + [Problem(path=path, what="it is no part of the savepoint", stray=True) for path in sizes]


def compare(first: Savepoint, second: Savepoint) -> Iterator[StateDifference]:
    """State by state, row by row."""
    names = dict.fromkeys((*first.states, *second.states))
    for name in names:
        if name not in second.states:
            rows = first.manifest.state(name).rows
            yield StateDifference(name=name, only_in="first", rows=(rows, 0), removed=rows)
        elif name not in first.states:
            rows = second.manifest.state(name).rows
            yield StateDifference(name=name, only_in="second", rows=(0, rows), added=rows)
        else:
            yield _compared(name, first, second)


def copy(source: Savepoint, uri: str) -> str:
    """Copy a savepoint, each object verified on the way, its manifest last. Gives where it is now."""
    target = open_store(uri)
    if target.get(MANIFEST) is not None:
        raise UserError("S021", "another savepoint lies there already", where=target.uri, fix="name another folder")
    for _, table in source.manifest.tables:
        target.put(table.path, verified(source.store, table))
    data = source.store.get(MANIFEST)
    assert data is not None
    if not target.create(MANIFEST, data):
        raise UserError("S021", "another savepoint lies there already", where=target.uri, fix="name another folder")
    return target.uri


def remove(store: ObjectStore, manifest: SavepointManifest) -> int:
    """Remove a savepoint, its manifest first: from then on it is none. Gives how many objects that were."""
    paths = [MANIFEST, *(table.path for _, table in manifest.tables)]
    for path in paths:
        store.delete(path)
    return len(paths)


def _compared(name: str, first: Savepoint, second: Savepoint) -> StateDifference:
    before, after = first.frame(name), second.frame(name)
    schemas = [{key: str(dtype) for key, dtype in frame.schema.items()} for frame in (before, after)]
    columns = tuple(differences(schemas[0], schemas[1]))
    if columns:
        return StateDifference(name=name, only_in="both", rows=(before.height, after.height), columns=columns)
    hashes = [frame.hash_rows().to_frame("row") for frame in (before, after)]
    # Rows that are there several times count as often.
    numbered = [frame.with_columns(number=pl.int_range(pl.len()).over("row")) for frame in hashes]
    removed, added = (
        one.join(other, on=["row", "number"], how="anti").height for one, other in (numbered, numbered[::-1])
    )
    return StateDifference(name=name, only_in="both", rows=(before.height, after.height), added=added, removed=removed)


def _is_manifest(path: str) -> bool:
    return path == MANIFEST or path.endswith(f"/{MANIFEST}")
