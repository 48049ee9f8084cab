"""`make demo`: hot items on a JobManager and two TaskManagers, one of which is killed half-way.

At the end the committed result is compared with a plain Polars recomputation of the same bids.
"""

import os
import signal
import sys
import tempfile
import time
from pathlib import Path

import hot_items
import msgspec
import numpy as np
import polars as pl

import penstock as ps
from penstock.connectors.nexmark import Nexmark, event_number
from penstock.local import LocalCluster, figures
from penstock.local.following import counted_interrupts, follow
from penstock.local.progress import Progress, choose_progress, summary
from penstock.model.clocks import SystemClock
from penstock.model.settings import CheckpointSettings, JobSettings
from penstock.model.views import JobView

BIDS = hot_items.EVENTS // 50 * 46
VICTIM = "taskmanager-2"


def main() -> None:
    started = time.monotonic()
    with tempfile.TemporaryDirectory(prefix="penstock-demo-") as folder:
        out = Path(folder) / "hot-items"
        say(f"hot items over {BIDS:,} Nexmark bids: 1 JobManager, 2 TaskManagers, a checkpoint each second")
        job = run(out, Path(folder) / "state")
        say(summary(job, SystemClock().now_us()))
        if job.state != "finished":
            sys.exit(1)
        say("\nwhat the sinks have committed, against Polars over all bids at once:")
        equal = [compare(name, out / name, expected) for name, expected in recomputed().items()]
        show(out / "hottest")
    seconds = time.monotonic() - started
    if not all(equal):
        say("\nTHE RESULTS DIFFER")
        sys.exit(1)
    say(f"\nequal: every bid was counted once, across {figures.restarts(job.restarts)}. {seconds:.0f} s in all.")


def run(out: Path, state_dir: Path) -> JobView:
    flow = ps.Flow("hot-items", settings=JobSettings(checkpoint=CheckpointSettings(interval_us=1_000_000)))
    hot_items.hot_items(flow, out=str(out))
    graph = msgspec.json.encode(flow.plan(parallelism=2))
    with LocalCluster(state_dir, task_managers=2) as cluster, counted_interrupts() as interrupts:
        for name, pid in cluster.pids().items():
            say(f"  {name:14} pid {pid}")
        progress = KillHalfWay(choose_progress(), cluster)
        try:
            job = cluster.client.submit(graph).id
            return follow(cluster.client, job, progress, interrupts, clock=SystemClock(), check=cluster.check)
        finally:
            progress.close()


class KillHalfWay:
    """Shows the job's progress, and kills a TaskManager when half of the bids are read."""

    def __init__(self, shown: Progress, cluster: LocalCluster) -> None:
        self._shown, self._cluster = shown, cluster
        self._killed_us = 0
        self._recovered = False
        self.printed, self.note, self.close = shown.printed, shown.note, shown.close

    def update(self, view: JobView, now_us: int) -> None:
        self._shown.update(view, now_us)
        if not self._killed_us and figures.rows_read(view) >= BIDS // 2 and view.checkpoints_completed:
            pid = self._cluster.pids()[VICTIM]
            os.kill(pid, signal.SIGKILL)
            self._killed_us = now_us
            self.note(f">>> kill -9 {pid}: {VICTIM} and its slot are gone")
        elif self._killed_us and not self._recovered and view.restarts and view.state == "running":
            self._recovered = True
            self.note(f">>> running again from the last checkpoint, {(now_us - self._killed_us) / 1e6:.1f} s later")


def recomputed() -> dict[str, pl.DataFrame]:
    """The same two results from all bids at once: an event follows from the seed and its number."""
    start_ms = int(np.datetime64("2026-01-01", "ms").astype(np.int64))
    site = Nexmark(hot_items.SEED, start_ms, events_per_second=10_000)
    bids = site.frame("bids", ["auction", "price", "ts"], event_number("bids", np.arange(BIDS)))
    panes = bids.group_by("auction", pane=pl.col("ts").dt.truncate("2s")).agg(
        bids=pl.len().cast(pl.Int64), highest=pl.col("price").max()
    )
    starts = pl.concat_list([pl.col("pane") - pl.duration(seconds=2 * back) for back in range(5)])
    counts = (
        panes.with_columns(window_start=starts)
        .explode("window_start")
        .group_by("auction", "window_start")
        .agg(pl.col("bids").sum(), pl.col("highest").max())
        .with_columns(window_end=pl.col("window_start") + pl.duration(seconds=10))
    )
    hottest = (
        counts.sort("bids", "auction")
        .group_by("window_end", maintain_order=True)
        .agg(pl.col("bids", "auction").last())
        .with_columns(window_start=pl.col("window_end") - pl.duration(seconds=2))
    )
    return {"counts": counts, "hottest": hottest}


def compare(name: str, folder: Path, expected: pl.DataFrame) -> bool:
    committed = pl.read_parquet(folder / "*.parquet").select(expected.columns).cast(dict(expected.schema))
    equal = committed.sort(committed.columns).equals(expected.sort(expected.columns))
    files = len(list(folder.glob("*.parquet")))
    say(f"  {name:8} {committed.height:>9,} rows, hash {fingerprint(committed)}, in {files} files")
    verdict = "equal" if equal else "DIFFERENT"
    say(f"  {'Polars':>8} {expected.height:>9,} rows, hash {fingerprint(expected)}: {verdict}")
    return equal


def fingerprint(rows: pl.DataFrame) -> str:
    """The same for the same rows in any order; a row that is there twice changes it."""
    return f"{rows.hash_rows(seed=1).sum() % 2**64:016x}"


def show(folder: Path) -> None:
    windows = pl.read_parquet(folder / "*.parquet")
    best = windows.group_by("auction").agg(pl.max("bids")).sort("bids", "auction", descending=True).head(3)
    items = (f"auction {auction} ({bids:,} bids in 10 s)" for auction, bids in best.iter_rows())
    say("\nhottest of all: " + ", ".join(items))


def say(text: str) -> None:
    print(text, flush=True)


if __name__ == "__main__":
    main()
    os._exit(0)  # interpreter exit after Polars and Arrow were used may abort
