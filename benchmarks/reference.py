"""The reference: the Nexmark queries as one-shot Polars, as a user would write them.

Runs in a process of its own (`python -m benchmarks.reference`) that takes one JSON line per query and answers with
the seconds it took: one thread, warm, columns pushed down into the scan, the result written as Parquet.
"""

import json
import os
import subprocess
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType

import polars as pl

from benchmarks.data import Files
from benchmarks.queries import CATEGORY, CONVERSION, SIDE_KEYS, TIE, side_table
from benchmarks.queries import channel_id as channel_id_expression


@dataclass(frozen=True, slots=True)
class Tables:
    """The three kinds of events."""

    persons: pl.LazyFrame
    auctions: pl.LazyFrame
    bids: pl.LazyFrame


Query = Callable[[Tables], pl.LazyFrame]
_TEN_SECONDS = pl.col("ts").dt.truncate("10s")


def q0(site: Tables) -> pl.LazyFrame:
    """All of it."""
    return site.bids


def q1(site: Tables) -> pl.LazyFrame:
    """Currency conversion."""
    return site.bids.select("auction", "bidder", "ts", price=pl.col("price") * CONVERSION)


def q2(site: Tables) -> pl.LazyFrame:
    """A few auctions."""
    return site.bids.filter(pl.col("auction") % CATEGORY == 0).select("auction", "price")


def q3(site: Tables) -> pl.LazyFrame:
    """Who sells in a category, in three states."""
    sellers = site.persons.filter(pl.col("state").is_in(["OR", "ID", "CA"])).select("id", "name", "city", "state")
    items = site.auctions.filter(pl.col("category") == 10).select("seller", auction="id")
    return items.join(sellers, left_on="seller", right_on="id").select("name", "city", "state", "auction")


def _bids_of_auctions(site: Tables, *columns: str) -> pl.LazyFrame:
    """Bids that came while their auction was open."""
    auctions = site.auctions.select("id", "seller", "category", opened="ts", closes="expires")
    joined = site.bids.select("auction", "price", *columns, bid_ts="ts").join(
        auctions, left_on="auction", right_on="id"
    )
    return joined.filter(pl.col("bid_ts").is_between("opened", "closes"))


def q4(site: Tables) -> pl.LazyFrame:
    """The average closing price of each category."""
    final = _bids_of_auctions(site).group_by("auction", "category").agg(pl.col("price").max())
    return final.group_by("category").agg(price=pl.col("price").mean())


def q5(site: Tables) -> pl.LazyFrame:
    """The auction with the most bids of each 10 s, every 2 s: counts of 2 s, each a part of five windows."""
    panes = site.bids.group_by("auction", pane=pl.col("ts").dt.truncate("2s")).agg(bids=pl.len())
    ends = pl.concat_list([pl.col("pane") + pl.duration(seconds=2 * (part + 1)) for part in range(5)])
    windows = panes.with_columns(window_end=ends).explode("window_end")
    counts = windows.group_by("window_end", "auction").agg(pl.col("bids").sum().cast(pl.Int64))
    rank = pl.col("bids") * TIE + pl.col("auction")
    return counts.group_by("window_end").agg(pl.col("bids").max(), pl.col("auction").max_by(rank))


def q6(site: Tables) -> pl.LazyFrame:
    """The average closing price of the last ten auctions of each seller, after each that closes."""
    final = _bids_of_auctions(site).group_by("auction", "seller", "closes").agg(pl.col("price").max())
    in_order = final.sort("closes", "auction")
    total = pl.col("price").rolling_sum(10, min_samples=1).over("seller")
    count = pl.min_horizontal(pl.int_range(1, pl.len() + 1).over("seller"), 10)
    return in_order.select("seller", "auction", price=total / count)


def q7(site: Tables) -> pl.LazyFrame:
    """The highest bid of each 10 s."""
    return site.bids.group_by(window_start=_TEN_SECONDS).agg(
        pl.col("price").max(), pl.col("auction", "bidder").max_by("price")
    )


def q8(site: Tables) -> pl.LazyFrame:
    """Persons who opened an auction in the 10 s in which they came."""
    people = site.persons.select("id", "name", window_start=_TEN_SECONDS).unique()
    sellers = site.auctions.select("seller", window_start=_TEN_SECONDS).unique()
    joined = people.join(sellers, left_on=["id", "window_start"], right_on=["seller", "window_start"])
    return joined.select("id", "name", "window_start")


def q9(site: Tables) -> pl.LazyFrame:
    """The winning bid of each auction."""
    bids = _bids_of_auctions(site, "bidder")
    best = bids.sort("price", "bid_ts", "bidder", descending=[True, False, False])
    return best.unique("auction", keep="first", maintain_order=True).select(
        "auction", "seller", "category", "bidder", "price", bid_ts=pl.col("bid_ts").cast(pl.Int64)
    )


def q10(site: Tables) -> pl.LazyFrame:
    """All of it, by day and hour."""
    return site.bids.select(
        "auction",
        "bidder",
        "price",
        "ts",
        "extra",
        day=pl.col("ts").dt.strftime("%Y-%m-%d"),
        hour=pl.col("ts").dt.strftime("%H"),
    )


def q11(site: Tables) -> pl.LazyFrame:
    """Bids per bidder and session: 10 s without a bid end one."""
    ordered = site.bids.select("bidder", "ts").sort("bidder", "ts")
    new = (pl.col("ts").diff() > pl.duration(seconds=10)) | (pl.col("bidder") != pl.col("bidder").shift())
    sessions = ordered.with_columns(session=new.fill_null(value=True).cum_sum())
    return (
        sessions.group_by("bidder", "session")
        .agg(bids=pl.len().cast(pl.Int64), window_start=pl.col("ts").first(), last=pl.col("ts").last())
        .select("bidder", "window_start", "bids", window_end=pl.col("last") + pl.duration(seconds=10))
    )


def q12(site: Tables) -> pl.LazyFrame:
    """Bids per bidder of each 10 s."""
    return site.bids.group_by("bidder", window_start=_TEN_SECONDS).agg(bids=pl.len().cast(pl.Int64))


def q13(site: Tables) -> pl.LazyFrame:
    """Bids with a value from a side table."""
    bids = site.bids.select("auction", "bidder", "price", "ts", key=pl.col("auction") % SIDE_KEYS)
    return bids.join(side_table().lazy(), on="key").select("auction", "bidder", "price", "ts", "value")


def q14(site: Tables) -> pl.LazyFrame:
    """Computations on each bid."""
    hour = pl.col("ts").dt.hour()
    time_of_day = (
        pl.when(hour.is_between(8, 18))
        .then(pl.lit("day"))
        .when((hour <= 6) | (hour >= 20))
        .then(pl.lit("night"))
        .otherwise(pl.lit("other"))
    )
    price = pl.col("price") * CONVERSION
    return site.bids.filter(price.is_between(1_000_000, 50_000_000, closed="none")).select(
        "auction",
        "bidder",
        "ts",
        "extra",
        price=price,
        time_of_day=time_of_day,
        letters=pl.col("extra").str.count_matches("c", literal=True).cast(pl.Int64),
    )


_CHEAP = pl.col("price") < 10_000
_MIDDLE = pl.col("price").is_between(10_000, 1_000_000, closed="left")
_DEAR = pl.col("price") >= 1_000_000
_RANKS = {"cheap": _CHEAP, "middle": _MIDDLE, "dear": _DEAR}


def _ranked_counts() -> list[pl.Expr]:
    return [
        pl.len().cast(pl.Int64).alias("bids"),
        *(rank.sum().cast(pl.Int64).alias(f"{name}_bids") for name, rank in _RANKS.items()),
    ]


def _ranked_distinct() -> list[pl.Expr]:
    return [
        expr.n_unique().cast(pl.Int64).alias(f"{prefix}{column}s")
        for column in ("bidder", "auction")
        for prefix, expr in [
            ("", pl.col(column)),
            *((f"{name}_", pl.col(column).filter(rank)) for name, rank in _RANKS.items()),
        ]
    ]


def q15(site: Tables) -> pl.LazyFrame:
    """Statistics of each day."""
    return site.bids.group_by(day=pl.col("ts").dt.date()).agg(*_ranked_counts(), *_ranked_distinct())


def q16(site: Tables) -> pl.LazyFrame:
    """Statistics of each channel and day."""
    return site.bids.group_by("channel", day=pl.col("ts").dt.date()).agg(
        pl.col("ts").max().dt.truncate("1m").alias("minute"), *_ranked_counts(), *_ranked_distinct()
    )


def q17(site: Tables) -> pl.LazyFrame:
    """Statistics of each auction and day."""
    price = pl.col("price")
    return site.bids.group_by("auction", day=pl.col("ts").dt.date()).agg(
        *_ranked_counts(), low=price.min(), high=price.max(), mean=price.mean(), total=price.sum()
    )


def q18(site: Tables) -> pl.LazyFrame:
    """The last bid of each bidder on each auction."""
    return site.bids.unique(["bidder", "auction"], keep="last", maintain_order=True)


def q19(site: Tables) -> pl.LazyFrame:
    """The ten highest bids of each auction."""
    rank = pl.col("price").rank("ordinal", descending=True).over("auction")
    return site.bids.select("auction", "price").filter(rank <= 10)


def q20(site: Tables) -> pl.LazyFrame:
    """Bids with their auction, of one category."""
    items = site.auctions.filter(pl.col("category") == 10).select(
        "id", "item", "initial_bid", "reserve", "seller", "category", opened="ts", closes="expires"
    )
    return site.bids.select("auction", "bidder", "price", "channel", "url", "ts").join(
        items, left_on="auction", right_on="id"
    )


def q21(site: Tables) -> pl.LazyFrame:
    """The id of each bid's channel."""
    named = site.bids.select("auction", "bidder", "price", "channel", channel_id=channel_id_expression())
    return named.filter(pl.col("channel_id").is_not_null())


def q22(site: Tables) -> pl.LazyFrame:
    """The parts of each bid's URL."""
    parts = pl.col("url").str.split("/")
    return site.bids.select(
        "auction", "bidder", "price", "channel", **{f"part{n}": parts.list.get(n + 2) for n in (1, 2, 3)}
    )


QUERIES: dict[str, Query] = {
    query.__name__: query
    for query in (
        q0, q1, q2, q3, q4, q5, q6, q7, q8, q9, q10, q11, q12, q13, q14, q15, q16, q17, q18, q19, q20, q21, q22,
    )
}  # fmt: skip


def scan(files: Files) -> Tables:
    """The events as lazy frames."""
    return Tables(*(pl.scan_parquet(path) for path in (files.persons, files.auctions, files.bids)))


class Reference:
    """The process, seen from the benchmark. A context manager."""

    def __init__(self) -> None:
        self._process = subprocess.Popen(
            [sys.executable, "-m", "benchmarks.reference"],
            env={**os.environ, "POLARS_MAX_THREADS": "1"},
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )

    def run(self, query: str, files: Files, out: Path) -> float:
        """Seconds of one query."""
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        request = {"query": query, "files": [files.persons, files.auctions, files.bids], "out": str(out)}
        self._process.stdin.write(json.dumps(request) + "\n")
        self._process.stdin.flush()
        answer = self._process.stdout.readline()
        if not answer:
            raise RuntimeError(f"the reference process ended during {query}")
        return float(answer)

    def __enter__(self) -> "Reference":
        return self

    def __exit__(self, *_: type[BaseException] | BaseException | TracebackType | None) -> None:
        self._process.kill()
        self._process.communicate()


def serve() -> None:
    """Answer queries until the input ends."""
    for line in sys.stdin:
        request = json.loads(line)
        started = time.perf_counter()
        QUERIES[request["query"]](scan(Files(*request["files"]))).sink_parquet(request["out"])
        print(time.perf_counter() - started, flush=True)
    os._exit(0)  # interpreter exit after Polars and Arrow were used may abort


if __name__ == "__main__":
    serve()
