"""Windows that keep their rows: any assigner, trigger, evictor and function, for all keys at once.

Owns: the rows of all windows in the order in which they came (state "rows", by key group), the windows with what their
trigger knows (state "windows"), and how far they have fired (state "progress"). A window exists from its first row
until it is complete and the allowed lateness has passed. A row whose windows are all gone is late: counted, and
dropped or sent to a side output. Windows that can be merged from partial results are made by `operators.windows`,
which keeps no rows.

Sessions grow and join: what a trigger knew of the parts is put together. Whatever depends on the order of rows is as
if they came one at a time: a batch in which that would make a difference is cut until it does not.
"""

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
import polars as pl

from penstock.model import specs
from penstock.model.changes import CHANGE, INSERT, UPDATE
from penstock.model.clocks import MAX_WATERMARK, MIN_WATERMARK
from penstock.model.handles import Redistribution
from penstock.model.ids import CheckpointId
from penstock.model.schemas import polars_schema
from penstock.operators.assigners import make_assigner
from penstock.operators.base import Operator, OperatorContext, Output, Section, Snapshot
from penstock.operators.evictors import WindowEvictor
from penstock.operators.panes import event_times, time_column
from penstock.operators.session_numbers import growing
from penstock.operators.shown_sessions import STATE as SHOWN
from penstock.operators.shown_sessions import ShownSessions
from penstock.operators.triggers import make_trigger
from penstock.operators.window_cells import END, ROW_TIME, START, Cells, Mask, Numbers
from penstock.operators.window_functions import Aggregated, Applied, Reduced, Window, WindowFunction
from penstock.operators.window_progress import progress_section, restored_time
from penstock.state.key_groups import KEY_GROUP, sort_by_group

_EMIT_ROWS = 65_536
_BOUNDS = ("window_start", "window_end")

Load = Callable[[specs.Function], Any]


class BufferedWindows(Operator):
    """Rows by window; `load` opens the user's functions."""

    def __init__(self, spec: specs.BufferedWindow, load: Load) -> None:
        self._spec, self._load = spec, load
        self._keys = list(spec.keys)
        self._lateness = spec.allowed_lateness_us
        self._types = polars_schema(spec.output)
        self._global = isinstance(spec.assigner, specs.GlobalWindow)
        self._sessions = isinstance(spec.assigner, specs.SessionWindow)
        self._cells = Cells(spec.keys)
        self._frames: list[pl.DataFrame] = []
        """Rows as they came, with their time, ..."""
        self._numbers: list[Numbers] = []
        """... and the window of each."""
        self._shown = ShownSessions(spec.keys) if self._sessions and spec.updating else None
        self._watermark = MIN_WATERMARK

    def open(self, context: OperatorContext, output: Output) -> None:
        """Make the parts."""
        super().open(context, output)
        spec, load = self._spec, self._load
        self._own_groups = context.groups
        custom = spec.assigner.function if isinstance(spec.assigner, specs.CustomWindow) else None
        self._assigner = make_assigner(spec, custom and load(custom), context)
        own = spec.trigger.function
        self._trigger = make_trigger(spec.trigger, self._keys, own and load(own), context)
        self._evictor = WindowEvictor(spec.evictor, context.uid) if spec.evictor else None
        self._function = self._make_function(context)

    def _make_function(self, context: OperatorContext) -> WindowFunction:
        made = {CHANGE, *self._keys, *(() if self._global else _BOUNDS)}
        output = tuple(field for field in self._spec.output if field.name not in made)
        if self._spec.apply is not None:
            return Applied(self._spec.apply, self._load(self._spec.apply), output, context)
        if self._spec.reduce is not None:
            return Reduced(self._spec.reduce, self._load(self._spec.reduce), output, context)
        return Aggregated(self._spec.aggregates, context.uid)

    # ------------------------------------------------------------ rows in

    def on_batch(self, frame: pl.DataFrame, port: int = 0) -> None:
        """Give the rows to their windows, firing those that their trigger wants to fire on the way."""
        self._assign(frame)
        self._fire_complete()
        self._count()

    def _assign(self, frame: pl.DataFrame) -> None:
        times = self._times(frame)
        assigned = self._assigner.assign(frame, times)
        keys = frame[self._keys][assigned.rows].get_columns() if self._keys else []
        windows = pl.DataFrame([*keys, pl.Series(START, assigned.starts), pl.Series(END, assigned.ends)])
        if not windows.height:
            return
        growth = None
        if self._sessions and self._order_matters(windows):
            growth = self._growth(windows)
            if growth is None:
                half = frame.height // 2
                self._assign(frame[:half])
                self._assign(frame[half:])
                return
        numbers = self._numbers_of(windows)
        gone = self._gone()[numbers]
        if gone.any():
            self._tell_late(frame, assigned.rows, gone)
            numbers = self._forget(self._gone())[numbers]
        rows, numbers = assigned.rows[~gone], numbers[~gone]
        if len(rows):
            taken = frame[rows].hstack([pl.Series(ROW_TIME, times[rows])])
            self._take(taken, numbers, growth and (growth[0][~gone], growth[1][~gone]))

    def _times(self, frame: pl.DataFrame) -> Numbers:
        if self._spec.event_time is not None:
            return event_times(frame, self._spec.event_time, self.context.uid)
        return np.full(frame.height, max(self.context.clock.now_us(), self._watermark + 1), np.int64)

    def _order_matters(self, windows: pl.DataFrame) -> bool:
        """Triggers look at sessions as they grow, and a row may come too late that is saved by none after it."""
        soonest = int(windows.get_column(END).to_numpy().min())
        return self._spec.trigger.kind != "event_time" or soonest - 1 <= self._watermark - self._lateness

    def _growth(self, windows: pl.DataFrame) -> tuple[Numbers, Numbers] | None:
        """The session of each row as it was with that row; None: rows cannot be taken together."""
        both = self._cells.with_windows(windows)
        starts, ends = (both.get_column(bound).to_numpy() for bound in (START, END))
        gone = self._watermark - self._lateness
        return growing(both, self._keys, both.height - windows.height, starts, ends, gone)

    def _numbers_of(self, windows: pl.DataFrame) -> Numbers:
        if not self._sessions:
            return self._cells.numbers(windows)
        old, numbers = self._cells.merge_sessions(windows)
        self._renumber(old)
        return numbers

    def _renumber(self, numbers: Numbers) -> None:
        self._numbers = [numbers[held] for held in self._numbers]
        if self._shown is not None:
            self._shown.renumber(numbers)

    def _gone(self) -> Mask:
        """Windows that take no more rows."""
        if self._watermark == MAX_WATERMARK:
            return np.ones(len(self._cells), np.bool_)
        return self._cells.ends - 1 <= self._watermark - self._lateness

    def _tell_late(self, frame: pl.DataFrame, rows: Numbers, gone: Mask) -> None:
        """A row is late when it is late for all of its windows."""
        late = np.zeros(frame.height, np.bool_)
        late[rows[gone]] = True
        late[rows[~gone]] = False
        self.context.counters.late_rows += int(late.sum())
        if self._spec.late_to:
            self.output.emit_side(self._spec.late_to, frame.filter(late))

    def _take(self, rows: pl.DataFrame, numbers: Numbers, growth: tuple[Numbers, Numbers] | None) -> None:
        fires = self._trigger.on_rows(self._cells, numbers, rows)
        if fires is None or not fires.any():
            self._add(rows, numbers)
            return
        # Rows up to the first firing of their window, then those up to the second, ...
        part = _fired_before(numbers, fires)
        grown = self._cells.frame
        for turn in range(int(part.max()) + 1):
            now = part == turn
            self._add(rows.filter(now), numbers[now])
            firing = np.zeros(len(self._cells), np.bool_)
            firing[numbers[now & fires]] = True
            if growth is not None:
                last = now & fires
                self._cells.set_bounds(numbers[last], growth[0][last], growth[1][last])
            self._fire(firing)
        self._cells.frame = grown

    def _add(self, rows: pl.DataFrame, numbers: Numbers) -> None:
        self._frames.append(rows)
        self._numbers.append(numbers)
        np.add.at(self._cells.fresh, numbers, 1)

    # ------------------------------------------------------------ firing

    def _fire_complete(self) -> None:
        if self._trigger.at_end:
            self._fire((self._cells.ends - 1 <= self._watermark) & (self._cells.fresh > 0))

    def _fire(self, firing: Mask) -> None:
        """Call the function for the rows of these windows, and emit what it gives."""
        if not firing.any() or not self._frames:
            return
        held, numbers = self._rows()
        mine = firing[numbers]
        kept = np.ones(len(numbers), np.bool_)
        rows, whose = held.filter(mine), numbers[mine]
        if self._evictor is not None and not self._evictor.after:
            stays = self._evictor.kept(rows, whose, rows.get_column(ROW_TIME).to_numpy())
            kept[mine] = stays
            rows, whose = rows.filter(stays), whose[stays]
        if rows.height:
            times = rows.get_column(ROW_TIME).to_numpy()
            self._emit(*self._function.results(rows.drop(ROW_TIME), whose, times, self._window))
        if self._evictor is not None and self._evictor.after and rows.height:
            kept[mine] = self._evictor.kept(rows, whose, rows.get_column(ROW_TIME).to_numpy())
        if self._spec.trigger.purging:
            kept[mine] = False
        if not kept.all():
            self._frames, self._numbers = [held.filter(kept)], [numbers[kept]]
        self._cells.fresh[firing] = 0

    def _rows(self) -> tuple[pl.DataFrame, Numbers]:
        if len(self._frames) > 1:
            self._frames = [pl.concat(self._frames, rechunk=True)]
            self._numbers = [np.concatenate(self._numbers)]
        return self._frames[0], self._numbers[0]

    def _emit(self, whose: Numbers, columns: Sequence[pl.Series]) -> None:
        if not len(whose) or self._cells.frame is None:
            return
        keys = self._cells.frame[self._keys][whose].get_columns() if self._keys else []
        made = {column.name: column for column in (*keys, *self._bounds(whose), *columns)}
        results = [pl.DataFrame([made[name] for name in self._types if name != CHANGE])]
        if self._shown is not None:
            results = self._shown.replace(results[0], whose)
        elif self._spec.updating:
            changes = np.where(self._cells.fired[whose], np.int8(UPDATE), np.int8(INSERT))
            results = [pl.DataFrame([pl.Series(CHANGE, changes), *results[0].get_columns()])]
        self._cells.fired[whose] = True
        for result in results:
            for piece in result.iter_slices(_EMIT_ROWS):
                self.output.emit(piece)

    def _bounds(self, whose: Numbers) -> list[pl.Series]:
        if self._global:
            return []
        unit = self._spec.event_time.unit if self._spec.event_time else "us"
        micros = (self._cells.starts[whose], self._cells.ends[whose])
        return [time_column(bound, self._types[name], unit, name) for name, bound in zip(_BOUNDS, micros, strict=True)]

    def _window(self, number: int) -> Window:
        """For a user's function."""
        one = np.array([number])
        frame = self._cells.frame
        key = frame[self._keys].row(number) if frame is not None and self._keys else ()
        start, end = (column[0] for column in self._bounds(one)) if not self._global else (None, None)
        return Window(key, start, end)

    # ------------------------------------------------------------ time passes

    def on_watermark(self, watermark: int) -> int | None:
        """Fire what is due, and forget what is over."""
        if self._spec.event_time is not None or watermark == MAX_WATERMARK:
            self._advance(watermark)
        return watermark

    def on_processing_time(self, now_us: int) -> None:
        """Fire what the clock has passed."""
        if self._spec.event_time is None:
            self._advance(now_us - 1)
        elif self._trigger.clock:
            self._fire_early(now_us - 1)
        self._count()

    def next_processing_time(self) -> int | None:
        """When the clock ends a window, or a trigger wants to look."""
        times = []
        if self._trigger.clock or self._spec.event_time is None:
            times.append(self._trigger.next_time(self._cells))
        if self._spec.event_time is None and len(self._cells) and not self._global:
            times.append(int(self._cells.ends.min()))
        return min((time for time in times if time is not None), default=None)

    def on_barrier(self) -> None:
        """A snapshot has windows that have fired equally far."""
        self._fire_complete()

    def on_end(self) -> None:
        """Nothing comes any more."""
        self._advance(MAX_WATERMARK)

    def _advance(self, watermark: int) -> None:
        self._watermark = max(self._watermark, watermark)
        if len(self._cells):
            if not self._trigger.clock or self._spec.event_time is None:
                self._fire_early(self._watermark)
            self._fire_complete()
            gone = self._gone()
            if self._trigger.clock:
                self._fire(gone & (self._cells.fresh > 0))  # the clock is too late for them
            self._forget(gone)
        self._count()

    def _fire_early(self, time: int) -> None:
        firing = self._trigger.on_time(self._cells, time)
        if firing is not None:
            self._fire(firing)

    def _forget(self, gone: Mask) -> Numbers:
        """New numbers of the windows that stay."""
        renumbered = self._cells.keep(~gone)
        if not gone.any():
            return renumbered
        if self._frames:
            held, numbers = self._rows()
            stays = ~gone[numbers]
            self._frames = [held if stays.all() else held.filter(stays)]
            self._numbers = [numbers[stays]]
        self._renumber(renumbered)
        return renumbered

    def _count(self) -> None:
        self.context.counters.state_rows = sum(frame.height for frame in self._frames)

    # ------------------------------------------------------------ state

    def snapshot(self, checkpoint: CheckpointId) -> Snapshot:
        """Keep references; rows are put together and sorted later."""
        windows, frames, numbers = self._cells.with_state(), tuple(self._frames), tuple(self._numbers)
        progress = progress_section(self._own_groups, self._watermark)
        keys, max_parallelism = self._keys, self.context.max_parallelism
        shown = self._shown.freeze() if self._shown is not None else None

        def sections() -> Sequence[Section]:
            written = [progress]
            if windows is None:
                return written
            written.append(Section("windows", Redistribution.KEYED, sort_by_group(windows, keys, max_parallelism)))
            if sum(frame.height for frame in frames):
                bounds = windows[[START, END]][np.concatenate(numbers)]
                rows = pl.concat(frames, rechunk=True).hstack(bounds)
                written.append(Section("rows", Redistribution.KEYED, sort_by_group(rows, keys, max_parallelism)))
            return [*written, *(shown(windows, max_parallelism) if shown is not None else ())]

        return sections

    def restore(self, sections: Mapping[str, Sequence[pl.DataFrame]]) -> None:
        """Take windows and rows of own key groups, all from subtasks that had fired equally far."""
        self._watermark = restored_time(sections.get("progress", ()), self._own_groups)
        if windows := [frame.drop(KEY_GROUP) for frame in sections.get("windows", ()) if frame.height]:
            self._cells.restore(windows)
        if frames := [frame.drop(KEY_GROUP) for frame in sections.get("rows", ()) if frame.height]:
            rows = pl.concat(frames, rechunk=True)
            self._numbers = [self._cells.numbers(rows[[*self._keys, START, END]])]
            self._frames = [rows.drop(START, END)]
        if self._shown is not None and (sessions := self._shown.restore(sections.get(SHOWN, ()))) is not None:
            self._shown.number(self._cells.numbers(sessions))
        self._count()


def _fired_before(numbers: Numbers, fires: Mask) -> Numbers:
    """For each row, how often its window has fired in front of it in this batch."""
    order = np.argsort(numbers, kind="stable")
    ordered = numbers[order]
    counted: Numbers = np.cumsum(fires[order], dtype=np.int64) - fires[order]
    first = np.concatenate([[True], ordered[1:] != ordered[:-1]])
    base = np.maximum.accumulate(np.where(first, counted, 0))
    made = np.empty(len(numbers), np.int64)
    made[order] = counted - base
    return made
