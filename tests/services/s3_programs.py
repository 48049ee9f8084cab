"""Programs whose state is on S3, and what they must come to."""

import os

import numpy as np
import polars as pl

import penstock as ps
from penstock.connectors.nexmark import Nexmark, event_number

EVENTS = 60_000
BIDS = EVENTS // 50 * 46
BIDS_PER_SECOND = 6_000
"""Of the wall clock: about 9 s in all; $RATE for another."""
EVENTS_PER_SECOND = 1_000
START_MS = 1_767_225_600_000
SEED = 5


def numbers(flow: ps.Flow) -> None:
    flow.read(ps.generate({"n": ps.sequence()}, rows=10), uid="numbers").write(ps.discard(), uid="out")


def per_bidder(flow: ps.Flow) -> None:
    """Bids per bidder in windows, to the folder $OUT."""
    rate = int(os.environ.get("RATE") or BIDS_PER_SECOND)
    source = ps.nexmark(events=EVENTS, rate=rate, seed=SEED, start="2026-01-01", events_per_second=EVENTS_PER_SECOND)
    flow.read(source, event_time="ts", uid="bids").key_by("bidder").window(ps.tumbling("2s")).agg(
        bids=ps.count(), total=ps.sum("price"), uid="per-bidder"
    ).write(ps.parquet(os.environ["OUT"]), uid="result")


def copied(flow: ps.Flow) -> None:
    """Rows of a folder that is watched, $IN, into folders by day, $OUT."""
    source = ps.json_lines(os.environ["IN"], schema={"n": int, "day": str}, watch=True)
    flow.read(source, uid="rows").rebalance().write(ps.parquet(os.environ["OUT"], partition_by="day"), uid="out")


def expected_per_bidder() -> pl.DataFrame:
    site = Nexmark(SEED, START_MS, EVENTS_PER_SECOND)
    bids = site.frame("bids", ["auction", "bidder", "price", "ts"], event_number("bids", np.arange(BIDS)))
    return (
        bids.group_by("bidder", window_start=pl.col("ts").dt.truncate("2s"))
        .agg(bids=pl.len().cast(pl.Int64), total=pl.col("price").sum())
        .sort("window_start", "bidder")
    )
