"""Window joins: rows of both sides with equal keys in the same window, emitted once when the window is complete.

Owns: the rows of both sides by pane (states "left", "right"), and how far windows have fired (state "progress").
Rows are kept as they came; the join itself is made once, when the window fires. A row whose windows have all fired is
late: dropped and counted.
"""

from collections.abc import Mapping, Sequence

import numpy as np
import polars as pl

from penstock.model.clocks import MAX_WATERMARK, MIN_WATERMARK
from penstock.model.handles import Redistribution
from penstock.model.ids import CheckpointId
from penstock.model.schemas import polars_schema
from penstock.model.specs import EventTime, Join, WindowMatch
from penstock.operators.base import Operator, Section, Snapshot
from penstock.operators.join_rows import (
    LEFT,
    RIGHT,
    JoinRows,
    Rows,
    progress_section,
    restored_progress,
    without,
)
from penstock.operators.panes import Panes, event_times, time_column
from penstock.state.bins import Bins, cut
from penstock.state.key_groups import KEY_GROUP, sort_by_group

STATES = ("left", "right")

_PANE = "__pane"
_EMIT_ROWS = 65_536


class WindowJoin(Operator):
    """Tumbling and sliding windows over event time."""

    def __init__(self, spec: Join, match: WindowMatch) -> None:
        assert spec.left_time is not None, "a window join goes by event time"
        assert spec.right_time is not None, "a window join goes by event time"
        self._spec, self._rows = spec, JoinRows(spec)
        self._times: tuple[EventTime, EventTime] = (spec.left_time, spec.right_time)
        self._panes = Panes.of(match.assigner)
        self._types = polars_schema(spec.output)
        self._bins = (Bins(_as_they_are, _as_they_are), Bins(_as_they_are, _as_they_are))
        self._watermark = MIN_WATERMARK
        self._next_end: int | None = None

    def on_batch(self, frame: pl.DataFrame, port: int = 0) -> None:
        """Put the rows in their panes."""
        times = event_times(frame, self._times[port], self.context.uid)
        for pane, rows in cut(frame, times, self._panes.length, self._panes.offset):
            end = self._panes.next_end(pane, self._watermark)
            if end is not None:
                self._bins[port].add(pane, rows)
                self._next_end = end if self._next_end is None else min(self._next_end, end)
            elif self._panes.window_ends(pane):
                self.context.counters.late_rows += rows.height
        self._count()

    def on_watermark(self, watermark: int) -> int:
        """Fire what is complete."""
        if watermark > self._watermark:
            if self._next_end is not None and self._next_end - 1 <= watermark:
                self._fire(watermark)
            self._watermark = watermark
        return watermark

    def due(self) -> int | None:
        """The end of the next window."""
        return None if self._next_end is None else self._next_end - 1

    def on_end(self) -> None:
        """Fire everything."""
        self.on_watermark(MAX_WATERMARK)

    def _fire(self, watermark: int) -> None:
        held = {pane for bins in self._bins for pane in bins}
        ends = sorted({end for pane in held for end in self._panes.ends_between(pane, self._watermark, watermark)})
        for end in ends:
            inside = sorted(pane for pane in held if end - self._panes.size <= pane < end)
            self._emit(end, *(self._gathered(bins, inside) for bins in self._bins))
        for bins in self._bins:
            for pane in [pane for pane in bins if self._panes.next_end(pane, watermark) is None]:
                bins.remove(pane)
        remaining = (self._panes.next_end(pane, watermark) for bins in self._bins for pane in bins)
        self._next_end = min((end for end in remaining if end is not None), default=None)
        self._count()

    def _gathered(self, bins: Bins, panes: Sequence[int]) -> pl.DataFrame | None:
        frames = bins.partials([pane for pane in panes if pane in bins])
        return (frames[0] if len(frames) == 1 else pl.concat(frames)) if frames else None

    def _emit(self, end: int, left: pl.DataFrame | None, right: pl.DataFrame | None) -> None:
        how = self._spec.how
        if left is not None and right is not None:
            pairs = self._rows.pairs(left, right)
        else:
            pairs = (np.empty(0, np.int64), np.empty(0, np.int64))
        if left is not None and right is not None and how not in ("semi", "anti"):
            self._emit_columns(end, self._rows.matched(left[pairs[LEFT]], right[pairs[RIGHT]]))
        if left is not None and how == "semi":
            self._emit_alone(end, left, LEFT, np.unique(pairs[LEFT]))
        if left is not None and how in ("left", "full", "anti"):
            self._emit_alone(end, left, LEFT, without(left.height, pairs[LEFT]))
        if right is not None and how in ("right", "full"):
            self._emit_alone(end, right, RIGHT, without(right.height, pairs[RIGHT]))

    def _emit_alone(self, end: int, rows: pl.DataFrame, side: int, numbers: Rows) -> None:
        self._emit_columns(end, self._rows.alone(rows[numbers], side))

    def _emit_columns(self, end: int, columns: Sequence[pl.Series]) -> None:
        height = len(columns[0]) if columns else 0
        made = {column.name: column for column in columns}
        unit = self._times[LEFT].unit
        for name, bound in (("window_start", end - self._panes.size), ("window_end", end)):
            if name in self._types and name not in made:
                made[name] = time_column(np.full(height, bound, np.int64), self._types[name], unit, name)
        result = pl.DataFrame([made[name] for name in self._types])
        for piece in result.iter_slices(_EMIT_ROWS):
            self.output.emit(piece)

    def _count(self) -> None:
        self.context.counters.state_rows = sum(bins.rows for bins in self._bins)

    # ------------------------------------------------------------ state

    def snapshot(self, checkpoint: CheckpointId) -> Snapshot:
        """Keep references to the panes; they are sorted later."""
        frozen, progress = [bins.freeze() for bins in self._bins], progress_section(self._watermark, self.context)
        max_parallelism = self.context.max_parallelism

        def sections() -> Sequence[Section]:
            written = [progress]
            for state, keys, panes in zip(STATES, self._rows.on, frozen, strict=True):
                rows = [frame.with_columns(pl.lit(pane, pl.Int64).alias(_PANE)) for pane, frame in panes()]
                if rows:
                    frame = sort_by_group(pl.concat(rows), keys, max_parallelism)
                    written.append(Section(state, Redistribution.KEYED, frame))
            return written

        return sections

    def restore(self, sections: Mapping[str, Sequence[pl.DataFrame]]) -> None:
        """Take the rows of own keys."""
        self._watermark = restored_progress(sections, self.context)
        for state, bins in zip(STATES, self._bins, strict=True):
            for frame in sections.get(state, ()):
                if frame.height:
                    for pane, rows in cut(frame.drop(KEY_GROUP, _PANE), frame.get_column(_PANE).to_numpy(), 1):
                        bins.add(pane, rows)
        ends = (self._panes.next_end(pane, self._watermark) for bins in self._bins for pane in bins)
        self._next_end = min((end for end in ends if end is not None), default=None)
        self._count()


def _as_they_are(groups: Sequence[pl.DataFrame]) -> list[pl.DataFrame]:
    return list(groups)
