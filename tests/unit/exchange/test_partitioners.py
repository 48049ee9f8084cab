"""Every row goes to exactly the subtask that owns it, in order."""

import polars as pl
import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.exchange.partitioners import make_partitioner
from penstock.model import specs
from penstock.state.key_groups import group_range, key_groups

MAX_PARALLELISM = 128


def routing(parallelism: int) -> list[int]:
    return [index for index in range(parallelism) for _ in group_range(index, parallelism, MAX_PARALLELISM)]


@given(st.lists(st.tuples(st.integers(), st.sampled_from(["a", "b", None])), min_size=1), st.integers(1, 70))
def test_hash_sends_each_row_to_the_owner_of_its_key_group(
    rows: list[tuple[int, str | None]], parallelism: int
) -> None:
    rows = [(key % 2**62, text) for key, text in rows]
    frame = pl.DataFrame(rows, schema={"k": pl.Int64, "s": pl.String}, orient="row").with_row_index("n")
    partitioner = make_partitioner(
        specs.Hash(keys=("k", "s")), channels=parallelism, routing=routing(parallelism), sender_index=0
    )
    routed = partitioner.split(frame)
    for channel, piece in routed:
        owned = group_range(channel, parallelism, MAX_PARALLELISM)
        assert all(group in owned for group in key_groups(piece, ("k", "s"), MAX_PARALLELISM).tolist())
        assert piece["n"].is_sorted()
    together = pl.concat([piece for _, piece in routed]).sort("n")
    assert together.equals(frame)


def test_broadcast_sends_all_rows_to_all() -> None:
    frame = pl.DataFrame({"x": [1, 2]})
    partitioner = make_partitioner(specs.Broadcast(), channels=3, routing=(), sender_index=0)
    assert [(channel, piece["x"].to_list()) for channel, piece in partitioner.split(frame)] == [
        (0, [1, 2]),
        (1, [1, 2]),
        (2, [1, 2]),
    ]


def test_rebalance_takes_turns_and_cuts_large_batches() -> None:
    partitioner = make_partitioner(specs.Rebalance(), channels=2, routing=(), sender_index=1)
    small = pl.DataFrame({"x": [1]})
    assert [partitioner.split(small)[0][0] for _ in range(3)] == [1, 0, 1]
    large = pl.DataFrame({"x": range(10_001)})
    routed = partitioner.split(large)
    assert sorted(channel for channel, _ in routed) == [0, 1]
    assert sum(piece.height for _, piece in routed) == 10_001


@pytest.mark.parametrize(
    "partitioning", [specs.Forward(), specs.Rebalance(), specs.Hash(keys=("x",)), specs.Broadcast()]
)
def test_a_single_receiver_gets_the_batch_untouched(partitioning: specs.Partitioning) -> None:
    frame = pl.DataFrame({"x": [3, 1, 2]})
    partitioner = make_partitioner(partitioning, channels=1, routing=[0] * MAX_PARALLELISM, sender_index=5)
    [(channel, piece)] = partitioner.split(frame)
    assert channel == 0
    assert piece is frame
