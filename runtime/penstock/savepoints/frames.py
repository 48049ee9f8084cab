"""A savepoint as tables: for people, notebooks and jobs that look into the state of others.

savepoint = penstock.savepoints.open("s3://backups/orders-3f2a11-5d1e0c44")
savepoint.frame("count.total")          # a Polars frame: key_group, keys, value
"""

from collections.abc import Iterator, Sequence
from typing import Any

import polars as pl

from penstock.checkpoint import canonical
from penstock.model import schemas
from penstock.savepoints.manifest import SavedState, SavepointManifest, open_savepoint, read_manifest
from penstock.savepoints.restoring import verified
from penstock.storage import ObjectStore


class Savepoint:
    """Opened by `penstock.savepoints.open`. Nothing is read but what is asked for, and all of that is verified."""

    def __init__(self, store: ObjectStore, manifest: SavepointManifest) -> None:
        self.store, self.manifest = store, manifest

    def __repr__(self) -> str:
        return f"Savepoint({self.uri!r}: {', '.join(self.states)})"

    @property
    def uri(self) -> str:
        """Where it is."""
        return self.store.uri

    @property
    def states(self) -> tuple[str, ...]:
        """Names of all states: `uid.state`."""
        return tuple(state.name for state in self.manifest.states)

    def schema(self, name: str) -> pl.Schema:
        """Columns of a state."""
        state = self.manifest.state(name)
        return pl.Schema({column.name: schemas.type_from_text(column.type) for column in state.columns})

    def frame(self, name: str) -> pl.DataFrame:
        """All rows of a state, in the order of their key groups."""
        frames = list(self.frames(name))
        return pl.concat(frames, rechunk=True) if frames else self.schema(name).to_frame()

    def frames(self, name: str) -> Iterator[pl.DataFrame]:
        """The same, one table after the other."""
        yield from read_tables(self.store, self.manifest.state(name))

    def arrow(self, name: str) -> Any:
        """All rows of a state as a `pyarrow.Table`."""
        return self.frame(name).to_arrow()

    def key(self, name: str, key: Sequence[Any] | Any) -> pl.DataFrame:
        """The rows of one key."""
        state = self.manifest.state(name)
        names = [column.name for column in state.columns if column.role == canonical.KEY]
        values = key if isinstance(key, list | tuple) else (key,)
        matches = [pl.col(each).eq_missing(pl.lit(value)) for each, value in zip(names, values, strict=True)]
        return pl.concat([frame.filter(*matches) for frame in self.frames(name)] or [self.schema(name).to_frame()])


def open(uri: str) -> Savepoint:  # noqa: A001 - users write penstock.savepoints.open
    """The savepoint in this folder: a path, `file://` or any other store. UserError when there is none."""
    store = open_savepoint(uri)
    return Savepoint(store, read_manifest(store))


def read_tables(store: ObjectStore, state: SavedState) -> Iterator[pl.DataFrame]:
    """All tables of a state."""
    for table in state.tables:
        yield canonical.decode(verified(store, table), state.columns)
