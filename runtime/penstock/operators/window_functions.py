"""What is made of the rows of windows that fire: aggregates, or a user's function over each window."""

import functools
import inspect
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np
import polars as pl

from penstock.model import specs
from penstock.operators.aggregates import Aggregation
from penstock.operators.base import OperatorContext
from penstock.operators.rows import RowBuilder
from penstock.operators.user_errors import place, user_code
from penstock.operators.window_cells import Numbers

_CELL = "__cell"


@dataclass(frozen=True, slots=True)
class Window:
    """Which window a function is called for: `def summary(rows, window)`."""

    key: tuple[Any, ...]
    """Values of the key columns; empty without a key."""
    start: Any
    end: Any
    """As in the columns `window_start` and `window_end`; None for a global window."""


Describe = Callable[[int], Window]


class WindowFunction(Protocol):
    """Makes rows of windows."""

    def results(
        self, rows: pl.DataFrame, numbers: Numbers, times: Numbers, describe: Describe
    ) -> tuple[Numbers, list[pl.Series]]:
        """Output columns without keys and bounds, and whose window each row is of; in order of windows."""
        ...


class Aggregated:
    """All windows in one pass."""

    def __init__(self, aggregates: Sequence[specs.Aggregate], uid: str) -> None:
        self._aggregation, self._uid = Aggregation([_CELL], aggregates), uid

    def results(
        self, rows: pl.DataFrame, numbers: Numbers, times: Numbers, describe: Describe
    ) -> tuple[Numbers, list[pl.Series]]:
        """One row for each window."""
        prepared = self._aggregation.prepare(rows.hstack([pl.Series(_CELL, numbers)]), times, self._uid)
        (partials,) = self._aggregation.fold([prepared])
        partials = partials.sort(_CELL)
        return partials.get_column(_CELL).to_numpy(), self._aggregation.results(partials)


class Applied:
    """A function from the rows of a window to any number of rows."""

    def __init__(self, spec: specs.Function, function: Any, output: specs.Schema, context: OperatorContext) -> None:
        self._function, self._name, self._context = function, spec.name, context
        self._rows = RowBuilder(output, where=place(context), function=spec.name)
        self._takes_window = len(inspect.signature(function).parameters) > 1

    def results(
        self, rows: pl.DataFrame, numbers: Numbers, times: Numbers, describe: Describe
    ) -> tuple[Numbers, list[pl.Series]]:
        """One call for each window."""
        made, whose = [pl.DataFrame(schema=self._rows.schema)], [np.empty(0, np.int64)]
        for number, part in _by_window(rows, numbers):
            with user_code(self._context, self._name):
                result = self._function(part, describe(number)) if self._takes_window else self._function(part)
            conformed = self._rows.conform(result)
            made.append(conformed)
            whose.append(np.full(conformed.height, number))
        return np.concatenate(whose), pl.concat(made, rechunk=True).get_columns()


class Reduced:
    """A function of two rows that gives one, over all rows of a window."""

    def __init__(self, spec: specs.Function, function: Any, output: specs.Schema, context: OperatorContext) -> None:
        self._function, self._name, self._context = function, spec.name, context
        self._rows = RowBuilder(output, where=place(context), function=spec.name)

    def results(
        self, rows: pl.DataFrame, numbers: Numbers, times: Numbers, describe: Describe
    ) -> tuple[Numbers, list[pl.Series]]:
        """One row for each window."""
        made, whose = [], []
        for number, part in _by_window(rows, numbers):
            with user_code(self._context, self._name):
                reduced = functools.reduce(self._function, part.iter_rows(named=True))
            made.append(self._rows.as_tuple({name: reduced[name] for name in self._rows.schema}))
            whose.append(number)
        return np.array(whose, np.int64), self._rows.frame(self._rows.columns(made)).get_columns()


def _by_window(rows: pl.DataFrame, numbers: Numbers) -> Iterator[tuple[int, pl.DataFrame]]:
    if not len(numbers):
        return
    order = np.argsort(numbers, kind="stable")
    ordered, rows = numbers[order], rows[order]
    starts = np.concatenate([[0], np.flatnonzero(ordered[1:] != ordered[:-1]) + 1])
    for start, length in zip(starts.tolist(), np.diff(starts, append=len(ordered)).tolist(), strict=True):
        yield int(ordered[start]), rows.slice(start, length)
