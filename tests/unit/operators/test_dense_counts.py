"""Counting by whole-number keys without a hash table: equal to a group-by, or left to it."""

import polars as pl
import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.operators import dense_counts

INTEGERS = {
    pl.Int8: (-(2**7), 2**7 - 1),
    pl.UInt16: (0, 2**16 - 1),
    pl.Int32: (-(2**31), 2**31 - 1),
    pl.Int64: (-(2**63), 2**63 - 1),
    pl.UInt64: (0, 2**64 - 1),
}


@st.composite
def keys(draw: st.DrawFn) -> pl.Series:
    """Values near one place anywhere in the range of a type."""
    kind = draw(st.sampled_from(list(INTEGERS)))
    low, high = INTEGERS[kind]
    first = draw(st.integers(low, high))
    values = draw(st.lists(st.integers(first, min(high, first + 300)), min_size=1, max_size=100))
    return pl.Series("key", values, kind)


@given(keys())
def test_counts_are_those_of_a_group_by(column: pl.Series) -> None:
    frame = column.to_frame()
    counted = dense_counts.count(frame, "key", "rows")
    if counted is not None:
        expected = frame.group_by("key").agg(pl.len().cast(pl.Int64).alias("rows"))
        assert counted.schema == expected.schema
        assert sorted(counted.rows()) == sorted(expected.rows())
    else:
        assert column.max() - column.min() >= len(column)  # type: ignore[operator]


@given(keys(), st.integers(0, 2**40))
def test_sums_of_counts_are_those_of_a_group_by(column: pl.Series, count: int) -> None:
    frame = pl.DataFrame([column, pl.Series("rows", range(count + 1, count + 1 + len(column)), pl.Int64)])
    summed = dense_counts.add_up(frame, "key", "rows")
    if summed is not None:
        assert sorted(summed.rows()) == sorted(frame.group_by("key").agg(pl.col("rows").sum()).rows())


@pytest.mark.parametrize("values", [[1, None], [0, 10**9], ["a"], [1.0]])
def test_keys_with_nulls_or_gaps_or_of_other_types_are_left_to_a_group_by(values: list[object]) -> None:
    frame = pl.DataFrame({"key": values, "rows": [1] * len(values)})
    assert dense_counts.count(frame, "key", "n") is None
    assert dense_counts.add_up(frame, "key", "rows") is None


def test_dense_keys_are_counted_in_every_chunk() -> None:
    frame = pl.concat([pl.DataFrame({"key": [7, 9, 7]}), pl.DataFrame({"key": [9, 8]})])
    counted = dense_counts.count(frame, "key", "rows")
    assert counted is not None
    assert counted.rows() == [(7, 2), (8, 1), (9, 2)]
