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


@given(st.lists(keys(), min_size=1, max_size=4), st.integers(0, 2**40))
def test_counts_and_their_sums_are_those_of_a_group_by(columns: list[pl.Series], count: int) -> None:
    kind = columns[0].dtype
    groups = [column.cast(kind, strict=False).drop_nulls().to_frame() for column in columns]
    groups = [
        group.with_columns(pl.Series("rows", range(count, count + group.height), pl.Int64))
        for group in groups
        if group.height
    ]
    # The first half of each group is one frame, the rest another, if there is one.
    frames = [
        [half for half in (group[: group.height // 2], group[group.height // 2 :]) if half.height] for group in groups
    ]
    for found, aggregate in (
        (dense_counts.count(frames, "key", "rows"), pl.len().cast(pl.Int64).alias("rows")),
        (dense_counts.add_up(frames, "key", "rows"), pl.col("rows").sum()),
    ):
        if found is None:
            spread = sum(int(group["key"].max()) - int(group["key"].min()) for group in groups)  # type: ignore[arg-type]
            assert kind == pl.UInt64 or spread >= sum(group.height for group in groups)
            continue
        table, lengths = found
        assert lengths.sum() == table.height
        for start, length, group in zip(lengths.cumsum() - lengths, lengths, groups, strict=True):
            made, expected = table.slice(int(start), int(length)), group.group_by("key").agg(aggregate)
            assert made.schema == expected.schema
            assert [row for row in sorted(expected.rows()) if row[1]] == made.rows()


@pytest.mark.parametrize("values", [[1, None], [0, 10**9], ["a"], [1.0]])
def test_keys_with_nulls_or_gaps_or_of_other_types_are_left_to_a_group_by(values: list[object]) -> None:
    frame = pl.DataFrame({"key": values, "rows": [1] * len(values)})
    assert dense_counts.count([[frame]], "key", "n") is None
    assert dense_counts.add_up([[frame]], "key", "rows") is None


def test_dense_keys_are_counted_in_every_chunk() -> None:
    frame = pl.concat([pl.DataFrame({"key": [7, 9, 7]}), pl.DataFrame({"key": [9, 8]})])
    counted = dense_counts.count([[frame]], "key", "rows")
    assert counted is not None
    assert counted[0].rows() == [(7, 2), (8, 1), (9, 2)]
