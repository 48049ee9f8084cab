"""Which session each row is in: one sort, one flag per row, one cumulative sum. No loop over keys or sessions.

A row (or a session, which is the same thing grown) covers `[start, end)`. Those of one key that overlap or touch are
one session, also over others between them.
"""

from collections.abc import Callable, Sequence

import numpy as np
import numpy.typing as npt
import polars as pl
from polars.exceptions import PolarsError

from penstock.model import specs
from penstock.model.errors import UserError
from penstock.operators.expressions import Column, expression_error

_TIME = "__starts"

Times = npt.NDArray[np.int64]


def session_numbers(frame: pl.DataFrame, keys: Sequence[str], starts: Times, ends: Times) -> npt.NDArray[np.uint32]:
    """The session of each row, counted from 0 by key and time."""
    order = _order(frame, keys, starts)
    first_of_key = np.ones(frame.height, np.bool_)
    first_of_key[1:] = False
    for key in keys:
        column = frame.get_column(key)[order]
        first_of_key[1:] |= column.slice(1).ne_missing(column.slice(0, frame.height - 1)).to_numpy()
    begins = first_of_key.copy()
    reach = _reach(first_of_key, ends[order])
    begins[1:] |= starts[order][1:] > reach[:-1]
    numbers = np.empty(frame.height, np.uint32)
    numbers[order] = np.cumsum(begins) - 1
    return numbers


def growing(
    frame: pl.DataFrame, keys: Sequence[str], held: int, starts: Times, ends: Times, gone: int
) -> tuple[Times, Times] | None:
    """Start and end of the session of each new row as it was with that row; None: rows must be taken in smaller parts.

    `frame` has the sessions that are open (the first `held` rows), then new rows in the order in which they came. To
    take them together is the same as one after the other when each session that they make has been one all the way:
    every row touches what was there before it, and none came when its session would have been over (up to `gone`), to
    be saved by a later one. A row by itself is always that.
    """
    numbers = session_numbers(frame, keys, starts, ends)
    order = np.argsort(numbers, kind="stable")
    first = np.ones(len(order), np.bool_)
    first[1:] = numbers[order][1:] != numbers[order][:-1]
    reach, begin = _reach(first, ends[order]), -_reach(first, -starts[order])
    if frame.height - held > 1:
        touches = (starts[order][1:] <= reach[:-1]) & (ends[order][1:] >= begin[:-1])
        latest = np.maximum.reduceat(ends[order], np.flatnonzero(first))
        saved = (order[first] >= held) & (ends[order][first] - 1 <= gone) & (latest - 1 > gone)
        if saved.any() or not (touches | first[1:]).all():
            return None
    so_far = np.empty((2, len(order)), np.int64)
    so_far[:, order] = begin, reach
    return so_far[0, held:], so_far[1, held:]


def session_gaps(gap_us: int, gap: specs.Expression | None, uid: str) -> Callable[[pl.DataFrame], Times | int]:
    """How long each row keeps its session open; a row that does not say is an error that names the expression."""
    if gap is None:
        return lambda frame: gap_us
    column = Column.of(gap)

    def gaps_of(frame: pl.DataFrame) -> Times:
        try:
            gaps = frame.select(column.expression).to_series()
        except PolarsError as error:
            raise expression_error(error, frame, [column], uid) from error
        if wrong := gaps.null_count() + int((gaps <= 0).sum()):
            raise UserError(
                "R007",
                f'{wrong} of {len(gaps)} rows have no session gap: "{column.text}" is null or not above zero',
                where=f'operator "{uid}"',
                fix="filter such rows out before the window, or give the gap a default with fill_null",
            )
        return gaps.to_numpy()

    return gaps_of


def _order(frame: pl.DataFrame, keys: Sequence[str], starts: Times) -> npt.NDArray[np.intp]:
    if not keys:
        return np.argsort(starts, kind="stable")
    column = frame.get_column(keys[0])
    if len(keys) == 1 and column.dtype.is_integer() and not column.null_count():
        return np.lexsort((starts, column.to_numpy()))
    times = pl.Series(_TIME, starts)
    order = frame[list(keys)].hstack([times]).select(pl.arg_sort_by([*keys, _TIME], maintain_order=True))
    return order.to_series().to_numpy().astype(np.intp)


def _reach(first_of_key: npt.NDArray[np.bool_], ends: Times) -> Times:
    """The latest end so far, of each key by itself."""
    if len(ends) < 2 or bool(((ends[1:] >= ends[:-1]) | first_of_key[1:]).all()):
        return ends
    # Ends by rank, and the number of the key in front of it: then one running maximum serves all keys.
    distinct, ranks = np.unique(ends, return_inverse=True)
    keyed = (np.cumsum(first_of_key) * len(distinct)) + ranks
    latest: Times = distinct[np.maximum.accumulate(keyed) % len(distinct)]
    return latest
