"""Sections of a snapshot as whole tables, whatever they lie in: for savepoints.

A table is a table. The chunks of a state, of which some may lie in the store, are put together: a later row goes over
an earlier one, of the same key or of the same number. A database is read out, group by group.

Large state comes as several tables, one after the other, each with the rows of its own range of key groups.
"""

from collections.abc import Iterator, Sequence
from itertools import groupby
from typing import Final

import polars as pl

from penstock.checkpoint import canonical, shared_objects
from penstock.model import specs
from penstock.model.handles import Redistribution
from penstock.operators import keyed_rows
from penstock.operators.base import AnySection, ChunkSection, FilesSection, Section
from penstock.state import databases
from penstock.state.key_groups import KEY_GROUP
from penstock.storage import ObjectStore

PART_BYTES: Final = 64 * 1024 * 1024
"""A table is cut when its rows take about this much memory: whoever writes or reads a part holds it whole."""


def whole_tables(
    store: ObjectStore, spec: specs.OperatorSpec, sections: Sequence[AnySection], max_parallelism: int
) -> Iterator[Section]:
    """The state of one operator; `store` has the chunks that were written earlier."""
    chunks = [section for section in sections if isinstance(section, ChunkSection)]
    for state, parts in groupby(sorted(chunks, key=lambda each: each.state), key=lambda each: each.state):
        keys = canonical.state_keys(spec, state) if canonical.declared(spec, state) is not None else None
        frame = merged([_chunk_rows(store, part) for part in parts], keys)
        if frame.height:
            yield Section(state, Redistribution.KEYED, frame)
    for section in sections:
        match section:
            case Section(frame=frame) if frame.height:
                yield section
            case FilesSection(linked=linked):
                keys = canonical.state_keys(spec, section.state)
                for state, frames in databases.read_linked(linked, keys, max_parallelism):
                    for frame in _gathered(frames):
                        yield Section(state, Redistribution.KEYED, frame)


def _chunk_rows(store: ObjectStore, section: ChunkSection) -> pl.DataFrame:
    if section.frame is not None:
        return section.frame() if callable(section.frame) else section.frame
    handle = section.chunk.handle
    assert handle is not None
    data = shared_objects.verified(store, handle.path, handle.size, handle.sha256)
    return pl.read_ipc_stream(data[handle.offset : handle.offset + handle.length])


def merged(frames: Sequence[pl.DataFrame], keys: Sequence[str] | None) -> pl.DataFrame:
    """Rows of a state as they were at the barrier.

    Chunks of numbered rows say which are gone. Of a state with `keys` a later chunk goes over the earlier ones, and
    the value comes right after the keys. Any other chunks lie side by side.
    """
    if keyed_rows.are_numbered(frames[0]):
        return keyed_rows.rows_of_chunks(frames).sort(KEY_GROUP, maintain_order=True)
    rows = pl.concat(frames, rechunk=True)
    if keys is None:
        return rows.sort(KEY_GROUP, maintain_order=True)
    last = rows.unique(list(keys), keep="last", maintain_order=True) if len(frames) > 1 else rows
    kept = last.filter(last.to_series(1 + len(keys)).is_not_null())
    return kept.sort(KEY_GROUP, maintain_order=True)


def _gathered(frames: Iterator[pl.DataFrame]) -> Iterator[pl.DataFrame]:
    """Fewer frames, none much larger than a part."""
    some: list[pl.DataFrame] = []
    size = 0.0
    for frame in frames:
        some.append(frame)
        size += frame.estimated_size()
        if size >= PART_BYTES:
            yield pl.concat(some, rechunk=True)
            some, size = [], 0
    if some:
        yield pl.concat(some, rechunk=True)
