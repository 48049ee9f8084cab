"""Rows that functions put out by side outputs: `ctx.output("tag", row)`.

Owns: what was put out since the last flush. Rows leave with the main rows of the same batch.
An output that nobody reads takes its rows and forgets them.
"""

from collections.abc import Sequence
from typing import Any

import polars as pl

from penstock.model import specs
from penstock.model.errors import UserError
from penstock.operators.base import Output
from penstock.operators.rows import RowBuilder


class SideRows:
    """The side outputs of one function."""

    def __init__(
        self, sides: Sequence[specs.SideOutput], output: Output, *, declared: Sequence[str], where: str, function: str
    ) -> None:
        self._output, self._where, self._function = output, where, function
        self._declared = frozenset(declared)
        self._builders = {side.name: RowBuilder(side.schema, where=where, function=function) for side in sides}
        self._rows: dict[str, list[list[Any]]] = {}
        self._frames: list[tuple[str, pl.DataFrame]] = []

    def keep(self, tag: str, row: Any) -> None:
        """Take a row, a list of rows, or a frame."""
        builder = self._builders.get(tag)
        if builder is None:
            if tag not in self._declared:
                known = ", ".join(sorted(self._declared)) or "none"
                raise UserError(
                    "P016",
                    f'{self._function} has no side output "{tag}"; it has {known}',
                    where=self._where,
                    fix=f'declare it: side_outputs={{"{tag}": schema}}',
                )
            return
        if isinstance(row, pl.DataFrame):
            self._frames.append((tag, builder.conform(row)))
            return
        columns = self._rows.get(tag)
        if columns is None:
            columns = self._rows[tag] = builder.empty()
        builder.keep(row, columns)

    def flush(self) -> None:
        """Let them go."""
        if self._frames:
            frames, self._frames = self._frames, []
            for tag, frame in frames:
                self._output.emit_side(tag, frame)
        if self._rows:
            rows, self._rows = self._rows, {}
            for tag, columns in rows.items():
                self._output.emit_side(tag, self._builders[tag].frame(columns))
