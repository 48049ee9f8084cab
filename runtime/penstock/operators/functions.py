"""User functions without state: `map`, `flat_map`, `map_batches`.

The loop over the rows of a batch is `map` itself, in C; a row is looked for only when the function has raised.
"""

from collections.abc import Callable, Iterable, Iterator, Mapping
from itertools import chain, repeat
from operator import length_hint
from typing import Any

import polars as pl

from penstock.model import specs
from penstock.operators.base import Operator, OperatorContext, Output
from penstock.operators.contexts import Context
from penstock.operators.rows import RowBuilder
from penstock.operators.user_errors import place, user_code
from penstock.operators.user_functions import CONTEXT, ROW, parameter_names
from penstock.state.columns import to_objects


class MapOperator(Operator):
    """Calls a function per row: one row out (`map`), or any number (`flat_map`)."""

    def __init__(self, spec: specs.Map, function: Callable[..., Any]) -> None:
        self._spec, self._function = spec, function

    def open(self, context: OperatorContext, output: Output) -> None:
        """Look at the function's parameters."""
        super().open(context, output)
        self._rows = RowBuilder(self._spec.output, where=place(context), function=self._spec.function.name)
        self._context = Context(
            context.subtask.index, context.parallelism, metrics=context.counters.user, now=context.clock.now_us
        )
        self._parameters = parameter_names(self._function, where=place(context))

    def on_watermark(self, watermark: int) -> int:
        """Functions may look at event time."""
        self._context.watermark = watermark
        return watermark

    def on_batch(self, frame: pl.DataFrame, port: int = 0) -> None:
        """One call per row."""
        first, *others = (self._argument(frame, name) for name in self._parameters)
        position = iter(first)
        rows = self._collect(frame, position, map(self._function, position, *others))
        if self._spec.flat:
            position = iter(self._rows.open_results(rows))
            rows = self._collect(frame, position, chain.from_iterable(position))
        self.output.emit(self._rows.frame(self._rows.columns(rows)))

    def _argument(self, frame: pl.DataFrame, name: str) -> Iterable[Any]:
        if name == CONTEXT:
            return repeat(self._context, frame.height)
        return frame.rows(named=True) if name == ROW else to_objects(frame.get_column(name))

    def _collect(self, frame: pl.DataFrame, position: Iterator[Any], results: Iterable[Any]) -> list[Any]:
        """All results; `position` advances by one with each row of the frame, so it names the row that failed."""

        def current_row() -> Mapping[str, object]:
            row = frame.row(frame.height - length_hint(position) - 1, named=True)
            return {name: value for name, value in row.items() if name in self._parameters or ROW in self._parameters}

        with user_code(self.context, self._spec.function.name, current_row):
            return list(results)


class MapBatchesOperator(Operator):
    """Calls a function per batch: frame in, frame out."""

    def __init__(self, spec: specs.MapBatches, function: Callable[[pl.DataFrame], pl.DataFrame]) -> None:
        self._spec, self._function = spec, function

    def open(self, context: OperatorContext, output: Output) -> None:
        """Remember what the output must look like."""
        super().open(context, output)
        self._rows = RowBuilder(self._spec.output, where=place(context), function=self._spec.function.name)

    def on_batch(self, frame: pl.DataFrame, port: int = 0) -> None:
        """One call."""
        with user_code(self.context, self._spec.function.name, lambda: {"rows": frame.height}):
            result = self._function(frame)
        self.output.emit(self._rows.conform(result))
