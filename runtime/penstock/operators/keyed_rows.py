"""Keyed tables as the state of an operator: how they are written into snapshots and read back."""

from collections.abc import Mapping, Sequence

import numpy as np
import polars as pl

from penstock.model.handles import Redistribution
from penstock.operators.base import Section, Snapshot
from penstock.state.key_groups import KEY_GROUP, sort_by_group
from penstock.state.tables import NONE, KeyedTable

WRITTEN = "__written"
"""Beside the columns of a row: when it was written."""


def snapshot(state: str, table: KeyedTable, max_parallelism: int) -> Snapshot:
    """The table as it is now, as one keyed section."""
    frozen, keys = table.freeze(), table.keys

    def sections() -> Sequence[Section]:
        held = frozen()
        if held is None:
            return ()
        frame = held[0].hstack([pl.Series(WRITTEN, held[1])])
        return (Section(state, Redistribution.KEYED, sort_by_group(frame, keys, max_parallelism)),)

    return sections


def restore(sections: Mapping[str, Sequence[pl.DataFrame]], state: str, table: KeyedTable) -> None:
    """Fill an empty table with what `snapshot` wrote, here and elsewhere."""
    for frame in sections.get(state, ()):
        rows = frame.drop(KEY_GROUP, WRITTEN)
        if rows.height:
            table.put(rows, np.full(rows.height, NONE, np.int64), frame.get_column(WRITTEN).to_numpy())
