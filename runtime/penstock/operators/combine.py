"""Pre-aggregation before an exchange: rows leave as partial results per key and pane, so that fewer travel.

Owns nothing that outlives a barrier. A pane leaves whole, in front of the watermark that ends it; watermarks inside a
pane pass by the rows that are held, and no window minds: it goes by panes, and none of theirs ends there. So a window
gets one partial result per key, pane and sender, not one per batch. It drops no row; which rows are late, the window
decides. Where hardly a key comes twice, grouping costs and saves nothing: then rows leave as partial results of
their own, and from time to time grouping is tried again.
"""

from collections import Counter, deque

import numpy as np
import numpy.typing as npt
import polars as pl

from penstock.model import specs
from penstock.model.frames import stacked
from penstock.operators.aggregates import PANE, Aggregation
from penstock.operators.base import Operator
from penstock.operators.panes import Panes, event_times
from penstock.state.bins import Bins, cut

_HOLD_ROWS = 524_288
"""A long pane does not wait for its end: what is held is memory, and would all leave at once."""


class Combine(Operator):
    """Partial results of the panes that have not ended yet."""

    def __init__(self, spec: specs.Combine) -> None:
        self._spec = spec
        self._panes = Panes.of(spec.assigner)
        self._aggregation = Aggregation(spec.keys, spec.aggregates)
        self._usefulness = Usefulness()
        self._bins = Bins(self._aggregation.fold, self._aggregation.merge)
        self._rows_in: Counter[int] = Counter()
        """Rows that came for each pane that is held."""

    def on_batch(self, frame: pl.DataFrame, port: int = 0) -> None:
        """Group the rows by pane and key, now or with those of the next batches."""
        times = event_times(frame, self._spec.event_time, self.context.uid)
        rows = self._aggregation.prepare(frame, times, self.context.uid)
        if self._spec.keys and not self._usefulness.worth_grouping():
            self._flush()  # of equal times the earlier row counts as earlier: none may overtake those that are held
            panes = (times - self._panes.offset) // self._panes.length * self._panes.length + self._panes.offset
            self._emit(self._aggregation.lift(rows), panes)
            return
        parts = cut(rows, times, self._panes.length, self._panes.offset)
        self._rows_in.update({pane: part.height for pane, part in parts})
        for pane, part in self._aggregation.relevant(parts):
            self._bins.add(pane, part)
        if self._bins.rows >= _HOLD_ROWS:
            self._flush()

    def on_watermark(self, watermark: int) -> int | None:
        """Panes that end here go first."""
        self._flush(before=self._panes.start_of(watermark + 1))
        return watermark

    def on_barrier(self) -> None:
        """Rows go first."""
        self._flush()

    def on_end(self) -> None:
        """Emit what is left."""
        self._flush()

    def _flush(self, before: int | None = None) -> None:
        panes = sorted(pane for pane in self._bins if before is None or pane < before)
        if not panes:
            return
        held_rows = sum(self._rows_in.pop(pane) for pane in panes)
        parts = self._bins.partials(panes)
        for pane in panes:
            self._bins.remove(pane)
        partials = stacked(parts)
        self._usefulness.learn(held_rows, partials.height)
        self._emit(partials, np.repeat(np.array(panes, np.int64), [part.height for part in parts]))

    def _emit(self, partials: pl.DataFrame, panes: npt.NDArray[np.int64]) -> None:
        keys, columns = self._spec.keys, self._aggregation.partial_columns
        by_name = partials.get_column
        self.output.emit(pl.DataFrame([*map(by_name, keys), pl.Series(PANE, panes), *map(by_name, columns)]))


class Usefulness:
    """Whether grouping makes rows fewer, judged by the last times it was done."""

    WORTH_IT = 0.6
    """Above this share of rows left, grouping costs more than the rows that it saves on the wire."""

    MEMORY = 8
    PAUSE = 64
    """Batches that pass before grouping is tried again: keys change slowly, and a trial is dear."""

    def __init__(self) -> None:
        self._recent: deque[tuple[int, int]] = deque(maxlen=self.MEMORY)
        self._trials = self.MEMORY
        self._pause = 0

    def worth_grouping(self) -> bool:
        """Asked once per batch."""
        if self._pause:
            self._pause -= 1
            return False
        return True

    def learn(self, rows_in: int, rows_out: int) -> None:
        """A grouping made `rows_out` of `rows_in`."""
        self._recent.append((rows_in, rows_out))
        if len(self._recent) < self._trials:
            return
        useless = sum(out for _, out in self._recent) > self.WORTH_IT * sum(rows for rows, _ in self._recent)
        self._trials = 1 if useless else self.MEMORY
        if useless:
            self._pause = self.PAUSE
            self._recent.clear()
