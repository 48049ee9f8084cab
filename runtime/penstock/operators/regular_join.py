"""Regular joins: rows with equal keys match whenever they came, unless one has expired.

Owns: the rows of both sides (states "left", "right"). A mark on a row of a side that is kept whole (of a left join:
the left side) says that it has a match, so that it is not out alone.

Each batch is a change of one side: rows that come, and rows that go if the side updates. What follows for the result
is its pairs with the other side, and rows of either side that gain their first match or lose their last. Where results
can be taken back, they carry `__change`; a row is identified by its values. Expired rows are forgotten without a word.
"""

from collections.abc import Mapping, Sequence

import numpy as np
import numpy.typing as npt
import polars as pl

from penstock.model.changes import CHANGE, DELETE, INSERT
from penstock.model.ids import CheckpointId
from penstock.model.specs import EverMatch, Join
from penstock.operators.base import Operator, OperatorContext, Output, Snapshot
from penstock.operators.expiry import Expiry
from penstock.operators.join_rows import LEFT, RIGHT, JoinRows, Rows, chosen
from penstock.operators.keyed_rows import KeyedRows
from penstock.state.row_stores import RowStore
from penstock.state.tables import same_rows

STATES = ("left", "right")

_ORDINAL = "__ordinal"


class RegularJoin(Operator):
    """Matches rows of all of time."""

    def __init__(self, spec: Join, match: EverMatch) -> None:
        self._spec, self._match, self._rows = spec, match, JoinRows(spec)
        self._changing = (match.left_changes, match.right_changes)
        self._pairs = spec.how not in ("semi", "anti")
        self._whole = (spec.how in ("left", "full", "semi", "anti"), spec.how in ("right", "full"))
        """Rows of a side can be in the result alone."""
        self._stores = (RowStore(spec.left_on), RowStore(spec.right_on))
        self._kept = [KeyedRows(state, store) for state, store in zip(STATES, self._stores, strict=True)]

    def open(self, context: OperatorContext, output: Output) -> None:
        """Remember where it runs."""
        super().open(context, output)
        times = (self._match.left_ttl, self._match.right_ttl)
        self._expiry = tuple(Expiry(ttl, context.clock, context.uid) for ttl in times)

    def on_batch(self, frame: pl.DataFrame, port: int = 0) -> None:
        """Emit what the rows change."""
        self._sweep()
        gone, come = self._changes(frame, port)
        if gone.height:
            self._take_back(gone, port)
        if come.height:
            self._take(come, port)
        self._count()

    def _changes(self, frame: pl.DataFrame, port: int) -> tuple[pl.DataFrame, pl.DataFrame]:
        """Rows that go and rows that come; what does both within the batch is left out."""
        if not self._changing[port]:
            return frame.clear(), frame
        changes, rows = frame.get_column(CHANGE).to_numpy(), frame.drop(CHANGE)
        going = np.flatnonzero(changes == DELETE)
        if not len(going):
            return rows.clear(), rows
        if len(going) == frame.height:
            return rows, rows.clear()
        net = frame.group_by(rows.columns, maintain_order=True).agg(pl.col(CHANGE).cast(pl.Int64).sum())
        sums, kept = net.get_column(CHANGE).to_numpy(), net[rows.columns]
        numbers = np.arange(net.height)
        return kept[np.repeat(numbers, np.maximum(-sums, 0))], kept[np.repeat(numbers, np.maximum(sums, 0))]

    # ------------------------------------------------------------ rows that come

    def _take(self, frame: pl.DataFrame, port: int) -> None:
        other, side = self._stores[1 - port], self._whole[port]
        positions, found = self._rows.find(other, frame, port, expired=self._expiry[1 - port].expired)
        marks = np.zeros(frame.height, np.bool_)
        marks[positions] = True
        if self._whole[1 - port] and len(found):
            # Rows of the other side that have their first match now.
            first = np.unique(found)
            self._first_match(first[~other.marks(first)], 1 - port)
        if side:
            self._alone(frame[np.flatnonzero(marks if self._spec.how == "semi" else ~marks)], port, INSERT)
        if self._pairs:
            self._emit_pairs(frame, port, positions, found, INSERT)
        self._keep(frame, marks, port)

    def _first_match(self, numbers: Rows, side: int) -> None:
        if len(numbers):
            store = self._stores[side]
            self._alone(store.rows(numbers), side, INSERT if self._spec.how == "semi" else DELETE)
            store.mark(numbers)

    def _keep(self, frame: pl.DataFrame, marks: npt.NDArray[np.bool_], port: int) -> None:
        written = self._expiry[port].written(frame)
        if not self._whole[port] and (usable := self._rows.with_keys(frame, port)) is not None:
            frame, marks, written = frame[usable], marks[usable], written[usable]
        if frame.height:
            self._stores[port].add(frame, written, marks)

    # ------------------------------------------------------------ rows that go

    def _take_back(self, frame: pl.DataFrame, port: int) -> None:
        own, other = self._stores[port], self._stores[1 - port]
        numbers = self._held(frame, port)
        if not len(numbers):
            return
        frame, marks = own.rows(numbers), own.marks(numbers)
        own.remove(numbers)
        expired = self._expiry[1 - port].expired
        positions, found = self._rows.find(other, frame, port, expired=expired)
        if self._pairs:
            self._emit_pairs(frame, port, positions, found, DELETE)
        if self._whole[port]:
            self._alone(frame[np.flatnonzero(marks if self._spec.how == "semi" else ~marks)], port, DELETE)
        if self._whole[1 - port] and len(found):
            self._last_match(np.unique(found), port)

    def _held(self, frame: pl.DataFrame, port: int) -> Rows:
        """The row that is held for each that goes: the n-th of equal ones for the n-th that is named."""
        store = self._stores[port]
        positions, found = store.find(self._rows.keys(frame, port), frame.height, expired=self._expiry[port].expired)
        if not len(found):
            return found
        same = same_rows(store.rows(found)[frame.columns], frame[positions])
        positions, found = positions[same], found[same]
        starts = np.searchsorted(positions, positions, "left")
        ordinal = frame.select(pl.int_range(pl.len()).over(frame.columns).alias(_ORDINAL)).to_series().to_numpy()
        chosen: Rows = found[np.arange(len(found)) - starts == ordinal[positions]]
        return chosen

    def _last_match(self, numbers: Rows, port: int) -> None:
        """Rows of the other side that have no match any more."""
        own, other = self._stores[port], self._stores[1 - port]
        rows = other.rows(numbers)
        positions, _ = self._rows.find(own, rows, 1 - port, expired=self._expiry[port].expired)
        lost = np.ones(len(numbers), np.bool_)
        lost[positions] = False
        lost &= other.marks(numbers)
        if lost.any():
            self._alone(rows[np.flatnonzero(lost)], 1 - port, DELETE if self._spec.how == "semi" else INSERT)
            other.mark(numbers[lost], False)

    # ------------------------------------------------------------ results

    def _emit_pairs(self, frame: pl.DataFrame, port: int, positions: Rows, found: Rows, change: int) -> None:
        if len(found):
            given, held = chosen(frame, positions), self._stores[1 - port].rows(found)
            self._emit(self._rows.matched(*((given, held) if port == LEFT else (held, given))), change)

    def _alone(self, rows: pl.DataFrame, side: int, change: int) -> None:
        self._emit(self._rows.alone(rows, side), change)

    def _emit(self, columns: Sequence[pl.Series], change: int) -> None:
        if not columns or not len(columns[0]):
            return
        marked = [pl.Series(CHANGE, np.full(len(columns[0]), change, np.int8))] if self._match.changes else []
        self.output.emit(pl.DataFrame([*marked, *columns]))

    # ------------------------------------------------------------ time and state

    def on_watermark(self, watermark: int) -> int:
        """What is old enough is forgotten."""
        for expiry in self._expiry:
            expiry.on_watermark(watermark)
        self._sweep()
        return watermark

    def _sweep(self) -> None:
        for expiry, store in zip(self._expiry, self._stores, strict=True):
            if (expired := expiry.sweep()) is not None:
                store.remove(store.until(expired))
        self._count()

    def _count(self) -> None:
        self.context.counters.state_rows = len(self._stores[LEFT]) + len(self._stores[RIGHT])

    def snapshot(self, checkpoint: CheckpointId) -> Snapshot:
        """Keep references to the rows."""
        parts = [kept.snapshot(self.context) for kept in self._kept]
        return lambda: [section for part in parts for section in part()]

    def restore(self, sections: Mapping[str, Sequence[pl.DataFrame]]) -> None:
        """Take the rows of own keys."""
        for kept in self._kept:
            kept.restore(sections)
        self._count()
