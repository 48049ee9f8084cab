"""User functions without state: `map`, `flat_map`, `map_batches`.

The loop over the rows of a batch is `map` itself, in C; a row is looked for only when the function has raised.
"""

from collections.abc import Callable, Iterable, Iterator, Mapping
from itertools import chain, repeat
from operator import length_hint
from typing import Any

import polars as pl

from penstock.model import specs
from penstock.model.errors import UserError
from penstock.operators.base import Operator, OperatorContext, Output
from penstock.operators.contexts import Context
from penstock.operators.failures import Failures
from penstock.operators.rows import Row, RowBuilder
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
        self._failures = Failures(self._spec.on_error, context, output)

    def on_watermark(self, watermark: int) -> int:
        """Functions may look at event time."""
        self._context.watermark = watermark
        return watermark

    def on_batch(self, frame: pl.DataFrame, port: int = 0) -> None:
        """One call per row."""
        first, *others = (self._argument(frame, name) for name in self._parameters)
        position = iter(first)
        if self._failures.tolerated:
            self._emit_good(frame, position, map(self._call_whole, position, *others))
            return
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
        with user_code(self.context, self._spec.function.name, lambda: self._shown(frame, _index(frame, position))):
            return list(results)

    def _shown(self, frame: pl.DataFrame, index: int) -> Mapping[str, object]:
        row = frame.row(index, named=True)
        return {name: value for name, value in row.items() if name in self._parameters or ROW in self._parameters}

    # ------------------------------------------------------------ when rows may fail

    def _call_whole(self, *arguments: Any) -> list[Row]:
        """All rows of one call, or an exception: a row that fails half-way leaves nothing behind."""
        result = self._function(*arguments)
        made: Iterable[Any] = self._rows.open_results([result])[0] if self._spec.flat else (result,)
        return [self._rows.as_tuple(row) for row in made]

    def _emit_good(self, frame: pl.DataFrame, position: Iterator[Any], calls: Iterator[list[Row]]) -> None:
        made: list[list[Row]] = []
        failed: set[int] = set()

        def whole() -> Mapping[str, object]:
            failed.add(index := _index(frame, position))
            return frame.row(index, named=True)

        # Extending keeps what came before a row that raised, and goes on behind it when it is called again.
        self._failures.run(
            lambda: made.extend(calls),
            self._spec.function.name,
            lambda: self._shown(frame, _index(frame, position)),
            whole,
        )
        try:
            self.output.emit(self._frame_of(chain.from_iterable(made)))
        except UserError:
            good = (index for index in range(frame.height) if index not in failed)
            self._emit_each(frame, zip(good, made, strict=True))

    def _emit_each(self, frame: pl.DataFrame, calls: Iterable[tuple[int, list[Row]]]) -> None:
        """Some call gave a value that its column does not take: only that one fails."""
        frames = [pl.DataFrame(schema=self._rows.schema)]
        for index, rows in calls:
            try:
                frames.append(self._frame_of(rows))
            except UserError as failure:
                row = frame.row(index, named=True)
                self._failures.take(failure, self._spec.function.name, lambda row=row: row)  # type: ignore[misc]
        self._failures.flush()
        self.output.emit(pl.concat(frames, rechunk=True))

    def _frame_of(self, rows: Iterable[Row]) -> pl.DataFrame:
        return self._rows.frame(self._rows.columns(list(rows)))


def _index(frame: pl.DataFrame, position: Iterator[Any]) -> int:
    return frame.height - length_hint(position) - 1


class MapBatchesOperator(Operator):
    """Calls a function per batch: frame in, frame out."""

    def __init__(self, spec: specs.MapBatches, function: Callable[[pl.DataFrame], pl.DataFrame]) -> None:
        self._spec, self._function = spec, function

    def open(self, context: OperatorContext, output: Output) -> None:
        """Remember what the output must look like."""
        super().open(context, output)
        self._rows = RowBuilder(self._spec.output, where=place(context), function=self._spec.function.name)
        self._failures = Failures(self._spec.on_error, context, output)

    def on_batch(self, frame: pl.DataFrame, port: int = 0) -> None:
        """One call."""
        made: list[pl.DataFrame] = []
        self._failures.run_frame(
            lambda part: made.append(self._rows.conform(self._function(part))), frame, self._spec.function.name
        )
        for result in made:
            self.output.emit(result)
