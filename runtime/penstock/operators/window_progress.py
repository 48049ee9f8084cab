"""How far windows have fired, as state: one row per subtask, for the key groups that it owned.

After a restore a subtask may own groups of several earlier ones, which had come more or less far: `side_by_side` sees
to it that each operator has to do with one time.
"""

from collections.abc import Iterable

import polars as pl

from penstock.model.clocks import MIN_WATERMARK
from penstock.model.handles import Redistribution
from penstock.operators.base import Section

_SCHEMA = {"first_group": pl.UInt16, "end_group": pl.UInt16, "watermark": pl.Int64}


def progress_section(own: range, watermark: int) -> Section:
    """Windows of these groups have fired up to `watermark`."""
    frame = pl.DataFrame([(own.start, own.stop, watermark)], schema=_SCHEMA, orient="row")
    return Section("progress", Redistribution.UNION, frame)


def restored_progress(frames: Iterable[pl.DataFrame], own: range) -> set[tuple[range, int]]:
    """The earlier subtasks whose groups are now `own`, and how far each had come."""
    return {
        (range(first, end), watermark)
        for frame in frames
        for first, end, watermark in frame.rows()
        if first < own.stop and own.start < end
    }


def restored_time(frames: Iterable[pl.DataFrame], own: range) -> int:
    """How far all of them had come."""
    times = {watermark for _, watermark in restored_progress(frames, own)} or {MIN_WATERMARK}
    assert len(times) == 1, times
    return times.pop()
