"""The Nexmark queries as Penstock programs. `reference` has the same ones in Polars."""

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any

import narwhals as nw
import polars as pl

import penstock as ps
from benchmarks import auctions
from benchmarks.data import Files
from penstock import col, lit, when

CONVERSION = 0.908
"""q1: dollars to euros."""

CATEGORY = 123
"""q2: every so many auctions."""

TIE = 2**32
"""q5: of auctions with the same number of bids the newest is the hottest. Ids stay below this."""

SIDE_KEYS = 10_000
"""q13: rows of the side table."""

Program = Callable[[ps.Flow], None]
Stream = ps.DataStream


class Site:
    """The three kinds of events. Each is read when it is asked for."""

    def __init__(self, flow: ps.Flow, files: Files, *, timed: bool) -> None:
        self.flow = flow
        self._files = files
        # Event time only where it is asked for: its column would have to be read for nothing.
        self._event_time = "ts" if timed else None

    @property
    def persons(self) -> Stream:
        """Who came to the site."""
        return self._read(self._files.persons, "persons")

    @property
    def auctions(self) -> Stream:
        """What they sell."""
        return self._read(self._files.auctions, "auctions")

    @property
    def bids(self) -> Stream:
        """What they offer."""
        return self._read(self._files.bids, "bids")

    def _read(self, path: str, uid: str) -> Stream:
        return self.flow.read(ps.parquet(path), event_time=self._event_time, uid=uid)


# ---------------------------------------------------------------- each bid by itself


def q0(site: Site) -> Stream:
    """All of it."""
    return site.bids


def q1(site: Site) -> Stream:
    """Currency conversion."""
    return site.bids.select("auction", "bidder", "ts", price=col("price") * CONVERSION)


def q2(site: Site) -> Stream:
    """A few auctions."""
    return site.bids.filter(col("auction") % CATEGORY == 0).select("auction", "price")


def q10(site: Site) -> Stream:
    """All of it, by day and hour."""
    day, hour = col("ts").dt.to_string("%Y-%m-%d"), col("ts").dt.to_string("%H")
    return site.bids.select("auction", "bidder", "price", "ts", "extra", day=day, hour=hour)


def q14(site: Site) -> Stream:
    """Computations on each bid."""
    hour = col("ts").dt.hour()
    time_of_day = (
        when((hour >= 8) & (hour <= 18))
        .then(lit("day"))
        .otherwise(when((hour <= 6) | (hour >= 20)).then(lit("night")).otherwise(lit("other")))
    )
    price = col("price") * CONVERSION
    return site.bids.filter((price > 1_000_000) & (price < 50_000_000)).select(
        "auction",
        "bidder",
        "ts",
        "extra",
        price=price,
        time_of_day=time_of_day,
        letters=pl.col("extra").str.count_matches("c", literal=True).cast(pl.Int64),
    )


def channel_id() -> pl.Expr:
    """q21: four channels have a number, others carry theirs in the URL. Narwhals has no `extract`."""
    number = (
        pl.col("channel")
        .str.to_lowercase()
        .replace_strict(
            {"apple": "0", "google": "1", "facebook": "2", "baidu": "3"}, default=None, return_dtype=pl.String
        )
    )
    return pl.coalesce(number, pl.col("url").str.extract(r"(?:&|^)channel_id=([^&]*)", 1))


def q21(site: Site) -> Stream:
    """The id of each bid's channel."""
    named = site.bids.select("auction", "bidder", "price", "channel", channel_id=channel_id())
    return named.filter(~col("channel_id").is_null())


def q22(site: Site) -> Stream:
    """The parts of each bid's URL."""
    parts = col("url").str.split("/")
    return site.bids.select(
        "auction", "bidder", "price", "channel", **{f"part{n}": parts.list.get(n + 2) for n in (1, 2, 3)}
    )


# ---------------------------------------------------------------- windows


def q5(site: Site) -> Stream:
    """The auction with the most bids of each 10 s, every 2 s."""
    counts = site.bids.key_by("auction").window(ps.sliding("10s", every="2s")).agg(bids=ps.count())
    hottest = ps.max_by("auction", by=col("bids") * TIE + col("auction"))
    return counts.window(ps.tumbling("2s")).agg(bids=ps.max("bids"), auction=hottest)


def q7(site: Site) -> Stream:
    """The highest bid of each 10 s."""
    return site.bids.window(ps.tumbling("10s")).agg(
        price=ps.max("price"), auction=ps.max_by("auction", by="price"), bidder=ps.max_by("bidder", by="price")
    )


def q8(site: Site) -> Stream:
    """Persons who opened an auction in the 10 s in which they came."""
    ten_seconds = ps.tumbling("10s")
    people = site.persons.select("id", "name", "ts")
    return people.join(
        site.auctions.select("seller", "ts"), left_on="id", right_on="seller", how="semi", within=ten_seconds
    ).select("id", "name", "window_start")


def q11(site: Site) -> Stream:
    """Bids per bidder and session: 10 s without a bid end one."""
    return site.bids.key_by("bidder").window(ps.session("10s")).agg(bids=ps.count())


def q12(site: Site) -> Stream:
    """Bids per bidder of each 10 s."""
    return site.bids.key_by("bidder").window(ps.tumbling("10s")).agg(bids=ps.count())


# ---------------------------------------------------------------- joins


def q3(site: Site) -> Stream:
    """Who sells in a category, in three states."""
    sellers = site.persons.filter(col("state").is_in(["OR", "ID", "CA"])).select("id", "name", "city", "state")
    items = site.auctions.filter(col("category") == 10).select("seller", auction=col("id"))
    return items.join(sellers, left_on="seller", right_on="id").select("name", "city", "state", "auction")


def q13(site: Site) -> Stream:
    """Bids with a value from a side table."""
    # Not broadcast: bids that come before the side rows must find them all the same.
    side = site.flow.read(ps.items(side_table()), uid="side")
    bids = site.bids.select("auction", "bidder", "price", "ts", key=col("auction") % SIDE_KEYS)
    return bids.join(side, on="key").select("auction", "bidder", "price", "ts", "value")


def side_table() -> pl.DataFrame:
    """q13: what is known before the stream begins."""
    keys = pl.arange(SIDE_KEYS, eager=True)
    return pl.DataFrame({"key": keys, "value": "side " + keys.cast(pl.String)})


def q20(site: Site) -> Stream:
    """Bids with their auction, of one category."""
    items = site.auctions.filter(col("category") == 10).select(
        "id", "item", "initial_bid", "reserve", "seller", "category", opened=col("ts"), closes=col("expires")
    )
    bids = site.bids.select("auction", "bidder", "price", "channel", "url", "ts")
    return bids.join(items, left_on="auction", right_on="id")


# ---------------------------------------------------------------- auctions that close


def q4(site: Site) -> Stream:
    """The average closing price of each category."""
    final = auctions.offers(site.auctions, site.bids).key_by("auction", "category").agg(price=ps.max("price"))
    return final.key_by("category").agg(price=ps.mean("price"))


def q6(site: Site) -> Stream:
    """The average closing price of the last ten auctions of each seller, after each that closes."""
    return auctions.last_ten(auctions.closing(site.auctions, site.bids))


def q9(site: Site) -> Stream:
    """The winning bid of each auction."""
    winners = auctions.closing(site.auctions, site.bids)
    return winners.select("auction", "seller", "category", "bidder", "price", "bid_ts")


# ---------------------------------------------------------------- results that change

_RANKS = {
    "cheap": col("price") < 10_000,
    "middle": (col("price") >= 10_000) & (col("price") < 1_000_000),
    "dear": col("price") >= 1_000_000,
}


def _ranked_counts() -> dict[str, Any]:
    return {
        "bids": ps.count(),
        **{f"{name}_bids": ps.sum(rank.cast(nw.Int64)) for name, rank in _RANKS.items()},
    }


def _ranked_distinct() -> dict[str, Any]:
    return {
        f"{prefix}{column}s": ps.count_distinct(expr)
        for column in ("bidder", "auction")
        for prefix, expr in [
            ("", col(column)),
            *((f"{name}_", when(rank).then(col(column))) for name, rank in _RANKS.items()),
        ]
    }


def q15(site: Site) -> Stream:
    """Statistics of each day."""
    return site.bids.key_by(day=col("ts").dt.date()).agg({**_ranked_counts(), **_ranked_distinct()})


def q16(site: Site) -> Stream:
    """Statistics of each channel and day."""
    minute = col("ts").dt.truncate("1m")
    keyed = site.bids.key_by("channel", day=col("ts").dt.date())
    return keyed.agg({"minute": ps.max(minute), **_ranked_counts(), **_ranked_distinct()})


def q17(site: Site) -> Stream:
    """Statistics of each auction and day."""
    price = {"low": ps.min("price"), "high": ps.max("price"), "mean": ps.mean("price"), "total": ps.sum("price")}
    return site.bids.key_by("auction", day=col("ts").dt.date()).agg({**_ranked_counts(), **price})


def q18(site: Site) -> Stream:
    """The last bid of each bidder on each auction."""
    return site.bids.key_by("bidder", "auction").deduplicate(keep="last", by="event_time")


def q19(site: Site) -> Stream:
    """The ten highest bids of each auction."""
    return site.bids.select("auction", "price", "ts").key_by("auction").top_n(10, by="price", descending=True)


@dataclass(frozen=True, slots=True)
class Query:
    """A query, and what must be known to run and judge it."""

    build: Callable[[Site], Stream]
    goal: float
    """Time as a multiple of the reference's."""
    timed: bool = False
    """It needs event time."""
    keys: tuple[str, ...] | None = None
    """It updates earlier rows with these keys."""
    partition_by: tuple[str, ...] = ()


QUERIES = {
    "q0": Query(q0, 2.0),
    "q1": Query(q1, 1.3),
    "q2": Query(q2, 1.3),
    "q3": Query(q3, 3.0),
    "q4": Query(q4, 3.0, timed=True, keys=("category",)),
    "q5": Query(q5, 1.0, timed=True),
    "q6": Query(q6, 3.0, timed=True),
    "q7": Query(q7, 1.0, timed=True),
    "q8": Query(q8, 1.0, timed=True),
    "q9": Query(q9, 3.0, timed=True),
    "q10": Query(q10, 3.0, partition_by=("day", "hour")),
    "q11": Query(q11, 1.0, timed=True),
    "q12": Query(q12, 1.0, timed=True),
    "q13": Query(q13, 3.0),
    "q14": Query(q14, 1.3),
    "q15": Query(q15, 3.0, keys=("day",)),
    "q16": Query(q16, 3.0, keys=("channel", "day")),
    "q17": Query(q17, 3.0, keys=("auction", "day")),
    "q18": Query(q18, 3.0, timed=True, keys=("bidder", "auction")),
    "q19": Query(q19, 3.0, timed=True),
    "q20": Query(q20, 3.0),
    "q21": Query(q21, 1.3),
    "q22": Query(q22, 1.3),
}
STATEFUL = ("q5", "q7", "q12")
"""Run on two slots against one, and on Flink."""


def program(query: str, files: Files, out: str) -> Program:
    """A whole program: read the events, run the query, write the result."""
    return partial(_build, query=QUERIES[query], files=files, out=out)


def _build(flow: ps.Flow, *, query: Query, files: Files, out: str) -> None:
    result = query.build(Site(flow, files, timed=query.timed))
    if result.changes is not None:
        result = result.as_changelog()
    result.write(ps.parquet(out, partition_by=query.partition_by), uid="result")
