"""How long keys wait while a job gets another parallelism, next to stopping it with a savepoint and starting it again.

Each key holds a kilobyte. While rows of all keys come at a rate, the job goes from two subtasks to four and on. The
function that serves a row notes the time; the longest pause of a key group around a change is its gap. Rows
that were served in vain are not in the output, so they do not count.
"""

import itertools
import shutil
import time
from collections.abc import Iterator, Sequence
from functools import partial

import msgspec
import numpy as np
import polars as pl

import penstock as ps
from benchmarks import data, jobs
from benchmarks.figures import Figure
from penstock.api.programs import build
from penstock.local import LocalCluster
from penstock.model.clocks import SystemClock
from penstock.model.settings import CheckpointSettings, JobSettings, StateSettings
from penstock.state.key_groups import key_groups, owners

BACKENDS = ("memory", "rocksdb")
KEYS = {"100 MB": 100_000, "1 GB": 1_000_000}
CLOCK = SystemClock()
VALUE = "x" * 1000
RATE = 10_000
"""Rows per second: each key group is served every 13 ms."""
STEPS = (2, 4, 3, 1, 2)
SLOTS = max(STEPS)
MAX_PARALLELISM = 128
SETTLE_SECONDS = 2.0
LIMIT_SECONDS = 600.0


class Serve(ps.KeyedProcessFunction):
    """Keeps the value of a key; tells when it was served."""

    value = ps.ValueState(str, default="")

    def process(self, ctx: ps.KeyedContext, fill: bool) -> tuple[int, float] | None:
        if fill:
            self.value.value = VALUE
            return None
        return ctx.key, CLOCK.now_us() / 1e6 if self.value.value else 0.0


def served(flow: ps.Flow, out: str, keys: int) -> None:
    """All keys once, then any of them at a rate."""
    first = flow.read(ps.generate({"key": ps.sequence()}, rows=keys), uid="fill")
    then = flow.read(ps.generate({"key": ps.uniform(0, keys - 1)}, rate=RATE, splits=4), uid="rows")
    both = first.with_columns(fill=ps.lit(True)).union(then.with_columns(fill=ps.lit(False)), uid="both")
    rows = both.key_by("key").process(Serve(), output={"key": int, "at": float}, uid="served")
    rows.write(ps.parquet(out), uid="out")


def run(*, cases: Sequence[str] | None = None, scale: float = 1.0) -> Iterator[Figure]:
    """Cases are sizes of state: 100MB, 1GB."""
    wanted = [name for name in KEYS if cases is None or name.replace(" ", "") in cases]
    for name, backend in itertools.product(wanted, BACKENDS):
        yield from _run(name, backend, int(KEYS[name] * scale))


def _run(name: str, backend: str, keys: int) -> Iterator[Figure]:
    figure = partial(Figure, bench="rescale", case=f"{name} {backend}")
    out = data.scratch("rescale-out")
    settings = JobSettings(
        checkpoint=CheckpointSettings(interval_us=2_000_000),
        state=StateSettings(backend=backend),  # type: ignore[arg-type]
    )
    with jobs.cluster("rescale", task_managers=2, slots=SLOTS // 2, patience_seconds=LIMIT_SECONDS) as cluster:
        graph = build(
            partial(served, out=str(out), keys=keys),
            parallelism=STEPS[0],
            max_parallelism=MAX_PARALLELISM,
            settings=settings,
        )
        job = cluster.client.submit(msgspec.json.encode(graph)).id
        _until_filled(cluster, job, keys)
        changes = []
        for before, after in itertools.pairwise(STEPS):
            started = CLOCK.now_us() / 1e6
            view = cluster.client.rescale(job, parallelism=after)
            jobs.wait_until(
                lambda: cluster.client.rescales(job)[-1].status != "pending", "rescale", seconds=LIMIT_SECONDS
            )
            view = cluster.client.rescales(job)[-1]
            if view.status != "completed":
                raise RuntimeError(view.reason)
            time.sleep(SETTLE_SECONDS)
            changes.append((before, after, started, CLOCK.now_us() / 1e6))
            yield figure(metric=f"{before} to {after}: paused, ms", value=(view.pause_us_max or 0) / 1e3)
        calm = (CLOCK.now_us() / 1e6, CLOCK.now_us() / 1e6 + 2 * SETTLE_SECONDS)
        time.sleep(2 * SETTLE_SECONDS)
        started = CLOCK.now_us() / 1e6
        savepoint = cluster.client.take_savepoint(job, stop=True).uri
        jobs.wait_until(lambda: cluster.client.job(job).state == "stopped", "stopped job", seconds=LIMIT_SECONDS)
        again = build(
            partial(served, out=str(out), keys=keys), parallelism=4, max_parallelism=MAX_PARALLELISM, settings=settings
        )
        second = cluster.client.submit(
            msgspec.json.encode(again), origin=savepoint, restore=[("allow_foreign", "true")]
        )
        jobs.wait_until(lambda: cluster.client.job(second.id).state == "running", "running job", seconds=LIMIT_SECONDS)
        time.sleep(SETTLE_SECONDS)
        changes.append((STEPS[-1], 4, started, CLOCK.now_us() / 1e6))
        cluster.client.stop(second.id)
        jobs.wait_until(lambda: cluster.client.job(second.id).state == "stopped", "stopped job", seconds=LIMIT_SECONDS)
    rows = pl.read_parquet(f"{out}/*.parquet")
    shutil.rmtree(out, ignore_errors=True)
    gaps = np.array(list(_gaps(rows, *calm).values()))
    yield figure(metric="no change: gap p50, ms", value=float(np.median(gaps)) * 1e3)
    yield figure(metric="no change: gap p99, ms", value=float(np.percentile(gaps, 99)) * 1e3)
    for before, after, since, until in changes:
        how = "savepoint" if (before, after, since, until) == changes[-1] else f"{before} to {after}"
        found = _gaps(rows, since, until)
        old, new = owners(before, MAX_PARALLELISM), owners(after, MAX_PARALLELISM)
        for kind, moves in (("move", True), ("stay", False)):
            gaps = np.array([gap for group, gap in found.items() if (old[group] != new[group]) is moves])
            if gaps.size:
                yield figure(metric=f"{how}: keys that {kind}, p50 ms", value=float(np.median(gaps)) * 1e3)
                yield figure(metric=f"{how}: keys that {kind}, p99 ms", value=float(np.percentile(gaps, 99)) * 1e3)
                yield figure(metric=f"{how}: keys that {kind}, max ms", value=float(gaps.max()) * 1e3)


def _until_filled(cluster: LocalCluster, job: str, keys: int) -> None:
    def filled() -> bool:
        operators = [each for vertex in cluster.client.job(job).vertices for each in vertex.operators]
        return any(each.uid == "served" and each.rows_in >= keys + 2 * RATE for each in operators)

    jobs.wait_until(filled, "filled state", seconds=LIMIT_SECONDS)


def _gaps(rows: pl.DataFrame, since: float, until: float) -> dict[int, float]:
    """Key group -> the longest time that it was not served for."""
    served_then = rows.filter(pl.col("at").is_between(since - 0.5, until))
    groups = key_groups(served_then, ["key"], MAX_PARALLELISM)
    found = (
        served_then.with_columns(group=pl.Series(groups))
        .sort("group", "at")
        .with_columns(gap=pl.col("at").diff().over("group"))
        .group_by("group")
        .agg(pl.col("gap").max())
    )
    return dict(found.drop_nulls().iter_rows())
