"""Processes that die while key groups are on their way: the job has one size or the other, every row counts once."""

import contextlib
import os
import signal
import sys
from collections.abc import Callable
from pathlib import Path

import msgspec
import pytest

from penstock.api.programs import build
from penstock.local import LocalCluster
from penstock.model.errors import RetryableError, UserError
from penstock.model.settings import CheckpointSettings, JobSettings, RestartSettings

sys.path.insert(0, str(Path(__file__).parent))
from rescaling_programs import counted
from test_rescaling_on_a_cluster import assert_every_number_counted_once, wait_until

pytestmark = pytest.mark.timeout(360)

PREPARING, MOVING = "prepares its slots", "moves key groups"
KILLS = (
    (PREPARING, "slot"),
    (MOVING, "slot"),
    (MOVING, "taskmanager"),
    (PREPARING, "taskmanager"),
    (MOVING, "jobmanager"),
)


@pytest.fixture
def out(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("RESCALING_OUT", str(tmp_path / "out"))
    return tmp_path / "out"


def test_whoever_dies_in_the_middle_of_a_rescale_no_row_is_lost_or_doubled(tmp_path: Path, out: Path) -> None:
    settings = JobSettings(
        checkpoint=CheckpointSettings(interval_us=300_000), restart=RestartSettings(max_delay_us=500_000, budget=1_000)
    )
    graph = build(counted, parallelism=2, settings=settings)
    with LocalCluster(tmp_path / "state", task_managers=2, slots_per_task_manager=2) as cluster:
        client = cluster.client
        job = client.submit(msgspec.json.encode(graph)).id
        for phase, role in KILLS:
            wait_until(lambda: answer(lambda: client.job(job).state == "running" and client.job(job).rescale is None))
            before = client.job(job).parallelism
            client.rescale(job, parallelism=6 - before if before in (2, 4) else 2)
            wait_until(
                lambda phase=phase: answer(  # type: ignore[misc]
                    lambda: (view := client.job(job).rescale) is None or view.reason == phase
                )
            )
            with contextlib.suppress(ProcessLookupError):
                os.kill(process_of(cluster, role), signal.SIGKILL)
            wait_until(lambda: answer(lambda: client.job(job).state == "running" and client.job(job).rescale is None))
            last = client.rescales(job)[-1] if client.rescales(job) else None
            if last is not None and last.status == "completed":
                assert client.job(job).parallelism == last.parallelism_after
            seen = client.job(job).checkpoints_completed
            wait_until(lambda seen=seen: answer(lambda: client.job(job).checkpoints_completed > seen))  # type: ignore[misc]
        wait_until(lambda: answer(lambda: client.stop(job) is not None))
        wait_until(lambda: answer(lambda: client.job(job).state == "stopped"))
    assert_every_number_counted_once(out)


def answer(ask: Callable[[], bool]) -> bool:
    """False while there is nobody to ask."""
    with contextlib.suppress(RetryableError, UserError):
        return ask()
    return False


def process_of(cluster: LocalCluster, role: str) -> int:
    if role == "slot":
        return [each.pid for each in cluster.client.cluster().processes if each.role == "slot" and each.job][-1]
    return next(pid for name, pid in sorted(cluster.pids().items()) if name.startswith(role))
