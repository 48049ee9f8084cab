"""Aggregates over ten million keys in one slot, with state in RocksDB under a budget, against state in memory."""

import threading
from collections.abc import Iterator
from functools import partial
from statistics import median

import penstock as ps
from benchmarks import data, jobs
from benchmarks.figures import Figure, interleaved, median_ratio
from benchmarks.memory import resident_bytes
from penstock.local import LocalCluster
from penstock.model.settings import CheckpointSettings, JobSettings, StateSettings

KEYS = 10_000_000
ROUNDS = 2
BUDGET = 512 * 1024 * 1024
CHECKPOINTS = CheckpointSettings(interval_us=10_000_000)
SETTINGS = {
    "rocksdb": JobSettings(checkpoint=CHECKPOINTS, state=StateSettings(backend="rocksdb", memory_budget=BUDGET)),
    "memory": JobSettings(checkpoint=CHECKPOINTS),
}
ROWS_PER_SECOND_GOAL = 1_000_000
RESIDENT_GOAL = 1.25
_SAMPLE_SECONDS = 0.05


def windowed(flow: ps.Flow, files: str) -> None:
    """One window over everything, with count, sum and maximum."""
    rows = flow.read(ps.parquet(files), event_time="ts", uid="rows")
    windows = rows.key_by("key").window(ps.tumbling("1d"))
    windows.agg(n=ps.count(), total=ps.sum("value"), most=ps.max("value"), uid="totals").write(
        ps.discard(), uid="nowhere"
    )


def running(flow: ps.Flow, files: str) -> None:
    """The same without a window: each batch gives the new results of its keys."""
    rows = flow.read(ps.parquet(files), event_time="ts", uid="rows")
    totals = rows.key_by("key").agg(n=ps.count(), total=ps.sum("value"), most=ps.max("value"), uid="totals")
    totals.as_changelog().write(ps.discard(), uid="nowhere")


CASES = {"window": windowed, "running": running}


def run(*, repeats: int, cases: list[str] | None = None) -> Iterator[Figure]:
    """Each case, on both backends in turn."""
    files = data.many_keys(KEYS, ROUNDS)
    with jobs.cluster("aggregates", task_managers=1) as cluster:
        for case in cases or CASES:
            most = dict.fromkeys(SETTINGS, 0)

            def timed(backend: str, case: str = case, most: dict[str, int] = most) -> float:
                seconds, resident = _measured(cluster, case, files, SETTINGS[backend])
                most[backend] = max(most[backend], resident)
                return seconds

            taken = interleaved({backend: partial(timed, backend) for backend in SETTINGS}, repeats)
            rates = {backend: KEYS * ROUNDS / median(seconds) for backend, seconds in taken.items()}
            figure = partial(Figure, bench="aggregates", case=case)
            goal = ROWS_PER_SECOND_GOAL if case == "window" else None
            yield figure(metric="rows/s on RocksDB", value=rates["rocksdb"], better="higher", goal=goal)
            yield figure(metric="rows/s in memory", value=rates["memory"], better="higher")
            ratio = median_ratio(taken["memory"], taken["rocksdb"])
            yield figure(metric="speed to that in memory", value=ratio, better="higher")
            yield figure(metric="resident to budget", value=most["rocksdb"] / BUDGET, goal=RESIDENT_GOAL)
            yield figure(metric="resident to budget in memory", value=most["memory"] / BUDGET)


def _measured(cluster: LocalCluster, case: str, files: str, settings: JobSettings) -> tuple[float, int]:
    """Seconds, and the most memory that the slot had."""
    view = jobs.submit(cluster, partial(CASES[case], files=files), parallelism=1, settings=settings)
    done, most = threading.Event(), [0]

    def watch() -> None:
        while not done.wait(_SAMPLE_SECONDS):
            for process in cluster.client.cluster().processes:
                if process.role == "slot":
                    most[0] = max(most[0], _resident(process.pid))

    watcher = threading.Thread(target=watch)
    watcher.start()
    try:
        seconds = jobs.seconds_running(jobs.finish(cluster, view.id))
    finally:
        done.set()
        watcher.join()
    return seconds, most[0]


def _resident(pid: int) -> int:
    try:
        return resident_bytes(pid)
    except FileNotFoundError:  # a slot ends with its job
        return 0
