"""Top-n: of the rows with equal keys those that are first in an order; running, or once per window.

Owns: running, the rows that are among the first now (state "rows"); in windows, the first rows of each key and pane
(state "panes") and how far windows have fired (state "progress"). Of equal rows the one that came earlier is first;
in sliding windows, the one of the earlier pane.

Running, a row that is pushed out is taken back. With a rank column the row of a rank is replaced instead.
"""

from collections.abc import Mapping, Sequence

import numpy as np
import numpy.typing as npt
import polars as pl

from penstock.model.changes import CHANGE, DELETE, INSERT, UPDATE
from penstock.model.clocks import MAX_WATERMARK, MIN_WATERMARK
from penstock.model.handles import Redistribution
from penstock.model.ids import CheckpointId
from penstock.model.schemas import polars_schema
from penstock.model.specs import EventTime, Sliding, TopN, Tumbling
from penstock.operators.base import Operator, OperatorContext, Output, Section, Snapshot
from penstock.operators.changes import marked
from penstock.operators.expiry import Expiry
from penstock.operators.join_rows import progress_section, restored_progress
from penstock.operators.keyed_rows import KeyedRows
from penstock.operators.panes import Panes, event_times, time_column
from penstock.state.bins import Bins, cut
from penstock.state.key_groups import KEY_GROUP, sort_by_group
from penstock.state.row_stores import RowStore

STATE = "rows"

_NUMBER, _RANK, _PANE = "__number", "__rank", "__pane"


class Order:
    """The first `n` rows of each key."""

    def __init__(self, spec: TopN) -> None:
        self.keys, self.n = list(spec.keys), spec.n
        self._by, self._descending = list(spec.by), list(spec.descending)

    def ranked(self, frame: pl.DataFrame) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.int64]]:
        """Numbers of the rows that are among the first, in order, and the rank of each from 0 on."""
        columns = list(dict.fromkeys([*self.keys, *self._by]))
        numbered = frame[columns].hstack([pl.Series(_NUMBER, np.arange(frame.height, dtype=np.int64))])
        ordered = numbered.sort(self._by, descending=self._descending, nulls_last=True, maintain_order=True)
        rank = pl.int_range(pl.len(), dtype=pl.Int64)
        ranks = ordered.select((rank.over(self.keys) if self.keys else rank).alias(_RANK)).to_series().to_numpy()
        first = np.flatnonzero(ranks < self.n)
        return ordered.get_column(_NUMBER).to_numpy()[first], ranks[first]

    def first(self, groups: Sequence[pl.DataFrame]) -> list[pl.DataFrame]:
        """The first rows of each key, of several groups of rows; in the order they came."""
        return [group[np.sort(self.ranked(group)[0])] for group in groups]


class RunningTopN(Operator):
    """The first rows of all that came so far."""

    def __init__(self, spec: TopN) -> None:
        self._spec, self._order = spec, Order(spec)
        self._store = RowStore(spec.keys)
        self._kept = KeyedRows(STATE, self._store)

    def open(self, context: OperatorContext, output: Output) -> None:
        """Remember where it runs."""
        super().open(context, output)
        self._expiry = Expiry(self._spec.ttl, context.clock, context.uid)

    def on_batch(self, frame: pl.DataFrame, port: int = 0) -> None:
        """Only rows of keys that the batch has are looked at."""
        self._sweep()
        (fresh,) = self._order.first([frame])
        found = self._held(fresh)
        held = self._store.rows(found) if len(found) else fresh.clear()
        rows = pl.concat([held, fresh[held.columns]], rechunk=True)
        kept, ranks = self._order.ranked(rows)
        stays = np.zeros(rows.height, np.bool_)
        stays[kept] = True
        new = np.flatnonzero(stays[len(found) :])
        if not len(new):
            return
        gone = np.flatnonzero(~stays[: len(found)])
        if self._spec.rank is None:
            self.output.emit(marked(held[gone], DELETE))
            self.output.emit(marked(fresh[new], INSERT))
        else:
            self._emit_ranks(rows, held, kept, ranks)
        self._store.remove(found[gone])
        come = fresh[new]
        self._store.add(come, self._expiry.written(come))
        self.context.counters.state_rows = len(self._store)

    def _held(self, fresh: pl.DataFrame) -> npt.NDArray[np.int64]:
        keys = fresh[self._order.keys].unique() if self._order.keys else fresh.head(1)
        columns = [keys.get_column(key) for key in self._order.keys]
        _, found = self._store.find(columns, keys.height, expired=self._expiry.expired)
        return np.sort(found)

    def _emit_ranks(
        self,
        rows: pl.DataFrame,
        held: pl.DataFrame,
        kept: npt.NDArray[np.int64],
        ranks: npt.NDArray[np.int64],
    ) -> None:
        """The ranks whose row is another one now."""
        before = np.full(rows.height, -1, np.int64)
        if held.height:
            old, old_ranks = self._order.ranked(held)
            before[old] = old_ranks
        moved = np.flatnonzero(before[kept] != ranks)
        changed = rows[kept[moved]]
        changes = np.full(len(moved), INSERT, np.int8)
        if held.height:
            if keys := self._order.keys:
                counts = held.group_by(keys).agg(pl.len().cast(pl.Int64).alias(_NUMBER))
                joined = changed[keys].join(counts, on=keys, how="left", nulls_equal=True, maintain_order="left")
                filled = joined.get_column(_NUMBER).fill_null(0).to_numpy()
            else:
                filled = np.full(len(moved), held.height, np.int64)
            changes[ranks[moved] < filled] = UPDATE
        rank = pl.Series(self._spec.rank or "", ranks[moved] + 1)
        self.output.emit(pl.DataFrame([pl.Series(CHANGE, changes), *changed.get_columns(), rank]))

    def on_watermark(self, watermark: int) -> int:
        """What is old enough is forgotten."""
        self._expiry.on_watermark(watermark)
        self._sweep()
        return watermark

    def _sweep(self) -> None:
        if (expired := self._expiry.sweep()) is not None:
            self._store.remove(self._store.until(expired))
            self.context.counters.state_rows = len(self._store)

    def snapshot(self, checkpoint: CheckpointId) -> Snapshot:
        """Keep references to the rows."""
        return self._kept.snapshot(self.context)

    def restore(self, sections: Mapping[str, Sequence[pl.DataFrame]]) -> None:
        """Take the rows of own keys."""
        self._kept.restore(sections)
        self.context.counters.state_rows = len(self._store)


class WindowTopN(Operator):
    """The first rows of each window, when it is complete."""

    def __init__(self, spec: TopN, assigner: Tumbling | Sliding) -> None:
        assert spec.event_time is not None, "a window goes by event time"
        self._spec, self._order, self._panes = spec, Order(spec), Panes.of(assigner)
        self._event_time: EventTime = spec.event_time
        self._types = polars_schema(spec.output)
        self._bins = Bins(self._order.first, self._order.first)
        self._watermark = MIN_WATERMARK

    def on_batch(self, frame: pl.DataFrame, port: int = 0) -> None:
        """Put the rows in their panes."""
        times = event_times(frame, self._event_time, self.context.uid)
        for pane, rows in cut(frame, times, self._panes.length, self._panes.offset):
            if self._panes.next_end(pane, self._watermark) is not None:
                self._bins.add(pane, rows)
            elif self._panes.window_ends(pane):
                self.context.counters.late_rows += rows.height
        self.context.counters.state_rows = self._bins.rows

    def on_watermark(self, watermark: int) -> int:
        """Fire what is complete."""
        if watermark > self._watermark:
            fired, self._watermark = self._watermark, watermark
            panes = sorted(self._bins)
            for end in sorted({end for pane in panes for end in self._panes.ends_between(pane, fired, watermark)}):
                self._fire(end, [pane for pane in panes if end - self._panes.size <= pane < end])
            for pane in panes:
                if self._panes.next_end(pane, watermark) is None:
                    self._bins.remove(pane)
            self.context.counters.state_rows = self._bins.rows
        return watermark

    def due(self) -> int | None:
        """The end of the next window."""
        ends = (self._panes.next_end(pane, self._watermark) for pane in self._bins)
        return min((end - 1 for end in ends if end is not None), default=None)

    def on_end(self) -> None:
        """Fire everything."""
        self.on_watermark(MAX_WATERMARK)

    def _fire(self, end: int, panes: Sequence[int]) -> None:
        frames = self._bins.partials(panes)
        rows = frames[0] if len(frames) == 1 else pl.concat(frames)
        kept, ranks = self._order.ranked(rows)
        made = {column.name: column for column in rows[kept].get_columns()}
        for name, bound in (("window_start", end - self._panes.size), ("window_end", end)):
            bounds = np.full(len(kept), bound, np.int64)
            made[name] = time_column(bounds, self._types[name], self._event_time.unit, name)
        if self._spec.rank is not None:
            made[self._spec.rank] = pl.Series(self._spec.rank, ranks + 1)
        self.output.emit(pl.DataFrame([made[name] for name in self._types]))

    def snapshot(self, checkpoint: CheckpointId) -> Snapshot:
        """Keep references to the panes."""
        frozen, progress = self._bins.freeze(), progress_section(self._watermark, self.context)
        keys, groups = self._order.keys, self.context.max_parallelism

        def sections() -> Sequence[Section]:
            written = [progress]
            rows = [frame.with_columns(pl.lit(pane, pl.Int64).alias(_PANE)) for pane, frame in frozen()]
            if rows:
                frame = sort_by_group(pl.concat(rows), keys, groups)
                written.append(Section("panes", Redistribution.KEYED, frame))
            return written

        return sections

    def restore(self, sections: Mapping[str, Sequence[pl.DataFrame]]) -> None:
        """Take the rows of own keys."""
        self._watermark = restored_progress(sections, self.context)
        for frame in sections.get("panes", ()):
            if frame.height:
                for pane, rows in cut(frame.drop(KEY_GROUP, _PANE), frame.get_column(_PANE).to_numpy(), 1):
                    self._bins.add(pane, rows)
        self.context.counters.state_rows = self._bins.rows
