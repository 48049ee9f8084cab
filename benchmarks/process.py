"""A function with state, called per record behind a hash exchange, against the same as a bare loop over a dict."""

import gc
import time
from collections.abc import Iterator
from functools import partial
from statistics import median
from typing import Any

import polars as pl

import penstock as ps
from benchmarks import data, jobs
from benchmarks.figures import Figure, interleaved, median_ratio
from penstock.local import LocalCluster

ROWS = 2_000_000
ROWS_PER_SECOND_GOAL = 500_000
DICT_LOOP_GOAL = 0.3


class RunningTotal(ps.KeyedProcessFunction):
    """What has been bid for an auction so far."""

    total = ps.ValueState(int, default=0)

    def process(self, ctx: ps.KeyedContext, price: int) -> Any:
        """A row for a row."""
        self.total.value += price
        return ctx.key, self.total.value


def running_totals(flow: ps.Flow, files: str) -> None:
    """Reads, exchanges by key, calls, forgets."""
    bids = flow.read(ps.parquet(files), event_time="ts", uid="bids")
    totals = bids.key_by("auction").process(RunningTotal(), output={"auction": int, "total": int}, uid="totals")
    totals.write(ps.discard(), uid="nowhere")


def run(*, repeats: int, rows: int = ROWS) -> Iterator[Figure]:
    """With one slot and with two."""
    files = data.bids(rows)
    bids = pl.read_parquet(files, columns=["auction", "price"])
    auctions, prices = bids["auction"].to_list(), bids["price"].to_list()
    with jobs.cluster("process", task_managers=2) as cluster:
        for slots in (1, 2):
            ours = partial(_seconds, cluster, files, slots)
            ours()
            taken = interleaved({"ours": ours, "loop": partial(_dict_loop, auctions, prices)}, repeats)
            case = f"{slots} slot" + "s" * (slots > 1)
            per_slot = [seconds * slots for seconds in taken["ours"]]
            figure = partial(Figure, bench="process", case=case, better="higher")
            yield figure(metric="rows/s per slot", value=rows / median(per_slot), goal=ROWS_PER_SECOND_GOAL)
            yield figure(
                metric="speed per slot to a dict loop",
                value=median_ratio(taken["loop"], per_slot),
                goal=DICT_LOOP_GOAL,
            )


def _seconds(cluster: LocalCluster, files: str, slots: int) -> float:
    program = partial(running_totals, files=files)
    view = jobs.submit(cluster, program, parallelism=slots, settings=jobs.EVERY_SECOND)
    return jobs.seconds_running(jobs.finish(cluster, view.id))


def _dict_loop(auctions: list[int], prices: list[int]) -> float:
    gc.collect()
    started = time.perf_counter()
    totals: dict[int, int] = {}
    out = []
    for auction, price in zip(auctions, prices, strict=True):
        total = totals.get(auction, 0) + price
        totals[auction] = total
        out.append((auction, total))
    return time.perf_counter() - started
