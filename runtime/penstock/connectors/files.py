"""Files as a source: which there are, how they are cut into splits, who reads a new one.

A split is a range of bytes of one file. What begins in the range (a row group, a line) belongs to it, so that
splits cover a file exactly, whatever lies on a border. A file is cut once: a job that goes on from a checkpoint with
another `split_bytes` keeps the splits of the files it knows. A bounded source reads the files that were there when
the program was built; a watched directory is listed again and again by every subtask, and a new file is taken
by the one whose number the hash of its path gives. A watched file must appear whole (by rename, or as an object of a
bucket): what is appended later is not read.
"""

import hashlib
from collections.abc import Iterable, Iterator, Sequence
from typing import Any, Protocol

import polars as pl

from penstock.connectors import base
from penstock.connectors.places import place_of
from penstock.model import schemas
from penstock.model.errors import RecordError, UserError
from penstock.model.settings import SourceSettings
from penstock.model.specs import Connector, Field


class FileFormat(Protocol):
    """How one kind of file is read."""

    suffixes: tuple[str, ...]
    """What the files of a directory must end in; others are left alone."""

    def splittable(self, path: str, options: dict[str, Any]) -> bool:
        """True when a reader can begin in the middle."""
        ...

    def infer(self, path: str, options: dict[str, Any]) -> pl.Schema:
        """The columns of a file."""
        ...

    def open(
        self,
        split: base.Split,
        position: dict[str, Any] | None,
        schema: pl.Schema,
        options: dict[str, Any],
        context: base.SourceContext,
    ) -> base.SplitReader:
        """Start reading a range of a file."""
        ...


class FileSource:
    """Task side of all file connectors."""

    sequential = True

    def __init__(self, file_format: FileFormat, connector: Connector) -> None:
        self._options = connector.options
        self._format = file_format
        self._schema = schemas.polars_schema(tuple(Field(*field) for field in self._options["schema"]))
        self._watch = bool(self._options.get("watch"))

    @property
    def discovers(self) -> bool:
        """True for a watched directory."""
        return self._watch

    def splits(self) -> Sequence[base.Split]:
        """The splits of the files that were listed at build; none when watched: those are all discovered."""
        return () if self._watch else tuple(self._cut(self._options["files"]))

    def discover(self, seen: frozenset[str], context: base.SourceContext) -> Sequence[base.Split]:
        """Splits of files that this subtask takes and has not seen."""
        if not self._watch:
            return ()
        mine = [
            (path, size)
            for path, size in place_of(self._options["path"]).list(self._options["path"], self._format.suffixes)
            if path not in seen and stable_hash(path) % context.parallelism == context.subtask_index
        ]
        return tuple(self._cut(mine))

    def open(
        self, split: base.Split, position: dict[str, Any] | None, context: base.SourceContext
    ) -> base.SplitReader:
        """A reader for a range of a file, which must not have shrunk."""
        path, size = split.options["path"], split.options["size"]
        try:
            present = place_of(self._options["path"]).size(path)
        except OSError as error:
            raise RecordError(
                "R010", f"cannot read {path}: {error.strerror}", where=context.place, fix="bring the file back"
            ) from error
        if present < size:
            raise RecordError(
                "R010",
                f"{path} had {size} bytes when the job was built, now {present}",
                where=context.place,
                fix="restore the file, or start the job anew",
            )
        return self._format.open(split, position, self._schema, self._options, context)

    def _cut(self, files: Iterable[Sequence[Any]]) -> Iterator[base.Split]:
        for path, size in files:
            whole = not self._format.splittable(path, self._options)
            step = max(1, size) if whole else max(1, self._options["split_bytes"])
            for start in range(0, size, step):
                length = min(step, size - start)
                yield base.Split(
                    id=f"{path}@{start}+{length}",
                    whole=path,
                    place=start,
                    options={"path": path, "size": size, "start": start, "length": length},
                )


def resolve(
    connector: Connector, schema: pl.Schema | None, settings: SourceSettings, file_format: FileFormat
) -> tuple[Connector, pl.Schema]:
    """List the files and find out their columns: everything that is decided when the program is built."""
    path = connector.options["path"]
    files = list(place_of(path).list(path, file_format.suffixes))
    if not files and not (connector.options.get("watch") and schema is not None):
        raise UserError(
            "P015",
            f"no files at {path}",
            fix="check the path (a file, a directory or a glob; names that begin with _ or . are left out), "
            "or pass watch=True and a schema to wait for files",
        )
    if schema is None:
        first = next((found for found, size in files if size), files[0][0])
        schema = file_format.infer(first, connector.options)
    options = {
        **connector.options,
        "schema": [[field.name, field.type] for field in schemas.fields(schema)],
        "split_bytes": settings.split_bytes,
        "files": [] if connector.options.get("watch") else [list(entry) for entry in files],
    }
    return Connector(kind=connector.kind, options=options), schema


def stable_hash(text: str) -> int:
    """The same number in every process and on every host, unlike `hash`."""
    return int.from_bytes(hashlib.blake2b(text.encode(), digest_size=8).digest(), "big")


def selected(schema: pl.Schema, columns: Sequence[str] | None) -> pl.Schema:
    """The columns that a reader gives: those asked for, in the order of the schema."""
    if columns is None:
        return schema
    wanted = set(columns)
    # A frame without columns has no rows either: a program that only counts rows still needs one column.
    chosen = [name for name in schema if name in wanted] or [next(iter(schema))]
    return pl.Schema({name: schema[name] for name in chosen})
