"""Joins of two sources on real processes, against Polars over the whole input at once."""

import sys
from collections import Counter
from pathlib import Path

import polars as pl
import pytest

from penstock.api.programs import build
from penstock.local import run_graph
from penstock.local.progress import SilentProgress
from penstock.local.running import RunResult, with_settings

PROGRAMS = Path(__file__).parent / "join_programs.py"


@pytest.fixture(scope="module")
def result(tmp_path_factory: pytest.TempPathFactory) -> RunResult:
    graph = with_settings(build(f"{PROGRAMS}:joined", parallelism=2), checkpoint_interval="100ms")
    return run_graph(graph, state_dir=tmp_path_factory.mktemp("joins"), progress=SilentProgress(sys.stdout))


@pytest.fixture(scope="module")
def inputs() -> tuple[pl.DataFrame, pl.DataFrame]:
    bids = pl.DataFrame(
        {"id": range(3_000), "auction": [n % 37 for n in range(3_000)], "at": [n * 10 for n in range(3_000)]}
    )
    auctions = pl.DataFrame(
        {"auction": [n % 50 for n in range(500)], "version": range(500), "at": [n * 60 for n in range(500)]}
    )
    return bids, auctions


def assert_same(found: pl.DataFrame, expected: pl.DataFrame) -> None:
    assert Counter(found.select(expected.columns).rows()) == Counter(expected.rows())


def settled(changes: pl.DataFrame) -> "Counter[tuple[object, ...]]":
    rows: Counter[tuple[object, ...]] = Counter()
    for *values, change in changes.rows():
        rows[tuple(values)] += -1 if change == "delete" else 1
    return +rows


def test_a_window_join(result: RunResult, inputs: tuple[pl.DataFrame, pl.DataFrame]) -> None:
    bids, auctions = (frame.with_columns(window_start=pl.col("at") // 5_000 * 5_000) for frame in inputs)
    expected = bids.join(auctions, on=["auction", "window_start"], how="full", coalesce=True)
    assert_same(result.collected("windows"), expected)


def test_an_interval_join(result: RunResult, inputs: tuple[pl.DataFrame, pl.DataFrame]) -> None:
    bids, auctions = inputs
    pairs = bids.join(auctions, on="auction").filter((pl.col("at_right") - pl.col("at")).is_between(-2_000, 1_000))
    alone = bids.join(pairs, on="id", how="anti")
    assert_same(result.collected("near"), pl.concat([pairs, alone], how="diagonal"))


def test_a_temporal_join(result: RunResult, inputs: tuple[pl.DataFrame, pl.DataFrame]) -> None:
    bids, auctions = inputs
    pairs = bids.join(auctions, on="auction").filter(pl.col("at_right") <= pl.col("at"))
    expected = pairs.filter(pl.col("version") == pl.col("version").max().over("id"))
    assert_same(result.collected("versions"), expected)


def test_a_regular_left_join(result: RunResult, inputs: tuple[pl.DataFrame, pl.DataFrame]) -> None:
    bids, auctions = inputs
    expected = bids.join(auctions, on="auction", how="left")
    kept = expected.filter(pl.col("version").is_null() | (pl.col("version") > 9))
    assert settled(result.collected("ever").select(*kept.columns, "change")) == Counter(kept.rows())


def test_a_running_aggregate(result: RunResult, inputs: tuple[pl.DataFrame, pl.DataFrame]) -> None:
    totals = inputs[0].group_by("auction").agg(bids=pl.len().cast(pl.Int64), last=pl.col("id").max())
    kept = totals.filter(pl.col("bids") > 80)
    assert settled(result.collected("totals-out").select(*kept.columns, "change")) == Counter(kept.rows())
