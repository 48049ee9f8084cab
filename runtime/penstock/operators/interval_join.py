"""Interval joins: a right row from `lower` to `upper` later than a left row with the same keys.

Owns: the rows of both sides that can still find a match (states "left", "right"), with a mark on those that have found
one, and event time (state "progress"). Matches leave as soon as both rows are there; rows without one, where they are
asked for, when none can come any more. Late rows, at or behind the watermark, are dropped and counted.

The watermark is held back so far that no result is late by the event time that the result has: that of its left row
(of a right join: of its right row).
"""

from collections.abc import Mapping, Sequence

import numpy as np
import numpy.typing as npt
import polars as pl

from penstock.model.clocks import MAX_WATERMARK, MIN_WATERMARK
from penstock.model.ids import CheckpointId
from penstock.model.specs import EventTime, IntervalMatch, Join
from penstock.operators.base import Operator, Snapshot
from penstock.operators.join_rows import (
    LEFT,
    RIGHT,
    JoinRows,
    Rows,
    chosen,
    progress_section,
    restored_progress,
)
from penstock.operators.keyed_rows import KeyedRows
from penstock.operators.panes import event_times
from penstock.state.row_stores import RowStore
from penstock.state.tables import NEVER

STATES = ("left", "right")

_SWEEPS = 8
"""Rows that nobody waits for are looked for this often while a row lives."""


class IntervalJoin(Operator):
    """Matches rows that are near in time."""

    def __init__(self, spec: Join, match: IntervalMatch) -> None:
        assert spec.left_time is not None, "an interval join goes by event time"
        assert spec.right_time is not None, "an interval join goes by event time"
        self._spec, self._rows = spec, JoinRows(spec)
        self._times: tuple[EventTime, EventTime] = (spec.left_time, spec.right_time)
        self._lower, self._upper = match.lower_us, match.upper_us
        self._lifetime = (match.upper_us, -match.lower_us)
        """How far the watermark may be past a row of a side and new rows still match it."""
        self._waits = (spec.how in ("left", "full", "anti"), spec.how in ("right", "full"))
        """Rows of a side that found no match are emitted."""
        self._hold = {"right": max(0, -match.lower_us), "full": 0}.get(spec.how, max(0, match.upper_us))
        self._stores = (RowStore(spec.left_on), RowStore(spec.right_on))
        self._kept = [KeyedRows(state, store) for state, store in zip(STATES, self._stores, strict=True)]
        self._watermark = MIN_WATERMARK
        self._swept = [MIN_WATERMARK, MIN_WATERMARK]

    def on_batch(self, frame: pl.DataFrame, port: int = 0) -> None:
        """Emit the matches of the rows, and keep those that can find more."""
        times = event_times(frame, self._times[port], self.context.uid)
        if times.min() <= self._watermark:
            in_time = np.flatnonzero(times > self._watermark)
            self.context.counters.late_rows += frame.height - len(in_time)
            if not len(in_time):
                return
            frame, times = frame[in_time], times[in_time]
        other = self._stores[1 - port]
        positions, found = self._rows.find(other, frame, port, expired=NEVER)
        ahead = other.times(found) - times[positions] if port == LEFT else times[positions] - other.times(found)
        near = (ahead >= self._lower) & (ahead <= self._upper)
        positions, found = positions[near], found[near]
        marks = np.zeros(frame.height, np.bool_)
        marks[positions] = True
        if self._spec.how not in ("semi", "anti"):
            self._emit_pairs(frame, port, positions, found)
        elif port == LEFT:
            if self._spec.how == "semi":
                self._emit(self._rows.alone(frame[np.flatnonzero(marks)], LEFT))
            undecided = np.flatnonzero(~marks)
            frame, times, marks = frame[undecided], times[undecided], marks[undecided]
        elif len(decided := np.unique(found)):
            if self._spec.how == "semi":
                self._emit(self._rows.alone(other.rows(decided), LEFT))
            other.remove(decided)
        self._keep(frame, times, marks, port)
        self._count()

    def _emit_pairs(self, frame: pl.DataFrame, port: int, positions: Rows, found: Rows) -> None:
        if not len(found):
            return
        other = self._stores[1 - port]
        other.mark(found)
        given, held = chosen(frame, positions), other.rows(found)
        self._emit(self._rows.matched(given, held) if port == LEFT else self._rows.matched(held, given))

    def _keep(self, frame: pl.DataFrame, times: Rows, marks: npt.NDArray[np.bool_], port: int) -> None:
        """A row is kept while it can find a match, or until it is known that it has none."""
        worth = times + self._lifetime[port] > self._watermark
        if self._waits[port]:
            alone = np.flatnonzero(~worth & ~marks)
            self._emit(self._rows.alone(frame[alone], port))
        elif (usable := self._rows.with_keys(frame, port)) is not None:
            keyed = np.zeros(frame.height, np.bool_)
            keyed[usable] = True
            worth &= keyed
        kept = np.flatnonzero(worth)
        if len(kept):
            self._stores[port].add(frame[kept], times[kept], marks[kept])

    def on_watermark(self, watermark: int) -> int:
        """Forget rows that cannot match any more, and say which of them never did."""
        if watermark > self._watermark:
            self._watermark = watermark
            for side in (LEFT, RIGHT):
                self._sweep(side)
            self._count()
        return watermark if watermark == MAX_WATERMARK else max(MIN_WATERMARK, watermark - self._hold)

    def on_end(self) -> None:
        """Forget everything."""
        self.on_watermark(MAX_WATERMARK)

    def _sweep(self, side: int) -> None:
        step = 0 if self._waits[side] else (self._upper - self._lower) // _SWEEPS
        if self._watermark < self._swept[side] + step and self._watermark != MAX_WATERMARK:
            return
        self._swept[side] = self._watermark
        store = self._stores[side]
        gone = store.until(self._watermark - self._lifetime[side])
        if not len(gone):
            return
        if self._waits[side]:
            alone = gone[~store.marks(gone)]
            if len(alone):
                self._emit(self._rows.alone(store.rows(alone), side))
        store.remove(gone)

    def _emit(self, columns: Sequence[pl.Series]) -> None:
        if columns and len(columns[0]):
            self.output.emit(pl.DataFrame(columns))

    def _count(self) -> None:
        self.context.counters.state_rows = len(self._stores[LEFT]) + len(self._stores[RIGHT])

    # ------------------------------------------------------------ state

    def snapshot(self, checkpoint: CheckpointId) -> Snapshot:
        """Keep references to the rows."""
        progress = progress_section(self._watermark, self.context)
        parts = [kept.snapshot(self.context) for kept in self._kept]
        return lambda: [progress, *(section for part in parts for section in part())]

    def restore(self, sections: Mapping[str, Sequence[pl.DataFrame]]) -> None:
        """Take the rows of own keys."""
        self._watermark = restored_progress(sections, self.context)
        for kept in self._kept:
            kept.restore(sections)
        self._count()
