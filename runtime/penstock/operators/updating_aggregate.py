"""Running aggregates over rows that are taken back: each row that came is an insert or a delete.

Owns: the results of each key (state "results"), with the number of its rows, and for aggregates that cannot be
subtracted the rows themselves (state "rows"). Sums, counts, means and variances are subtracted. The others are
computed anew from the rows of a key, but only when a row of it has gone that mattered. A key without rows is deleted.
"""

from collections.abc import Mapping, Sequence

import numpy as np
import numpy.typing as npt
import polars as pl

from penstock.model import specs
from penstock.model.changes import CHANGE, DELETE, INSERT, UPDATE
from penstock.model.ids import CheckpointId
from penstock.operators.aggregates import Aggregation
from penstock.operators.base import Operator, Snapshot
from penstock.operators.keyed_rows import KeyedRows
from penstock.operators.panes import event_times
from penstock.state.multisets import Multiset
from penstock.state.tables import NONE, KeyedTable

RESULTS, ROWS = "results", "rows"

_COUNT = specs.Aggregate(name="__rows", function="count", output_type="Int64")
_ROWS_THERE = "____rows.count"
"""How many rows a key has: the partial column of `_COUNT`."""

Mask = npt.NDArray[np.bool_]


class UpdatingAggregate(Operator):
    """Aggregates over the rows that are there, by key."""

    def __init__(self, spec: specs.RunningAggregate) -> None:
        self._spec, self._keys = spec, list(spec.keys)
        sums = [each for each in spec.aggregates if each.function in specs.SUBTRACTED]
        others = [each for each in spec.aggregates if each.function not in specs.SUBTRACTED]
        self._sums = Aggregation(spec.keys, [_COUNT, *sums], negated=True)
        self._others = Aggregation(spec.keys, others) if others else None
        self._lone = all(each.function in ("min", "max") for each in others)
        self._extremes = [(f"__{each.name}.{each.function}", each.function) for each in others]
        self._table = KeyedTable(spec.keys)
        self._kept = [KeyedRows(RESULTS, self._table)]
        if self._others is not None:
            self._rows = Multiset(self._others.prepared_columns, spec.keys)
            self._kept.append(KeyedRows(ROWS, self._rows.table, keys=spec.keys))

    def on_batch(self, frame: pl.DataFrame, port: int = 0) -> None:
        """Add what came, take back what went, and emit the results of the keys that had either."""
        went = frame.get_column(CHANGE).to_numpy() == DELETE
        rows = frame.drop(CHANGE)
        changed = self._changed(rows, went)
        slots = self._table.find(changed)
        held = self._table.rows(slots[slots != NONE]) if (slots != NONE).any() else None
        if self._others is not None:
            changed = changed.hstack(self._recomputed(self._others, rows, went, changed[self._keys], held))
        there = changed.get_column(_ROWS_THERE).to_numpy() > 0
        self._emit(changed, slots, there, held)
        self._table.remove(slots[~there & (slots != NONE)])
        stays = np.flatnonzero(there)
        self._table.put(changed[stays], slots[stays])
        self.context.counters.state_rows = len(self._table) + (len(self._rows) if self._others is not None else 0)

    def _changed(self, rows: pl.DataFrame, went: Mask) -> pl.DataFrame:
        """The sums of the keys that the batch has, as they are after it."""
        came, gone = (self._folded(self._sums, half) for half in self._halves(self._sums, rows, went))
        parts = [came, self._sums.negated(gone)] if gone.height else [came]
        fresh = parts[0] if len(parts) == 1 else pl.concat(parts, rechunk=True)
        touched = fresh[self._keys].unique(maintain_order=True) if self._keys else fresh.head(1)
        slots = self._table.find(touched)
        if len(known := slots[slots != NONE]):
            fresh = pl.concat([self._table.rows(known, fresh.columns), fresh], rechunk=True)
        return fresh if fresh.height == touched.height else self._sums.merge([fresh])[0]

    def _halves(self, aggregation: Aggregation, rows: pl.DataFrame, went: Mask) -> list[pl.DataFrame]:
        """Prepared rows that come, and those that go."""
        times, event_time = np.zeros(rows.height, np.int64), self._spec.event_time
        if event_time is not None:
            times = event_times(rows, event_time, self.context.uid)
        prepared = aggregation.prepare(rows, times, self.context.uid)
        return [prepared.filter(~went), prepared.filter(went)]

    def _folded(self, aggregation: Aggregation, rows: pl.DataFrame) -> pl.DataFrame:
        """Without keys nothing has a result too, which is none here."""
        (partials,) = aggregation.fold([rows])
        return partials if rows.height else partials.clear()

    # ------------------------------------------------------------ what cannot be subtracted

    def _recomputed(
        self, others: Aggregation, rows: pl.DataFrame, went: Mask, keys: pl.DataFrame, held: pl.DataFrame | None
    ) -> list[pl.Series]:
        """Partial results of the keys, in their order; null where a key has no rows any more."""
        came, gone = self._halves(others, rows, went)
        self._rows.change(pl.concat([came, gone]), np.repeat(np.array([1, -1]), [came.height, gone.height]))
        partials = self._folded(others, came)
        if held is not None:
            (partials,) = others.merge([pl.concat([held[partials.columns], partials], rechunk=True)])
        if gone.height:
            partials = self._without(others, partials, gone, held)
        if self._keys:
            aligned = keys.join(partials, on=self._keys, how="left", nulls_equal=True, maintain_order="left")
            return aligned.drop(self._keys).get_columns()
        return partials.get_columns() if partials.height else [each.extend_constant(None, 1) for each in partials]

    def _without(
        self, others: Aggregation, partials: pl.DataFrame, gone: pl.DataFrame, held: pl.DataFrame | None
    ) -> pl.DataFrame:
        """The same, with those computed anew from which a row has gone that mattered."""
        lost = self._mattering(others, gone, held) if self._keys else gone.head(1)
        if not lost.height:
            return partials
        rows = self._rows.of(lost)
        kept = partials.join(lost, on=self._keys, how="anti", nulls_equal=True) if self._keys else partials.clear()
        return pl.concat([kept, others.fold([rows])[0][kept.columns]]) if rows.height else kept

    def _mattering(self, others: Aggregation, gone: pl.DataFrame, held: pl.DataFrame | None) -> pl.DataFrame:
        """Keys that lost more than rows inside of their extremes."""
        if not self._lone or held is None:
            return gone[self._keys].unique(maintain_order=True)
        (bounds,) = others.fold([gone])
        both = bounds.join(held, on=self._keys, how="left", nulls_equal=True, suffix=".held")
        inside = [
            (pl.col(name) > pl.col(f"{name}.held")) if kind == "min" else (pl.col(name) < pl.col(f"{name}.held"))
            for name, kind in self._extremes
        ]
        # Rows of nulls alone are not in the extremes at all.
        nothing = [pl.col(name).is_null() for name, _ in self._extremes]
        safe = pl.all_horizontal(
            *((is_inside | is_null).fill_null(False) for is_inside, is_null in zip(inside, nothing, strict=True))
        )
        return both.filter(~safe)[self._keys]

    # ------------------------------------------------------------ results

    def _emit(
        self, changed: pl.DataFrame, slots: npt.NDArray[np.int64], there: Mask, held: pl.DataFrame | None
    ) -> None:
        known = slots != NONE
        if held is not None and (gone := ~there[known]).any():
            self._emit_rows(held.filter(gone), np.full(int(gone.sum()), DELETE, np.int8))
        if there.any():
            stays = np.flatnonzero(there)
            self._emit_rows(changed[stays], np.where(known[stays], np.int8(UPDATE), np.int8(INSERT)))

    def _emit_rows(self, partials: pl.DataFrame, changes: npt.NDArray[np.int8]) -> None:
        made = {column.name: column for column in self._sums.results(partials)}
        if self._others is not None:
            made |= {column.name: column for column in self._others.results(partials)}
        keys = [partials.get_column(key) for key in self._keys]
        results = [made[each.name] for each in self._spec.aggregates]
        self.output.emit(pl.DataFrame([pl.Series(CHANGE, changes), *keys, *results]))

    # ------------------------------------------------------------ state

    def snapshot(self, checkpoint: CheckpointId) -> Snapshot:
        """Keep references to results and rows."""
        parts = [kept.snapshot(self.context) for kept in self._kept]
        return lambda: [section for part in parts for section in part()]

    def restore(self, sections: Mapping[str, Sequence[pl.DataFrame]]) -> None:
        """Take what belongs to own keys."""
        for kept in self._kept:
            kept.restore(sections)
