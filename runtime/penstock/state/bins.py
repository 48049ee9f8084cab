"""Rows and partial results by time bin: the state of windows.

Owns: for each bin the rows that came since its last fold, and its partial results. Does not own what a partial
result is (two functions of the operator), nor when a bin is due.

Frames are immutable and only ever replaced, so a snapshot is a copy of references. Rows are kept as they came and
are folded late: grouping many rows once costs less than grouping few rows often, and inside one bin the group is the
key alone. Partial results are merged early only where folding made them much fewer than their rows; with as many
keys as rows, merging would only move them.
"""

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt
import polars as pl

Fold = Callable[[pl.DataFrame], pl.DataFrame]

FOLD_ROWS = 512 * 1024
"""Rows of a bin that are grouped at once; below, the cost per row grows (measured: 1.6x at half of it)."""

FOLD_FRAMES = 1024
"""Small batches fold sooner: a frame costs memory and time even when it has one row."""

_SHRANK = 0.7

_MERGE_FRAMES = 64
_MERGE_ROWS = 64 * 1024
"""Partial results are merged when there are this many, and more than the last merge left: each takes part in few
merges, and no merge is too small to be worth the call."""

_LOOSE_FRAMES = 4


def cut(
    frame: pl.DataFrame, times: npt.NDArray[np.int64], size: int, offset: int = 0
) -> list[tuple[int, pl.DataFrame]]:
    """The rows of each bin with the bin's start, in order of time; rows of a bin keep their order.

    `times` has one entry per row; bins are `[offset + n * size, offset + (n + 1) * size)`.
    """
    first, last = ((int(bound) - offset) // size for bound in (times.min(), times.max()))
    if first == last:
        return [(first * size + offset, frame)]
    if (times[1:] >= times[:-1]).all() and last - first < len(times):
        starts = np.arange(first, last + 1, dtype=np.int64) * size + offset
        rows = np.searchsorted(times, starts)
    else:
        numbers = np.floor_divide(times - offset, size)
        # NumPy's stable sort of 16 bit integers is a radix sort.
        order = np.argsort((numbers - first).astype(np.uint16) if last - first < 65_536 else numbers, kind="stable")
        frame, numbers = frame[order], numbers[order]
        rows = np.concatenate([[0], np.flatnonzero(numbers[1:] != numbers[:-1]) + 1])
        starts = numbers[rows] * size + offset
    lengths = np.diff(rows, append=frame.height)
    return [
        (start, frame.slice(row, length))
        for start, row, length in zip(starts.tolist(), rows.tolist(), lengths.tolist(), strict=True)
        if length
    ]


@dataclass(slots=True)
class _Bin:
    rows: list[pl.DataFrame] = field(default_factory=list)
    row_count: int = 0
    partials: list[pl.DataFrame] = field(default_factory=list)

    @property
    def height(self) -> int:
        return self.row_count + sum(partial.height for partial in self.partials)


class Bins:
    """Time bins by their start. `fold` makes partial results of rows, `merge` fewer of several."""

    def __init__(self, fold: Fold, merge: Fold, *, fold_rows: int = FOLD_ROWS) -> None:
        self._fold, self._merge, self._fold_rows = fold, merge, fold_rows
        self._bins: dict[int, _Bin] = {}
        self._rows = 0

    def __iter__(self) -> Iterator[int]:
        """Starts of the bins that hold something."""
        return iter(self._bins)

    def __contains__(self, start: int) -> bool:
        return start in self._bins

    def __len__(self) -> int:
        return len(self._bins)

    @property
    def rows(self) -> int:
        """Rows held, folded or not."""
        return self._rows

    def add(self, start: int, frame: pl.DataFrame) -> None:
        """Take rows of one bin."""
        held = self._bins.setdefault(start, _Bin())
        held.rows.append(frame)
        held.row_count += frame.height
        self._rows += frame.height
        if held.row_count >= self._fold_rows or len(held.rows) >= FOLD_FRAMES:
            self._fold_rows_of(held)

    def add_partial(self, start: int, partial: pl.DataFrame) -> None:
        """Take partial results of one bin, as `partial` or a snapshot gave them."""
        self._bins.setdefault(start, _Bin()).partials.append(partial)
        self._rows += partial.height

    def partial(self, start: int) -> pl.DataFrame:
        """The partial results of a bin, each key once."""
        held = self._bins[start]
        whole = _reduce(held.rows, held.partials, self._fold, self._merge)
        self._rows += whole.height - held.height
        held.rows, held.row_count, held.partials = [], 0, [whole]
        return whole

    def loose(self, start: int) -> list[pl.DataFrame] | None:
        """The frames of a bin as they came, when its rows are partial results and few frames hold them.

        Whoever merges several bins anyway saves the call that would make each of them one; None: use `partial`.
        """
        held = self._bins[start]
        if self._fold != self._merge or len(held.rows) + len(held.partials) > _LOOSE_FRAMES:
            return None
        return [*held.partials, *held.rows]

    def remove(self, start: int) -> None:
        """Forget a bin."""
        self._rows -= self._bins.pop(start).height

    def freeze(self) -> Callable[[], Iterator[tuple[int, pl.DataFrame]]]:
        """The bins as they are now.

        The function that is returned gives each bin's partial results. It may be called later and on another
        thread, undisturbed by what happens here in between.
        """
        frozen = [(start, tuple(held.rows), tuple(held.partials)) for start, held in self._bins.items()]
        fold, merge = self._fold, self._merge

        def partials() -> Iterator[tuple[int, pl.DataFrame]]:
            for start, rows, folded in frozen:
                yield start, _reduce(rows, folded, fold, merge)

        return partials

    def _fold_rows_of(self, held: _Bin) -> None:
        before = held.height
        partial = self._fold(pl.concat(held.rows))
        shrank = partial.height < _SHRANK * held.row_count
        held.rows, held.row_count = [], 0
        held.partials.append(partial)
        newer = sum(partial.height for partial in held.partials[1:])
        if shrank and (len(held.partials) >= _MERGE_FRAMES or newer >= max(held.partials[0].height, _MERGE_ROWS)):
            held.partials = [self._merge(pl.concat(held.partials))]
        self._rows += held.height - before


def _reduce(rows: Iterable[pl.DataFrame], partials: Iterable[pl.DataFrame], fold: Fold, merge: Fold) -> pl.DataFrame:
    """One frame of partial results, each key once; older ones before newer ones."""
    unfolded, folded = list(rows), list(partials)
    if unfolded:
        folded.append(fold(pl.concat(unfolded)))
    return folded[0] if len(folded) == 1 else merge(pl.concat(folded))
