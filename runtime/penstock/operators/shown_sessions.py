"""What sessions have shown: the last result of each that is open, for those that fire more than once.

Owns: these results (state "shown", by key group), and of which session each is. A session that grows or joins others
has other bounds the next time it fires: the results that it replaces are then taken back, with the values they had.
Until then they stand.
"""

from collections.abc import Callable, Sequence

import numpy as np
import polars as pl

from penstock.model.changes import CHANGE, DELETE, INSERT, UPDATE
from penstock.model.handles import Redistribution
from penstock.operators.base import Section
from penstock.operators.changes import marked
from penstock.operators.window_cells import END, START, Mask, Numbers
from penstock.state.key_groups import KEY_GROUP, sort_by_group

STATE = "shown"
_BOUNDS = ("window_start", "window_end")


class ShownSessions:
    """Results by number of the session."""

    def __init__(self, keys: Sequence[str]) -> None:
        self._keys = list(keys)
        self._rows: pl.DataFrame | None = None
        self._numbers: Numbers = np.empty(0, np.int64)

    def replace(self, results: pl.DataFrame, numbers: Numbers) -> list[pl.DataFrame]:
        """Show these results, one for each of these sessions: the changes that this is."""
        if self._rows is None:
            self._rows, self._numbers = results, numbers
            return [marked(results, INSERT)]
        place = np.full(int(max(numbers.max(), self._numbers.max(initial=-1))) + 1, -1, np.int64)
        place[numbers] = np.arange(len(numbers))
        now = place[self._numbers]
        again = now >= 0
        old, new = self._rows.filter(again), results[now[again]]
        same = np.ones(old.height, np.bool_)
        for bound in _BOUNDS:
            same &= (old.get_column(bound) == new.get_column(bound)).to_numpy()
        changes = np.full(results.height, INSERT, np.int8)
        changes[now[again][same]] = UPDATE
        emitted = [pl.DataFrame([pl.Series(CHANGE, changes), *results.get_columns()])]
        if not same.all():
            emitted.insert(0, marked(old.filter(~same), DELETE))
        self._rows = pl.concat([self._rows.filter(~again), results], rechunk=True)
        self._numbers = np.concatenate([self._numbers[~again], numbers])
        return emitted

    def renumber(self, numbers: Numbers) -> None:
        """Sessions have other numbers: that of each by the one before, -1 for those that are over."""
        if self._rows is None:
            return
        self._numbers = numbers[self._numbers]
        stays: Mask = self._numbers >= 0
        if not stays.all():
            self._rows, self._numbers = self._rows.filter(stays), self._numbers[stays]

    def freeze(self) -> Callable[[pl.DataFrame, int], list[Section]]:
        """As they are now: results beside the bounds (of all windows, by number) that their session has by now."""
        rows, numbers, keys = self._rows, self._numbers, self._keys

        def section(windows: pl.DataFrame, max_parallelism: int) -> list[Section]:
            if rows is None or rows.is_empty():
                return []
            placed = rows.hstack(windows[[START, END]][numbers])
            return [Section(STATE, Redistribution.KEYED, sort_by_group(placed, keys, max_parallelism))]

        return section

    def restore(self, frames: Sequence[pl.DataFrame]) -> pl.DataFrame | None:
        """Take what `freeze` gave; keys and bounds of the session of each, whose numbers `number` wants."""
        held = [frame.drop(KEY_GROUP) for frame in frames if frame.height]
        if not held:
            return None
        rows = pl.concat(held, rechunk=True)
        self._rows = rows.drop(START, END)
        return rows[[*self._keys, START, END]]

    def number(self, numbers: Numbers) -> None:
        """After a restore: which session each result is of."""
        self._numbers = numbers
