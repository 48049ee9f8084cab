"""A user's keyed process function, running: state of the row's key in front of each call, timers, output rows.

Owns: the states and timers of one operator in one subtask, and when they are loaded and stored.
Does not own: what a row may look like (operators.rows), how state is kept (state.values, state.timers).
"""

from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack
from itertools import islice
from operator import length_hint
from typing import Any

import polars as pl

from penstock.model import specs
from penstock.model.errors import UserError
from penstock.model.handles import Redistribution
from penstock.model.ids import CheckpointId
from penstock.operators.base import Operator, OperatorContext, Output, Section, Snapshot
from penstock.operators.event_times import event_times_us
from penstock.operators.loops import BoundState, Loop
from penstock.operators.rows import RowBuilder
from penstock.operators.user_errors import place, user_code
from penstock.operators.user_functions import (
    CONTEXT,
    ROW,
    KeyedContext,
    KeyedProcessFunction,
    ValueState,
    declared_states,
    parameter_names,
    state_type,
)
from penstock.state.columns import to_objects
from penstock.state.keys import KeyCodec
from penstock.state.timers import Timers
from penstock.state.values import ValueTable

TIMERS = "timers:event"
"""Name of the timers' section; no Python name, so that it is never the name of a state."""

_TIMERS_PER_FRAME = 65_536


class ProcessOperator(Operator):
    """Runs a KeyedProcessFunction."""

    def __init__(self, spec: specs.Process, function: KeyedProcessFunction) -> None:
        self._spec, self._function = spec, function
        self._batch: _Batch | None = None
        self._firing: tuple[int, Any] = (0, None)
        self._has_current_key = True
        self._closing = ExitStack()

    def open(self, context: OperatorContext, output: Output) -> None:
        """Bind the states and call the user's `open`."""
        super().open(context, output)
        where = place(context)
        self._rows = RowBuilder(self._spec.output, where=where, function=self._spec.function.name)
        self._keys = KeyCodec(self._spec.keys, where=where)
        self._timers = Timers(self._keys, max_parallelism=context.max_parallelism)
        self._states = [self._bind(*declared) for declared in declared_states(self._function).items()]
        self._context = KeyedContext(
            context.subtask.index,
            context.parallelism,
            set_timer=self._set_timer,
            delete_timer=self._timers.delete,
            set_timers=lambda keys, times: self._timers.set_many(times, self._keys.decode(keys)),
        )
        if not self._spec.per_batch:
            self._parameters = [
                name for name in parameter_names(self._function.process, where=where) if name != CONTEXT
            ]
            self._row_loop = self._make_row_loop()
        self._timer_loop = Loop(self._function.on_timer, "context, time", ["time"], self._states, self._rows)
        self._closing.callback(self._close_function)
        with user_code(context, f"{self._spec.function.name}.open"):
            self._function.open(self._context)

    def _bind(self, name: str, declared: ValueState[Any]) -> BoundState:
        where = place(self.context)
        table = ValueTable(
            name,
            state_type(name, declared, where=where),
            declared.default,
            self._keys,
            max_parallelism=self.context.max_parallelism,
            where=where,
        )
        handle = declared.bind(table)
        setattr(self._function, name, handle)
        return BoundState(handle, table)

    def _make_row_loop(self) -> Loop:
        names = [f"a{index}" for index in range(len(self._parameters))]
        by_parameter = dict(zip(self._parameters, names, strict=True)) | {CONTEXT: "context"}
        order = parameter_names(self._function.process)
        arguments = ", ".join(by_parameter[name] for name in order)
        return Loop(self._function.process, arguments, names, self._states, self._rows)

    # ------------------------------------------------------------ rows

    def on_batch(self, frame: pl.DataFrame, port: int = 0) -> None:
        """Call the function for each row, or once."""
        self._merge_layers()
        if self._spec.per_batch:
            self._process_batch(frame)
        else:
            self._process_rows(frame)
        fronts = [state.table.values.front for state in self._states]
        if all(front.below is None for front in fronts):  # else the number is known when the layers are merged
            self.context.counters.state_rows = sum(map(len, fronts))

    def _process_rows(self, frame: pl.DataFrame) -> None:
        columns = [
            frame.rows(named=True) if name == ROW else to_objects(frame.get_column(name)) for name in self._parameters
        ]
        self._batch = batch = _Batch(frame, self._keys.decode(frame), self._spec.event_time)
        self._context._timestamp = batch.timestamp
        rows = zip(batch.position, *columns, strict=True) if columns else batch.position
        with user_code(self.context, f"{self._spec.function.name}.process", self._current_row):
            made = self._row_loop.run(self._context, rows)
        self._batch = None
        self.output.emit(self._rows.frame(made))

    def _column(self, frame: pl.DataFrame, name: str, keys: list[Any]) -> list[Any]:
        if name == ROW:
            return frame.rows(named=True)
        return keys if self._spec.keys == (name,) else to_objects(frame.get_column(name))

    def _process_batch(self, frame: pl.DataFrame) -> None:
        self._context.key = None
        self._context._timestamp = lambda: None
        name = f"{self._spec.function.name}.process_batch"
        grouped = frame.sort(self._spec.keys, maintain_order=True) if self._spec.keys else frame
        self._has_current_key = False
        with user_code(self.context, name, lambda: {"rows": frame.height}):
            result = self._function.process_batch(self._context, grouped)
        self._has_current_key = True
        if result is not None:
            self.output.emit(self._rows.conform(result))

    def _current_row(self) -> Mapping[str, object] | None:
        """What the function was called with when it raised."""
        if self._batch is None:
            return None
        row = self._batch.frame.row(self._batch.index, named=True)
        shown = {*self._spec.keys, *self._parameters}
        return {name: value for name, value in row.items() if name in shown or ROW in shown}

    # ------------------------------------------------------------ timers

    def on_watermark(self, watermark: int) -> int:
        """Call the timers that are due, in the order of time, also those that are set on the way."""
        self._context.watermark = watermark
        self._merge_layers()
        self._context._timestamp = lambda: self._firing[0]
        while (due := self._timers.next_time) is not None and due <= watermark:
            timers = islice(self._due(watermark), _TIMERS_PER_FRAME)
            with user_code(self.context, f"{self._spec.function.name}.on_timer", self._current_timer):
                made = self._timer_loop.run(self._context, timers)
            self.output.emit(self._rows.frame(made))
        return watermark

    def _due(self, watermark: int) -> Iterator[tuple[Any, int]]:
        for time, key in self._timers.due(watermark):
            self._firing = (time, key)
            yield key, time

    def _current_timer(self) -> Mapping[str, object]:
        time, key = self._firing
        return {"key": key, "time": time}

    def _set_timer(self, time: int, key: Any) -> None:
        if not self._has_current_key:
            raise UserError(
                "P016",
                "set_timer has no current key in process_batch",
                fix="ctx.set_timers(frame_with_the_keys, times)",
            )
        self._timers.set(time, key)

    # ------------------------------------------------------------ snapshot and restore

    def _merge_layers(self) -> None:
        for state in self._states:
            state.table.values.merge()
        self._timers.merge()

    def snapshot(self, checkpoint: CheckpointId) -> Snapshot:
        """Freeze all states and timers."""
        tables = [(state.table.name, state.table.snapshot()) for state in self._states]
        tables.append((TIMERS, self._timers.snapshot()))

        def sections() -> Sequence[Section]:
            made = [(name, make()) for name, make in tables]
            return [Section(name, Redistribution.KEYED, frame) for name, frame in made if frame is not None]

        return sections

    def restore(self, sections: Mapping[str, Sequence[pl.DataFrame]]) -> None:
        """Take up what earlier subtasks left."""
        tables = {state.table.name: state.table.restore for state in self._states}
        restores = {**tables, TIMERS: self._timers.restore}
        for name, frames in sections.items():
            if name not in restores:
                raise UserError(
                    "S004",
                    f'the checkpoint has state "{name}", which {self._spec.function.name} does not declare any more',
                    where=place(self.context),
                    fix=f"declare it again: {name} = ValueState(...)",
                )
            for frame in frames:
                restores[name](frame)

    def close(self) -> None:
        """Call the user's `close`, if `open` was called."""
        self._closing.close()

    def _close_function(self) -> None:
        with user_code(self.context, f"{self._spec.function.name}.close"):
            self._function.close()


class _Batch:
    """Where the loop is in a batch, asked only when somebody wants to know: nothing is counted per row."""

    def __init__(self, frame: pl.DataFrame, keys: list[Any], event_time: specs.EventTime | None) -> None:
        self.frame = frame
        self.position = iter(keys)
        self._event_time = event_time
        self._times: list[int | None] | None = None

    @property
    def index(self) -> int:
        return self.frame.height - length_hint(self.position) - 1

    def timestamp(self) -> int | None:
        if self._event_time is None:
            return None
        if self._times is None:
            self._times = to_objects(event_times_us(self.frame, self._event_time))
        return self._times[self.index]
