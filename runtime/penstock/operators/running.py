"""Running aggregates: one result per key over all rows so far.

Owns: the partial results by key (state "results"). Each batch emits the new result of every key it touched, marked as
an insert where the key is new and as an update where it is not. Without a time to live the state has one row for
each key that ever came.
"""

from collections.abc import Mapping, Sequence

import numpy as np
import numpy.typing as npt
import polars as pl

from penstock.model import specs
from penstock.model.changes import CHANGE, INSERT, UPDATE
from penstock.model.ids import CheckpointId
from penstock.operators.aggregates import Aggregation
from penstock.operators.base import Operator, OperatorContext, Output, Snapshot
from penstock.operators.expiry import Expiry
from penstock.operators.keyed_rows import KeyedRows
from penstock.operators.panes import event_times
from penstock.state.tables import NONE, KeyedTable

STATE = "results"

_LAST = "__last"
"""When a key last had a row."""


class RunningAggregate(Operator):
    """Aggregates over everything, by key."""

    def __init__(self, spec: specs.RunningAggregate) -> None:
        self._spec = spec
        self._aggregation = Aggregation(spec.keys, spec.aggregates)
        self._table = KeyedTable(spec.keys)
        self._kept = KeyedRows(STATE, self._table)

    def open(self, context: OperatorContext, output: Output) -> None:
        """Remember where it runs."""
        super().open(context, output)
        self._expiry = Expiry(self._spec.ttl, context.clock, context.uid)

    def on_batch(self, frame: pl.DataFrame, port: int = 0) -> None:
        """Merge the rows into the results of their keys."""
        self._sweep()
        times = self._times(frame)
        (fresh,) = self._aggregation.fold([self._aggregation.prepare(frame, times, self.context.uid)])
        expired = self._expiry.expired
        slots = self._table.find(fresh, expired=expired)
        if (known := slots[slots != NONE]).size:
            held = self._table.rows(known)
            (fresh,) = self._aggregation.merge([pl.concat([held, fresh[held.columns]], rechunk=True)])
            slots = self._table.find(fresh, expired=expired)
        self._table.put(fresh, slots, self._written(frame, fresh, slots))
        self.context.counters.state_rows = len(self._table)
        changes = np.where(slots == NONE, np.int8(INSERT), np.int8(UPDATE))
        keys = [fresh.get_column(key) for key in self._spec.keys]
        results = self._aggregation.results(fresh)
        self.output.emit(pl.DataFrame([pl.Series(CHANGE, changes), *keys, *results]))

    def on_watermark(self, watermark: int) -> int:
        """What is old enough is forgotten."""
        self._expiry.on_watermark(watermark)
        self._sweep()
        return watermark

    def _times(self, frame: pl.DataFrame) -> npt.NDArray[np.int64]:
        if self._spec.event_time is None:
            return np.zeros(frame.height, np.int64)
        return event_times(frame, self._spec.event_time, self.context.uid)

    def _written(
        self, frame: pl.DataFrame, fresh: pl.DataFrame, slots: npt.NDArray[np.int64]
    ) -> npt.NDArray[np.int64] | int:
        """The latest time of each key's rows."""
        if self._spec.ttl is None:
            return 0
        keys = list(self._spec.keys)
        rows = frame[keys].hstack([pl.Series(_LAST, self._expiry.written(frame))])
        latest = rows.select(pl.col(_LAST).max())
        if keys:
            by_key = rows.group_by(keys).agg(pl.col(_LAST).max())
            latest = fresh[keys].join(by_key, on=keys, how="left", nulls_equal=True, maintain_order="left")
        times = latest.get_column(_LAST).to_numpy().copy()
        known = slots != NONE
        times[known] = np.maximum(times[known], self._table.written(slots[known]))
        return times

    def _sweep(self) -> None:
        if (expired := self._expiry.sweep()) is not None:
            self._table.expire(expired)
            self.context.counters.state_rows = len(self._table)

    def snapshot(self, checkpoint: CheckpointId) -> Snapshot:
        """Keep references to the partial results."""
        return self._kept.snapshot(self.context)

    def restore(self, sections: Mapping[str, Sequence[pl.DataFrame]]) -> None:
        """Take the partial results of own keys."""
        self._kept.restore(sections)
        self.context.counters.state_rows = len(self._table)
