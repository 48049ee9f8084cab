"""Broadcast joins: each left row beside all right rows with its key that were there before it.

Owns: the rows of the right side, all of them in every subtask (state "right"). Barriers cut the right side for all
subtasks at the same row, so that one of them writes it and all take it back. The right side has no time of its own:
it never holds the left one back.
"""

from collections.abc import Mapping, Sequence

import numpy as np
import polars as pl

from penstock.model.handles import Redistribution
from penstock.model.ids import CheckpointId
from penstock.model.specs import Join
from penstock.operators.base import Operator, Section, Snapshot, empty_snapshot
from penstock.operators.join_rows import LEFT, RIGHT, JoinRows, without
from penstock.state.row_stores import RowStore
from penstock.state.tables import NEVER

STATE = "right"


class BroadcastJoin(Operator):
    """Matches a row with what every subtask knows."""

    timeless_ports = frozenset({RIGHT})

    def __init__(self, spec: Join) -> None:
        self._spec, self._rows = spec, JoinRows(spec)
        self._store = RowStore(spec.right_on)

    def on_batch(self, frame: pl.DataFrame, port: int = 0) -> None:
        """Left rows are joined at once, right rows are kept."""
        if port == RIGHT:
            usable = self._rows.with_keys(frame, RIGHT)
            rows = frame if usable is None else frame[usable]
            if rows.height:
                self._store.add(rows)
            self.context.counters.state_rows = len(self._store)
            return
        positions, found = self._rows.find(self._store, frame, LEFT, expired=NEVER)
        match self._spec.how:
            case "semi":
                self._emit(self._rows.alone(frame[np.unique(positions)], LEFT))
            case "anti":
                self._emit(self._rows.alone(frame[without(frame.height, positions)], LEFT))
            case how:
                if len(found):
                    self._emit(self._rows.matched(frame[positions], self._store.rows(found)))
                if how == "left":
                    self._emit(self._rows.alone(frame[without(frame.height, positions)], LEFT))

    def _emit(self, columns: Sequence[pl.Series]) -> None:
        if columns and len(columns[0]):
            self.output.emit(pl.DataFrame(columns))

    def snapshot(self, checkpoint: CheckpointId) -> Snapshot:
        """The first subtask writes what all have."""
        if self.context.subtask.index:
            return empty_snapshot
        frozen = self._store.freeze()

        def sections() -> Sequence[Section]:
            return () if frozen is None else (Section(STATE, Redistribution.UNION, frozen.payload[frozen.rows]),)

        return sections

    def restore(self, sections: Mapping[str, Sequence[pl.DataFrame]]) -> None:
        """Take all rows."""
        for frame in sections.get(STATE, ()):
            if frame.height:
                self._store.add(frame)
        self.context.counters.state_rows = len(self._store)
