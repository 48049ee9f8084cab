"""The window operator against one-shot Polars, inside one process, by CPU time.

    python benchmarks/kernels_window.py [q5] [q7] [q12]

Four million Nexmark-like bids go through the operator in batches of 64 K rows with a watermark after each, and
through the query that a user would write over the whole table. The results are compared; the figure is the ratio of
CPU times, median of five interleaved runs.
"""

import functools
import gc
import os
import statistics
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass

os.environ.setdefault("POLARS_MAX_THREADS", "1")  # as in a slot

import numpy as np
import polars as pl

from penstock.model import schemas, specs
from penstock.model.clocks import MAX_WATERMARK, SystemClock
from penstock.model.ids import Attempt, JobId, SubtaskId, Uid, VertexId
from penstock.model.settings import JobSettings
from penstock.operators.aggregates import output_type
from penstock.operators.base import OperatorContext
from penstock.operators.windows import WindowAggregate

ROWS, BATCH_ROWS, REPEATS = 4_000_000, 65_536, 5
SECOND = 1_000_000


def nexmark_bids(rows: int) -> pl.DataFrame:
    """Bids as Nexmark spreads them: hot auctions and bidders, 46 bids in 50 events, 10 K events a second."""
    random = np.random.default_rng(1)
    event = np.arange(rows) // 46 * 50 + 4 + np.arange(rows) % 46
    newest_auction = event // 50 * 3 + 2
    cold_auction = newest_auction - random.integers(0, 110, rows)
    auction = np.where(random.random(rows) < 0.5, newest_auction // 100 * 100, cold_auction)
    newest_person = event // 50 + 1
    cold_person = newest_person - random.integers(0, 1010, rows)
    bidder = np.where(random.random(rows) < 0.75, newest_person // 100 * 100 + 1, cold_person)
    price = np.round(10 ** (random.random(rows) * 6) * 100).astype(np.int64)
    columns = {"auction": auction + 1000, "bidder": bidder + 2000, "price": price}
    return pl.DataFrame(columns | {"at": event * 100}).with_columns(pl.col("at").cast(pl.Datetime("us")))


def window(
    keys: tuple[str, ...], assigner: specs.Tumbling | specs.Sliding, schema: pl.Schema, **calls: tuple[str, ...]
) -> specs.WindowAggregate:
    """`name=(function, input, by)` as a window over the bids."""

    def column(name: str) -> specs.Expression:
        return specs.Expression(name=name, text=name, polars=pl.col(name).meta.serialize())

    output = {key: schema[key] for key in keys}
    output |= dict.fromkeys(("window_start", "window_end"), schema["at"])
    aggregates = []
    for name, (function, *inputs) in calls.items():
        value, by = (*map(column, inputs), None, None)[:2]
        untyped = specs.Aggregate(name=name, function=function, input=value, by=by)
        output[name] = output_type(untyped, schema)
        typed = schemas.type_to_text(output[name])
        aggregates.append(specs.Aggregate(name=name, function=function, input=value, by=by, output_type=typed))
    return specs.WindowAggregate(
        keys=keys,
        assigner=assigner,
        aggregates=tuple(aggregates),
        event_time=specs.EventTime(column="at"),
        output=schemas.fields(output),
    )


class Collected:
    def __init__(self) -> None:
        self.frames: list[pl.DataFrame] = []

    def emit(self, frame: pl.DataFrame) -> None:
        self.frames.append(frame)


def through_operator(spec: specs.WindowAggregate, bids: pl.DataFrame) -> pl.DataFrame:
    operator, collected = WindowAggregate(spec), Collected()
    context = OperatorContext(
        job=JobId("bench"),
        attempt=Attempt(1),
        uid=Uid("window"),
        subtask=SubtaskId(VertexId("window"), 0),
        parallelism=1,
        max_parallelism=128,
        clock=SystemClock(),
        settings=JobSettings(),
    )
    operator.open(context, collected)
    for batch in bids.iter_slices(BATCH_ROWS):
        operator.on_batch(batch)
        operator.on_watermark(batch["at"].cast(pl.Int64)[-1] - 1)
    operator.on_watermark(MAX_WATERMARK)
    return pl.concat(collected.frames)


def with_end(frame: pl.DataFrame, seconds: int) -> pl.DataFrame:
    end = pl.col("window_start").dt.offset_by(f"{seconds}s").alias("window_end")
    return frame.with_columns(end)


def one_shot_q5(bids: pl.DataFrame) -> pl.DataFrame:
    panes = bids.group_by("auction", pl.col("at").dt.truncate("2s")).agg(pl.len().cast(pl.Int64).alias("bids"))
    starts = pl.concat_list(pl.col("at").dt.offset_by(f"-{back}s") for back in (0, 2, 4, 6, 8))
    windows = panes.select("auction", "bids", starts.alias("window_start")).explode("window_start")
    return with_end(windows.group_by("auction", "window_start").agg(pl.col("bids").sum()), 10)


def one_shot_q7(bids: pl.DataFrame) -> pl.DataFrame:
    windows = bids.with_columns(pl.col("at").dt.truncate("10s").alias("window_start"))
    best = windows.group_by("window_start").agg(pl.col("price").max())
    hits = windows.join(best, on=["window_start", "price"])
    return with_end(hits.group_by("window_start", "price").agg(pl.col("auction", "bidder").min()), 10)


def one_shot_q12(bids: pl.DataFrame) -> pl.DataFrame:
    start = pl.col("at").dt.truncate("10s").alias("window_start")
    return with_end(bids.group_by("bidder", start).agg(pl.len().cast(pl.Int64).alias("bids")), 10)


@dataclass(frozen=True)
class Case:
    spec: specs.WindowAggregate
    one_shot: Callable[[pl.DataFrame], pl.DataFrame]
    goal: float


def cases(bids: pl.DataFrame) -> dict[str, Case]:
    ten_seconds = specs.Tumbling(size_us=10 * SECOND)
    sliding = specs.Sliding(size_us=10 * SECOND, slide_us=2 * SECOND)
    best = {
        "price": ("max", "price"),
        "auction": ("max_by", "auction", "price"),
        "bidder": ("max_by", "bidder", "price"),
    }
    return {
        "q5": Case(window(("auction",), sliding, bids.schema, bids=("count",)), one_shot_q5, goal=0.35),
        "q7": Case(window((), ten_seconds, bids.schema, **best), one_shot_q7, goal=0.3),
        "q12": Case(window(("bidder",), ten_seconds, bids.schema, bids=("count",)), one_shot_q12, goal=0.4),
    }


def cpu_seconds(query: Callable[[pl.DataFrame], pl.DataFrame], bids: pl.DataFrame) -> float:
    gc.collect()
    start = time.process_time()
    query(bids)
    return time.process_time() - start


def main() -> None:
    bids = nexmark_bids(ROWS)
    chosen = sys.argv[1:]
    for name, case in cases(bids).items():
        if chosen and name not in chosen:
            continue
        streaming = functools.partial(through_operator, case.spec)
        streamed, expected = streaming(bids), case.one_shot(bids)
        same = streamed.sort(pl.all()).equals(expected.select(streamed.columns).sort(pl.all()))
        assert same, f"{name}: results differ"
        runs = [(cpu_seconds(streaming, bids), cpu_seconds(case.one_shot, bids)) for _ in range(REPEATS)]
        ours, polars = (statistics.median(column) for column in zip(*runs, strict=True))
        print(
            f"{name:4} {ours / polars:.2f} x one-shot Polars (goal {case.goal}); "
            f"{ROWS / ours / 1e6:.1f} M rows/s against {ROWS / polars / 1e6:.1f}; {streamed.height} rows out"
        )


if __name__ == "__main__":
    main()
