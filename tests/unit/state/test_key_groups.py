"""Key groups: who owns which, and how rows are brought in their order."""

import itertools

import numpy as np
import polars as pl
import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.model.errors import UserError
from penstock.state.key_groups import KEY_GROUP, group_range, key_groups, owner, slice_groups, sort_by_group
from penstock.state.spark_hash import xxhash64

MAX_PARALLELISMS = st.integers(1, 32_768)


@given(MAX_PARALLELISMS, st.data())
def test_ranges_partition_the_groups_and_agree_with_the_owner(max_parallelism: int, data: st.DataObject) -> None:
    parallelism = data.draw(st.integers(1, min(max_parallelism, 300)))
    ranges = [group_range(index, parallelism, max_parallelism) for index in range(parallelism)]
    assert ranges[0].start == 0
    assert ranges[-1].stop == max_parallelism
    assert all(left.stop == right.start for left, right in itertools.pairwise(ranges))
    assert max(map(len, ranges)) - min(map(len, ranges)) <= 1
    for index, groups in enumerate(ranges):
        assert owner(groups.start, parallelism, max_parallelism) == index
        assert owner(groups.stop - 1, parallelism, max_parallelism) == index


@given(st.lists(st.tuples(st.integers(-(2**63), 2**63 - 1), st.text(max_size=40) | st.none())), MAX_PARALLELISMS)
def test_a_group_is_the_positive_remainder_of_the_hash(rows: list[tuple[int, str | None]], groups: int) -> None:
    frame = pl.DataFrame(rows, schema={"number": pl.Int64, "text": pl.String}, orient="row")
    hashes = xxhash64(frame.get_columns()).tolist() if rows else []
    assert key_groups(frame, ["number", "text"], groups).tolist() == [value % groups for value in hashes]


@given(st.lists(st.integers(0, 50)), st.sampled_from([1, 7, 128, 1000]), st.integers(1, 5))
def test_sorted_rows_keep_their_order_in_a_group_and_slice_without_a_copy(
    numbers: list[int], max_parallelism: int, parallelism: int
) -> None:
    parallelism = min(parallelism, max_parallelism)
    frame = pl.DataFrame({"number": numbers, "at": range(len(numbers))}, schema={"number": pl.Int64, "at": pl.Int64})
    by_group = sort_by_group(frame, ["number"], max_parallelism)
    assert by_group.columns[0] == KEY_GROUP
    assert by_group.schema[KEY_GROUP] == pl.UInt16
    assert by_group.equals(by_group.sort(KEY_GROUP, "at"))
    assert by_group.drop(KEY_GROUP).sort("at").equals(frame)
    slices = [slice_groups(by_group, group_range(index, parallelism, max_parallelism)) for index in range(parallelism)]
    assert pl.concat(slices).equals(by_group)
    for index, part in enumerate(slices):
        owners = {owner(group, parallelism, max_parallelism) for group in part[KEY_GROUP]}
        assert owners <= {index}


def test_rows_without_key_columns_share_one_group() -> None:
    groups = key_groups(pl.DataFrame({"a": [1, 2, 3]}), (), 128)
    assert groups.tolist() == [42, 42, 42]


@pytest.mark.parametrize("unit", ["ms", "us", "ns"])
def test_the_unit_of_a_time_does_not_change_its_group(unit: str) -> None:
    micros = pl.Series([0, -1_000, 1_700_000_000_000_000], dtype=pl.Int64)
    times = micros.cast(pl.Datetime("us")).dt.cast_time_unit(unit)  # type: ignore[arg-type]
    assert np.array_equal(xxhash64([times]), xxhash64([micros]))


def test_types_that_spark_lacks_hash_as_spark_reads_them_from_parquet() -> None:
    small = [0, 1, 200]
    as_int, as_long = (xxhash64([pl.Series(small, dtype=kind)]) for kind in (pl.Int32, pl.Int64))
    as_decimal = xxhash64([pl.Series(small).cast(pl.Decimal(20, 0))])
    assert np.array_equal(xxhash64([pl.Series(small, dtype=pl.UInt8)]), as_int)
    assert np.array_equal(xxhash64([pl.Series(small, dtype=pl.UInt16)]), as_int)
    assert np.array_equal(xxhash64([pl.Series(small, dtype=pl.UInt32)]), as_long)
    assert np.array_equal(xxhash64([pl.Series(small, dtype=pl.UInt64)]), as_decimal)


def test_text_categories_and_bytes_of_the_same_value_hash_alike() -> None:
    text = pl.Series(["b", "a", None, "b"])
    assert np.array_equal(xxhash64([text]), xxhash64([text.cast(pl.Categorical)]))
    assert np.array_equal(xxhash64([text]), xxhash64([text.cast(pl.Binary)]))


def test_a_list_cannot_be_a_key() -> None:
    with pytest.raises(UserError, match="P005") as caught:
        key_groups(pl.DataFrame({"tags": [["a"]]}), ["tags"], 128)
    assert '"tags"' in caught.value.what
