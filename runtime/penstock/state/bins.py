"""Rows and partial results by time bin: the state of windows.

Owns: for each bin the rows that came since its last fold, and its partial results. Does not own what a partial
result is (two functions of the operator), nor when a bin is due.

Frames are immutable and only ever replaced, so a snapshot is a copy of references. Rows are kept as they came and
are folded late: grouping many rows once costs less than grouping few rows often, and inside one bin the group is the
key alone. Partial results are merged early only where folding made them much fewer than their rows; with as many
keys as rows, merging would only move them.
"""

from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt
import polars as pl

Fold = Callable[[Sequence[pl.DataFrame]], list[pl.DataFrame]]
"""Makes partial results of several groups of rows at once, one frame for each."""

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

    @property
    def settled(self) -> bool:
        """One frame of partial results is all there is."""
        return not self.rows and len(self.partials) == 1


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

    def partials(self, starts: Collection[int]) -> list[pl.DataFrame]:
        """The partial results of these bins, each key once in each."""
        self._settle([held for start in starts if not (held := self._bins[start]).settled])
        return [self._bins[start].partials[0] for start in starts]

    def loose(self, starts: Collection[int]) -> dict[int, list[pl.DataFrame]]:
        """Partial results of each of these bins, in few frames, but not in one where that would cost a call.

        For whoever merges several bins anyway.
        """
        self._settle([held for start in starts if not ((held := self._bins[start]).settled or self._is_loose(held))])
        return {start: [*(held := self._bins[start]).partials, *held.rows] for start in starts}

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
                yield start, _reduced([(rows, folded)], fold, merge)[0]

        return partials

    def _is_loose(self, held: _Bin) -> bool:
        # A single frame would not be merged with anything, and rows may have a key twice.
        return self._fold == self._merge and 1 < len(held.rows) + len(held.partials) <= _LOOSE_FRAMES

    def _settle(self, bins: Sequence[_Bin]) -> None:
        if not bins:
            return
        reduced = _reduced([(held.rows, held.partials) for held in bins], self._fold, self._merge)
        for held, whole in zip(bins, reduced, strict=True):
            self._rows += whole.height - held.height
            held.rows, held.row_count, held.partials = [], 0, [whole]

    def _fold_rows_of(self, held: _Bin) -> None:
        before = held.height
        (partial,) = self._fold([pl.concat(held.rows)])
        shrank = partial.height < _SHRANK * held.row_count
        held.rows, held.row_count = [], 0
        held.partials.append(partial)
        newer = sum(partial.height for partial in held.partials[1:])
        if shrank and (len(held.partials) >= _MERGE_FRAMES or newer >= max(held.partials[0].height, _MERGE_ROWS)):
            held.partials = self._merge([pl.concat(held.partials)])
        self._rows += held.height - before


def _reduced(
    bins: Iterable[tuple[Iterable[pl.DataFrame], Iterable[pl.DataFrame]]], fold: Fold, merge: Fold
) -> list[pl.DataFrame]:
    """Rows and partial results of bins, as one frame of partial results each, older ones before newer ones."""
    unfolded, folded = zip(*((list(rows), list(partials)) for rows, partials in bins), strict=True)
    with_rows = [number for number, rows in enumerate(unfolded) if rows]
    for number, partial in zip(with_rows, _called(fold, [unfolded[number] for number in with_rows]), strict=True):
        folded[number].append(partial)
    several = [number for number, partials in enumerate(folded) if len(partials) > 1]
    for number, partial in zip(several, _called(merge, [folded[number] for number in several]), strict=True):
        folded[number][:] = [partial]
    return [partials[0] for partials in folded]


def _called(reduce: Fold, groups: Sequence[list[pl.DataFrame]]) -> list[pl.DataFrame]:
    return reduce([frames[0] if len(frames) == 1 else pl.concat(frames) for frames in groups]) if groups else []
