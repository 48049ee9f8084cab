"""Checkpoints of a job whose sinks are slow: barriers that wait behind rows, and barriers that overtake them.

Two slots read as fast as they may and send by key to two sinks with a pace, so that all queues are full all the time.
An aligned barrier has to wait until the sinks have worked off what is in front of it.
"""

import time
from collections.abc import Iterator
from functools import partial

import penstock as ps
from benchmarks import jobs
from benchmarks.figures import Figure
from penstock import col
from penstock.local import LocalCluster
from penstock.model.settings import CheckpointSettings, JobSettings
from penstock.model.views import CheckpointView

ROWS_PER_SECOND = 10_000
"""What the sinks take, each."""
ALIGNED_AT_LEAST = 10.0
UNALIGNED_AT_MOST = 1.0
FILL_SECONDS = 5.0
LIMIT_SECONDS = 180.0


def slow_sinks(flow: ps.Flow) -> None:
    """Rows by key into sinks that cannot keep up."""
    source = ps.generate({"key": ps.uniform(1, 100_000), "n": ps.sequence()}, splits=2)
    rows = flow.read(source, uid="rows").key_by("key").filter(col("n") >= 0, uid="by-key")
    rows.write(ps.discard(rate=ROWS_PER_SECOND), uid="slow")


def run() -> Iterator[Figure]:
    """One aligned checkpoint, several unaligned ones, and those that begin aligned and lose patience."""
    with jobs.cluster("unaligned", task_managers=2) as cluster:
        figure = partial(Figure, bench="unaligned")
        for case, patience_us, count in (("aligned", None, 1), ("unaligned", 0, 10), ("after 300 ms", 300_000, 5)):
            taken = _checkpoints(cluster, patience_us, count)
            durations = [(each.duration_us or 0) / 1_000_000 for each in taken]
            if patience_us is None:
                yield figure(
                    case=case, metric="duration, s", value=min(durations), goal=ALIGNED_AT_LEAST, better="higher"
                )
            else:
                allowed = UNALIGNED_AT_MOST + patience_us / 1_000_000
                yield figure(case=case, metric="longest duration, s", value=max(durations), goal=allowed)
            yield figure(case=case, metric="size, MB", value=max(each.size for each in taken) / 1e6)


def _checkpoints(cluster: LocalCluster, patience_us: int | None, count: int) -> list[CheckpointView]:
    settings = JobSettings(checkpoint=CheckpointSettings(interval_us=0, alignment_timeout_us=patience_us))
    job = jobs.submit(cluster, slow_sinks, parallelism=2, settings=settings).id
    jobs.wait_until(lambda: cluster.client.job(job).state == "running", "a running job")
    time.sleep(FILL_SECONDS)
    taken: list[CheckpointView] = []
    for number in range(1, count + 1):
        cluster.client.checkpoint(job)
        jobs.wait_until(
            lambda number=number: cluster.client.job(job).checkpoints_completed >= number,  # type: ignore[misc]
            "a completed checkpoint",
            seconds=LIMIT_SECONDS,
        )
        last = cluster.client.job(job).last_checkpoint
        assert last is not None
        taken.append(last)
    cluster.client.cancel(job)
    total = cluster.client.cluster().slots_total
    jobs.wait_until(lambda: cluster.client.cluster().slots_free == total, "free slots")
    return taken
