"""Rows that are found by number: append-only, and gathered from anywhere.

Owns: the frames. Rows keep their number until the owner compacts, which numbers the rows that it keeps anew.
Frames are immutable and only ever replaced by their concatenation, so a snapshot is a copy of references.
"""

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt
import polars as pl

_MERGE_RATIO = 2


class Payload:
    """Rows with numbers from 0 on."""

    def __init__(self) -> None:
        self._frames: list[pl.DataFrame] = []
        self._whole: pl.DataFrame | None = None
        self.height = 0

    def append(self, frame: pl.DataFrame) -> npt.NDArray[np.int64]:
        """Take rows; gives their numbers."""
        numbers = np.arange(self.height, self.height + frame.height, dtype=np.int64)
        self._frames.append(frame)
        self.height += frame.height
        merged = len(self._frames)
        while merged > 1 and self._frames[merged - 2].height < _MERGE_RATIO * sum(
            each.height for each in self._frames[merged - 1 :]
        ):
            merged -= 1
        if merged < len(self._frames):
            # One chunk per frame: gathers look for the chunk of each row.
            self._frames[merged - 1 :] = [pl.concat(self._frames[merged - 1 :], rechunk=True)]
        self._whole = None
        return numbers

    def gather(self, numbers: npt.NDArray[np.int64], columns: Sequence[str] | None = None) -> pl.DataFrame:
        """The rows with these numbers, in this order."""
        whole = self.whole()
        return (whole if columns is None else whole[list(columns)])[numbers]

    def since(self, number: int, columns: Sequence[str]) -> pl.DataFrame:
        """These columns of the rows from this number on, in order. There must be some."""
        frames, end = [], self.height
        for frame in reversed(self._frames):
            first = end - frame.height
            frames.append(frame[list(columns)].slice(max(0, number - first)))
            if first <= number:
                break
            end = first
        return frames[0] if len(frames) == 1 else pl.concat(frames[::-1])

    def whole(self) -> pl.DataFrame:
        """All rows, in the order of their numbers. There must be some."""
        if self._whole is None:
            self._whole = self._frames[0] if len(self._frames) == 1 else pl.concat(self._frames)
        return self._whole
