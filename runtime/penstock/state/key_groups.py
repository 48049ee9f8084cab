"""Key groups: the unit in which keyed rows and keyed state are spread over subtasks and moved between them.

`key group = pmod(xxhash64(key columns, seed 42), max_parallelism)`, exactly what Spark computes. Subtask `i` of
`p` owns the groups `[ceil(i * M / p), ceil((i + 1) * M / p))`. Without key columns every row is in one group.
"""

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt
import polars as pl

from penstock.model.frames import gathered
from penstock.state import spark_hash

KEY_GROUP = "key_group"
"""The column that keyed state carries first, and is sorted by."""

MAX_MAX_PARALLELISM = 32_768


def key_groups(frame: pl.DataFrame, keys: Sequence[str], max_parallelism: int) -> npt.NDArray[np.uint16]:
    """The key group of each row."""
    if not keys:
        return np.full(frame.height, spark_hash.SEED % max_parallelism, np.uint16)
    hashes = spark_hash.xxhash64([frame.get_column(key) for key in keys])
    if max_parallelism & (max_parallelism - 1) == 0:
        return hashes.astype(np.uint16) & np.uint16(max_parallelism - 1)
    # NumPy's remainder takes the sign of the divisor, as pmod does.
    return np.remainder(hashes, np.int64(max_parallelism)).astype(np.uint16)


def group_range(index: int, parallelism: int, max_parallelism: int) -> range:
    """The key groups that subtask `index` of `parallelism` owns."""
    return range(-(-index * max_parallelism // parallelism), -(-(index + 1) * max_parallelism // parallelism))


def owner(group: int, parallelism: int, max_parallelism: int) -> int:
    """The subtask that owns `group`."""
    return group * parallelism // max_parallelism


def owners(parallelism: int, max_parallelism: int) -> tuple[int, ...]:
    """Key group -> the subtask that owns it."""
    return tuple(owner(group, parallelism, max_parallelism) for group in range(max_parallelism))


def sort_by_group(frame: pl.DataFrame, keys: Sequence[str], max_parallelism: int) -> pl.DataFrame:
    """`frame` with the column `key_group` in front, sorted by it; rows of a group keep their order."""
    groups = key_groups(frame, keys, max_parallelism)
    # NumPy's stable sort of 8 and 16 bit integers is a radix sort.
    order = np.argsort(groups.astype(np.uint8) if max_parallelism <= 256 else groups, kind="stable")
    return gathered(frame, order).insert_column(0, pl.Series(KEY_GROUP, groups[order]))


def slice_groups(frame: pl.DataFrame, groups: range) -> pl.DataFrame:
    """The rows of these groups, of a frame that is sorted by group. A slice, not a copy."""
    column = frame.get_column(KEY_GROUP)
    start, end = (int(column.search_sorted(bound, side="left")) for bound in (groups.start, groups.stop))
    return frame.slice(start, end - start)
