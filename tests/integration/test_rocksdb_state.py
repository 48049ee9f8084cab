"""A job with its state in RocksDB on the embedded cluster, killed in the middle, gives the right totals."""

import os
import signal
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import msgspec
import polars as pl

import penstock as ps
from penstock.api.programs import build
from penstock.local import LocalCluster
from penstock.model.settings import CheckpointSettings, JobSettings, StateSettings
from penstock.taskmanager.work_folders import work_folder

ROWS = 200_000
RATE = 40_000
KEYS = 5_000


class Total(ps.KeyedProcessFunction):
    total = ps.ValueState(int, default=0)
    last = ps.ListState(int)

    def process(self, ctx: ps.KeyedContext, amount: int) -> Any:
        self.total.value += amount
        self.last.update([*self.last, amount][-2:])
        return ctx.key, self.total.value, len(self.last)


def totals(flow: ps.Flow, target: str) -> None:
    numbers = flow.read(ps.generate({"n": ps.sequence()}, rows=ROWS, rate=RATE), uid="numbers").select(
        user=ps.col("n") % KEYS, amount=ps.col("n") % 7
    )
    output = {"user": int, "total": int, "kept": int}
    numbers.key_by("user").process(Total(), output=output, uid="totals").write(ps.parquet(target), uid="out")


def wait_until(condition: Callable[[], bool], *, seconds: float = 200) -> None:
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline, "it did not happen in time"
        time.sleep(0.02)


def test_state_in_rocksdb_survives_the_death_of_its_slot(tmp_path: Path) -> None:
    target = tmp_path / "out"
    rows = pl.DataFrame({"n": range(ROWS)}).select(user=pl.col("n") % KEYS, amount=pl.col("n") % 7)
    settings = JobSettings(
        checkpoint=CheckpointSettings(interval_us=100_000),
        state=StateSettings(backend="rocksdb", memory_budget=64 * 1024 * 1024),
    )
    graph = build(partial(totals, target=str(target)), parallelism=2, settings=settings)
    with LocalCluster(tmp_path / "state", task_managers=2, slots_per_task_manager=1) as cluster:
        client = cluster.client
        wait_until(lambda: client.cluster().slots_free == 2)
        job = client.submit(msgspec.json.encode(graph)).id
        wait_until(lambda: client.job(job).checkpoints_completed >= 2)
        slots = [process for process in client.cluster().processes if process.role == "slot" and process.job == job]
        folders = [work_folder(process.pid) for process in slots]
        assert any(folder.exists() for folder in folders)
        os.kill(slots[0].pid, signal.SIGKILL)
        wait_until(lambda: client.job(job).state in ("finished", "failed"))
        view = client.job(job)
        assert (view.state, view.restarts) == ("finished", 1), view.reason
        (operator,) = [each for vertex in view.vertices for each in vertex.operators if each.uid == "totals"]
        assert operator.state_rows >= 2 * KEYS  # what RocksDB estimates
        assert operator.state_bytes > 0
        assert operator.cache_hits > 0
        wait_until(lambda: not any(folder.exists() for folder in folders))
        shared = list((tmp_path / "state" / "jobs" / job / "shared").rglob("*"))
        assert len(shared) < 200, "what no checkpoint needs is deleted"
    made = pl.read_parquet(str(target / "**" / "*.parquet"))
    last = made.group_by("user").agg(pl.col("total").max(), pl.len())
    wanted = rows.group_by("user").agg(pl.col("amount").sum().alias("total"), pl.len())
    assert last.sort("user").equals(wanted.sort("user"))
