"""Keyed state ten times the size of what may be in memory: RocksDB under a budget against dictionaries.

Both jobs have a slot of their own and hold the same rows. They are measured in turn, while the process of the other
one is stopped, so that they share neither cores nor disk.
"""

import time
from collections.abc import Iterator, Sequence
from functools import partial
from statistics import median

from benchmarks import jobs, profiles
from benchmarks.figures import Figure, median_ratio
from benchmarks.profiles import RunningJob
from penstock.model.settings import CheckpointSettings, JobSettings, StateSettings

BUDGET = 512 * 1024 * 1024
SECONDS = 8.0
"""Of each measurement."""

RATE_GOAL = 0.5
MEMORY_GOAL = 1.25
BACKENDS = ("memory", "rocksdb")


def run(*, repeats: int, scale: float = 1.0, cases: Sequence[str] | None = None) -> Iterator[Figure]:
    """`scale`: of the number of keys."""
    for form in cases or profiles.FORMS:
        yield from _run(form, repeats, int(profiles.KEYS * scale), SECONDS if scale >= 1 else 1.0)


def _run(form: str, repeats: int, keys: int, seconds: float) -> Iterator[Figure]:
    with jobs.cluster("state", task_managers=len(BACKENDS), patience_seconds=profiles.LIMIT_SECONDS) as cluster:
        running = {
            backend: RunningJob(cluster, backend, _settings(backend), keys=keys, form=form) for backend in BACKENDS
        }
        profiles.fill(list(running.values()))
        wall: dict[str, list[float]] = {backend: [] for backend in BACKENDS}
        cpu: dict[str, list[float]] = {backend: [] for backend in BACKENDS}
        for _ in range(repeats):
            for backend, job in running.items():
                rows, wall_seconds, cpu_seconds = _measure(job, seconds)
                wall[backend].append(rows / wall_seconds)
                cpu[backend].append(rows / cpu_seconds)
        resident = {backend: profiles.most_resident_bytes(job.pid) for backend, job in running.items()}
        for job in running.values():
            job.cancel()
    figure = partial(Figure, bench="state", case=form, better="higher")
    yield figure(metric="rate to memory", value=median_ratio(wall["rocksdb"], wall["memory"]), goal=RATE_GOAL)
    yield figure(metric="rows per CPU second to memory", value=median_ratio(cpu["rocksdb"], cpu["memory"]))
    for backend in BACKENDS:
        yield figure(metric=f"rows/s, {backend}", value=median(wall[backend]))
        yield figure(metric=f"most resident MB, {backend}", value=resident[backend] / 1e6, better="lower")
    yield figure(
        metric="most resident to budget", value=resident["rocksdb"] / BUDGET, goal=MEMORY_GOAL, better="lower"
    )


def _settings(backend: str) -> JobSettings:
    # What checkpoints cost is another question: `make bench ONLY=checkpoints`.
    return JobSettings(
        checkpoint=CheckpointSettings(interval_us=0),
        state=StateSettings(backend=backend, memory_budget=BUDGET),
    )


def _measure(job: RunningJob, seconds: float) -> tuple[int, float, float]:
    job.go_on()
    first = job.moment()
    time.sleep(seconds)
    last = job.moment()
    job.pause()
    return last.rows - first.rows, last.at - first.at, last.cpu_seconds - first.cpu_seconds
