"""Time bins: cutting batches, folding late, snapshots by reference."""

from collections import Counter
from collections.abc import Sequence

import numpy as np
import polars as pl
import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.state.bins import FOLD_FRAMES, Bins, cut


def count_keys(groups: Sequence[pl.DataFrame]) -> list[pl.DataFrame]:
    return [rows.group_by("key").agg(pl.len().cast(pl.Int64).alias("count")) for rows in groups]


def merge_counts(groups: Sequence[pl.DataFrame]) -> list[pl.DataFrame]:
    return [partials.group_by("key").agg(pl.col("count").sum()) for partials in groups]


def bins(fold_rows: int = 1000) -> Bins:
    return Bins(count_keys, merge_counts, fold_rows=fold_rows)


def keys(*names: str) -> pl.DataFrame:
    return pl.DataFrame({"key": list(names)})


@given(
    st.lists(st.integers(-(10**15), 10**15) | st.integers(-30, 30), min_size=1),
    st.booleans(),
    st.integers(1, 50) | st.just(3_600_000_000),
    st.integers(-60, 60),
)
def test_a_cut_gives_each_row_to_its_bin_once_and_in_order(
    times: list[int], in_order: bool, size: int, offset: int
) -> None:
    times = sorted(times) if in_order else times
    frame = pl.DataFrame({"at": times, "position": range(len(times))})
    parts = cut(frame, np.array(times, np.int64), size, offset)
    starts = [start for start, _ in parts]
    assert starts == sorted(set(starts))
    assert sum(part.height for _, part in parts) == len(times)
    for start, part in parts:
        assert (start - offset) % size == 0
        assert all(start <= at < start + size for at in part["at"])
        assert part["position"].is_sorted()


def lift_keys(rows: pl.DataFrame) -> pl.DataFrame:
    return rows.with_columns(pl.lit(1, pl.Int64).alias("count"))


@given(st.lists(st.lists(st.sampled_from("abcdefghijkl"), min_size=1), min_size=1, max_size=12), st.integers(1, 10))
def test_rows_that_are_frozen_one_by_one_come_to_the_same(batches: list[list[str]], fold_rows: int) -> None:
    held = Bins(count_keys, merge_counts, lift=lift_keys, fold_rows=fold_rows)
    restored = Bins(count_keys, merge_counts, lift=lift_keys, fold_rows=fold_rows)
    for names in batches:
        held.add(0, keys(*names))
    for start, partial in held.freeze()():
        restored.add_partial(start, partial)
    expected = Counter(name for names in batches for name in names)
    for each in (held, restored):
        (partial,) = each.partials([0])
        assert dict(partial.rows()) == expected
        assert partial["key"].is_unique().all()


def test_a_single_frame_in_which_a_key_repeats_is_merged() -> None:
    held = bins()
    held.add_partial(0, pl.DataFrame({"key": ["a", "a"], "count": [1, 2]}))
    assert [frame.rows() for frame in held.loose([0])[0]] == [[("a", 3)]]


@given(
    st.lists(st.tuples(st.sampled_from([0, 10]), st.lists(st.sampled_from("abc"), min_size=1)), max_size=30),
    st.integers(1, 20),
)
def test_folding_early_or_late_gives_the_same(added: list[tuple[int, list[str]]], fold_rows: int) -> None:
    held, expected = bins(fold_rows), {start: Counter[str]() for start, _ in added}
    for start, names in added:
        held.add(start, keys(*names))
        expected[start].update(names)
    assert {
        start: dict(partial.rows()) for start, partial in zip(held, held.partials(list(held)), strict=True)
    } == expected
    assert held.rows == sum(map(len, expected.values()))


def test_rows_are_counted_through_folds_and_removals() -> None:
    held = bins(fold_rows=3)
    held.add(0, keys("a", "a"))
    assert held.rows == 2
    held.add(0, keys("a", "b"))
    assert held.rows == 2
    held.add_partial(7, pl.DataFrame({"key": ["z"], "count": [9]}))
    assert held.rows == 3
    held.remove(0)
    assert held.rows == 1
    assert list(held) == [7]


def test_a_snapshot_does_not_see_what_comes_after() -> None:
    held = bins(fold_rows=4)
    held.add(0, keys("a", "b"))
    held.add_partial(0, pl.DataFrame({"key": ["a"], "count": [5]}))
    held.add(10, keys("c"))
    frozen = held.freeze()
    held.add(0, keys("a", "a", "a"))
    held.partials([0])
    held.remove(10)
    held.add(20, keys("d"))
    for _ in range(2):
        assert {start: dict(partial.rows()) for start, partial in frozen()} == {0: {"a": 6, "b": 1}, 10: {"c": 1}}


def test_many_small_batches_are_folded_by_their_number() -> None:
    held = bins(fold_rows=10**9)
    for _ in range(FOLD_FRAMES):
        held.add(0, keys("a"))
    assert held.rows == 1


@pytest.mark.parametrize("distinct", [10, 10**9])
def test_state_stays_in_few_chunks(distinct: int) -> None:
    held, random = bins(fold_rows=64), np.random.default_rng(3)
    for _ in range(500):
        held.add(0, pl.DataFrame({"key": random.integers(0, distinct, 64)}))
    (whole,) = held.partials([0])
    assert whole["count"].sum() == 500 * 64
    assert whole.n_chunks() <= 2


def test_a_bin_of_one_frame_with_a_key_twice_is_reduced_before_it_is_given_out_loose() -> None:
    held = Bins(merge_counts, merge_counts)
    held.add(0, pl.DataFrame({"key": ["a", "a"], "count": [1, 2]}))
    (whole,) = held.loose([0])[0]
    assert whole.rows() == [("a", 3)]
