"""A function over the aggregates of windows: what is made of their results, one call for each window.

Keeps nothing: the window in front keeps partial results only. A window that fires again gives its rows each time; a
result that is taken back gives none.
"""

from typing import Any

import numpy as np
import polars as pl

from penstock.model import specs
from penstock.model.changes import CHANGE, DELETE
from penstock.operators.base import Operator, OperatorContext, Output
from penstock.operators.window_functions import Applied, Window

_BOUNDS = ("window_start", "window_end")


class WindowResults(Operator):
    """Rows in are results of windows."""

    def __init__(self, spec: specs.ApplyResults, function: Any) -> None:
        self._spec, self._function = spec, function
        self._bounds = [field.name for field in spec.output if field.name in _BOUNDS]

    def open(self, context: OperatorContext, output: Output) -> None:
        """Remember what the function must give."""
        super().open(context, output)
        self._applied = Applied(self._spec.function, self._function, self._spec.made, context)

    def on_batch(self, frame: pl.DataFrame, port: int = 0) -> None:
        """One call for each row."""
        if CHANGE in frame.columns:
            frame = frame.filter(pl.col(CHANGE) != DELETE).drop(CHANGE)
        if frame.is_empty():
            return
        named = frame.select(*self._spec.keys, *self._bounds)

        def window(number: int) -> Window:
            values = named.row(number) if named.width else ()
            start, end = values[-2:] if self._bounds else (None, None)
            return Window(values[: len(self._spec.keys)], start, end)

        numbers = np.arange(frame.height)
        whose, columns = self._applied.results(frame, numbers, numbers, window)
        if len(whose):
            beside = named[whose].get_columns() if named.width else []
            self.output.emit(pl.DataFrame([*beside, *columns]))
