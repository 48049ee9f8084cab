"""The state of a running job over REST, by the command and from the state directory, and of one that has ended."""

import json
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import msgspec
import polars as pl
import pytest

from penstock import savepoints
from penstock.api.programs import build
from penstock.jobmanager.asking import open_state
from penstock.jobmanager.state_dir import StateDir
from penstock.local import LocalCluster
from penstock.model.errors import UserError
from penstock.model.ids import JobId
from penstock.model.settings import CheckpointSettings, JobSettings, StateSettings

sys.path.insert(0, str(Path(__file__).parent))
from savepoint_programs import KEYS, totals

ROWS = 1_000_000

pytestmark = pytest.mark.timeout(180)


def penstock(*words: str) -> "subprocess.CompletedProcess[str]":
    return subprocess.run(
        [sys.executable, "-m", "penstock.cli", *words], capture_output=True, text=True, timeout=120, check=False
    )


def wait_until(condition: Callable[[], bool], *, seconds: float = 60) -> None:
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline, "it did not happen in time"
        time.sleep(0.02)


@pytest.mark.parametrize("backend", ["memory", "rocksdb"])
def test_state_is_asked_for_while_the_job_runs_and_when_it_has_ended(
    backend: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name, value in {"ROWS": ROWS, "RATE": 2_000, "OUT": tmp_path / "out"}.items():
        monkeypatch.setenv(f"SAVEPOINT_{name}", str(value))
    settings = JobSettings(
        checkpoint=CheckpointSettings(interval_us=200_000, retained=3), state=StateSettings(backend=backend)
    )
    state = tmp_path / "state"
    with LocalCluster(state, task_managers=1, slots_per_task_manager=2) as cluster:
        client = cluster.client
        job = client.submit(msgspec.json.encode(build(totals, parallelism=2, settings=settings))).id
        wait_until(lambda: client.job(job).state == "running")
        with pytest.raises(UserError, match=r"S024|S030"):
            client.state(job, "totals.nothing", 7)
        wait_until(lambda: client.job(job).checkpoints_completed > 0)
        wait_until(lambda: bool(client.state(job, "totals.total", 7).rows))
        first = client.state(job, "totals.total", 7)
        [row] = first.rows
        assert row["user"] == 7
        assert 0 <= first.age_us < 120_000_000
        wait_until(lambda: client.state(job, "totals.total", 7).checkpoint > first.checkpoint)
        later = client.state(job, "totals.total", 7)
        assert later.rows[0]["total"] >= row["total"]
        assert client.state(job, "totals.total", KEYS + 1).rows == ()
        with pytest.raises(UserError, match="S030 the job has no checkpoint 100000"):
            client.state(job, "totals.total", 7, checkpoint=100_000)
        with pytest.raises(UserError, match="S031"):
            client.state(job, "totals.total", "seven")
        asked = penstock("state", "get", job, "totals.total", "--key", "7", "--jobmanager", client.url, "--json")
        assert asked.returncode == 0, asked.stderr
        assert json.loads(asked.stdout)["checkpoint"] >= later.checkpoint
        saved = client.take_savepoint(job, stop=True)
        wait_until(lambda: client.job(job).state == "stopped")
    savepoint = savepoints.open(saved.uri)

    held = open_state(StateDir(state), JobId(job))
    assert held.checkpoint == savepoint.manifest.lineage.checkpoint
    for name in ("totals.total", "totals.digits"):
        expected = savepoint.frame(name)
        by = [column for column in expected.columns if column != name.rpartition(".")[2]]
        assert held.frame(name).sort(by).equals(expected.sort(by))
    table = penstock("state", "get", job, "totals.total", "--state-dir", str(state), "--limit", "0", "--json")
    assert table.returncode == 0, table.stderr
    rows = pl.DataFrame(json.loads(table.stdout)["rows"])
    assert rows["total"].sum() == savepoint.frame("totals.total")["total"].sum()
    one = penstock("state", "get", job, "totals.total", "-k", "7", "--state-dir", str(state))
    assert one.returncode == 0, one.stderr
    assert f"1 rows of totals.total at checkpoint {held.checkpoint}" in one.stderr
