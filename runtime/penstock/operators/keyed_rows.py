"""Rows in tables as the state of an operator: how they are written into snapshots and read back.

Owns: which chunks hold a table that is large. A small one is written whole each time; of a large one only the rows
that came, changed or went since the last barrier, as long as at least half of what is in the
store still counts.
"""

from collections.abc import Mapping, Sequence

import polars as pl

from penstock.model.handles import Redistribution
from penstock.operators.base import AnySection, ChunkSection, OperatorContext, Section, Snapshot, empty_snapshot
from penstock.state.chunks import ChunkChain
from penstock.state.frozen_rows import GONE, NUMBER, FreezableTable
from penstock.state.key_groups import KEY_GROUP, sort_by_group

_WRITER = "__writer"
"""The subtask that wrote a chunk: numbers of rows are its own."""


class KeyedRows:
    """One table, under the name of a state."""

    def __init__(self, state: str, table: FreezableTable, *, keys: Sequence[str] | None = None) -> None:
        self._state, self._table = state, table
        self._keys = table.keys if keys is None else list(keys)
        """Rows are spread over subtasks by these."""
        self._chain = ChunkChain()

    def snapshot(self, context: OperatorContext) -> Snapshot:
        """The table as it is now."""
        keys, groups = self._keys, context.max_parallelism
        if len(self._table) < context.state.incremental_rows:
            # Chunks that no checkpoint names are deleted.
            self._chain = ChunkChain()
            self._table.track(False)
            frozen = self._table.freeze()
            if frozen is None:
                return empty_snapshot
            return lambda: [_section(self._state, sort_by_group(frozen.frame(), keys, groups))]
        changed = self._table.freeze_changes() if self._chain.can_grow_to(len(self._table)) else None
        before, chunk = self._chain.restart() if changed is None else self._chain.grow()
        written = self._table.freeze() if changed is None else changed
        self._table.track(True)
        assert written is not None
        writer = pl.lit(context.subtask.index, pl.UInt32).alias(_WRITER)

        def sections() -> Sequence[AnySection]:
            known = [ChunkSection(self._state, old, None) for old in before]
            if not len(written.rows):
                self._chain.drop(chunk)
                return known
            frame = sort_by_group(written.chunk().with_columns(writer), keys, groups)
            return [*known, ChunkSection(self._state, chunk, frame)]

        return sections

    def restore(self, sections: Mapping[str, Sequence[pl.DataFrame]]) -> None:
        """Fill an empty table with what `snapshot` wrote, here and elsewhere."""
        frames = [frame.drop(KEY_GROUP) for frame in sections.get(self._state, ()) if frame.height]
        chunks = [frame for frame in frames if are_numbered(frame)]
        for frame in frames:
            if not are_numbered(frame):
                self._table.take(frame)
        if chunks and (there := rows_of_chunks(chunks)).height:
            self._table.take(there)


def are_numbered(frame: pl.DataFrame) -> bool:
    """Whether it is a chunk of such a table."""
    return NUMBER in frame.columns


def rows_of_chunks(chunks: Sequence[pl.DataFrame]) -> pl.DataFrame:
    """What is there after all of these, in the order in which rows came."""
    latest = pl.concat(chunks).unique([_WRITER, NUMBER], keep="last", maintain_order=True)
    # By number: rows of a key that came first are first.
    return latest.filter(~pl.col(GONE)).sort(_WRITER, NUMBER).drop(_WRITER, NUMBER, GONE)


def _section(state: str, frame: pl.DataFrame) -> Section:
    return Section(state, Redistribution.KEYED, frame)
