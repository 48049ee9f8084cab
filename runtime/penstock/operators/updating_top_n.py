"""Top-n over rows that are taken back: the first rows of each key, of those that are there.

Owns: all rows (state "rows"), since any may be among the first when others go. Each batch looks only at the keys that
it has: what their first rows were, and what they are.
"""

from collections.abc import Mapping, Sequence

import numpy as np
import numpy.typing as npt
import polars as pl

from penstock.model.changes import CHANGE, DELETE, INSERT, UPDATE
from penstock.model.ids import CheckpointId
from penstock.model.schemas import polars_schema
from penstock.model.specs import TopN
from penstock.operators.base import Operator, Snapshot
from penstock.operators.changes import marked
from penstock.operators.keyed_rows import KeyedRows
from penstock.operators.top_n import STATE, Order
from penstock.state.multisets import Multiset

_RANK, _WEIGHT, _ROW = "__rank", "__weight", "__row"


class UpdatingTopN(Operator):
    """The first rows of all that are there."""

    def __init__(self, spec: TopN) -> None:
        self._rank, self._order = spec.rank, Order(spec)
        self._columns = [name for name in polars_schema(spec.output) if name not in (CHANGE, spec.rank)]
        self._rows = Multiset(self._columns, spec.keys)
        self._kept = KeyedRows(STATE, self._rows.table, keys=spec.keys)

    def on_batch(self, frame: pl.DataFrame, port: int = 0) -> None:
        """Emit what is otherwise among the first rows of the keys that the batch has."""
        keys = frame[self._order.keys].unique(maintain_order=True) if self._order.keys else frame.head(1)
        before = self._first(keys, frame)
        weights = np.where(frame.get_column(CHANGE).to_numpy() == DELETE, np.int64(-1), np.int64(1))
        self._rows.change(frame, weights)
        after = self._first(keys, frame)
        self.context.counters.state_rows = len(self._rows)
        if self._rank is None:
            self._emit_rows(before, after)
        else:
            self._emit_ranks(self._rank, before, after)

    def _first(self, keys: pl.DataFrame, like: pl.DataFrame) -> pl.DataFrame:
        """The first rows of these keys, each with its rank from 1 on."""
        rows = self._rows.of(keys, most=self._order.n)
        if not rows.height:
            rows = like[self._columns].clear()
        kept, ranks = self._order.ranked(rows)
        return rows[kept].hstack([pl.Series(_RANK, ranks + 1)])

    def _emit_rows(self, before: pl.DataFrame, after: pl.DataFrame) -> None:
        weights = np.repeat(np.array([-1, 1]), [before.height, after.height])
        both = pl.concat([before, after]).drop(_RANK).hstack([pl.Series(_WEIGHT, weights)])
        net = both.group_by(self._columns, maintain_order=True).agg(pl.col(_WEIGHT).sum())
        counts, rows = net.get_column(_WEIGHT).to_numpy(), net[self._columns]
        numbers = np.arange(net.height)
        self.output.emit(marked(rows[np.repeat(numbers, np.maximum(-counts, 0))], DELETE))
        self.output.emit(marked(rows[np.repeat(numbers, np.maximum(counts, 0))], INSERT))

    def _emit_ranks(self, rank: str, before: pl.DataFrame, after: pl.DataFrame) -> None:
        by = [*self._order.keys, _RANK]
        vacant = before.join(after, on=by, how="anti", nulls_equal=True)
        self._emit_ranked(rank, vacant, np.full(vacant.height, DELETE, np.int8))
        moved = after.join(before, on=after.columns, how="anti", nulls_equal=True, maintain_order="left")
        replaced = moved[by].with_row_index(_ROW).join(before[by], on=by, how="semi", nulls_equal=True)
        changes = np.full(moved.height, INSERT, np.int8)
        changes[replaced.get_column(_ROW).to_numpy()] = UPDATE
        self._emit_ranked(rank, moved, changes)

    def _emit_ranked(self, rank: str, rows: pl.DataFrame, changes: npt.NDArray[np.int8]) -> None:
        ranks = rows.get_column(_RANK).alias(rank)
        self.output.emit(pl.DataFrame([pl.Series(CHANGE, changes), *rows[self._columns].get_columns(), ranks]))

    def snapshot(self, checkpoint: CheckpointId) -> Snapshot:
        """Keep references to the rows."""
        return self._kept.snapshot(self.context)

    def restore(self, sections: Mapping[str, Sequence[pl.DataFrame]]) -> None:
        """Take the rows of own keys."""
        self._kept.restore(sections)
        self.context.counters.state_rows = len(self._rows)
