"""Programs with two sources, for the tests of joins on a cluster."""

import polars as pl

import penstock as ps
from penstock import col

BIDS = pl.DataFrame(
    {"id": range(3_000), "auction": [n % 37 for n in range(3_000)], "at": [n * 10 for n in range(3_000)]}
)
AUCTIONS = pl.DataFrame(
    {"auction": [n % 50 for n in range(500)], "version": range(500), "at": [n * 60 for n in range(500)]}
)


def sources(flow: ps.Flow) -> tuple[ps.DataStream, ps.DataStream]:
    bids = flow.read(ps.items(BIDS, batch_rows=100), event_time="at", unit="ms", uid="bids")
    auctions = flow.read(ps.items(AUCTIONS, batch_rows=20), event_time="at", unit="ms", uid="auctions")
    return bids, auctions


def joined(flow: ps.Flow) -> None:
    bids, auctions = sources(flow)
    windows = bids.join(auctions, on="auction", how="full", within=ps.tumbling("5s"), uid="window-join")
    windows.write(ps.collect(), uid="windows")
    near = bids.interval_join(auctions, on="auction", lower="-2s", upper="1s", how="left", uid="interval-join")
    near.write(ps.collect(), uid="near")
    versions = bids.join(auctions, on="auction", within=ps.as_of(), uid="temporal-join")
    versions.write(ps.collect(), uid="versions")
    ever = bids.join(auctions, on="auction", how="left", uid="regular-join")
    ever.filter(col("version").is_null() | (col("version") > 9)).write(ps.collect(), uid="ever")
    totals = bids.key_by("auction").agg(bids=ps.count(), last=ps.max("id"), uid="totals")
    totals.filter(col("bids") > 80).write(ps.collect(), uid="totals-out")
