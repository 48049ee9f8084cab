"""Rows and partial results by time bin: the state of windows.

Owns: for each bin the rows that came since its last fold, and its partial results. Does not own what a partial
result is (two functions of the operator), nor when a bin is due.

Frames are immutable and only ever replaced, so a snapshot is a copy of references. Rows are kept as they came and
are folded late: grouping many rows once costs less than grouping few rows often, and inside one bin the group is the
key alone. Partial results are merged early only where folding made them much fewer than their rows; with as many
keys as rows, merging would only move them. Then rows are kept for longer before they are grouped again, and a snapshot
takes them row by row, where there is a way to (`lift`).
"""

from collections.abc import Callable, Collection, Iterator, Sequence
from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt
import polars as pl

from penstock.model.frames import gathered, stacked

Fold = Callable[[Sequence[pl.DataFrame]], list[pl.DataFrame]]
"""Makes partial results of several groups of rows at once, one frame for each."""

Lift = Callable[[pl.DataFrame], pl.DataFrame]

FOLD_ROWS = 512 * 1024
"""Rows of a bin that are grouped at once; below, the cost per row grows (measured: 1.6x at half of it)."""

FOLD_FRAMES = 1024
"""Small batches fold sooner: a frame costs memory and time even when it has one row."""

_SHRANK = 0.7
_SPARSE_FOLD_RATIO = 8
"""Where folding hardly shrinks rows it is tried again with so many more of them."""

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
        frame, numbers = gathered(frame, order), numbers[order]
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
    repeats: bool = False
    """A key may come twice within one of the frames of partial results."""

    @property
    def height(self) -> int:
        return self.row_count + sum(partial.height for partial in self.partials)

    @property
    def settled(self) -> bool:
        """One frame of partial results is all there is, with each key once."""
        return not self.rows and len(self.partials) == 1 and not self.repeats


class Bins:
    """Time bins by their start. `fold` makes partial results of rows, `merge` fewer of several.

    `lift` makes a partial result of each row, cheaper.
    """

    def __init__(self, fold: Fold, merge: Fold, *, lift: Lift | None = None, fold_rows: int = FOLD_ROWS) -> None:
        self._fold, self._merge, self._lift, self._fold_rows = fold, merge, lift, fold_rows
        self._sparse = False
        """The last fold left about as many partial results as there were rows."""
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
        enough = self._fold_rows * (_SPARSE_FOLD_RATIO if self._sparse else 1)
        if held.row_count >= enough or len(held.rows) >= FOLD_FRAMES:
            self._fold_rows_of(held)

    def add_partial(self, start: int, partial: pl.DataFrame) -> None:
        """Take partial results of one bin, as `partials` or a snapshot gave them."""
        held = self._bins.setdefault(start, _Bin())
        held.partials.append(partial)
        held.repeats = True
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
        frozen = [
            (start, _Bin(list(held.rows), held.row_count, list(held.partials), held.repeats))
            for start, held in self._bins.items()
        ]
        fold, merge, lift = self._fold, self._merge, self._lift if self._sparse else None

        def partials() -> Iterator[tuple[int, pl.DataFrame]]:
            for start, held in frozen:
                if lift is not None and held.rows:
                    yield start, pl.concat([*held.partials, *map(lift, held.rows)])
                else:
                    yield start, _reduced([held], fold, merge)[0]

        return partials

    def _is_loose(self, held: _Bin) -> bool:
        # A single frame would not be merged with anything, and rows may have a key twice.
        return self._fold == self._merge and 1 < len(held.rows) + len(held.partials) <= _LOOSE_FRAMES

    def _settle(self, bins: Sequence[_Bin]) -> None:
        if not bins:
            return
        for held, whole in zip(bins, _reduced(bins, self._fold, self._merge), strict=True):
            self._rows += whole.height - held.height
            held.rows, held.row_count, held.partials, held.repeats = [], 0, [whole], False

    def _fold_rows_of(self, held: _Bin) -> None:
        before = held.height
        (partial,) = self._fold([stacked(held.rows)])
        shrank = partial.height < _SHRANK * held.row_count
        self._sparse = not shrank
        held.rows, held.row_count = [], 0
        held.partials.append(partial)
        newer = sum(partial.height for partial in held.partials[1:])
        if shrank and (len(held.partials) >= _MERGE_FRAMES or newer >= max(held.partials[0].height, _MERGE_ROWS)):
            held.partials, held.repeats = self._merge([stacked(held.partials)]), False
        self._rows += held.height - before


def _reduced(bins: Sequence[_Bin], fold: Fold, merge: Fold) -> list[pl.DataFrame]:
    """Rows and partial results of bins, as one frame of partial results each, older ones before newer ones."""
    folded = [list(held.partials) for held in bins]
    with_rows = [number for number, held in enumerate(bins) if held.rows]
    for number, partial in zip(with_rows, _called(fold, [bins[number].rows for number in with_rows]), strict=True):
        folded[number].append(partial)
    several = [number for number, held in enumerate(bins) if held.repeats or len(folded[number]) > 1]
    for number, partial in zip(several, _called(merge, [folded[number] for number in several]), strict=True):
        folded[number][:] = [partial]
    return [partials[0] for partials in folded]


def _called(reduce: Fold, groups: Sequence[list[pl.DataFrame]]) -> list[pl.DataFrame]:
    return reduce([stacked(frames) for frames in groups]) if groups else []
