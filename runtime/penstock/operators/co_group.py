"""Co-groups: a user's function gets all rows of a key in a window, those of both sides apart.

Owns nothing beside what a window join owns, whose panes, lateness and snapshots it shares.
"""

from collections.abc import Callable
from typing import Any

import numpy as np
import polars as pl

from penstock.model.schemas import polars_schema
from penstock.model.specs import CoGroup, WindowMatch
from penstock.operators.base import OperatorContext, Output
from penstock.operators.panes import time_column
from penstock.operators.rows import RowBuilder
from penstock.operators.user_errors import place, user_code
from penstock.operators.window_join import WindowJoin

Rows = dict[tuple[Any, ...], pl.DataFrame]


class CoGroupOperator(WindowJoin):
    """Calls a function per key and window."""

    def __init__(self, spec: CoGroup, function: Callable[[pl.DataFrame, pl.DataFrame], pl.DataFrame]) -> None:
        assert isinstance(spec.join.match, WindowMatch), "a co-group is made in windows"
        super().__init__(spec.join, spec.join.match)
        self._group, self._function = spec, function
        self._sides = (polars_schema(spec.left), polars_schema(spec.right))

    def open(self, context: OperatorContext, output: Output) -> None:
        """Remember what the output must look like."""
        super().open(context, output)
        self._builder = RowBuilder(self._group.made, where=place(context), function=self._group.function.name)

    def _emit(self, end: int, left: pl.DataFrame | None, right: pl.DataFrame | None) -> None:
        groups = tuple(self._grouped(frame, on) for frame, on in zip((left, right), self._rows.on, strict=True))
        empty = tuple(pl.DataFrame(schema=schema) for schema in self._sides)
        made = []
        for key in dict.fromkeys((*groups[0], *groups[1])):
            rows = (groups[0].get(key, empty[0]), groups[1].get(key, empty[1]))
            with user_code(self.context, self._group.function.name, lambda key=key: {"key": key}):  # type: ignore[misc]
                result = self._function(*rows)
            if result is not None:
                made.append(self._builder.conform(result))
        if made:
            rows_made = pl.concat(made, rechunk=True)
            bounds = (("window_start", end - self._panes.size), ("window_end", end))
            columns = [
                time_column(np.full(rows_made.height, at, np.int64), self._types[name], self._times[0].unit, name)
                for name, at in bounds
            ]
            self.output.emit(rows_made.hstack(columns))

    def _grouped(self, frame: pl.DataFrame | None, on: list[str]) -> Rows:
        return {} if frame is None else frame.partition_by(on, as_dict=True, maintain_order=True)
