"""Rows that come and go, by group: what must be there to compute a result anew when a row is taken back.

Owns: each distinct row once, how often it is there, and which rows a group has. A row is known by its values; which of
several equal ones goes makes no difference. Rows of a group are in the order in which they first came.
"""

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt
import polars as pl

from penstock.state.tables import NONE, KeyedTable

_COUNT = "__count"

Counts = npt.NDArray[np.int64]


class Multiset:
    """Rows of these columns, by those of them that name the group."""

    def __init__(self, columns: Sequence[str], groups: Sequence[str]) -> None:
        self.columns, self.groups = list(columns), list(groups)
        self.table = KeyedTable(self.columns, groups=self.groups)

    def __len__(self) -> int:
        return len(self.table)

    def change(self, rows: pl.DataFrame, by: Counts) -> None:
        """So many more of each row, or fewer. More than there are cannot go: the rest is ignored."""
        weighted = rows[self.columns].hstack([pl.Series(_COUNT, by)])
        net = weighted.group_by(self.columns, maintain_order=True).agg(pl.col(_COUNT).sum())
        slots = self.table.find(net)
        counts = net.get_column(_COUNT).to_numpy().copy()
        if len(known := np.flatnonzero(slots != NONE)):
            counts[known] += self.table.rows(slots[known], [_COUNT]).get_column(_COUNT).to_numpy()
        stays = counts > 0
        self.table.remove(slots[~stays & (slots != NONE)])
        there = np.flatnonzero(stays)
        self.table.put(net[self.columns][there].hstack([pl.Series(_COUNT, counts[there])]), slots[there])

    def of(self, groups: pl.DataFrame, *, most: int | None = None) -> pl.DataFrame:
        """All rows of these groups, each as often as it is there, but at most so often."""
        slots = self.table.members(groups)
        if not len(slots):
            return pl.DataFrame()
        rows = self.table.rows(slots)
        counts = rows.get_column(_COUNT).to_numpy()
        if most is not None:
            counts = np.minimum(counts, most)
        rows = rows[self.columns]
        return rows if (counts == 1).all() else rows[np.repeat(np.arange(rows.height), counts)]
