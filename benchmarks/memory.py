"""Memory under back-pressure: one branch of a job ends in a sink that is a hundred times too slow, one does not.

Both branches cross between the same two slots, on the same connections. Nothing may grow, checkpoints must complete,
and the other branch must not notice.
"""

import time
from collections.abc import Iterator
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import polars as pl

import penstock as ps
from benchmarks import jobs
from benchmarks.figures import Figure
from penstock.local import LocalCluster
from penstock.model.settings import CheckpointSettings, JobSettings
from penstock.model.views import JobView, ProcessView

SECONDS = 60
SETTLED_SECONDS = 10
SLOW_ROWS_PER_SECOND = 20_000
"""Per subtask; without the limit it would take more than two million."""
OTHER_ROWS_PER_SECOND = 20_000
GROWTH_GOAL = 1.10
RATE_GOAL = 0.95
_PAGE_BYTES = 4096


def two_branches(flow: ps.Flow) -> None:
    """A flood into a slow sink, and a steady stream beside it."""
    flood = flow.read(ps.nexmark(seed=1), event_time="ts", uid="flood")
    flood.key_by("auction").map_batches(_same, output=flood.schema, uid="slow").write(
        ps.discard(rate=SLOW_ROWS_PER_SECOND), uid="slow-sink"
    )
    steady = flow.read(ps.nexmark(seed=2, rate=OTHER_ROWS_PER_SECOND), event_time="ts", uid="steady")
    steady.key_by("auction").map_batches(_same, output=steady.schema, uid="fast").write(ps.discard(), uid="fast-sink")


def run(*, seconds: int = SECONDS) -> Iterator[Figure]:
    """From the tenth second to the end."""
    settings = JobSettings(checkpoint=CheckpointSettings(interval_us=1_000_000))
    with jobs.cluster("memory", task_managers=2) as cluster:
        job = jobs.submit(cluster, two_branches, parallelism=2, settings=settings).id
        jobs.wait_until(lambda: cluster.client.job(job).state == "running", "running job")
        time.sleep(SETTLED_SECONDS)
        first = Sample.take(cluster, job)
        samples = [first]
        while samples[-1].at - first.at < seconds - SETTLED_SECONDS:
            time.sleep(1.0)
            samples.append(Sample.take(cluster, job))
        cluster.client.cancel(job)
    yield from _figures(first, samples)


@dataclass(frozen=True, slots=True)
class Sample:
    """What is seen at one moment."""

    at: float
    resident: dict[str, int]
    """Role and id of a process -> bytes."""
    view: JobView

    @classmethod
    def take(cls, cluster: LocalCluster, job: str) -> "Sample":
        """Memory is read from /proc: processes do not report on themselves here."""
        processes = cluster.client.cluster().processes
        resident = {_name(process): resident_bytes(process.pid) for process in processes}
        return cls(time.monotonic(), resident, cluster.client.job(job))

    def rows_in(self, uid: str) -> int:
        """Rows that an operator has taken."""
        operators = [operator for vertex in self.view.vertices for operator in vertex.operators]
        return sum(operator.rows_in for operator in operators if operator.uid == uid)


def resident_bytes(pid: int) -> int:
    """Memory of a process now."""
    return int(Path(f"/proc/{pid}/statm").read_text().split()[1]) * _PAGE_BYTES


def _figures(first: Sample, samples: list[Sample]) -> Iterator[Figure]:
    last = samples[-1]
    elapsed = last.at - first.at
    for process, start in first.resident.items():
        growth = max(sample.resident[process] for sample in samples) / start
        yield Figure(bench="memory", case=process, metric="resident to 10th second", value=growth, goal=GROWTH_GOAL)
    figure = partial(Figure, bench="memory", better="higher")
    completed = last.view.checkpoints_completed - first.view.checkpoints_completed
    yield figure(case="checkpoints", metric="completed meanwhile", value=completed, goal=1)
    slow, fast = ((last.rows_in(uid) - first.rows_in(uid)) / elapsed for uid in ("slow-sink", "fast-sink"))
    yield figure(case="slow channel", metric="rows/s", value=slow)
    yield figure(
        case="other channel", metric="rate to what is asked", value=fast / OTHER_ROWS_PER_SECOND, goal=RATE_GOAL
    )


def _name(process: ProcessView) -> str:
    return process.role if process.role == "jobmanager" else f"{process.role} {process.id}"


def _same(rows: pl.DataFrame) -> pl.DataFrame:
    return rows
