"""What all joins have in common: which rows have equal keys, and what their result looks like.

A null in a key equals nothing, as in SQL. Where both sides name a key alike the result has it once.
"""

from collections.abc import Mapping, Sequence

import numpy as np
import numpy.typing as npt
import polars as pl

from penstock.model.clocks import MIN_WATERMARK
from penstock.model.handles import Redistribution
from penstock.model.schemas import polars_schema
from penstock.model.specs import Join
from penstock.operators.base import OperatorContext, Section
from penstock.state.row_stores import RowStore

LEFT, RIGHT = 0, 1
"""Ports."""

PROGRESS = "progress"

_ROW = "__row"

Rows = npt.NDArray[np.int64]


class JoinRows:
    """Rows of the result, out of rows of the sides."""

    def __init__(self, spec: Join) -> None:
        self._columns = spec.columns
        self._types = polars_schema(spec.output)
        self.on = (list(spec.left_on), list(spec.right_on))

    def matched(self, left: pl.DataFrame, right: pl.DataFrame) -> list[pl.Series]:
        """Columns of rows that belong together, one beside the other."""
        made = []
        for column in self._columns:
            if column.left is not None:
                made.append(left.get_column(column.left).alias(column.name))
            elif column.right is not None:
                made.append(right.get_column(column.right).alias(column.name))
        return made

    def alone(self, rows: pl.DataFrame, side: int) -> list[pl.Series]:
        """Columns of rows that have no match: null where the other side would be."""
        made = []
        for column in self._columns:
            source = column.left if side == LEFT else column.right
            if source is not None:
                made.append(rows.get_column(source).alias(column.name))
            elif column.left is not None or column.right is not None:
                made.append(pl.Series(column.name, [None], self._types[column.name]).new_from_index(0, rows.height))
        return made

    def keys(self, frame: pl.DataFrame, side: int) -> list[pl.Series]:
        """The key columns of rows of a side."""
        return [frame.get_column(key) for key in self.on[side]]

    def with_keys(self, frame: pl.DataFrame, side: int) -> Rows | None:
        """Numbers of the rows whose keys can equal any; None: all of them."""
        missing = [key.is_null().to_numpy() for key in self.keys(frame, side) if key.null_count()]
        return np.flatnonzero(~np.logical_or.reduce(missing)) if missing else None

    def pairs(self, left: pl.DataFrame, right: pl.DataFrame) -> tuple[Rows, Rows]:
        """Numbers of left and right rows with equal keys."""
        sides = [
            pl.DataFrame(
                [
                    *(key.alias(f"{number}") for number, key in enumerate(self.keys(frame, side))),
                    pl.Series(f"{_ROW}{side}", np.arange(frame.height, dtype=np.int64)),
                ]
            )
            for side, frame in ((LEFT, left), (RIGHT, right))
        ]
        joined = sides[LEFT].join(sides[RIGHT], on=[f"{number}" for number in range(len(self.on[LEFT]))])
        return joined.get_column(f"{_ROW}0").to_numpy(), joined.get_column(f"{_ROW}1").to_numpy()

    def find(self, store: RowStore, frame: pl.DataFrame, side: int, *, expired: int) -> tuple[Rows, Rows]:
        """Pairs (number among the rows of a side, number of a row that is held of the other)."""
        usable = self.with_keys(frame, side)
        rows = frame if usable is None else frame[usable]
        positions, found = store.find(self.keys(rows, side), rows.height, expired=expired)
        return (positions if usable is None else usable[positions]), found


def chosen(frame: pl.DataFrame, positions: Rows) -> pl.DataFrame:
    """The rows at these positions, which rise; the frame itself when that is each of them once."""
    if len(positions) == frame.height and (not len(positions) or (np.diff(positions) == 1).all()):
        return frame
    return frame[positions]


def without(count: int, rows: Rows) -> Rows:
    """The numbers below `count` that are not among `rows`."""
    alone = np.ones(count, np.bool_)
    alone[rows] = False
    return np.flatnonzero(alone)


# ---------------------------------------------------------------- snapshots


def progress_section(watermark: int, context: OperatorContext) -> Section:
    """How far event time has come, for the key groups of this subtask."""
    groups = context.groups
    frame = pl.DataFrame(
        {"first_group": [groups.start], "end_group": [groups.stop], "watermark": [watermark]},
        schema={"first_group": pl.UInt16, "end_group": pl.UInt16, "watermark": pl.Int64},
    )
    return Section(PROGRESS, Redistribution.UNION, frame)


def restored_progress(sections: Mapping[str, Sequence[pl.DataFrame]], context: OperatorContext) -> int:
    """How far event time had come for all of own key groups.

    A barrier that is aligned cuts watermarks as it cuts rows, so that it was the same for all; one that overtook rows
    may have found some subtasks further than others, and no row that is in time for one of them may be late here.
    """
    own = context.groups
    return min(
        (
            watermark
            for frame in sections.get(PROGRESS, ())
            for first, end, watermark in frame.rows()
            if first < own.stop and own.start < end
        ),
        default=MIN_WATERMARK,
    )
