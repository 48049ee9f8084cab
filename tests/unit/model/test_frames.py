"""Frames stacked, gathered and written column by column are those that Polars makes in one call."""

import io

import numpy as np
import polars as pl
from hypothesis import given
from hypothesis import strategies as st
from polars.testing import assert_frame_equal

from penstock.model.frames import contiguous, gathered, stacked, write_arrow

SCHEMA = {"n": pl.Int64, "text": pl.String, "flags": pl.List(pl.Boolean), "at": pl.Datetime("us", "UTC")}
ROWS = st.lists(
    st.tuples(
        st.none() | st.integers(-5, 5),
        st.none() | st.text(max_size=20),
        st.none() | st.lists(st.booleans(), max_size=3),
        st.none() | st.datetimes().map(lambda time: time.replace(year=2000)),
    ),
    max_size=6,
)


def frame(rows: list[tuple[object, ...]]) -> pl.DataFrame:
    return pl.DataFrame(rows, schema=SCHEMA, orient="row")


@given(st.lists(ROWS, min_size=1, max_size=4))
def test_frames_are_stacked_in_their_order(parts: list[list[tuple[object, ...]]]) -> None:
    frames = [frame(rows) for rows in parts]
    copies = [each.clone() for each in frames]
    whole = stacked(frames)
    assert_frame_equal(whole, pl.concat(copies))
    for each, copy in zip(frames, copies, strict=True):
        assert_frame_equal(each, copy)
    assert_frame_equal(contiguous(whole), whole)
    assert all(column.n_chunks() == 1 for column in contiguous(whole))


@given(ROWS.filter(bool), st.data())
def test_rows_are_gathered_in_any_order(rows: list[tuple[object, ...]], data: st.DataObject) -> None:
    chosen = data.draw(st.lists(st.integers(0, len(rows) - 1), max_size=8))
    expected = frame([rows[number] for number in chosen])
    assert_frame_equal(gathered(frame(rows), np.array(chosen, np.int64)), expected)


@given(st.lists(ROWS, min_size=1, max_size=3), st.integers(0, 5))
def test_what_is_written_can_be_read(parts: list[list[tuple[object, ...]]], skipped: int) -> None:
    frame_ = stacked([frame(rows) for rows in parts]).slice(skipped)
    file = io.BytesIO()
    write_arrow(frame_, file)
    assert_frame_equal(pl.read_ipc_stream(file.getvalue()), frame_)
    longer = io.BytesIO()
    write_arrow(pl.concat([frame_, frame([(1, "x" * 1_000_000, None, None)])]).head(frame_.height), longer)
    assert len(longer.getvalue()) < len(file.getvalue()) + 10_000  # strings of a slice alone
