"""Random numbers by their index: the n-th number of a stream is a function of seed, stream and n alone.

So what a generator makes depends neither on how its rows are batched nor on where it was restored. The function is
SplitMix64, in blocks that stay in the cache.
"""

from typing import Any

import numpy as np

Integers = np.ndarray[Any, np.dtype[np.int64]]
Floats = np.ndarray[Any, np.dtype[np.float64]]
Words = np.ndarray[Any, np.dtype[np.uint64]]

_STEP = 0x9E3779B97F4A7C15
_MASK = 2**64 - 1
BLOCK = 16 * 1024


class RandomStream:
    """One endless sequence; several are told apart by their names."""

    def __init__(self, seed: int, name: str) -> None:
        state = seed & _MASK
        for letter in name.encode():
            state = _mix_number((state ^ letter) + _STEP & _MASK)
        self._key = state

    def words(self, index: Integers) -> Words:
        """64 random bits for each index."""
        out = np.empty(len(index), dtype=np.uint64)
        for start in range(0, len(index), BLOCK):
            block = index[start : start + BLOCK].astype(np.uint64)
            block *= np.uint64(_STEP)
            block += np.uint64(self._key)
            out[start : start + BLOCK] = _mix(block)
        return out

    def below(self, bound: "int | Integers", index: Integers) -> Integers:
        """Integers from 0 up to, not including, `bound`."""
        return np.asarray(self.floats(index) * bound, dtype=np.int64)

    def floats(self, index: Integers) -> Floats:
        """Numbers in [0, 1)."""
        return np.asarray((self.words(index) >> np.uint64(11)) * 2.0**-53)


def _mix(word: Words) -> Words:
    word ^= word >> np.uint64(30)
    word *= np.uint64(0xBF58476D1CE4E5B9)
    word ^= word >> np.uint64(27)
    word *= np.uint64(0x94D049BB133111EB)
    word ^= word >> np.uint64(31)
    return word


def _mix_number(word: int) -> int:
    word = (word ^ word >> 30) * 0xBF58476D1CE4E5B9 & _MASK
    word = (word ^ word >> 27) * 0x94D049BB133111EB & _MASK
    return word ^ word >> 31
