"""A method of a function with state, called with the rows of one input: per record, or per batch.

Owns: from a frame to the method's arguments, the key in front of each call, and from its results to a frame.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext
from functools import partial
from operator import length_hint
from typing import Any

import polars as pl

from penstock.model import specs
from penstock.operators.event_times import event_times_us
from penstock.operators.failures import Failures
from penstock.operators.function_calls import FunctionCalls
from penstock.operators.keyed_states import no_time
from penstock.operators.loops import Loop
from penstock.operators.user_errors import place
from penstock.operators.user_functions import CONTEXT, ROW, parameter_names
from penstock.state.columns import to_objects


class RecordCalls:
    """One call per row."""

    def __init__(
        self,
        calls: FunctionCalls,
        method: Callable[..., Any],
        *,
        keys: Sequence[str],
        event_time: specs.EventTime | None,
        failures: Failures | None = None,
    ) -> None:
        """Without `keys`: rows have none, and the method is called without state of a key."""
        self._calls, self._keys, self._event_time = calls, tuple(keys), event_time
        self._failures = failures or calls.failures
        self._label = f"{calls.name}.{method.__name__}"
        order = parameter_names(method, where=place(calls.operator))
        self._parameters = [name for name in order if name != CONTEXT]
        names = [f"a{index}" for index in range(len(self._parameters))]
        by_parameter = dict(zip(self._parameters, names, strict=True)) | {CONTEXT: "context"}
        arguments = ", ".join(by_parameter[name] for name in order)
        loaded = calls.states.loaded if self._keys else ()
        self._loop = Loop(method, arguments, names, loaded, calls.rows, keyed=bool(self._keys))
        self._batch: _Batch | None = None

    def run(self, frame: pl.DataFrame) -> None:
        """Call the method for each row, and emit what it returned."""
        calls = self._calls
        calls.begin()
        columns = [
            frame.rows(named=True) if name == ROW else to_objects(frame.get_column(name)) for name in self._parameters
        ]
        self._batch = batch = _Batch(frame, self._decode_keys(frame))
        batch.event_time = self._event_time
        calls.context._timestamp = batch.timestamp
        calls.states.row_time = batch.timestamp if self._keys else no_time
        rows = zip(batch.position, *columns, strict=True) if columns else batch.position
        made = calls.rows.empty()
        # The loop goes on behind a row that failed: the iterator has passed it.
        step = partial(self._loop.run, calls.context, iter(rows), made)
        self._failures.run(step, self._label, self._current_row, self._whole_row)
        self._batch = None
        calls.emit(calls.rows.frame(made))
        calls.count()

    def _decode_keys(self, frame: pl.DataFrame) -> Sequence[Any]:
        """The key of each row, with its state at hand; without keys, something as long."""
        if not self._keys:
            return range(frame.height)
        keys = self._calls.keys.decode(renamed(frame, self._keys, self._calls.keys.names))
        self._calls.states.prepare(keys)
        return keys

    def _current_row(self) -> Mapping[str, object] | None:
        """What the method was called with when it raised."""
        if self._batch is None:
            return None
        shown = {*self._keys, *self._parameters}
        return {name: value for name, value in self._whole_row().items() if name in shown or ROW in shown}

    def _whole_row(self) -> Mapping[str, object]:
        return {} if self._batch is None else self._batch.frame.row(self._batch.index, named=True)


class BatchCalls:
    """One call per batch, its rows sorted by key."""

    def __init__(
        self,
        calls: FunctionCalls,
        method: Callable[..., Any],
        *,
        keys: Sequence[str],
        event_time: specs.EventTime | None = None,
        failures: Failures | None = None,
    ) -> None:
        self._calls, self._method, self._keys, self._event_time = calls, method, tuple(keys), event_time
        self._failures = failures or calls.failures
        self._label = f"{calls.name}.{method.__name__}"

    def run(self, frame: pl.DataFrame) -> None:
        """Call the method, and emit what it returned."""
        calls, context = self._calls, self._calls.context
        calls.begin()
        context._timestamp = no_time
        calls.states.row_time = self._latest_time(frame)
        grouped = frame.sort(self._keys, maintain_order=True) if self._keys else frame
        made: list[pl.DataFrame] = []

        def call(part: pl.DataFrame) -> None:
            result = self._method(context, part)
            if result is not None:
                made.append(calls.rows.conform(result))

        with self._asking() if self._keys else nullcontext():
            self._failures.run_frame(call, grouped, self._label)
        for result in made:
            calls.emit(result)
        calls.sides.flush()
        calls.count()

    @contextmanager
    def _asking(self) -> Iterator[None]:
        """State is asked about many keys, by the names that they have in this input."""
        keys = self._calls.keys
        keys.asked = self._keys
        try:
            with self._calls.without_key():
                yield
        finally:
            keys.asked = keys.names

    def _latest_time(self, frame: pl.DataFrame) -> Callable[[], int | None]:
        """For state a batch is one moment: that of its latest row."""
        if not self._keys or self._event_time is None or not self._calls.states.expire_by_event_time:
            return no_time
        latest: Any = event_times_us(frame, self._event_time).max()
        return lambda: latest


def make_calls(
    calls: FunctionCalls, method: Callable[..., Any], input_: specs.ProcessInput, *, failures: Failures | None = None
) -> RecordCalls | BatchCalls:
    """How the rows of one input become calls of a method."""
    kind = BatchCalls if input_.per_batch else RecordCalls
    return kind(calls, method, keys=input_.keys, event_time=input_.event_time, failures=failures)


def renamed(frame: pl.DataFrame, names: tuple[str, ...], wanted: tuple[str, ...]) -> pl.DataFrame:
    """The frame itself when its keys are called as wanted, else just its keys by their other names."""
    if names == wanted:
        return frame
    return pl.DataFrame([frame.get_column(name).alias(new) for name, new in zip(names, wanted, strict=True)])


class _Batch:
    """Where the loop is in a batch, asked only when somebody wants to know: nothing is counted per row."""

    event_time: specs.EventTime | None = None

    def __init__(self, frame: pl.DataFrame, keys: Sequence[Any]) -> None:
        self.frame = frame
        self.position = iter(keys)
        self._times: list[int | None] | None = None

    @property
    def index(self) -> int:
        return self.frame.height - length_hint(self.position) - 1

    def timestamp(self) -> int | None:
        if self.event_time is None:
            return None
        if self._times is None:
            self._times = to_objects(event_times_us(self.frame, self.event_time))
        return self._times[self.index]
