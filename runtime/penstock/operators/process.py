"""A user's keyed process function, running on the rows of one input."""

from collections.abc import Mapping, Sequence

import polars as pl

from penstock.model import specs
from penstock.model.ids import CheckpointId
from penstock.operators.base import Operator, OperatorContext, Output, Snapshot
from penstock.operators.keyed_calls import KeyedCalls
from penstock.operators.record_calls import BatchCalls, RecordCalls
from penstock.operators.user_functions import KeyedProcessFunction
from penstock.state.rocks import RestoredFiles


class KeyedOperator(Operator):
    """What all operators with a keyed function have in common: timers, snapshots, the function's life."""

    _calls: KeyedCalls | None = None

    @property
    def calls(self) -> KeyedCalls:
        """The function with its states; there is one as soon as the operator is open."""
        assert self._calls is not None
        return self._calls

    def start(self, calls: KeyedCalls) -> None:
        """Keep the calls; the user's `open` comes last, when everything is in place."""
        self._calls = calls
        calls.open()

    def on_watermark(self, watermark: int) -> int:
        """Event-time timers."""
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

    def close(self) -> None:
        """The user's `close`, if `open` was called."""
        if self._calls is not None:
            self._calls.close()


class ProcessOperator(KeyedOperator):
    """Runs a KeyedProcessFunction."""

    def __init__(
        self, spec: specs.Process, function: KeyedProcessFunction, sides: Sequence[specs.SideOutput] = ()
    ) -> None:
        self._spec, self._function, self._sides = spec, function, sides

    def open(self, context: OperatorContext, output: Output) -> None:
        """Bind the states and call the user's `open`."""
        super().open(context, output)
        spec, function = self._spec, self._function
        calls = KeyedCalls(
            function,
            name=spec.function.name,
            keys=spec.keys,
            rows=spec.output,
            context=context,
            output=output,
            on_error=spec.on_error,
            sides=self._sides,
            tags=spec.tags,
        )
        self._rows: RecordCalls | BatchCalls
        if spec.per_batch:
            self._rows = BatchCalls(calls, function.process_batch, keys=spec.keys, event_time=spec.event_time)
        else:
            self._rows = RecordCalls(calls, function.process, keys=spec.keys, event_time=spec.event_time)
        self.start(calls)

    def on_batch(self, frame: pl.DataFrame, port: int = 0) -> None:
        """Call the function for each row, or once."""
        self._rows.run(frame)
