"""Windows: aggregates per key and window, emitted when the window is complete.

Owns: the panes' partial results (state "panes", by key group), and how far windows have fired (state "progress").
A window fires when the watermark (processing time: the clock) passes its end. With allowed lateness it is kept for
that long, and rows that still come make it fire again, for their keys alone: then the output is a stream of changes.
A row whose windows are all gone is late: counted, and dropped or sent to a side output. A row that is late for some of
its windows counts in the others.
"""

from bisect import bisect_left
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import polars as pl

from penstock.model import specs
from penstock.model.changes import CHANGE, INSERT, UPDATE
from penstock.model.clocks import MAX_WATERMARK, MIN_WATERMARK
from penstock.model.frames import stacked
from penstock.model.handles import Redistribution
from penstock.model.ids import CheckpointId
from penstock.model.schemas import polars_schema
from penstock.operators.aggregates import PANE, Aggregation
from penstock.operators.base import Operator, OperatorContext, Output, Section, Snapshot
from penstock.operators.panes import Panes, event_times, time_column
from penstock.operators.window_progress import progress_section, restored_time
from penstock.state.bins import Bins, cut
from penstock.state.key_groups import KEY_GROUP, sort_by_group

WINDOW_START, WINDOW_END = "window_start", "window_end"

_EMIT_ROWS = 65_536
_WINDOWS_AT_ONCE = 64
_UNKEYED_FOLD_ROWS = 16_384
"""Without keys a fold leaves one row, so it pays as soon as the rows outweigh the call."""


class WindowAggregate(Operator):
    """Tumbling and sliding windows over event time or processing time."""

    def __init__(self, spec: specs.WindowAggregate) -> None:
        self._spec = spec
        self._panes = Panes.of(spec.assigner)
        self._aggregation = Aggregation(spec.keys, spec.aggregates)
        self._types = polars_schema(spec.output)
        self._lateness = spec.allowed_lateness_us
        self._bins = self._empty_bins()
        self._watermark = MIN_WATERMARK
        """Windows with `end - 1` up to here have fired."""
        self._next_end: int | None = None
        """End of the first window that will fire, of those that have rows."""

    def open(self, context: OperatorContext, output: Output) -> None:
        """Remember where it runs."""
        super().open(context, output)
        self._own_groups = context.groups

    # ------------------------------------------------------------ rows in

    def on_batch(self, frame: pl.DataFrame, port: int = 0) -> None:
        """Put the rows in their panes."""
        partial = self._spec.input_is_partial
        times = frame.get_column(PANE).to_numpy() if partial else self._times(frame)
        if self._spec.late_to:
            frame, times = self._without_late(frame, times)
            if frame.is_empty():
                return
        if partial:
            rows = frame[[*self._spec.keys, *self._aggregation.partial_columns]]
        else:
            rows = self._aggregation.prepare(frame, times, self.context.uid)
        parts = [part for part in cut(rows, times, self._panes.length, self._panes.offset) if self._is_open(*part)]
        again = self._reopened(parts) if self._lateness else None
        for pane, part in parts if partial else self._aggregation.relevant(parts):
            self._bins.add(pane, part)
        if again:
            self._fire_again(again)
        self.context.counters.state_rows = self._bins.rows

    def _without_late(
        self, frame: pl.DataFrame, times: npt.NDArray[np.int64]
    ) -> tuple[pl.DataFrame, npt.NDArray[np.int64]]:
        """Rows whose windows are all gone leave by the side output."""
        gone = self._watermark - self._lateness
        if int(times.min()) > gone:
            return frame, times
        late = self._panes.all_complete(times, gone)
        self.context.counters.late_rows += int(late.sum())
        self.output.emit_side(self._spec.late_to, frame.filter(late))
        return frame.filter(~late), times[~late]

    def _times(self, frame: pl.DataFrame) -> npt.NDArray[np.int64]:
        if self._spec.event_time is not None:
            return event_times(frame, self._spec.event_time, self.context.uid)
        # The clock may jump back; a window that has fired stays as it is.
        now = max(self.context.clock.now_us(), self._watermark + 1)
        return np.full(frame.height, now, np.int64)

    def _is_open(self, pane: int, rows: pl.DataFrame) -> bool:
        """Whether a window of the pane will still fire, or fire again; if not, the rows are late."""
        end = self._panes.next_end(pane, self._watermark)
        if end is not None:
            self._next_end = end if self._next_end is None else min(self._next_end, end)
        elif self._lateness and self._is_kept(pane):
            return True
        elif self._panes.window_ends(pane):
            self.context.counters.late_rows += rows.height
        return end is not None

    # ------------------------------------------------------------ late rows

    def _is_kept(self, pane: int) -> bool:
        return self._panes.next_end(pane, self._watermark - self._lateness) is not None

    def _reopened(self, parts: Sequence[tuple[int, pl.DataFrame]]) -> list["_Reopened"]:
        """Windows that have fired and are about to change, with the keys of the new rows."""
        found: dict[int, list[pl.DataFrame]] = {}
        for pane, part in parts:
            for end in self._panes.ends_between(pane, self._watermark - self._lateness, self._watermark):
                found.setdefault(end, []).append(part[self._aggregation.keys] if self._spec.keys else part)
        reopened = []
        for end, touched in sorted(found.items()):
            keys = pl.concat(touched).unique() if self._spec.keys else None
            known = self._window(end, keys)
            reopened.append(_Reopened(end, keys, known[self._aggregation.keys] if known is not None else None))
        return reopened

    def _window(self, end: int, keys: pl.DataFrame | None) -> pl.DataFrame | None:
        """Partial results of one window, each of these keys once; None: there are none."""
        panes = [pane for pane in self._bins if end - self._panes.size <= pane < end]
        frames = [frame for loose in self._bins.loose(panes).values() for frame in loose]
        if not frames:
            return None
        whole = stacked(frames)
        if keys is not None:
            whole = whole.join(keys, on=self._aggregation.keys, how="semi", nulls_equal=True)
        return self._aggregation.merge([whole])[0] if whole.height else None

    def _fire_again(self, reopened: Sequence["_Reopened"]) -> None:
        for window in reopened:
            partials = self._window(window.end, window.keys)
            assert partials is not None, "rows were added to the window"
            ends = np.full(partials.height, window.end, np.int64)
            self._emit_rows(partials, ends, window.changes(partials, self._aggregation.keys))

    # ------------------------------------------------------------ time passes

    def on_watermark(self, watermark: int) -> int | None:
        """Fire what is complete."""
        if self._spec.event_time is not None or watermark == MAX_WATERMARK:
            self._advance(watermark)
        return watermark

    def due(self) -> int | None:
        """The end of the next window."""
        return None if self._next_end is None else self._next_end - 1

    def on_processing_time(self, now_us: int) -> None:
        """Fire what the clock has passed."""
        if self._spec.event_time is None:
            self._advance(now_us - 1)

    def next_processing_time(self) -> int | None:
        """End of the next window, when windows follow the clock."""
        return None if self._spec.event_time is not None else self._next_end

    def on_end(self) -> None:
        """Fire everything."""
        self._advance(MAX_WATERMARK)

    def _advance(self, watermark: int) -> None:
        if watermark <= self._watermark:
            return
        if self._next_end is not None and self._next_end - 1 <= watermark:
            self._fire(self._bins, self._watermark, watermark)
            self._next_end = self._first_end(self._bins, watermark)
            self.context.counters.state_rows = self._bins.rows
        self._watermark = watermark
        if self._lateness:
            self._forget_gone()

    def _forget_gone(self) -> None:
        for pane in [pane for pane in self._bins if not self._is_kept(pane)]:
            self._bins.remove(pane)
        self.context.counters.state_rows = self._bins.rows

    def _fire(self, bins: Bins, fired: int, watermark: int) -> None:
        """Emit the windows that end after `fired` and up to `watermark`, in order of their end."""
        ends = sorted({end for pane in bins for end in self._panes.ends_between(pane, fired, watermark)})
        for first in range(0, len(ends), _WINDOWS_AT_ONCE):
            self._fire_together(bins, ends[first : first + _WINDOWS_AT_ONCE])

    def _fire_together(self, bins: Bins, ends: Sequence[int]) -> None:
        """Windows that are complete together share the calls that are made for them."""
        panes = sorted(bins)
        inside = {end: panes[bisect_left(panes, end - self._panes.size) : bisect_left(panes, end)] for end in ends}
        frames = bins.loose({pane for needed in inside.values() for pane in needed})
        complete = _Complete()
        for end, needed in inside.items():
            complete.add(end, [frame for pane in needed for frame in frames[pane]])
            if complete.rows >= _EMIT_ROWS:
                self._emit(complete)
                complete = _Complete()
        if complete.rows:
            self._emit(complete)
        for pane in panes:
            if self._panes.next_end(pane, ends[-1] - 1 - self._lateness) is None:
                bins.remove(pane)

    def _first_end(self, bins: Iterable[int], fired: int) -> int | None:
        ends = (self._panes.next_end(pane, fired) for pane in bins)
        return min((end for end in ends if end is not None), default=None)

    def _emit(self, complete: "_Complete") -> None:
        """Windows that are complete together leave together: what follows them costs per batch, not per row."""
        partials, ends = complete.merged(self._aggregation)
        self._emit_rows(partials, ends, np.full(len(ends), INSERT, np.int8) if self._lateness else None)

    def _emit_rows(
        self, partials: pl.DataFrame, ends: npt.NDArray[np.int64], changes: npt.NDArray[np.int8] | None
    ) -> None:
        unit = self._spec.event_time.unit if self._spec.event_time else "us"
        times = ((WINDOW_START, ends - self._panes.size), (WINDOW_END, ends))
        result = pl.DataFrame(
            [
                *([pl.Series(CHANGE, changes)] if changes is not None else ()),
                *(partials.get_column(key) for key in self._spec.keys),
                *(time_column(micros, self._types[name], unit, name) for name, micros in times),
                *self._aggregation.results(partials),
            ]
        )
        for piece in result.iter_slices(_EMIT_ROWS):
            self.output.emit(piece)

    # ------------------------------------------------------------ state

    def snapshot(self, checkpoint: CheckpointId) -> Snapshot:
        """Keep references to the panes; they are folded and sorted later."""
        partials = self._bins.freeze()
        progress = progress_section(self._own_groups, self._watermark)
        keys, columns = self._spec.keys, self._aggregation.partial_columns
        max_parallelism = self.context.max_parallelism

        def sections() -> Sequence[Section]:
            panes = [
                partial.select(*keys, pl.lit(pane, pl.Int64).alias(PANE), *columns) for pane, partial in partials()
            ]
            written = [progress]
            if panes:
                frame = sort_by_group(pl.concat(panes), keys, max_parallelism)
                written.append(Section("panes", Redistribution.KEYED, frame))
            return written

        return sections

    def restore(self, sections: Mapping[str, Sequence[pl.DataFrame]]) -> None:
        """Take the panes of own key groups, all from subtasks that had fired equally far."""
        self._watermark = restored_time(sections.get("progress", ()), self._own_groups)
        for frame in sections.get("panes", ()):
            for pane, part in cut_by_pane(frame.drop(KEY_GROUP)):
                self._bins.add_partial(pane, part)
        self._next_end = self._first_end(self._bins, self._watermark)
        self.context.counters.state_rows = self._bins.rows

    def _empty_bins(self) -> Bins:
        aggregation = self._aggregation
        if not self._spec.keys:
            fold = aggregation.merge if self._spec.input_is_partial else aggregation.fold
            return Bins(fold, aggregation.merge, fold_rows=_UNKEYED_FOLD_ROWS)
        if self._spec.input_is_partial:
            return Bins(aggregation.merge, aggregation.merge, lift=_as_it_is)
        return Bins(aggregation.fold, aggregation.merge, lift=aggregation.lift if aggregation.can_lift else None)


class _Complete:
    """Partial results of windows, in order of their end."""

    def __init__(self) -> None:
        self.rows = 0
        self._windows: list[tuple[int, list[pl.DataFrame]]] = []

    def add(self, end: int, frames: list[pl.DataFrame]) -> None:
        """One more window."""
        self._windows.append((end, frames))
        self.rows += sum(frame.height for frame in frames)

    def merged(self, aggregation: Aggregation) -> tuple[pl.DataFrame, npt.NDArray[np.int64]]:
        """All of them in one frame, each key once in each window, and the end of each row's window."""
        ends, frames = zip(*self._windows, strict=True)
        merged, lengths = aggregation.merge_windows(frames)
        return merged, np.repeat(np.array(ends, np.int64), lengths)


@dataclass(frozen=True, slots=True)
class _Reopened:
    """A window that fires again, for some of its keys."""

    end: int
    keys: pl.DataFrame | None
    """None: there is just one group."""
    known: pl.DataFrame | None
    """Those of them that the window had a result for."""

    def changes(self, partials: pl.DataFrame, keys: list[str]) -> npt.NDArray[np.int8]:
        """What the new result of each key is: the first one, or another one."""
        if self.known is None or not keys:
            return np.full(partials.height, INSERT if self.known is None else UPDATE, np.int8)
        marked = self.known.hstack([pl.Series(CHANGE, np.full(self.known.height, UPDATE, np.int8))])
        joined = partials[keys].join(marked, on=keys, how="left", nulls_equal=True, maintain_order="left")
        return joined.get_column(CHANGE).fill_null(INSERT).to_numpy()


def _as_it_is(rows: pl.DataFrame) -> pl.DataFrame:
    return rows


def cut_by_pane(partials: pl.DataFrame) -> list[tuple[int, pl.DataFrame]]:
    """Partial results by the pane that they name."""
    if partials.is_empty():
        return []
    return cut(partials.drop(PANE), partials.get_column(PANE).to_numpy(), 1)
