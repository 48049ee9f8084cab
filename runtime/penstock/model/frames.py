"""Frames stacked, their rows gathered, and written, on the thread that asks.

Polars hands what it does to several columns to its pool and waits, even when the pool is a single thread and the work
is a few pointers. Where each core has a slot of its own, that thread wakes up on the core of another slot as often as
on ours, and waits there for its turn (a windowed query in two slots: 180 hand-overs per slot, 110 of them from here).
Column by column nothing is handed over.
"""

from collections.abc import Sequence
from typing import BinaryIO

import numpy as np
import numpy.typing as npt
import polars as pl


def stacked(frames: Sequence[pl.DataFrame]) -> pl.DataFrame:
    """One frame below the other, without a copy; there is at least one, and all have the same columns."""
    if len(frames) == 1:
        return frames[0]
    whole = frames[0].clone()
    for frame in frames[1:]:
        whole.vstack(frame, in_place=True)
    return whole


def gathered(frame: pl.DataFrame, rows: npt.NDArray[np.integer]) -> pl.DataFrame:
    """These rows, in this order."""
    numbers = pl.Series(rows.astype(np.uint32, copy=False))
    return pl.DataFrame([column[numbers] for column in frame.get_columns()])


def contiguous(frame: pl.DataFrame) -> pl.DataFrame:
    """The same rows, each column in one piece."""
    return pl.DataFrame([column.rechunk() for column in frame.get_columns()])


def write_arrow(frame: pl.DataFrame, file: BinaryIO) -> None:
    """As an Arrow IPC stream, which `pl.read_ipc_stream` reads.

    In the oldest layout, which copies just the strings of a slice: views would drag whole buffers along. By Arrow's
    own writer, which takes a fifth of the time of Polars' for strings (131 K rows, 16 MB: 10 ms, not 49).
    """
    import pyarrow.ipc  # here, since it is heavy, and who only reads graphs and handles needs none of it

    table = frame.to_arrow(compat_level=pl.CompatLevel.oldest())
    with pyarrow.ipc.new_stream(file, table.schema) as writer:
        writer.write_table(table)
