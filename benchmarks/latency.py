"""From the end of a window to its result at the sink: rows as they are created, two slots, sockets between them.

Each slot reads half of the rows and counts half of the keys. A window closes when the rows of both have passed its
end, so every result has waited for the network.
"""

import time
from collections.abc import Iterator
from functools import partial

import polars as pl

import penstock as ps
from benchmarks import data, jobs
from benchmarks.figures import Figure
from penstock.model.settings import JobSettings

ROWS_PER_SECOND = 10_000
SECONDS = 20
WARM_UP_SECONDS = 2
KEYS = 1_000
WINDOW = "100ms"
GOAL_MS = 25.0


def counts(flow: ps.Flow, out: str, seconds: int) -> None:
    """Counts per key and window; each result with the time at which it got to the sink."""
    source = ps.generate(
        {"key": ps.uniform(1, KEYS), "created": ps.now()},
        rate=ROWS_PER_SECOND,
        rows=ROWS_PER_SECOND * seconds,
        splits=2,
    )
    counted = (
        flow.read(source, event_time="created", uid="rows")
        .key_by("key")
        .window(ps.tumbling(WINDOW))
        .agg(rows=ps.count(), uid="counts")
    )
    arrivals = counted.map_batches(_stamped, output={**counted.schema, "arrived_us": pl.Int64}, uid="arrivals")
    arrivals.write(ps.parquet(out), uid="results")


def run(*, seconds: int = SECONDS) -> Iterator[Figure]:
    """Quantiles over all results after the warm-up."""
    out = data.scratch("latency-out")
    with jobs.cluster("latency", task_managers=2) as cluster:
        program = partial(counts, out=str(out), seconds=seconds)
        view = jobs.submit(cluster, program, parallelism=2, settings=JobSettings())
        jobs.finish(cluster, view.id)
    results = pl.read_parquet(out / "*.parquet").with_columns(end_us=pl.col("window_end").dt.timestamp("us"))
    if results["rows"].sum() != ROWS_PER_SECOND * seconds:
        raise AssertionError(f"{results['rows'].sum()} rows were counted, not {ROWS_PER_SECOND * seconds}")
    first, last = results["end_us"].min(), results["end_us"].max()
    assert isinstance(first, int)
    # The last window does not close by itself: the end of the input closes it, earlier or later.
    steady = results.filter(pl.col("end_us").is_between(first + WARM_UP_SECONDS * 1_000_000, last, closed="left"))
    beyond_end_ms = (steady["arrived_us"] - steady["end_us"]) / 1000
    figure = partial(Figure, bench="latency", case=f"{ROWS_PER_SECOND} rows/s")
    for name, quantile, goal in (("p50", 0.5, None), ("p99", 0.99, GOAL_MS), ("p99.9", 0.999, None)):
        value = beyond_end_ms.quantile(quantile, interpolation="higher")
        assert value is not None
        yield figure(metric=f"{name} beyond the window's end, ms", value=value, goal=goal)


def _stamped(results: pl.DataFrame) -> pl.DataFrame:
    return results.with_columns(arrived_us=pl.lit(time.time_ns() // 1000, pl.Int64))
