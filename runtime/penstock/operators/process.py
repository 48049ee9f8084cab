"""A user's function with state and timers, running on the rows of one input, or of two."""

from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from dataclasses import replace

import polars as pl

from penstock.model import specs
from penstock.model.clocks import MAX_WATERMARK
from penstock.model.ids import CheckpointId
from penstock.operators.base import Operator, OperatorContext, Output, Snapshot
from penstock.operators.broadcast_calls import BroadcastCalls
from penstock.operators.function_calls import FunctionCalls
from penstock.operators.record_calls import BatchCalls, RecordCalls, make_calls
from penstock.operators.user_functions import StatefulFunction
from penstock.state.rocks import RestoredFiles


class ProcessOperator(Operator):
    """Runs a KeyedProcessFunction, ProcessFunction, CoProcessFunction or BroadcastProcessFunction.

    Rows for every subtask have no time of their own: event time goes by the other input. The end of time comes only
    when they have ended too, since they may still make the function give out rows.
    """

    def __init__(
        self,
        spec: specs.Process | specs.CoProcess,
        function: StatefulFunction,
        sides: Sequence[specs.SideOutput] = (),
    ) -> None:
        self._spec, self._function, self._sides = spec, function, sides
        self._inputs = spec.inputs if isinstance(spec, specs.CoProcess) else (_only_input(spec),)
        self._closing = ExitStack()
        self._holds_end = isinstance(spec, specs.CoProcess) and spec.broadcast
        self.timeless_ports = frozenset(_timeless(spec))

    def open(self, context: OperatorContext, output: Output) -> None:
        """Bind the states."""
        super().open(context, output)
        spec = self._spec
        self.calls = calls = FunctionCalls(
            self._function,
            name=spec.function.name,
            keys=spec.keys,
            rows=spec.output,
            context=context,
            output=output,
            on_error=spec.on_error,
            sides=self._sides,
            tags=spec.tags,
        )
        self._closing.callback(calls.close)
        self._ports = [self._port(port) for port in range(len(self._inputs))]

    def _port(self, port: int) -> RecordCalls | BatchCalls | BroadcastCalls:
        input_ = self._inputs[port]
        method = getattr(self._function, input_.method)
        if self._spec.broadcast and port == len(self._inputs) - 1:
            return BroadcastCalls(self.calls, method, input_, self._spec.on_error)
        return make_calls(self.calls, method, input_)

    def on_restored(self) -> None:
        """The user's `open`, when everything is in place."""
        self.calls.open()

    def on_batch(self, frame: pl.DataFrame, port: int = 0) -> None:
        """Call the function for each row, or once."""
        self._ports[port].run(frame)

    def on_watermark(self, watermark: int) -> int | None:
        """Event-time timers."""
        if watermark == MAX_WATERMARK and self._holds_end:
            return None
        self.calls.on_watermark(watermark)
        return watermark

    def on_processing_time(self, now_us: int) -> None:
        """Processing-time timers."""
        self.calls.on_processing_time(now_us)

    def next_processing_time(self) -> int | None:
        """When the next of them is due."""
        return self.calls.next_processing_time()

    def on_end(self) -> None:
        """Processing-time timers that are not due yet never are."""
        if self._holds_end:
            self.calls.on_watermark(MAX_WATERMARK)
            self.output.pass_watermark(MAX_WATERMARK)
        self.calls.ended = True

    def snapshot(self, checkpoint: CheckpointId) -> Snapshot:
        """States and timers as they are now."""
        return self.calls.snapshot()

    def restore_files(self, restored: Sequence[RestoredFiles]) -> None:
        """Take up databases that earlier subtasks left."""
        self.calls.restore_files(restored)

    def restore(self, sections: Mapping[str, Sequence[pl.DataFrame]]) -> None:
        """Take up what earlier subtasks left."""
        self.calls.restore(sections)

    def retain(self, groups: range) -> bool:
        """State in memory can be left where it is, and forgotten little by little."""
        if not self.calls.retain(groups):
            return False
        self.context = replace(self.context, part=groups)
        return True

    def close(self) -> None:
        """The user's `close`, if `open` was called."""
        self._closing.close()


def _only_input(spec: specs.Process) -> specs.ProcessInput:
    return specs.ProcessInput(
        method="process_batch" if spec.per_batch else "process",
        per_batch=spec.per_batch,
        keys=spec.keys,
        columns=spec.function.columns,
        event_time=spec.event_time,
    )


def _timeless(spec: specs.Process | specs.CoProcess) -> list[int]:
    """Inputs that event time does not wait for: rows for every subtask; those without time, where others have it."""
    if isinstance(spec, specs.Process):
        return []
    if spec.broadcast:
        return [1]
    timed = [input_.event_time is not None for input_ in spec.inputs]
    return [port for port, has_time in enumerate(timed) if not has_time] if any(timed) else []
