"""Changes of rows as rows: what an update replaced is looked up, and taken back explicitly.

Owns: the last row of each key (state "rows"). After it a stream has inserts and deletes only, so that filters and
projections need not know what was there before.
"""

from collections.abc import Mapping, Sequence

import numpy as np
import numpy.typing as npt
import polars as pl

from penstock.model import specs
from penstock.model.changes import CHANGE, DELETE, INSERT
from penstock.model.ids import CheckpointId
from penstock.operators.base import Operator, Snapshot
from penstock.operators.keyed_rows import KeyedRows
from penstock.state.tables import NONE, KeyedTable

STATE = "rows"


class Retract(Operator):
    """Each update as a delete of the old row and an insert of the new one."""

    def __init__(self, spec: specs.Retract) -> None:
        self._keys = list(spec.keys)
        self._table = KeyedTable(spec.keys)
        self._kept = KeyedRows(STATE, self._table)

    def on_batch(self, frame: pl.DataFrame, port: int = 0) -> None:
        """Emit what the rows change: of several changes of a key in one batch only what they come to."""
        last = frame[last_of_each(frame, self._keys)]
        deleted = last.get_column(CHANGE).to_numpy() == DELETE
        slots = self._table.find(last)
        known = slots != NONE
        old = self._table.rows(slots[known]) if known.any() else None
        self._table.remove(slots[known & deleted])
        staying = np.flatnonzero(~deleted)
        rows = last.drop(CHANGE)[staying]
        self._table.put(rows, slots[staying])
        self.context.counters.state_rows = len(self._table)
        if old is not None:
            self.output.emit(marked(old, DELETE))
        self.output.emit(marked(rows, INSERT))

    def snapshot(self, checkpoint: CheckpointId) -> Snapshot:
        """Keep references to the rows."""
        return self._kept.snapshot(self.context)

    def restore(self, sections: Mapping[str, Sequence[pl.DataFrame]]) -> None:
        """Take the rows of own keys."""
        self._kept.restore(sections)
        self.context.counters.state_rows = len(self._table)


def marked(rows: pl.DataFrame, change: int) -> pl.DataFrame:
    """The rows, all with the same change."""
    return pl.DataFrame([pl.Series(CHANGE, np.full(rows.height, change, np.int8)), *rows.get_columns()])


def last_of_each(frame: pl.DataFrame, keys: Sequence[str]) -> npt.NDArray[np.int64]:
    """Numbers of the last row of each key, in their order."""
    if not keys:
        return np.array([frame.height - 1], np.int64)
    numbers = pl.Series("__row", np.arange(frame.height, dtype=np.int64))
    last = frame[list(keys)].hstack([numbers]).unique(subset=list(keys), keep="last", maintain_order=True)
    return last.get_column("__row").to_numpy()
