"""Where rows with a key are: an index from the hash of a key to row numbers.

Owns: sorted runs of (hash, row number). Does not own the rows, nor which of them still count.

A batch is one sorted run; runs of like size are merged, so that there are few and each entry takes part in few merges.
A look-up is a binary search in each run, with the needles sorted too: neighbours then share the memory they touch.
Entries are never changed, so a run may be read by others while new ones come.
"""

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt
import polars as pl

from penstock.state import spark_hash

Hashes = npt.NDArray[np.int64]
RowNumbers = npt.NDArray[np.int64]

_RUN_RATIO = 4
"""A run is merged into the one before when that is less than this many times as long."""

NULL_HASH = -0x5BD1E995_1B873593
"""Of a key that is null; a number that is unlikely as a key itself."""

_EMPTY = np.empty(0, np.int64)


def key_hashes(keys: Sequence[pl.Series], *, rows: int) -> Hashes:
    """A number for each row, equal for equal keys; null is a key like any other."""
    if not keys:
        return np.zeros(rows, np.int64)
    if stands_for_itself([key.dtype for key in keys]):
        numbers = keys[0].to_physical().cast(pl.Int64)
        return (numbers.fill_null(NULL_HASH) if numbers.null_count() else numbers).to_numpy()
    return spark_hash.xxhash64(keys)


def stands_for_itself(types: Sequence[pl.DataType]) -> bool:
    """A key of one integer or time is its own hash, so that only `NULL_HASH` can be that of two keys."""
    if len(types) != 1:
        return False
    integer = types[0].is_integer() and types[0] not in (pl.UInt64, pl.Int128)
    return integer or isinstance(types[0], pl.Datetime | pl.Date | pl.Duration | pl.Time)


def can_hash(kind: pl.DataType) -> bool:
    """Whether a column of this type can be part of a key."""
    return not (kind.is_nested() or kind == pl.Int128)


class KeyIndex:
    """From hash to row numbers; several rows may have the same hash."""

    def __init__(self) -> None:
        self._runs: list[tuple[Hashes, RowNumbers]] = []

    def add(self, hashes: Hashes, rows: RowNumbers) -> None:
        """Take entries of a batch."""
        if not len(hashes):
            return
        ordered, order = in_order(hashes)
        self._runs.append((ordered, rows[order]))
        while len(self._runs) > 1 and len(self._runs[-2][0]) < _RUN_RATIO * len(self._runs[-1][0]):
            later, earlier = self._runs.pop(), self._runs.pop()
            merged = np.concatenate([earlier[0], later[0]])
            # Two sorted halves: NumPy's stable sort finds and merges them.
            order = np.argsort(merged, kind="stable")
            self._runs.append((merged[order], np.concatenate([earlier[1], later[1]])[order]))

    def find(self, hashes: Hashes) -> tuple[npt.NDArray[np.int64], RowNumbers]:
        """Pairs (position among `hashes`, row number) of all entries with these hashes, in no order."""
        if not self._runs or not len(hashes):
            return _EMPTY, _EMPTY
        needles, order = in_order(hashes)
        positions, numbers = [], []
        for run, rows in self._runs:
            first = np.searchsorted(run, needles, "left")
            hits = np.flatnonzero(run[np.minimum(first, len(run) - 1)] == needles)
            if not len(hits):
                continue
            first = first[hits]
            following = np.minimum(first + 1, len(run) - 1)
            if not ((run[following] == needles[hits]) & (following > first)).any():
                positions.append(order[hits])
                numbers.append(rows[first])
                continue
            counts = np.searchsorted(run, needles[hits], "right") - first
            inside = np.arange(int(counts.sum())) - np.repeat(np.cumsum(counts) - counts, counts)
            positions.append(np.repeat(order[hits], counts))
            numbers.append(rows[np.repeat(first, counts) + inside])
        if not positions:
            return _EMPTY, _EMPTY
        return np.concatenate(positions), np.concatenate(numbers)


def in_order(numbers: npt.NDArray[np.int64]) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.int64]]:
    """The numbers sorted, and where each was. Equal ones in no order, unless they are few enough to be packed.

    One sort of numbers that hold value and position takes a tenth of the time of a stable sort of positions.
    """
    bits = max(1, (len(numbers) - 1).bit_length())
    least = int(numbers.min()) if len(numbers) else 0
    if len(numbers) and (int(numbers.max()) - least).bit_length() + bits < 63:
        packed = ((numbers - least) << bits) | np.arange(len(numbers))
        packed.sort()
        return (packed >> bits) + least, packed & ((1 << bits) - 1)
    order = np.argsort(numbers)
    return numbers[order], order
