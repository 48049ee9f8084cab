"""Windows by key, numbered: what a trigger has to know of each, as arrays.

Owns: keys and bounds of every window that is alive, and beside them how many rows came since it fired last, whether it
has given a result, when it fires early next, and what delta compares with. The number of a window is its place here;
it changes when others go, so nobody keeps one without being told.
"""

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt
import polars as pl

from penstock.operators.session_numbers import session_numbers

START, END = "__start", "__end"
FRESH, FIRED, TIMER, ANCHOR = "__fresh", "__fired", "__timer", "__anchor"
ROW_TIME = "__time"
"""Column of a row's time, beside those of the user."""
_ID = "__id"
NO_TIMER = np.iinfo(np.int64).max

Numbers = npt.NDArray[np.int64]
Mask = npt.NDArray[np.bool_]


class Cells:
    """All windows of all keys."""

    def __init__(self, keys: Sequence[str]) -> None:
        self._by = [*keys, START, END]
        self._keys = list(keys)
        self.frame: pl.DataFrame | None = None
        """Keys, START and END; None: there never was a window."""
        self.fresh: Numbers = np.empty(0, np.int64)
        self.fired: Mask = np.empty(0, np.bool_)
        self.timer: Numbers = np.empty(0, np.int64)
        self.anchor: npt.NDArray[np.float64] = np.empty(0, np.float64)

    def __len__(self) -> int:
        return len(self.fresh)

    @property
    def ends(self) -> Numbers:
        """End of each window, in microseconds."""
        return self._bound(END)

    @property
    def starts(self) -> Numbers:
        """Start of each window, in microseconds."""
        return self._bound(START)

    def _bound(self, name: str) -> Numbers:
        if self.frame is None:
            return np.empty(0, np.int64)
        return self.frame.get_column(name).to_numpy()

    def set_bounds(self, numbers: Numbers, starts: Numbers, ends: Numbers) -> None:
        """Let these windows have other bounds."""
        assert self.frame is not None, "windows that have numbers are there"
        for name, bounds in ((START, starts), (END, ends)):
            changed = self._bound(name).copy()
            changed[numbers] = bounds
            self.frame = self.frame.with_columns(pl.Series(name, changed))

    def numbers(self, windows: pl.DataFrame) -> Numbers:
        """The number of each of these windows (keys, START, END); those that are new get one."""
        distinct = windows.unique(maintain_order=True)
        if self.frame is None:
            self.frame = distinct
        else:
            new = distinct.join(self.frame, on=self._by, how="anti", nulls_equal=True, maintain_order="left")
            self.frame = pl.concat([self.frame, new], rechunk=True)
        self._grow(self.frame.height - len(self))
        if distinct.height == 1 and self.frame.height == 1:
            return np.zeros(windows.height, np.int64)
        known = self.frame.hstack([pl.Series(_ID, np.arange(self.frame.height))])
        found = windows.join(known, on=self._by, how="left", nulls_equal=True, maintain_order="left")
        return found.get_column(_ID).to_numpy()

    def with_windows(self, windows: pl.DataFrame) -> pl.DataFrame:
        """Keys, START and END of those that are there, then of these."""
        return windows if self.frame is None else pl.concat([self.frame, windows])

    def merge_sessions(self, windows: pl.DataFrame) -> tuple[Numbers, Numbers]:
        """Join windows that meet, new and old: the new number of each that was there, and of each of `windows`."""
        both, before = self.with_windows(windows), len(self)
        starts, ends = both.get_column(START).to_numpy(), both.get_column(END).to_numpy()
        numbers = session_numbers(both, self._keys, starts, ends).astype(np.int64)
        numbered = both.hstack([pl.Series(_ID, numbers)])
        bounds = numbered.group_by(_ID).agg(
            *(pl.col(key).first() for key in self._keys), pl.col(START).min(), pl.col(END).max()
        )
        self.frame = bounds.sort(_ID)[self._by]
        old, count = numbers[:before], self.frame.height
        fresh, fired = np.zeros(count, np.int64), np.zeros(count, np.bool_)
        np.add.at(fresh, old, self.fresh)
        np.logical_or.at(fired, old, self.fired)
        timer, anchor = np.full(count, NO_TIMER), np.full(count, np.nan)
        np.minimum.at(timer, old, self.timer)
        latest_first = np.argsort(-starts[:before], kind="stable")
        latest_first = latest_first[~np.isnan(self.anchor[latest_first])]
        anchor[old[latest_first]] = self.anchor[latest_first]  # of several the last one written stays: the earliest
        self.fresh, self.fired, self.timer, self.anchor = fresh, fired, timer, anchor
        return old, numbers[before:]

    def keep(self, mask: Mask) -> Numbers:
        """Forget the others; the new number of each window that there was, -1 for those that are gone."""
        if self.frame is not None:
            self.frame = self.frame.filter(mask)
        self.fresh, self.fired = self.fresh[mask], self.fired[mask]
        self.timer, self.anchor = self.timer[mask], self.anchor[mask]
        return np.where(mask, np.cumsum(mask) - 1, -1)

    def with_state(self) -> pl.DataFrame | None:
        """Everything, as a table."""
        if self.frame is None or self.frame.is_empty():
            return None
        state = {FRESH: self.fresh, FIRED: self.fired, TIMER: self.timer, ANCHOR: self.anchor}
        return self.frame.hstack([pl.Series(name, values.copy()) for name, values in state.items()])

    def restore(self, frames: Sequence[pl.DataFrame]) -> None:
        """Take what `with_state` gave."""
        table = pl.concat(frames, rechunk=True)
        self.frame = table[self._by]
        columns = (table.get_column(name).to_numpy().copy() for name in (FRESH, FIRED, TIMER, ANCHOR))
        self.fresh, self.fired, self.timer, self.anchor = columns

    def _grow(self, count: int) -> None:
        if count:
            self.fresh = np.concatenate([self.fresh, np.zeros(count, np.int64)])
            self.fired = np.concatenate([self.fired, np.zeros(count, np.bool_)])
            self.timer = np.concatenate([self.timer, np.full(count, NO_TIMER)])
            self.anchor = np.concatenate([self.anchor, np.full(count, np.nan)])


def ranks(numbers: Numbers) -> Numbers:
    """For each row, how many rows of the same window are in front of it."""
    if not len(numbers):
        return numbers
    order = np.argsort(numbers, kind="stable")
    ordered = numbers[order]
    first = np.concatenate([[True], ordered[1:] != ordered[:-1]])
    places = np.arange(len(numbers))
    made = np.empty(len(numbers), np.int64)
    made[order] = places - np.maximum.accumulate(np.where(first, places, 0))
    return made
