"""Jobs over auctions, and a loop: their programs, and what they must come to however often they are killed."""

from typing import Any

import numpy as np
import polars as pl
from oracles import EqualRows, Oracle

import penstock as ps
from penstock import col
from penstock.connectors.nexmark import Nexmark, event_number

EVENTS = 60_000
BIDS = EVENTS // 50 * 46
BIDS_PER_SECOND = 12_000
"""Of the wall clock: about 5 s in all."""
EVENTS_PER_SECOND = 1_000
"""Of event time: a minute, so that windows and timers fire all the time."""
START_MS = 1_767_225_600_000
PERIOD_US = 2_000_000
LOOP_ROWS = 30_000
LOOP_TURNS = 50
REPORTED = 7
"""The process job tells of each so many bids of an auction."""


def keyed_windows(flow: ps.Flow, out: str, seed: int) -> None:
    _bids(flow, seed).key_by("bidder").window(ps.sliding("2s", every="1s")).agg(
        bids=ps.count(), total=ps.sum("price"), highest=ps.max("price"), uid="per-bidder"
    ).write(ps.parquet(out), uid="result")


def expected_of_keyed_windows(seed: int) -> Oracle:
    starts = pl.concat_list([pl.col("ts").dt.truncate("1s") - pl.duration(seconds=back) for back in (0, 1)])
    windows = (
        _input(seed)
        .with_columns(window_start=starts)
        .explode("window_start")
        .group_by("bidder", "window_start")
        .agg(bids=pl.len().cast(pl.Int64), total=pl.col("price").sum(), highest=pl.col("price").max())
        .with_columns(window_end=pl.col("window_start") + pl.duration(seconds=2))
    )
    return EqualRows(windows)


def keyed_process(flow: ps.Flow, out: str, seed: int) -> None:
    (
        _bids(flow, seed)
        .with_columns(period=col("ts").dt.timestamp("us") // PERIOD_US)
        .key_by("auction", "period")
        .process(
            Closing(),
            output={"kind": str, "auction": int, "period": int, "bids": int, "total": int},
            uid="closing",
        )
        .write(ps.parquet(out), uid="result")
    )


def expected_of_keyed_process(seed: int) -> Oracle:
    closed = (
        _input(seed)
        .group_by("auction", period=pl.col("ts").dt.timestamp("us") // PERIOD_US)
        .agg(bids=pl.len().cast(pl.Int64), total=pl.col("price").sum())
    )
    reported = (
        closed.with_columns(bids=pl.int_ranges(REPORTED, pl.col("bids") + 1, REPORTED))
        .explode("bids")
        .drop_nulls("bids")
        .with_columns(total=pl.lit(None, pl.Int64))
    )
    named = {"closed": closed, "reported": reported}
    return EqualRows(pl.concat(frame.with_columns(kind=pl.lit(kind)) for kind, frame in named.items()))


class Closing(ps.KeyedProcessFunction):
    """Counts the bids of an auction and a period; a timer at the end of the period tells their sum."""

    bids = ps.ValueState(int, default=0)
    total = ps.ValueState(int, default=0)

    def process(self, ctx: ps.KeyedContext, price: int, period: int) -> Any:
        if self.bids.value == 0:
            ctx.set_timer((period + 1) * PERIOD_US - 1)
        self.bids.value += 1
        self.total.value += price
        return ("reported", *ctx.key, self.bids.value, None) if self.bids.value % REPORTED == 0 else None

    def on_timer(self, ctx: ps.KeyedContext, time: int) -> Any:
        closed = ("closed", *ctx.key, self.bids.value, self.total.value)
        self.bids.clear()
        self.total.clear()
        return closed


def loop(flow: ps.Flow, out: str, seed: int) -> None:
    """Each number goes round as often as it says itself, by another key each time."""
    source = ps.generate({"n": ps.sequence()}, rows=LOOP_ROWS, rate=LOOP_ROWS / 5, seed=seed)
    numbers = flow.read(source, uid="numbers")
    started = numbers.with_columns(left=(col("n") * 7_919 + seed) % LOOP_TURNS, turn=col("n") * 0)

    def body(inside: ps.DataStream) -> tuple[ps.DataStream, ps.DataStream]:
        again = inside.filter(col("left") > 0).key_by(other=col("n") + col("turn"))
        turned = again.with_columns(left=col("left") - 1, turn=col("turn") + 1)
        return turned.select("n", "left", "turn"), inside.filter(col("left") == 0)

    started.iterate(body, uid="loop").write(ps.parquet(out), uid="result")


def expected_of_loop(seed: int) -> Oracle:
    numbers = pl.DataFrame({"n": np.arange(LOOP_ROWS)})
    return EqualRows(numbers.with_columns(left=pl.lit(0, pl.Int64), turn=(pl.col("n") * 7_919 + seed) % LOOP_TURNS))


def _bids(flow: ps.Flow, seed: int) -> ps.DataStream:
    source = ps.nexmark(
        events=EVENTS, rate=BIDS_PER_SECOND, seed=seed, start="2026-01-01", events_per_second=EVENTS_PER_SECOND
    )
    return flow.read(source, event_time="ts", uid="bids")


def _input(seed: int) -> pl.DataFrame:
    """The same bids, all at once."""
    site = Nexmark(seed, START_MS, EVENTS_PER_SECOND)
    return site.frame("bids", ["auction", "bidder", "price", "ts"], event_number("bids", np.arange(BIDS)))
