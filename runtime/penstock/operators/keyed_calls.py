"""A keyed function in one subtask: its states, its timers of both kinds, its context, and what a snapshot holds of it.

Owns: the states and timers of one function, and when they are loaded and stored.
Does not own: which rows the function is called with (operators.record_calls, operators.process), how state is kept
(state.values, state.timers).
"""

from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack
from functools import partial
from itertools import islice
from typing import Any

import polars as pl

from penstock.model import specs
from penstock.model.handles import Redistribution
from penstock.operators.base import AnySection, OperatorContext, Output, Section, Snapshot
from penstock.operators.contexts import KeyedContext
from penstock.operators.failures import STOP, Failures
from penstock.operators.keyed_states import KeyedStates, no_time
from penstock.operators.loops import Loop
from penstock.operators.rows import RowBuilder
from penstock.operators.side_rows import SideRows
from penstock.operators.user_errors import place, user_code
from penstock.operators.user_functions import KeyedFunction
from penstock.state.keys import KeyCodec
from penstock.state.rocks import RestoredFiles
from penstock.state.timers import Timers

EVENT_TIMERS = "timers:event"
PROCESSING_TIMERS = "timers:processing"
"""Names of the timers' sections; no Python names, so that they are never the names of states."""

_TIMERS_PER_FRAME = 65_536


class KeyedCalls:
    """Binds a function to its states and timers, and calls its timers."""

    def __init__(
        self,
        function: KeyedFunction,
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
        where = place(context)
        self.operator, self.output, self.name = context, output, name
        self.rows = RowBuilder(rows, where=where, function=name)
        self.keys = KeyCodec(keys, where=where)
        self.failures = Failures(on_error, context, output)
        self.sides = SideRows(sides, output, declared=tags, where=where, function=name)
        self._function = function
        self._event = Timers(self.keys, max_parallelism=context.max_parallelism)
        self._processing = Timers(self.keys, max_parallelism=context.max_parallelism)
        self.context = KeyedContext(
            context.subtask.index,
            context.parallelism,
            event=self._event,
            processing=self._processing,
            decode=self.keys.decode,
            metrics=context.counters.user,
            now=context.clock.now_us,
            side=self.sides.keep,
        )
        self.states = KeyedStates(function, self.keys, operator=context, context=self.context)
        self.ended = False
        self._firing: tuple[int, Any] = (0, None)
        self._event_loop = self._timer_loop(function.on_timer)
        self._processing_loop = self._timer_loop(function.on_processing_timer)
        self._closing = ExitStack()

    def open(self) -> None:
        """Call the user's `open`; from now on `close` calls the user's."""
        self._closing.callback(self._close_function)
        with user_code(self.operator, f"{self.name}.open"):
            self._function.open(self.context)

    def close(self) -> None:
        """Call the user's `close`, if `open` was called."""
        self._closing.callback(self.states.close)
        self._closing.close()

    def _close_function(self) -> None:
        with user_code(self.operator, f"{self.name}.close"):
            self._function.close()

    def _timer_loop(self, function: Any) -> Loop:
        return Loop(function, "context, time", ["time"], self.states.loaded, self.rows)

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
        self.states.count()

    # ------------------------------------------------------------ timers

    def on_watermark(self, watermark: int) -> None:
        """Call the event-time timers that are due, in the order of time, also those that are set on the way."""
        self.context.watermark = watermark
        self._fire(self._event, self._event_loop, watermark, "on_timer")

    def on_processing_time(self, now_us: int) -> None:
        """Call the processing-time timers that are due."""
        self._fire(self._processing, self._processing_loop, now_us, "on_processing_timer")

    def next_processing_time(self) -> int | None:
        """When the next processing-time timer is due; after the end of input nothing may follow."""
        return None if self.ended else self._processing.next_time

    def _fire(self, timers: Timers, loop: Loop, now: int, method: str) -> None:
        self.begin()
        self.context._timestamp = lambda: self._firing[0]
        self.states.row_time = no_time
        while (due := timers.next_time) is not None and due <= now:
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
        tables = (EVENT_TIMERS, self._event.snapshot()), (PROCESSING_TIMERS, self._processing.snapshot())

        def sections() -> Sequence[AnySection]:
            made = [(name, make()) for name, make in tables]
            timers = [Section(name, Redistribution.KEYED, frame) for name, frame in made if frame is not None]
            return [*states(), *timers]

        return sections

    def restore_files(self, restored: Sequence[RestoredFiles]) -> None:
        """Take up databases that earlier subtasks left."""
        self.states.restore_files(restored)

    def restore(self, sections: Mapping[str, Sequence[pl.DataFrame]]) -> None:
        """Take up what earlier subtasks left."""
        timers = {EVENT_TIMERS: self._event, PROCESSING_TIMERS: self._processing}
        for name, kept in timers.items():
            for frame in sections.get(name, ()):
                kept.restore(frame)
        self.states.restore({name: frames for name, frames in sections.items() if name not in timers})
