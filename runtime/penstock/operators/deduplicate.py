"""Deduplication: of the rows with equal keys the first, or the last.

Owns: the keys that came (state "seen"), and with keep-first by event time the earliest row of each key that waits for
the watermark (state "waiting"), with event time (state "progress").

First by arrival: a row passes when its key is new. First by event time: the earliest row of a key passes when the
watermark says that none before it can come; rows behind the watermark are late, dropped and counted. Last: a row
passes and replaces the one before of its key; by event time, unless that is later.
"""

from collections.abc import Mapping, Sequence

import numpy as np
import numpy.typing as npt
import polars as pl

from penstock.model.changes import CHANGE, INSERT, UPDATE
from penstock.model.clocks import MAX_WATERMARK, MIN_WATERMARK
from penstock.model.ids import CheckpointId
from penstock.model.specs import Deduplicate
from penstock.operators.base import Operator, OperatorContext, Output, Snapshot
from penstock.operators.expiry import Expiry
from penstock.operators.join_rows import progress_section, restored_progress
from penstock.operators.keyed_rows import KeyedRows
from penstock.operators.panes import event_times
from penstock.state.tables import NONE, KeyedTable, Slots

SEEN, WAITING = "seen", "waiting"

_TIME, _ROW = "__time", "__row"


class DeduplicateOperator(Operator):
    """Keeps one row per key."""

    def __init__(self, spec: Deduplicate) -> None:
        self._spec, self._keys = spec, list(spec.keys)
        self._by_time = spec.event_time if spec.by_event_time else None
        self._seen, self._waiting = KeyedTable(spec.keys), KeyedTable(spec.keys)
        self._kept = [KeyedRows(SEEN, self._seen), KeyedRows(WAITING, self._waiting)]
        self._watermark = MIN_WATERMARK

    def open(self, context: OperatorContext, output: Output) -> None:
        """Remember where it runs."""
        super().open(context, output)
        self._expiry = Expiry(self._spec.ttl, context.clock, context.uid)

    def on_batch(self, frame: pl.DataFrame, port: int = 0) -> None:
        """Pass on, replace or drop the rows."""
        self._sweep()
        if self._spec.keep == "last":
            self._last(frame)
        elif self._by_time is None:
            self._first(frame)
        else:
            self._first_in_time(frame)
        self._count()

    def _first(self, frame: pl.DataFrame) -> None:
        first = frame[_one_of_each(frame, self._keys, keep="first")]
        slots = self._seen.find(first, expired=self._expiry.expired)
        fresh = np.flatnonzero(slots == NONE)
        if len(fresh):
            rows = first[fresh]
            self._seen.put(rows[self._keys], slots[fresh], self._expiry.written(rows))
            self.output.emit(rows)

    def _last(self, frame: pl.DataFrame) -> None:
        times = self._times(frame)
        order = np.argsort(times, kind="stable") if self._by_time is not None else None
        last = _one_of_each(frame, self._keys, keep="last", order=order)
        rows, times = frame[last], times[last]
        slots = self._seen.find(rows, expired=self._expiry.expired)
        if self._by_time is not None and (known := np.flatnonzero(slots != NONE)).size:
            held = self._seen.rows(slots[known], [_TIME]).get_column(_TIME).to_numpy()
            newer = np.ones(rows.height, np.bool_)
            newer[known] = times[known] >= held
            kept = np.flatnonzero(newer)
            rows, times, slots = rows[kept], times[kept], slots[kept]
        if not rows.height:
            return
        self._seen.put(rows[self._keys].hstack([pl.Series(_TIME, times)]), slots, self._expiry.written(rows))
        changes = np.where(slots == NONE, np.int8(INSERT), np.int8(UPDATE))
        self.output.emit(pl.DataFrame([pl.Series(CHANGE, changes), *rows.get_columns()]))

    def _first_in_time(self, frame: pl.DataFrame) -> None:
        times = self._times(frame)
        in_time = np.flatnonzero(times > self._watermark)
        self.context.counters.late_rows += frame.height - len(in_time)
        frame, times = frame[in_time], times[in_time]
        first = _one_of_each(frame, self._keys, keep="first", order=np.argsort(times, kind="stable"))
        rows, times = frame[first], times[first]
        unseen = np.flatnonzero(self._seen.find(rows, expired=self._expiry.expired) == NONE)
        rows, times = rows[unseen], times[unseen]
        slots = self._waiting.find(rows)
        earlier = np.ones(rows.height, np.bool_)
        known = np.flatnonzero(slots != NONE)
        earlier[known] = times[known] < self._waiting.written(slots[known])
        kept = np.flatnonzero(earlier)
        self._waiting.put(rows[kept], slots[kept], times[kept])

    def on_watermark(self, watermark: int) -> int:
        """Rows that nothing can precede any more pass."""
        self._watermark = max(self._watermark, watermark)
        self._expiry.on_watermark(watermark)
        self._sweep()
        if self._by_time is not None and self._spec.keep == "first":
            rows = self._waiting.expire(self._watermark)
            if rows is not None:
                self._seen.put(rows[self._keys], self._seen.find(rows), self._expiry.written(rows))
                self.output.emit(rows)
        self._count()
        return watermark

    def on_end(self) -> None:
        """Nothing comes any more."""
        self.on_watermark(MAX_WATERMARK)

    def _times(self, frame: pl.DataFrame) -> npt.NDArray[np.int64]:
        if self._by_time is None:
            return np.zeros(frame.height, np.int64)
        return event_times(frame, self._by_time, self.context.uid)

    def _sweep(self) -> None:
        if (expired := self._expiry.sweep()) is not None:
            self._seen.expire(expired)

    def _count(self) -> None:
        self.context.counters.state_rows = len(self._seen) + len(self._waiting)

    def snapshot(self, checkpoint: CheckpointId) -> Snapshot:
        """Keep references to the keys and rows."""
        parts = [kept.snapshot(self.context) for kept in self._kept]
        progress = progress_section(self._watermark, self.context)

        return lambda: [progress, *(section for part in parts for section in part())]

    def restore(self, sections: Mapping[str, Sequence[pl.DataFrame]]) -> None:
        """Take what belongs to own keys."""
        self._watermark = restored_progress(sections, self.context)
        for kept in self._kept:
            kept.restore(sections)
        self._count()


def _one_of_each(frame: pl.DataFrame, keys: Sequence[str], *, keep: str, order: Slots | None = None) -> Slots:
    """Numbers of the first or last row of each key: as they came, or in the order that is given."""
    numbers = np.arange(frame.height, dtype=np.int64) if order is None else order
    ordered = frame[list(keys)] if order is None else frame[list(keys)][order]
    numbered = ordered.hstack([pl.Series(_ROW, numbers)])
    chosen = numbered.unique(subset=list(keys), keep="last" if keep == "last" else "first", maintain_order=True)
    return chosen.get_column(_ROW).to_numpy()
