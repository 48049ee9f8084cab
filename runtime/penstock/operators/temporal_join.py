"""Temporal joins: each left row beside the version of its key that was valid at its time.

Owns: left rows that wait for their time (state "left"), the versions of the right side (state "right"), and event time
(state "progress"). A left row is joined when the watermark has passed its time, so that every version that was valid
then is there. Of versions that are older than the watermark only the last of each key can be asked for again. Of
versions with equal times the one that came last is valid. Late left rows are dropped and counted.
"""

from collections.abc import Mapping, Sequence

import numpy as np
import numpy.typing as npt
import polars as pl

from penstock.model.clocks import MAX_WATERMARK, MIN_WATERMARK
from penstock.model.handles import Redistribution
from penstock.model.ids import CheckpointId
from penstock.model.specs import AsOfMatch, EventTime, Join
from penstock.operators.base import AnySection, Operator, Section, Snapshot
from penstock.operators.join_rows import (
    LEFT,
    RIGHT,
    JoinRows,
    progress_section,
    restored_progress,
    without,
)
from penstock.operators.keyed_rows import KeyedRows
from penstock.operators.panes import event_times
from penstock.state.key_groups import KEY_GROUP, sort_by_group
from penstock.state.row_stores import RowStore
from penstock.state.tables import NEVER

_PRUNE_ROWS = 8_192
"""Old versions are looked for when the versions have doubled since the last time, and are more than this."""


class TemporalJoin(Operator):
    """Matches a row with the latest version before it."""

    def __init__(self, spec: Join, match: AsOfMatch) -> None:
        assert spec.left_time is not None, "a temporal join goes by event time"
        assert spec.right_time is not None, "a temporal join goes by event time"
        self._spec, self._rows = spec, JoinRows(spec)
        self._times: tuple[EventTime, EventTime] = (spec.left_time, spec.right_time)
        self._max_age = match.max_age_us
        self._waiting: list[tuple[pl.DataFrame, npt.NDArray[np.int64]]] = []
        self._versions = RowStore(spec.right_on)
        self._kept = KeyedRows("right", self._versions)
        self._watermark = MIN_WATERMARK
        self._pruned_to = 0

    def on_batch(self, frame: pl.DataFrame, port: int = 0) -> None:
        """Left rows wait; right rows are versions."""
        times = event_times(frame, self._times[port], self.context.uid)
        if port == RIGHT:
            if (usable := self._rows.with_keys(frame, RIGHT)) is not None:
                frame, times = frame[usable], times[usable]
            if frame.height:
                self._versions.add(frame, times)
        else:
            if times.min() <= self._watermark:
                in_time = np.flatnonzero(times > self._watermark)
                self.context.counters.late_rows += frame.height - len(in_time)
                frame, times = frame[in_time], times[in_time]
            if frame.height:
                self._waiting.append((frame, times))
        self._count()

    def on_watermark(self, watermark: int) -> int:
        """Join the rows whose time has passed."""
        if watermark > self._watermark:
            self._watermark = watermark
            self._join_due()
            self._prune()
            self._count()
        return watermark

    def on_end(self) -> None:
        """Join what is left."""
        self.on_watermark(MAX_WATERMARK)

    def _join_due(self) -> None:
        due, waiting = [], []
        for frame, times in self._waiting:
            ready = times <= self._watermark
            if ready.all():
                due.append((frame, times))
            elif ready.any():
                now, later = np.flatnonzero(ready), np.flatnonzero(~ready)
                due.append((frame[now], times[now]))
                waiting.append((frame[later], times[later]))
            else:
                waiting.append((frame, times))
        self._waiting = waiting
        if due:
            rows = due[0][0] if len(due) == 1 else pl.concat([frame for frame, _ in due], rechunk=True)
            self._join(rows, np.concatenate([times for _, times in due]))

    def _join(self, frame: pl.DataFrame, times: npt.NDArray[np.int64]) -> None:
        positions, found = self._rows.find(self._versions, frame, LEFT, expired=NEVER)
        versions = self._versions.times(found)
        valid = versions <= times[positions]
        if self._max_age is not None:
            valid &= versions >= times[positions] - self._max_age
        positions, found, versions = positions[valid], found[valid], versions[valid]
        if len(found):
            order = np.lexsort((found, versions, positions))
            positions, found = positions[order], found[order]
            last = np.append(positions[1:] != positions[:-1], True)
            positions, found = positions[last], found[last]
            self._emit(self._rows.matched(frame[positions], self._versions.rows(found)))
        if self._spec.how == "left":
            self._emit(self._rows.alone(frame[without(frame.height, positions)], LEFT))

    def _prune(self) -> None:
        """Forget versions that no row can ask for any more."""
        if self._watermark == MAX_WATERMARK:
            self._versions.remove(self._versions.until(MAX_WATERMARK))
            return
        if len(self._versions) < max(_PRUNE_ROWS, 2 * self._pruned_to):
            return
        old = self._versions.until(self._watermark)
        if len(old):
            keys = self._versions.rows(old, self._versions.keys)
            times = self._versions.times(old)
            ordered = keys.hstack([pl.Series("__number", old), pl.Series("__time", times)]).sort("__time", "__number")
            last = ordered.unique(subset=self._versions.keys, keep="last").get_column("__number").to_numpy()
            superseded = np.setdiff1d(old, last)
            if self._max_age is not None:
                aged = old[times < self._watermark + 1 - self._max_age]
                superseded = np.union1d(superseded, aged)
            self._versions.remove(superseded)
        self._pruned_to = len(self._versions)

    def _emit(self, columns: Sequence[pl.Series]) -> None:
        if columns and len(columns[0]):
            self.output.emit(pl.DataFrame(columns))

    def _count(self) -> None:
        waiting = sum(frame.height for frame, _ in self._waiting)
        self.context.counters.state_rows = waiting + len(self._versions)

    # ------------------------------------------------------------ state

    def snapshot(self, checkpoint: CheckpointId) -> Snapshot:
        """Keep references to the rows."""
        waiting, versions = [frame for frame, _ in self._waiting], self._kept.snapshot(self.context)
        progress = progress_section(self._watermark, self.context)
        left_on, _ = self._rows.on
        max_parallelism = self.context.max_parallelism

        def sections() -> Sequence[AnySection]:
            written = [progress, *versions()]
            if waiting:
                frame = sort_by_group(pl.concat(waiting), left_on, max_parallelism)
                written.append(Section("left", Redistribution.KEYED, frame))
            return written

        return sections

    def restore(self, sections: Mapping[str, Sequence[pl.DataFrame]]) -> None:
        """Take the rows of own keys."""
        self._watermark = restored_progress(sections, self.context)
        self._kept.restore(sections)
        for frame in sections.get("left", ()):
            if frame.height:
                rows = frame.drop(KEY_GROUP)
                self._waiting.append((rows, event_times(rows, self._times[LEFT], self.context.uid)))
        self._count()
