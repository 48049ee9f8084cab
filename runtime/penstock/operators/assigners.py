"""Which windows each row of a batch is in."""

from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np
import polars as pl

from penstock.model import specs
from penstock.model.clocks import MAX_WATERMARK, MIN_WATERMARK
from penstock.model.errors import UserError
from penstock.operators.base import OperatorContext
from penstock.operators.session_numbers import session_gaps
from penstock.operators.user_errors import place, user_code
from penstock.operators.window_cells import Numbers


@dataclass(frozen=True, slots=True)
class Assigned:
    """One entry for each row and window that it is in; a row that is in several is there several times."""

    rows: Numbers
    starts: Numbers
    ends: Numbers


class WindowAssigner(Protocol):
    """Bounds are microseconds; a window is `[start, end)`."""

    def assign(self, frame: pl.DataFrame, times: Numbers) -> Assigned:
        """The windows of each row."""
        ...


class Sliding:
    """Tumbling and sliding windows."""

    def __init__(self, size: int, slide: int, offset: int) -> None:
        self._size, self._slide, self._offset = size, slide, offset

    def assign(self, frame: pl.DataFrame, times: Numbers) -> Assigned:
        """Each window that covers the row's time."""
        last = (times - self._offset) // self._slide * self._slide + self._offset
        starts = last[:, None] - np.arange(-(-self._size // self._slide)) * self._slide
        rows, places = np.nonzero(starts + self._size > times[:, None])
        found = starts[rows, places]
        return Assigned(rows, found, found + self._size)


class Global:
    """One window for all rows."""

    def assign(self, frame: pl.DataFrame, times: Numbers) -> Assigned:
        """The same for each."""
        count = frame.height
        return Assigned(np.arange(count), np.full(count, MIN_WATERMARK), np.full(count, MAX_WATERMARK))


class Sessions:
    """Each row by itself; those that meet are joined later."""

    def __init__(self, spec: specs.SessionWindow, uid: str) -> None:
        self._gaps = session_gaps(spec.gap_us, spec.gap, uid)

    def assign(self, frame: pl.DataFrame, times: Numbers) -> Assigned:
        """From the row to its gap after it."""
        return Assigned(np.arange(frame.height), times, times + self._gaps(frame))


class Custom:
    """A user's assigner."""

    def __init__(self, assigner: Any, name: str, context: OperatorContext) -> None:
        self._assigner, self._name, self._context = assigner, name, context

    def assign(self, frame: pl.DataFrame, times: Numbers) -> Assigned:
        """One call for the batch."""
        with user_code(self._context, f"{self._name}.assign"):
            made = self._assigner.assign(frame, pl.Series("time", times).cast(pl.Datetime("us")))
        if not isinstance(made, pl.DataFrame) or made.columns != ["start", "end"] or made.height != frame.height:
            raise self._wrong(f"must return columns start and end with {frame.height} rows; got {made!r:.200}")
        numbered = made.with_row_index("row")
        if isinstance(made.schema["start"], pl.List):
            numbered = numbered.explode("start", "end")
        numbered = numbered.drop_nulls()
        rows, starts, ends = (column.cast(pl.Int64).to_numpy() for column in self._micros(numbered))
        if (starts >= ends).any():
            raise self._wrong("gave a window that ends before it starts")
        return Assigned(rows, starts, ends)

    def _micros(self, frame: pl.DataFrame) -> list[pl.Series]:
        bounds = []
        for name in ("start", "end"):
            column = frame.get_column(name)
            if isinstance(column.dtype, pl.Datetime):
                column = column.cast(pl.Datetime("us", column.dtype.time_zone))
            elif not column.dtype.is_integer():
                raise self._wrong(f"gave a column {name} of type {column.dtype}")
            bounds.append(column)
        return [frame.get_column("row"), *bounds]

    def _wrong(self, what: str) -> UserError:
        return UserError(
            "P014",
            f"{self._name}.assign {what}",
            where=place(self._context),
            fix="give each row a start and an end, as Datetime or microseconds since 1970, or lists of them",
        )


def make_assigner(spec: specs.BufferedWindow, function: Any, context: OperatorContext) -> WindowAssigner:
    """The assigner that runs; `function` is the user's own, if it is one."""
    match spec.assigner:
        case specs.Tumbling(size_us=size, offset_us=offset):
            return Sliding(size, size, offset)
        case specs.Sliding(size_us=size, slide_us=slide, offset_us=offset):
            return Sliding(size, slide, offset)
        case specs.GlobalWindow():
            return Global()
        case specs.SessionWindow() as session:
            return Sessions(session, context.uid)
        case specs.CustomWindow(function=specs.Function(name=name)):
            return Custom(function, name, context)
