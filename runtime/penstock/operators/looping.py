"""The two ends of a loop, seen as operators: both pass rows on. What makes a loop of them is the task's affair.

There is no event time inside a loop: a row may come round again at any time, so the head holds every watermark back
until the loop is over.
"""

import polars as pl

from penstock.model import specs
from penstock.model.clocks import MAX_WATERMARK
from penstock.operators.base import Operator


class LoopEnd(Operator):
    """Head or tail: rows in the column order of the loop."""

    def __init__(self, spec: specs.LoopHead | specs.LoopTail) -> None:
        self._columns = list(spec.columns)

    def on_batch(self, frame: pl.DataFrame, port: int = 0) -> None:
        """Pass the rows on."""
        self.output.emit(frame if frame.columns == self._columns else frame[self._columns])

    def on_watermark(self, watermark: int) -> int | None:
        """Only the end of time, which is that of the loop too."""
        return watermark if watermark == MAX_WATERMARK else None
