"""Session windows: a session of a key ends when no row came for the length of its gap.

Owns: open sessions as partial results (state "sessions", by key group), and how far they have fired ("progress").
Rows wait until time could end a session, many have come, or a barrier; then each becomes a session of its own, those
that meet are merged, and only then with the open ones of their keys. A session covers its rows and the gap after
each; sessions that touch are one.

A session fires when the watermark (processing time: the clock) passes its end. With allowed lateness it stays for that
long; rows that still come may change it, extend it or join it to others. What had been emitted is then updated, or
deleted and emitted anew with other bounds: the output is a stream of changes. A row is late when the session that it
would make or join is gone already.
"""

from collections.abc import Mapping, Sequence

import numpy as np
import numpy.typing as npt
import polars as pl

from penstock.model import specs
from penstock.model.changes import CHANGE, DELETE, INSERT, UPDATE
from penstock.model.clocks import MAX_WATERMARK, MIN_WATERMARK
from penstock.model.handles import Redistribution
from penstock.model.ids import CheckpointId
from penstock.model.schemas import polars_schema
from penstock.operators.aggregate_parts import TIME
from penstock.operators.aggregates import Aggregation
from penstock.operators.base import Operator, OperatorContext, Output, Section, Snapshot
from penstock.operators.panes import event_times, time_column
from penstock.operators.session_numbers import Times, growing, session_gaps, session_numbers
from penstock.operators.window_progress import progress_section, restored_time
from penstock.state.bins import Fold
from penstock.state.key_groups import KEY_GROUP, sort_by_group

START, END, FIRED = "__start", "__end", "__fired"
_SESSION = "__session"

_NOT_YET, _AS_IT_IS, _OTHERWISE = 0, 1, 2
"""Whether a session has fired: not yet; as it is now; with the same bounds, but other rows."""

_WAITING_ROWS = 131_072
"""A sort costs more than this many rows are worth holding back."""
_EMIT_ROWS = 65_536


class SessionAggregate(Operator):
    """Sessions by event time or processing time."""

    def __init__(self, spec: specs.SessionAggregate) -> None:
        self._spec = spec
        self._keys = list(spec.keys)
        self._lateness = spec.allowed_lateness_us
        self._by_key = Aggregation(spec.keys, spec.aggregates)
        self._by_session = Aggregation([_SESSION], spec.aggregates)
        self._types = polars_schema(spec.output)
        self._waiting: list[pl.DataFrame] = []
        self._waiting_rows = 0
        self._open: pl.DataFrame | None = None
        """Keys, START, END, FIRED and partial results of each session; None: there never was one."""
        self._next_end: int | None = None
        """No session ends before this, waiting rows included."""
        self._watermark = MIN_WATERMARK

    def open(self, context: OperatorContext, output: Output) -> None:
        """Remember where it runs."""
        super().open(context, output)
        self._gaps = session_gaps(self._spec.gap_us, self._spec.gap, context.uid)
        self._own_groups = context.groups

    # ------------------------------------------------------------ rows in

    def on_batch(self, frame: pl.DataFrame, port: int = 0) -> None:
        """Keep the rows; look at them at once only if one of them is behind the watermark."""
        times = self._times(frame)
        ends = times + self._gaps(frame)
        rows = self._by_key.prepare(frame, times, self.context.uid)
        bounds = [pl.Series(START, times), pl.Series(END, ends)]
        rows = pl.DataFrame([*(column for column in rows.get_columns() if column.name != TIME), *bounds])
        behind = int(ends.min()) - 1 <= self._watermark
        if behind:
            self._settle()
            if not self._alike_one_by_one(rows, ends):
                half = frame.height // 2
                self.on_batch(frame[:half])
                self.on_batch(frame[half:])
                return
            rows = self._without_late(frame, rows, ends)
        if rows.height:
            self._waiting.append(rows)
            self._waiting_rows += rows.height
            self._expect(int(rows.get_column(END).min()))  # type: ignore[arg-type]
        if behind:
            self._settle()
            self._fire(self._watermark)
        elif self._waiting_rows >= _WAITING_ROWS:
            self._settle()
        self._count()

    def _times(self, frame: pl.DataFrame) -> Times:
        if self._spec.event_time is not None:
            return event_times(frame, self._spec.event_time, self.context.uid)
        # The clock may jump back; a session that has fired stays as it is.
        return np.full(frame.height, max(self.context.clock.now_us(), self._watermark + 1), np.int64)

    def _alike_one_by_one(self, rows: pl.DataFrame, ends: Times) -> bool:
        """Whether no row's being late depends on others of its batch. Every waiting row has been settled."""
        gone = self._watermark - self._lateness
        if rows.height == 1 or int(ends.min()) - 1 > gone:
            return True
        both = self._with_open(rows)
        starts, all_ends = both.get_column(START).to_numpy(), both.get_column(END).to_numpy()
        return growing(both, self._keys, both.height - rows.height, starts, all_ends, gone) is not None

    def _with_open(self, rows: pl.DataFrame) -> pl.DataFrame:
        """Keys and bounds of the open sessions, then of these rows."""
        near = rows[[*self._keys, START, END]]
        return near if self._open is None else pl.concat([self._open[near.columns], near])

    def _without_late(self, frame: pl.DataFrame, rows: pl.DataFrame, ends: Times) -> pl.DataFrame:
        """Rows whose session would be gone already leave by the side output. Every waiting row has been settled."""
        gone = self._watermark - self._lateness
        if int(ends.min()) - 1 > gone:
            return rows
        both = self._with_open(rows)
        starts, all_ends = both.get_column(START).to_numpy(), both.get_column(END).to_numpy()
        numbers = session_numbers(both, self._keys, starts, all_ends)
        reach = np.full(int(numbers.max()) + 1, np.iinfo(np.int64).min)
        np.maximum.at(reach, numbers, all_ends)
        late = reach[numbers[both.height - rows.height :]] - 1 <= gone
        self.context.counters.late_rows += int(late.sum())
        if self._spec.late_to:
            self.output.emit_side(self._spec.late_to, frame.filter(late))
        return rows.filter(~late)

    # ------------------------------------------------------------ sessions

    def _settle(self) -> None:
        """Make sessions of the rows that wait, and merge them with the open ones."""
        if not self._waiting:
            return
        rows = self._waiting[0] if len(self._waiting) == 1 else pl.concat(self._waiting, rechunk=True)
        self._waiting, self._waiting_rows = [], 0
        times = pl.Series(TIME, rows.get_column(START))
        grown = self._grouped(rows.hstack([times]), self._by_session.fold)
        fresh = grown.with_columns(pl.lit(_NOT_YET, pl.Int8).alias(FIRED))[self._columns]
        if self._open is None or self._open.is_empty():
            self._open = fresh
            return
        touched, others = self._of_keys(self._open, fresh)
        merged = self._merged(touched, fresh) if touched.height else fresh
        self._open = pl.concat([others, merged], rechunk=True)

    @property
    def _columns(self) -> list[str]:
        return [*self._keys, START, END, FIRED, *self._by_session.partial_columns]

    def _of_keys(self, sessions: pl.DataFrame, fresh: pl.DataFrame) -> tuple[pl.DataFrame, pl.DataFrame]:
        """Sessions whose keys are among the fresh ones, and all others."""
        if not self._keys:
            return sessions, sessions.clear()
        known = fresh[self._keys].unique()
        known = known.hstack([pl.Series(_SESSION, np.ones(known.height, np.bool_))])
        found = sessions[self._keys].join(known, on=self._keys, how="left", nulls_equal=True, maintain_order="left")
        mask = found.get_column(_SESSION).is_not_null()
        return sessions.filter(mask), sessions.filter(~mask)

    def _merged(self, touched: pl.DataFrame, fresh: pl.DataFrame) -> pl.DataFrame:
        both = pl.concat([touched, fresh])
        numbers = self._numbers(both)
        sizes = np.bincount(numbers)
        alone = sizes[numbers] == 1
        if alone.all():
            return both
        before, numbers = both.filter(~alone), numbers[~alone]
        after = self._grouped(before, self._by_session.merge)
        fired = self._refired(before, after, np.unique(numbers, return_inverse=True)[1])
        after = after.with_columns(pl.Series(FIRED, fired))[self._columns]
        return pl.concat([both.filter(alone), after])

    def _refired(
        self, before: pl.DataFrame, after: pl.DataFrame, numbers: npt.NDArray[np.intp]
    ) -> npt.NDArray[np.int8]:
        """Take back what was emitted of sessions that have other bounds now; what the merged ones are."""
        fired = np.full(after.height, _NOT_YET, np.int8)
        was = np.flatnonzero(before.get_column(FIRED).to_numpy() != _NOT_YET)
        if not len(was):
            return fired
        starts, ends = (after.get_column(bound).to_numpy()[numbers[was]] for bound in (START, END))
        old_starts, old_ends = (before.get_column(bound).to_numpy()[was] for bound in (START, END))
        same = (starts == old_starts) & (ends == old_ends)
        self._emit(before[was[~same]], DELETE)
        fired[numbers[was[same]]] = _OTHERWISE
        return fired

    def _numbers(self, frame: pl.DataFrame) -> npt.NDArray[np.uint32]:
        starts, ends = frame.get_column(START).to_numpy(), frame.get_column(END).to_numpy()
        return session_numbers(frame, self._keys, starts, ends)

    def _grouped(self, frame: pl.DataFrame, reduce: Fold) -> pl.DataFrame:
        """One row per session, with its keys and bounds. Inside a session, rows keep their order."""
        numbered = frame.hstack([pl.Series(_SESSION, self._numbers(frame))])
        bounds = numbered.group_by(_SESSION).agg(
            *(pl.col(key).first() for key in self._keys), pl.col(START).min(), pl.col(END).max()
        )
        (partials,) = reduce([numbered])
        return bounds.sort(_SESSION).hstack(partials.sort(_SESSION).drop(_SESSION))

    # ------------------------------------------------------------ time passes

    def on_watermark(self, watermark: int) -> int | None:
        """Fire what is complete."""
        if self._spec.event_time is not None or watermark == MAX_WATERMARK:
            self._advance(watermark)
        return watermark

    def on_processing_time(self, now_us: int) -> None:
        """Fire what the clock has passed."""
        if self._spec.event_time is None:
            self._advance(now_us - 1)

    def next_processing_time(self) -> int | None:
        """The first end, when sessions follow the clock."""
        return self._next_end if self._spec.event_time is None else None

    def on_barrier(self) -> None:
        """A snapshot has sessions only, and all of them fired equally far."""
        self._settle()
        self._fire(self._watermark)

    def on_end(self) -> None:
        """Fire everything."""
        self._advance(MAX_WATERMARK)

    def _advance(self, watermark: int) -> None:
        self._watermark = max(self._watermark, watermark)
        if self._next_end is not None and self._next_end - 1 <= self._watermark:
            self._settle()
            self._fire(self._watermark)
        self._count()

    def _expect(self, end: int) -> None:
        self._next_end = end if self._next_end is None else min(self._next_end, end)

    def _fire(self, watermark: int) -> None:
        """Emit what is complete and was not emitted as it is now; forget what cannot change any more."""
        if self._open is None or self._open.is_empty():
            self._next_end = None
            return
        ends, fired = self._open.get_column(END).to_numpy(), self._open.get_column(FIRED).to_numpy()
        complete = ends - 1 <= watermark
        due = complete & (fired != _AS_IT_IS)
        if due.any():
            self._emit(self._open.filter(due & (fired == _NOT_YET)), INSERT)
            self._emit(self._open.filter(due & (fired == _OTHERWISE)), UPDATE)
        kept = ends - 1 > watermark - self._lateness
        if not kept.all() or due.any():
            now_fired = pl.Series(FIRED, np.where(complete, np.int8(_AS_IT_IS), fired))
            self._open = self._open.with_columns(now_fired).filter(kept)
        left = (ends if not self._lateness else np.where(complete, ends + self._lateness, ends))[kept]
        self._next_end = int(left.min()) if len(left) else None

    def _emit(self, sessions: pl.DataFrame, change: int) -> None:
        if sessions.is_empty():
            return
        unit = self._spec.event_time.unit if self._spec.event_time else "us"
        times = (("window_start", START), ("window_end", END))
        result = pl.DataFrame(
            [
                *([pl.Series(CHANGE, np.full(sessions.height, change, np.int8))] if self._lateness else ()),
                *(sessions.get_column(key) for key in self._keys),
                *(
                    time_column(sessions.get_column(column).to_numpy(), self._types[name], unit, name)
                    for name, column in times
                ),
                *self._by_session.results(sessions),
            ]
        )
        for piece in result.iter_slices(_EMIT_ROWS):
            self.output.emit(piece)

    def _count(self) -> None:
        opened = self._open.height if self._open is not None else 0
        self.context.counters.state_rows = opened + self._waiting_rows

    # ------------------------------------------------------------ state

    def snapshot(self, checkpoint: CheckpointId) -> Snapshot:
        """Keep a reference to the open sessions; they are sorted later."""
        sessions, keys, max_parallelism = self._open, self._keys, self.context.max_parallelism
        progress = progress_section(self._own_groups, self._watermark)

        def sections() -> Sequence[Section]:
            if sessions is None or sessions.is_empty():
                return [progress]
            by_group = sort_by_group(sessions, keys, max_parallelism)
            return [progress, Section("sessions", Redistribution.KEYED, by_group)]

        return sections

    def restore(self, sections: Mapping[str, Sequence[pl.DataFrame]]) -> None:
        """Take the sessions of own key groups, all from subtasks that had fired equally far."""
        self._watermark = restored_time(sections.get("progress", ()), self._own_groups)
        frames = [frame.drop(KEY_GROUP) for frame in sections.get("sessions", ()) if frame.height]
        if frames:
            self._open = pl.concat(frames, rechunk=True)[self._columns]
            self._next_end = int(self._open.get_column(END).min())  # type: ignore[arg-type]
        self._count()
