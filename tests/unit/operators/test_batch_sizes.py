"""Batches come to cost about what they may, for rows that are dear and for rows that are cheap."""

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from penstock.operators.batch_sizes import BatchSize

MOST, TARGET = 131_072, 0.05


def work(size: BatchSize, *, per_row: float, per_batch: float = 0.0, batches: int = 40) -> float:
    """Take full batches; the cost of the last one."""
    cost = 0.0
    for _ in range(batches):
        cost = per_batch + size.rows * per_row
        size.measured(size.rows, cost)
    return cost


@pytest.mark.parametrize("per_row", [1e-9, 1e-8, 1e-7])
def test_cheap_rows_come_in_the_largest_batches(per_row: float) -> None:
    size = BatchSize(MOST, target=TARGET, first=1024)
    work(size, per_row=per_row)
    assert size.rows == MOST


@given(st.floats(1e-6, 1e-2), st.floats(0, 0.02), st.integers(1, MOST))
@example(per_row=0.0083636, per_batch=0.00691, first=8)
def test_dear_rows_come_in_batches_that_cost_about_the_target(per_row: float, per_batch: float, first: int) -> None:
    size = BatchSize(MOST, target=TARGET, first=first)
    cost = work(size, per_row=per_row, per_batch=per_batch)
    assert cost <= TARGET * 1.3 + per_row or size.rows <= 2  # a larger one is tried, by a row at least
    assert cost > TARGET / 4 or size.rows == MOST


@given(st.floats(0.05, 5), st.floats(0, 1e-2), st.integers(1, MOST))
@example(per_batch=0.05, per_row=6e-8, first=9)
def test_what_costs_too_much_whatever_its_size_is_not_done_in_small_bits(
    per_batch: float, per_row: float, first: int
) -> None:
    size = BatchSize(MOST, target=TARGET, first=first)
    rows, cost = 0, 0.0
    for _ in range(200):
        rows, cost = rows + size.rows, cost + per_batch + size.rows * per_row
        size.measured(size.rows, per_batch + size.rows * per_row)
    best = MOST / (per_batch + MOST * per_row)
    assert rows / cost > best / 6


def test_a_row_that_costs_more_than_the_target_comes_alone() -> None:
    size = BatchSize(MOST, target=TARGET, first=1024)
    for _ in range(100):
        work(size, per_row=1.0, batches=1)
        assert size.rows <= 1024
    sizes = [size.rows for _ in range(40) if work(size, per_row=1.0, batches=1)]
    assert set(sizes) == {1, 2}  # now and then it is tried whether two cost as much as one
    assert sizes.count(2) <= 4


def test_a_bad_moment_costs_a_quarter_and_is_made_up_for_soon() -> None:
    size = BatchSize(MOST, target=TARGET, first=MOST)
    size.measured(MOST, 30.0)
    assert size.rows == MOST // 4
    work(size, per_row=1e-8, batches=2)
    assert size.rows == MOST


def test_a_trickle_changes_nothing() -> None:
    size = BatchSize(MOST, target=TARGET, first=1024)
    for _ in range(100):
        size.measured(3, 0.001)
    assert size.rows == 1024


def test_small_batches_that_cost_too_much_are_the_measure() -> None:
    size = BatchSize(MOST, target=TARGET, first=1024)
    for _ in range(10):
        size.measured(10, 0.1)
    assert size.rows == 5


def test_it_never_leaves_its_bounds() -> None:
    size = BatchSize(2, target=TARGET, first=1024)
    assert size.rows == 2
    work(size, per_row=0.0)
    assert size.rows == 2
