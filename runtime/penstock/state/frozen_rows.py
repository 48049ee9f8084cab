"""Rows of a table as they were at a barrier, and which of them changed since the one before.

Owns nothing: it holds references to immutable frames. Making one is cheap; rows are gathered when they are asked for,
on whatever thread that is.
"""

from dataclasses import dataclass
from typing import Protocol

import numpy as np
import numpy.typing as npt
import polars as pl

NUMBER, GONE = "__number", "__gone"
"""In a chunk: which row of the table this is, and whether it is no more. A later row goes over an earlier one."""

Numbers = npt.NDArray[np.int64]


@dataclass(frozen=True, slots=True)
class FrozenRows:
    """Some rows of a table."""

    payload: pl.DataFrame
    rows: Numbers
    """Where they are in the payload."""
    numbers: Numbers
    """What the table calls them."""
    beside: tuple[pl.Series, ...]
    """What the table knows about each, beside its columns."""
    gone: npt.NDArray[np.bool_] | None = None
    """None: all of them are there."""

    def frame(self) -> pl.DataFrame:
        """The rows, with what the table knows about them."""
        return self.payload[self.rows].hstack(list(self.beside))

    def chunk(self) -> pl.DataFrame:
        """The same, so that later chunks can change them."""
        gone = np.zeros(len(self.rows), np.bool_) if self.gone is None else self.gone
        return self.frame().hstack([pl.Series(NUMBER, self.numbers), pl.Series(GONE, gone)])


class FreezableTable(Protocol):
    """A table whose rows can be written."""

    keys: list[str]

    def __len__(self) -> int: ...

    def freeze(self) -> FrozenRows | None:
        """All rows as they are now; None: there are none."""
        ...

    def freeze_changes(self) -> FrozenRows | None:
        """Rows that came, changed or went since `track`; None: nobody knows. May be called once for each `track`."""
        ...

    def track(self, on: bool) -> None:
        """From now on remember what changes, or do not."""
        ...

    def take(self, frame: pl.DataFrame) -> None:
        """Rows as `FrozenRows.frame` gave them, whose keys are not there."""
        ...
