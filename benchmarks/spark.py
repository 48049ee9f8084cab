"""Nexmark queries by `--engine spark` against the same ones written in PySpark by hand, in one Spark, in turns."""

import shutil
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

from pyspark.sql import DataFrame, Window
from pyspark.sql import functions as F  # noqa: N812 - as everybody calls it

import penstock as ps
from benchmarks import data, queries
from benchmarks.figures import Figure, interleaved, median_ratio
from penstock import batch
from penstock.api.programs import build

ROWS = 2_000_000
GOAL = 1.05


class Events:
    """The events as a user of Spark reads them."""

    def __init__(self, spark: Any, files: data.Files) -> None:
        self.spark = spark
        self._files = files

    @property
    def persons(self) -> DataFrame:
        """Who came to the site."""
        return self._read(self._files.persons)

    @property
    def auctions(self) -> DataFrame:
        """What they sell."""
        return self._read(self._files.auctions)

    @property
    def bids(self) -> DataFrame:
        """What they offer."""
        return self._read(self._files.bids)

    def _read(self, path: str) -> DataFrame:
        frame: DataFrame = self.spark.read.parquet(path)
        return frame


def q0(events: Events) -> DataFrame:
    return events.bids


def q1(events: Events) -> DataFrame:
    return events.bids.select("auction", "bidder", "ts", (F.col("price") * queries.CONVERSION).alias("price"))


def q2(events: Events) -> DataFrame:
    return events.bids.where(F.col("auction") % queries.CATEGORY == 0).select("auction", "price")


def q3(events: Events) -> DataFrame:
    sellers = events.persons.where(F.col("state").isin("OR", "ID", "CA")).select("id", "name", "city", "state")
    items = events.auctions.where("category = 10").select("seller", F.col("id").alias("auction"))
    return items.join(sellers, items.seller == sellers.id).select("name", "city", "state", "auction")


def q5(events: Events) -> DataFrame:
    windows = events.bids.groupBy("auction", F.window("ts", "10 seconds", "2 seconds")).agg(F.count("*").alias("bids"))
    best = windows.groupBy("window").agg(
        F.max("bids").alias("bids"), F.max_by("auction", F.struct("bids", "auction")).alias("auction")
    )
    return best.select("window.start", "window.end", "bids", "auction")


def q7(events: Events) -> DataFrame:
    best = events.bids.groupBy(F.window("ts", "10 seconds")).agg(
        F.max("price").alias("price"),
        F.max_by("auction", "price").alias("auction"),
        F.max_by("bidder", "price").alias("bidder"),
    )
    return best.select("window.start", "window.end", "price", "auction", "bidder")


def q8(events: Events) -> DataFrame:
    people = events.persons.select("id", "name", F.window("ts", "10 seconds").alias("w"))
    sellers = events.auctions.select("seller", F.window("ts", "10 seconds").alias("w"))
    joined = people.join(sellers, (people.id == sellers.seller) & (people.w == sellers.w), "left_semi")
    return joined.select("id", "name", "w.start")


def q11(events: Events) -> DataFrame:
    sessions = events.bids.groupBy("bidder", F.session_window("ts", "10 seconds").alias("w"))
    return sessions.agg(F.count("*").alias("bids")).select("bidder", "w.start", "w.end", "bids")


def q12(events: Events) -> DataFrame:
    counts = events.bids.groupBy("bidder", F.window("ts", "10 seconds").alias("w")).agg(F.count("*").alias("bids"))
    return counts.select("bidder", "w.start", "w.end", "bids")


def q13(events: Events) -> DataFrame:
    side = queries.side_table()
    rows = events.spark.createDataFrame(side.to_arrow())
    bids = events.bids.select("auction", "bidder", "price", "ts", (F.col("auction") % queries.SIDE_KEYS).alias("key"))
    return bids.join(rows, "key").select("auction", "bidder", "price", "ts", "value")


def q14(events: Events) -> DataFrame:
    hour, price = F.hour("ts"), F.col("price") * queries.CONVERSION
    time_of_day = (
        F.when((hour >= 8) & (hour <= 18), "day").when((hour <= 6) | (hour >= 20), "night").otherwise("other")
    )
    letters = F.length("extra") - F.length(F.replace("extra", F.lit("c"), F.lit("")))
    return events.bids.where((price > 1_000_000) & (price < 50_000_000)).select(
        "auction", "bidder", "ts", "extra", price.alias("price"), time_of_day.alias("time_of_day"),
        letters.cast("long").alias("letters"),
    )  # fmt: skip


def q17(events: Events) -> DataFrame:
    price = F.col("price")
    ranks = {"cheap": price < 10_000, "middle": (price >= 10_000) & (price < 1_000_000), "dear": price >= 1_000_000}
    return events.bids.groupBy("auction", F.to_date("ts").alias("day")).agg(
        F.count("*").alias("bids"),
        *(F.sum(rank.cast("long")).alias(f"{name}_bids") for name, rank in ranks.items()),
        F.min("price").alias("low"),
        F.max("price").alias("high"),
        F.avg("price").alias("mean"),
        F.sum("price").alias("total"),
    )


def q18(events: Events) -> DataFrame:
    last = F.row_number().over(Window.partitionBy("bidder", "auction").orderBy(F.col("ts").desc()))
    return events.bids.withColumn("rank", last).where("rank = 1").drop("rank")


def q19(events: Events) -> DataFrame:
    place = F.row_number().over(Window.partitionBy("auction").orderBy(F.col("price").desc_nulls_last()))
    ranked = events.bids.select("auction", "price", "ts").withColumn("rank", place)
    return ranked.where("rank <= 10").drop("rank")


def q20(events: Events) -> DataFrame:
    items = events.auctions.where("category = 10").select(
        "id", "item", "initial_bid", "reserve", "seller", "category", F.col("ts").alias("opened"),
        F.col("expires").alias("closes"),
    )  # fmt: skip
    bids = events.bids.select("auction", "bidder", "price", "channel", "url", "ts")
    return bids.join(items, bids.auction == items.id).drop("id")


def q21(events: Events) -> DataFrame:
    channel = F.lower("channel")
    number = (
        F.when(channel == "apple", "0").when(channel == "google", "1").when(channel == "facebook", "2")
        .when(channel == "baidu", "3")
    )  # fmt: skip
    found = F.nullif(F.regexp_extract("url", r"(?:&|^)channel_id=([^&]*)", 1), F.lit(""))
    named = events.bids.select("auction", "bidder", "price", "channel", F.coalesce(number, found).alias("channel_id"))
    return named.where("channel_id is not null")


def q22(events: Events) -> DataFrame:
    parts = F.split("url", "/")
    return events.bids.select(
        "auction", "bidder", "price", "channel", *(F.get(parts, F.lit(n + 2)).alias(f"part{n}") for n in (1, 2, 3))
    )


BY_HAND: dict[str, Callable[[Events], DataFrame]] = {
    each.__name__: each for each in (q0, q1, q2, q3, q5, q7, q8, q11, q12, q13, q14, q17, q18, q19, q20, q21, q22)
}


def run(*, repeats: int, rows: int = ROWS, cases: Sequence[str] | None = None) -> Iterator[Figure]:
    """Start-up first, then each query."""
    began = time.monotonic()
    spark = batch.session("local[2]", {"spark.sql.shuffle.partitions": "4"})
    yield Figure(bench="spark", case="start", metric="seconds", value=time.monotonic() - began)
    files, out = data.events(rows), data.scratch("spark-out")
    events = Events(batch.prepared(spark), files)
    for query in cases or BY_HAND:
        if query not in BY_HAND:
            raise SystemExit(f"no query {query}; there are {', '.join(BY_HAND)}")
        runs = {"ours": _ours(spark, query, files, out / "ours"), "by hand": _by_hand(events, query, out / "hand")}
        interleaved(runs, 1)  # the first of each is compiled
        taken = interleaved(runs, repeats)
        ratio = median_ratio(taken["ours"], taken["by hand"])
        yield Figure(bench="spark", case=query, metric="time to PySpark by hand", value=ratio, goal=GOAL)
    spark.stop()


def _ours(spark: Any, query: str, files: data.Files, out: Path) -> Callable[[], float]:
    described = queries.QUERIES[query]

    def program(flow: ps.Flow) -> None:
        result = described.build(queries.Site(flow, files, timed=described.timed))
        result = result.as_changelog() if result.changes is not None else result
        result.write(ps.parquet(out), uid="result")

    graph = build(program)

    def timed() -> float:
        shutil.rmtree(out, ignore_errors=True)
        began = time.monotonic()
        batch.run(graph, spark)
        return time.monotonic() - began

    return timed


def _by_hand(events: Events, query: str, out: Path) -> Callable[[], float]:
    def timed() -> float:
        shutil.rmtree(out, ignore_errors=True)
        began = time.monotonic()
        BY_HAND[query](events).write.option("compression", "zstd").parquet(str(out))
        return time.monotonic() - began

    return timed
