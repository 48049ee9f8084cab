"""What checkpoints cost a job with 1 GB of keyed state: its rate while they are taken, and what they upload.

Windows of the same length in turn, with a checkpoint begun at their start and without. Rows go on at full speed.
"""

import time
from collections.abc import Iterator, Sequence
from functools import partial
from itertools import pairwise
from statistics import median

from benchmarks import data, jobs, profiles
from benchmarks.figures import Figure, median_ratio
from benchmarks.profiles import Moment, RunningJob
from penstock.checkpoint.journal import CheckpointCompleted, read_journal
from penstock.jobmanager.state_dir import StateDir
from penstock.model.handles import Manifest
from penstock.model.ids import JobId
from penstock.model.settings import CheckpointSettings, JobSettings, StateSettings

SECONDS = 10.0
"""Of each window: the interval between two checkpoints that a job has by default."""

ROW_BYTES = 106
"""Of a row as it is stored, in either form: key group, key, value, and where the value ends."""

RATE_GOAL = 0.95
UPLOAD_GOAL = 1.3
LIMIT_SECONDS = 1800.0
BACKENDS = ("memory", "rocksdb")


def run(*, repeats: int, scale: float = 1.0, cases: Sequence[str] | None = None) -> Iterator[Figure]:
    """`scale`: of the number of keys."""
    for backend in cases or BACKENDS:
        yield from _run(backend, repeats, int(profiles.KEYS * scale), SECONDS if scale >= 1 else 2.0)


def _run(backend: str, repeats: int, keys: int, seconds: float) -> Iterator[Figure]:
    settings = JobSettings(checkpoint=CheckpointSettings(interval_us=0), state=StateSettings(backend=backend))
    with jobs.cluster("checkpoints", task_managers=1, patience_seconds=profiles.LIMIT_SECONDS) as cluster:
        job = RunningJob(cluster, backend, settings, keys=keys, form="per record")
        profiles.fill([job])
        job.go_on()
        quiet = [_rate(job, seconds)]
        whole, _ = _rate_with_checkpoint(job, seconds)
        rates, under_way = [], []
        for _ in range(repeats):
            quiet.append(_rate(job, seconds))
            with_checkpoint, meanwhile = _rate_with_checkpoint(job, seconds)
            rates.append(with_checkpoint)
            under_way.append(meanwhile)
        views = cluster.client.checkpoints(job.id)
        job.cancel()
        taken = _manifests(data.CACHE / "state-checkpoints", job.id)
    figure = partial(Figure, bench="checkpts", case=backend)
    yield figure(metric="state MB", value=taken[0].size / 1e6)
    yield figure(metric="rows/s without", value=median(quiet), better="higher")
    yield figure(
        metric="rate in 10 s with one to without",
        value=median_ratio(rates, quiet[1:]),
        better="higher",
        goal=RATE_GOAL,
    )
    yield figure(metric="rate while under way to without", value=median_ratio(under_way, quiet[1:]), better="higher")
    yield figure(metric="rate with the first, whole one", value=whole / quiet[0], better="higher")
    yield figure(metric="seconds until complete", value=median((each.duration_us or 0) / 1e6 for each in views[1:]))
    changed = [_changed_bytes(keys, before, after) for before, after in pairwise(taken)]
    uploaded = [manifest.uploaded for manifest in taken[1:]]
    yield figure(metric="MB changed", value=median(changed) / 1e6)
    yield figure(metric="uploaded to changed", value=median_ratio(uploaded, changed), goal=UPLOAD_GOAL)
    yield figure(metric="uploaded to changed, all", value=sum(uploaded) / sum(changed))


def _rate(job: RunningJob, seconds: float) -> float:
    first = job.moment()
    time.sleep(seconds)
    return _between(first, job.moment())


def _rate_with_checkpoint(job: RunningJob, seconds: float) -> tuple[float, float]:
    """Over a window that begins with a checkpoint, and over the part of it in which the checkpoint is under way."""
    first = job.moment()
    job.checkpoint()
    jobs.wait_until(lambda: not job.is_in_checkpoint, "a completed checkpoint", seconds=LIMIT_SECONDS)
    complete = job.moment()
    time.sleep(max(0.0, first.at + seconds - time.monotonic()))
    return _between(first, job.moment()), _between(first, complete)


def _between(first: Moment, last: Moment) -> float:
    return (last.rows - first.rows) / (last.at - first.at)


def _manifests(state_dir: str, job: str) -> list[Manifest]:
    entries = [recorded.entry for recorded in read_journal(StateDir(state_dir).store(JobId(job)))]
    return [entry.manifest for entry in entries if isinstance(entry, CheckpointCompleted)]


def _changed_bytes(keys: int, before: Manifest, after: Manifest) -> float:
    """Of the rows whose key came between two barriers, each counted once.

    How many different keys so many draws have is a matter of expectation: with these numbers it is off by less than
    a hundredth.
    """
    rows = _rows(after) - _rows(before)
    hot_keys = profiles.Rows(keys).hot_keys
    hot = _distinct(hot_keys, rows * profiles.HOT_SHARE)
    others = _distinct(keys, rows * (1 - profiles.HOT_SHARE)) * (1 - hot_keys / keys)
    return (hot + others) * ROW_BYTES


def _rows(manifest: Manifest) -> int:
    return sum(counters.rows_in for counters in manifest.counters if counters.uid == profiles.UID)


def _distinct(keys: int, draws: float) -> float:
    return keys * (1 - (1 - 1 / keys) ** draws)
