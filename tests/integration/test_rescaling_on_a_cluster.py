"""Rescaling on the embedded cluster, by the command that people type: up, down, and with slots that are not there."""

import contextlib
import json
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Literal

import msgspec
import polars as pl
import pytest

from penstock.api.programs import build
from penstock.jobmanager.state_dir import StateDir
from penstock.local import LocalCluster
from penstock.model.errors import UserError
from penstock.model.settings import CheckpointSettings, JobSettings, RescaleSettings, StateSettings
from penstock.model.views import RescaleView

sys.path.insert(0, str(Path(__file__).parent))
from rescaling_programs import counted

pytestmark = pytest.mark.timeout(180)


def wait_until(condition: Callable[[], bool], *, seconds: float = 60) -> None:
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline, "it did not happen in time"
        time.sleep(0.02)


def penstock(*words: str) -> "subprocess.CompletedProcess[str]":
    return subprocess.run(
        [sys.executable, "-m", "penstock.cli", *words], capture_output=True, text=True, timeout=120, check=False
    )


@pytest.fixture
def out(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("RESCALING_OUT", str(tmp_path / "out"))
    return tmp_path / "out"


def settings(slot_wait_us: int = 60_000_000) -> JobSettings:
    return JobSettings(
        checkpoint=CheckpointSettings(interval_us=300_000), rescale=RescaleSettings(slot_wait_us=slot_wait_us)
    )


def assert_every_number_counted_once(out: Path) -> None:
    """Four splits give every fourth number each; a key knows how many of its own it has seen."""
    rows = pl.read_parquet(out / "*.parquet")
    assert rows.height
    for split in range(4):
        numbers = rows.filter(pl.col("n") % 4 == split)["n"].sort().to_list()
        assert numbers == list(range(split, split + 4 * len(numbers), 4))
    for seen in rows.sort("key", "seen").group_by("key").agg("seen")["seen"]:
        assert seen.to_list() == list(range(1, len(seen) + 1))


@pytest.mark.parametrize("backend", ["memory", "rocksdb"])
def test_a_running_job_grows_and_shrinks_without_a_stop_and_counts_every_row_once(
    tmp_path: Path, out: Path, backend: Literal["memory", "rocksdb"]
) -> None:
    chosen = msgspec.structs.replace(settings(), state=StateSettings(backend=backend))
    graph = build(counted, parallelism=2, settings=chosen)
    with LocalCluster(tmp_path / "state", task_managers=2, slots_per_task_manager=2) as cluster:
        job = cluster.client.submit(msgspec.json.encode(graph)).id
        wait_until(lambda: cluster.client.job(job).state == "running")
        for wanted in (4, 3, 1, 2):
            before = pids(cluster, job)
            cluster.client.rescale(job, parallelism=wanted)
            wait_until(lambda: cluster.client.rescales(job)[-1].status != "pending")
            view = cluster.client.rescales(job)[-1]
            assert (view.kind, view.status, view.reason) == ("live", "completed", "")
            assert (view.parallelism_after, view.after["counted"]) == (wanted, wanted)
            assert view.groups_moved
            assert view.bytes_moved
            assert view.pause_us_max
            after = pids(cluster, job)
            assert len(after) == wanted
            assert {index: pid for index, pid in before.items() if index < wanted}.items() <= after.items()
            assert cluster.client.job(job).parallelism == wanted
            seen = cluster.client.job(job).checkpoints_completed
            wait_until(lambda seen=seen: cluster.client.job(job).checkpoints_completed > seen)
        done = penstock("rescale", job, "-p", "3", "--jobmanager", cluster.client.url, "--json")
        assert done.returncode == 0, done.stderr
        assert (json.loads(done.stdout)["kind"], json.loads(done.stdout)["status"]) == ("live", "completed")
        shown = penstock("rescale", job, "--operator", "counted=2", "--jobmanager", cluster.client.url)
        assert shown.returncode == 0, shown.stderr
        assert "counted 3 -> 2 in " in shown.stdout
        cluster.client.stop(job)
        wait_until(lambda: cluster.client.job(job).state == "stopped")
        found = cluster.client.job(job)
        assert (found.restarts, found.failures) == (0, ())
        history = cluster.client.rescales(job)
        assert [view.parallelism_after for view in history] == [4, 3, 1, 2, 3, 3]
        with pytest.raises(UserError, match=r"S008 job .* is stopped"):
            cluster.client.rescale(job, parallelism=2)
    assert_every_number_counted_once(out)


def pids(cluster: LocalCluster, job: str) -> dict[int, int]:
    """By index of the subtasks that it runs: the process."""
    found = {}
    for process in cluster.client.cluster().processes:
        if process.role == "slot" and process.job == job:
            for subtask in process.subtasks:
                found[int(subtask.rpartition("/")[2])] = process.pid
    return found


def test_without_slots_the_job_runs_on_and_a_taskmanager_that_joins_brings_them(tmp_path: Path, out: Path) -> None:
    graph = build(counted, parallelism=1, settings=settings())
    with LocalCluster(tmp_path / "state", task_managers=1, slots_per_task_manager=1) as cluster:
        client = cluster.client
        job = client.submit(msgspec.json.encode(graph)).id
        wait_until(lambda: client.job(job).state == "running")
        with pytest.raises(UserError, match=r"P013 .*: operator .* has parallelism 1000; allowed is 1 to 128"):
            client.rescale(job, parallelism=1000)
        with pytest.raises(UserError, match='S061 there is no operator "nobody"'):
            client.rescale(job, operators={"nobody": 2})
        client.rescale(job, parallelism=3)
        wait_until(lambda: "needs 3 slots, has 1, 0 free" in waits_for(client.job(job).rescale))
        assert client.job(job).state == "running"
        with pytest.raises(UserError, match="S062"):
            client.rescale(job, parallelism=2)
        with task_manager(tmp_path, slots=2):
            wait_until(lambda: client.rescales(job)[-1].status == "completed")
            assert client.job(job).parallelism == 3
            client.stop(job)
            wait_until(lambda: client.job(job).state == "stopped")
    assert_every_number_counted_once(out)


def test_slots_that_never_come_are_given_up_with_a_reason(tmp_path: Path, out: Path) -> None:
    graph = build(counted, parallelism=1, settings=settings(slot_wait_us=500_000))
    with LocalCluster(tmp_path / "state", task_managers=1, slots_per_task_manager=1) as cluster:
        job = cluster.client.submit(msgspec.json.encode(graph)).id
        wait_until(lambda: cluster.client.job(job).state == "running")
        done = penstock("rescale", job, "-p", "2", "--jobmanager", cluster.client.url)
        assert done.returncode == 2
        assert "S063" in done.stderr
        assert "needs 2 slots, has 1, 0 free" in done.stderr
        assert (cluster.client.job(job).state, cluster.client.job(job).parallelism) == ("running", 1)
        cluster.client.cancel(job)


@contextlib.contextmanager
def task_manager(folder: Path, *, slots: int) -> Iterator[None]:
    """One that joins while the job runs."""
    addresses = StateDir(folder / "state").addresses()
    assert addresses is not None
    command = ["taskmanager", "--jobmanager", addresses.grpc, "--slots", str(slots)]
    with (folder / "joined.log").open("wb") as log:
        process = subprocess.Popen([sys.executable, "-m", "penstock.cli", *command], stdout=log, stderr=log)
        try:
            yield
        finally:
            process.terminate()
            process.wait(30)


def waits_for(view: RescaleView | None) -> str:
    return view.reason if view is not None else ""
