"""The reference: the same queries as one-shot Polars, as a user would write them.

Runs in a process of its own (`python -m benchmarks.reference`) that takes one JSON line per query and answers with
the seconds it took: one thread, warm, columns pushed down into the scan, the result written as Parquet.
"""

import json
import os
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from types import TracebackType

import polars as pl

from benchmarks.queries import CATEGORY, CONVERSION, TIE

Query = Callable[[pl.LazyFrame], pl.LazyFrame]


def q0(bids: pl.LazyFrame) -> pl.LazyFrame:
    """All of it."""
    return bids


def q1(bids: pl.LazyFrame) -> pl.LazyFrame:
    """Currency conversion."""
    return bids.select("auction", "bidder", "ts", price=pl.col("price") * CONVERSION)


def q2(bids: pl.LazyFrame) -> pl.LazyFrame:
    """A few auctions."""
    return bids.filter(pl.col("auction") % CATEGORY == 0).select("auction", "price")


def q5(bids: pl.LazyFrame) -> pl.LazyFrame:
    """The auction with the most bids of each 10 s, every 2 s: counts of 2 s, each a part of five windows."""
    panes = bids.group_by("auction", pane=pl.col("ts").dt.truncate("2s")).agg(bids=pl.len())
    ends = pl.concat_list([pl.col("pane") + pl.duration(seconds=2 * (part + 1)) for part in range(5)])
    windows = panes.with_columns(window_end=ends).explode("window_end")
    counts = windows.group_by("window_end", "auction").agg(pl.col("bids").sum().cast(pl.Int64))
    rank = pl.col("bids") * TIE + pl.col("auction")
    return counts.group_by("window_end").agg(pl.col("bids").max(), pl.col("auction").max_by(rank))


def q7(bids: pl.LazyFrame) -> pl.LazyFrame:
    """The highest bid of each 10 s."""
    return bids.group_by(window_start=pl.col("ts").dt.truncate("10s")).agg(
        pl.col("price").max(), pl.col("auction", "bidder").max_by("price")
    )


def q12(bids: pl.LazyFrame) -> pl.LazyFrame:
    """Bids per bidder of each 10 s."""
    return bids.group_by("bidder", window_start=pl.col("ts").dt.truncate("10s")).agg(bids=pl.len().cast(pl.Int64))


QUERIES: dict[str, Query] = {query.__name__: query for query in (q0, q1, q2, q5, q7, q12)}


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

    def run(self, query: str, files: str, out: Path) -> float:
        """Seconds of one query."""
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.write(json.dumps({"query": query, "files": files, "out": str(out)}) + "\n")
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
        QUERIES[request["query"]](pl.scan_parquet(request["files"])).sink_parquet(request["out"])
        print(time.perf_counter() - started, flush=True)
    os._exit(0)  # interpreter exit after Polars and Arrow were used may abort


if __name__ == "__main__":
    serve()
