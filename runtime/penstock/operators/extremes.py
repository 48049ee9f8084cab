"""Rows that may still decide, where all that is asked of a group is an extreme.

The highest bid of ten seconds, with its auction and bidder: only the rows that have the highest price matter, and to
find them is one look at one column. They are kept, not folded batch by batch.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise

import numpy as np
import numpy.typing as npt
import polars as pl

from penstock.model import specs
from penstock.model.frames import gathered, stacked

_FEW_GROUPS = 4


@dataclass(frozen=True, slots=True)
class Bound:
    """The largest (or smallest) value of a column."""

    column: str
    largest: bool

    def hits(self, rows: pl.DataFrame) -> npt.NDArray[np.intp] | None:
        """Numbers of the rows that have it; None where it cannot be found this way."""
        values = rows.get_column(self.column)
        if values.dtype.is_float() or values.null_count() == len(values):
            return None
        if values.null_count() or not (values.dtype.is_integer() or values.dtype.is_temporal()):
            bound = values.max() if self.largest else values.min()
            return np.flatnonzero((values == bound).fill_null(False).to_numpy())
        numbers = values.to_numpy()
        return np.flatnonzero(numbers == (numbers.max() if self.largest else numbers.min()))

    def mask(
        self, rows: pl.DataFrame, starts: npt.NDArray[np.intp], lengths: npt.NDArray[np.intp]
    ) -> npt.NDArray[np.bool_] | None:
        """Which rows have it, in each group of rows for itself; None where that cannot be found this way."""
        values = rows.get_column(self.column)
        if values.null_count() or not (values.dtype.is_integer() or values.dtype.is_temporal()):
            return None
        numbers = values.to_numpy()
        bounds = (np.maximum if self.largest else np.minimum).reduceat(numbers, starts)
        return np.asarray(numbers == np.repeat(bounds, lengths))


def bound_of(aggregate: specs.Aggregate) -> tuple[bytes, bool] | None:
    """What decides an aggregate: an expression, and whether its largest value; None: every row does."""
    match aggregate:
        case specs.Aggregate(function="max" | "min" as function, input=specs.Expression(polars=expression)):
            return expression, function == "max"
        case specs.Aggregate(function="max_by" | "min_by" as function, by=specs.Expression(polars=expression)):
            return expression, function == "max_by"
    return None


@dataclass(frozen=True, slots=True)
class Decided:
    """A partial column that is found in the rows that have a bound: the bound itself, or the least value beside it."""

    name: str
    source: str
    bound: Bound

    def taken(self, rows: pl.DataFrame, numbers: npt.NDArray[np.intp]) -> pl.Series:
        """One value, out of the rows with these numbers."""
        column = rows.get_column(self.source)
        chosen = 0
        if len(numbers) > 1 and self.source != self.bound.column:
            chosen = column[numbers].arg_min() or 0
        return column.new_from_index(int(numbers[chosen]), 1).alias(self.name)


@dataclass(frozen=True, slots=True)
class Extremes:
    """All that is asked of one kind of rows, when extremes are all."""

    columns: Sequence[Decided]

    @property
    def bounds(self) -> list[Bound]:
        """Each once."""
        return list(dict.fromkeys(column.bound for column in self.columns))

    def deciding(self, groups: Sequence[pl.DataFrame]) -> list[pl.DataFrame]:
        """The rows of each group that have one of the bounds; all of them where one cannot be found."""
        if len(groups) <= _FEW_GROUPS:
            return [self._deciding(group) for group in groups]
        lengths = np.array([group.height for group in groups])
        rows, starts = stacked(groups), np.cumsum(lengths) - lengths
        masks = [mask for bound in self.bounds if (mask := bound.mask(rows, starts, lengths)) is not None]
        if len(masks) < len(self.bounds):
            return [self._deciding(group) for group in groups]
        numbers = np.flatnonzero(np.logical_or.reduce(masks))
        borders = np.searchsorted(numbers, [*starts, rows.height]).tolist()
        found = gathered(rows, numbers)
        return [found.slice(start, end - start) for start, end in pairwise(borders)]

    def _deciding(self, rows: pl.DataFrame) -> pl.DataFrame:
        found = self._hits(rows)
        if found is None:
            return rows
        hits = list(found.values())
        numbers = hits[0] if len(hits) == 1 else np.unique(np.concatenate(hits))
        if len(numbers) > 1:
            return gathered(rows, numbers)
        # A slice would keep the whole batch in memory for as long as the window is open.
        return pl.DataFrame([column.new_from_index(int(numbers[0]), 1) for column in rows.get_columns()])

    def partial(self, rows: pl.DataFrame) -> pl.DataFrame | None:
        """The partial result, without a query, which would cost ten times more; None: there must be one."""
        hits = self._hits(rows)
        if hits is None:
            return None
        return pl.DataFrame([column.taken(rows, hits[column.bound]) for column in self.columns])

    def _hits(self, rows: pl.DataFrame) -> dict[Bound, npt.NDArray[np.intp]] | None:
        found = {}
        for bound in self.bounds:
            hits = bound.hits(rows)
            if hits is None:
                return None
            found[bound] = hits
        return found
