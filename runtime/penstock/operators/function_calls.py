"""A function with state in one subtask: its states, its timers, its context, and what a snapshot holds of it.

Owns: the states and timers of one function, and when they are loaded and stored.
Does not own: which rows the function is called with (operators.record_calls, operators.broadcast_calls), how state is
kept (operators.keyed_states, operators.operator_states, state.timers).
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import replace
from functools import partial
from itertools import islice
from typing import Any

import polars as pl

from penstock.model import specs
from penstock.model.clocks import MIN_WATERMARK
from penstock.model.handles import Redistribution
from penstock.operators.base import AnySection, OperatorContext, Output, Section, Snapshot
from penstock.operators.contexts import NO_KEY, KeyedContext, ProcessContext, no_current_key
from penstock.operators.failures import STOP, Failures
from penstock.operators.keyed_states import KeyedStates
from penstock.operators.loops import Loop
from penstock.operators.operator_states import OperatorStates
from penstock.operators.rows import RowBuilder
from penstock.operators.side_rows import SideRows
from penstock.operators.user_errors import place, user_code
from penstock.operators.user_functions import StatefulFunction, declared_operator_states
from penstock.operators.window_progress import progress_section, restored_progress
from penstock.state.key_groups import key_groups
from penstock.state.keys import KeyCodec
from penstock.state.rocks import RestoredFiles
from penstock.state.timers import Timers

EVENT_TIMERS = "timers:event"
PROCESSING_TIMERS = "timers:processing"
PROGRESS = "progress:timers"
"""Names of sections beside those of states; no Python names, so that they are never the names of states."""

_TIMERS_PER_FRAME = 16_384


class FunctionCalls:
    """Binds a function to its states and timers, and calls its timers."""

    def __init__(
        self,
        function: StatefulFunction,
        *,
        name: str,
        keys: tuple[str, ...],
        rows: specs.Schema,
        context: OperatorContext,
        output: Output,
        on_error: str = STOP,
        sides: Sequence[specs.SideOutput] = (),
        tags: Sequence[str] = (),
    ) -> None:
        """Without `keys`: rows have none, and timers are those of the subtask."""
        where = place(context)
        self.operator, self.output, self.name, self.keyed = context, output, name, bool(keys)
        self.rows = RowBuilder(rows, where=where, function=name)
        self.keys = KeyCodec(keys, where=where)
        self.failures = Failures(on_error, context, output)
        self.sides = SideRows(sides, output, declared=tags, where=where, function=name)
        self._function = function
        self._event = Timers(self.keys, max_parallelism=context.max_parallelism)
        self._processing = Timers(self.keys, max_parallelism=context.max_parallelism)
        self.context = self._make_context()
        timers = {EVENT_TIMERS: self._event, PROCESSING_TIMERS: self._processing} if self.keyed else {}
        self.states = KeyedStates(function, self.keys, operator=context, context=self.context, timers=timers)
        self.operator_states = OperatorStates(function, declared_operator_states(function), context)
        self.ended = False
        self._reached: set[tuple[range, int]] = set()
        """How far event time had come for key groups, before a restore; forgotten as soon as it is there again."""
        self._firing: tuple[int, Any] = (0, None)
        self._event_loop = self._timer_loop(function.on_timer)
        self._processing_loop = self._timer_loop(function.on_processing_timer)
        self._closing = ExitStack()

    def _make_context(self) -> ProcessContext:
        operator = self.operator
        shared: dict[str, Any] = {
            "event": self._event,
            "processing": self._processing,
            "metrics": operator.counters.user,
            "now": operator.clock.now_us,
            "side": self.sides.keep,
        }
        if not self.keyed:
            return ProcessContext(operator.subtask.index, operator.parallelism, **shared)
        return KeyedContext(operator.subtask.index, operator.parallelism, decode=self.keys.decode, **shared)

    def open(self) -> None:
        """Call the user's `open`; from now on `close` calls the user's."""
        self._closing.callback(self._close_function)
        with self.without_key(), user_code(self.operator, f"{self.name}.open"):
            self._function.open(self.context)

    def close(self) -> None:
        """Call the user's `close`, if `open` was called."""
        self._closing.callback(self.states.close)
        self._closing.close()

    def _close_function(self) -> None:
        with user_code(self.operator, f"{self.name}.close"):
            self._function.close()

    def _timer_loop(self, function: Any) -> Loop:
        return Loop(function, "context, time", ["time"], self.states.loaded, self.rows, keyed=self.keyed)

    # ------------------------------------------------------------ around calls

    def begin(self) -> None:
        """Before calls: put together what finished snapshots kept apart."""
        self.states.begin()
        self._event.merge()
        self._processing.merge()

    def emit(self, frame: pl.DataFrame) -> None:
        """What calls returned, and what they put out by side outputs."""
        self.output.emit(frame)
        self.sides.flush()

    def count(self) -> None:
        """After calls: how much state there is."""
        self.states.count(self.operator_states.rows)

    @contextmanager
    def without_key(self) -> Iterator[None]:
        """Around user code that has no current key, though rows have keys: state of one must not be touched."""
        context = self.context
        if not self.keyed:
            yield
            return
        self.states.unload()
        context.key, context.has_key = NO_KEY, False
        try:
            yield
        finally:
            context.has_key = True
        if any(bound.handle.holds_value() for bound in self.states.loaded):
            raise no_current_key()

    # ------------------------------------------------------------ timers

    def on_watermark(self, watermark: int) -> None:
        """Call the event-time timers that are due, in the order of time, also those that are set on the way."""
        self.context.watermark = watermark
        early = self._take_early(watermark)
        self._fire(self._event, self._event_loop, watermark, "on_timer")
        self._event.set_many(*early)

    def _take_early(self, watermark: int) -> tuple[list[int], list[Any]]:
        """Timers that were set when their time had passed already, taken out.

        They are called when time goes on; that a restored source tells again what time it was is not that.
        """
        self._reached = {(groups, time) for groups, time in self._reached if time >= watermark}
        due = list(self._event.due(watermark)) if self._reached else []
        if not due:
            return [], []
        keys = pl.DataFrame(self.keys.encode([key for _, key in due]))
        groups = key_groups(keys, self.keys.names, self.operator.max_parallelism).tolist()
        early = [any(group in behind for behind, _ in self._reached) for group in groups]
        self._event.set_many(*_unzip(timer for timer, waits in zip(due, early, strict=True) if not waits))
        return _unzip(timer for timer, waits in zip(due, early, strict=True) if waits)

    def on_processing_time(self, now_us: int) -> None:
        """Call the processing-time timers that are due."""
        self._fire(self._processing, self._processing_loop, now_us, "on_processing_timer")

    def next_processing_time(self) -> int | None:
        """When the next processing-time timer is due; after the end of input nothing may follow."""
        return None if self.ended else self._processing.next_time

    def _fire(self, timers: Timers, loop: Loop, now: int, method: str) -> None:
        self.context._timestamp = lambda: self._firing[0]
        while (due := timers.next_time) is not None and due <= now:
            self.begin()
            self.states.prepare(timers.upcoming(now, _TIMERS_PER_FRAME))
            some = islice(self._due(timers, now), _TIMERS_PER_FRAME)
            made = self.rows.empty()
            step = partial(loop.run, self.context, some, made)
            self.failures.run(step, f"{self.name}.{method}", self._current_timer)
            self.emit(self.rows.frame(made))

    def _due(self, timers: Timers, now: int) -> Iterator[tuple[Any, int]]:
        for time, key in timers.due(now):
            self._firing = (time, key)
            yield key, time

    def _current_timer(self) -> Mapping[str, object]:
        time, key = self._firing
        return {"key": key, "time": time}

    # ------------------------------------------------------------ snapshot and restore

    def snapshot(self) -> Snapshot:
        """Freeze all states and timers."""
        states = self.states.snapshot()
        operator_states = self.operator_states.snapshot()
        all_timers = (EVENT_TIMERS, self._event), (PROCESSING_TIMERS, self._processing)
        tables = [(name, timers.snapshot()) for name, timers in all_timers if not timers.is_stored]
        redistribution = Redistribution.KEYED if self.keyed else Redistribution.UNION
        progress = self._snapshot_progress() if self.keyed else []

        def sections() -> Sequence[AnySection]:
            made = [(name, make()) for name, make in tables]
            timers = [Section(name, redistribution, frame) for name, frame in made if frame is not None]
            return [*states(), *operator_states(), *timers, *progress]

        return sections

    def _snapshot_progress(self) -> list[Section]:
        earlier = sorted(self._reached, key=lambda part: (part[0].start, part[1]))
        reached = [(self.operator.groups, self.context.watermark), *earlier]
        frames = [progress_section(groups, time).frame for groups, time in reached if time != MIN_WATERMARK]
        return [Section(PROGRESS, Redistribution.UNION, pl.concat(frames))] if frames else []

    def retain(self, groups: range) -> bool:
        """Only these key groups; False: that would take long."""
        if not self.keyed or not self.states.retain(groups):
            return False
        self._event.retain(groups)
        self._processing.retain(groups)
        self.operator = replace(self.operator, part=groups)
        return True

    def restore_files(self, restored: Sequence[RestoredFiles]) -> None:
        """Take up databases that earlier subtasks left."""
        self.states.restore_files(restored)

    def restore(self, sections: Mapping[str, Sequence[pl.DataFrame]]) -> None:
        """Take up what earlier subtasks left."""
        timers = {EVENT_TIMERS: self._event, PROCESSING_TIMERS: self._processing}
        for name, kept in timers.items():
            for frame in sections.get(name, ()):
                kept.restore(frame)
        self.operator_states.restore(sections)
        self._reached = restored_progress(sections.get(PROGRESS, ()), self.operator.groups)
        others = (*timers, PROGRESS, *self.operator_states.names)
        self.states.restore({name: frames for name, frames in sections.items() if name not in others})


def _unzip(timers: Iterable[tuple[int, Any]]) -> tuple[list[int], list[Any]]:
    pairs = list(timers)
    return [time for time, _ in pairs], [key for _, key in pairs]
