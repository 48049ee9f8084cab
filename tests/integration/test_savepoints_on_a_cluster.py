"""Savepoints on the embedded cluster, by the commands that people type: taken, read, gone on from."""

import json
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import duckdb
import msgspec
import polars as pl
import pytest

from penstock import savepoints
from penstock.api.programs import build
from penstock.local import LocalCluster
from penstock.model.errors import UserError

sys.path.insert(0, str(Path(__file__).parent))
from savepoint_programs import KEYS, totals

ROWS, RATE, FULL_RATE = 60_000, 300, 100_000
"""Slow while commands are typed, fast afterwards."""

PROGRAM = f"{Path(__file__).parent / 'savepoint_programs.py'}:totals"

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


def expected() -> pl.DataFrame:
    rows = pl.DataFrame({"n": range(ROWS)}).select(user=pl.col("n") % KEYS, amount=pl.col("n") % 7)
    return rows.group_by("user").agg(total=pl.col("amount").sum()).sort("user")


def last_totals(target: Path) -> pl.DataFrame:
    rows = pl.read_parquet(target / "*.parquet")
    return rows.group_by("user").agg(pl.col("total").max()).sort("user")


@pytest.fixture
def target(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    out = tmp_path / "out"
    for name, value in {"ROWS": ROWS, "RATE": RATE, "OUT": out}.items():
        monkeypatch.setenv(f"SAVEPOINT_{name}", str(value))
    return out


def test_a_job_goes_on_from_its_savepoint_which_anybody_can_read(
    tmp_path: Path, target: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    place = tmp_path / "savepoints"
    with LocalCluster(tmp_path / "state", task_managers=1, slots_per_task_manager=3) as cluster:
        job = cluster.client.submit(msgspec.json.encode(build(totals, parallelism=3))).id
        wait_until(lambda: cluster.client.job(job).state == "running")
        wait_until(lambda: any(each.rows_in for each in cluster.client.job(job).vertices[-1].operators))
        first = penstock("savepoint", job, "--to", str(place), "--jobmanager", cluster.client.url)
        assert first.returncode == 0, first.stderr
        assert "go on from it: penstock run PROGRAM --from file://" in first.stdout
        assert cluster.client.job(job).state == "running"
        stopped = penstock("stop", job, "--savepoint", "--to", str(place), "--jobmanager", cluster.client.url)
        assert stopped.returncode == 0, stopped.stderr
        wait_until(lambda: cluster.client.job(job).state == "stopped")
        with pytest.raises(UserError, match=r"S008 job .* is stopped"):
            cluster.client.take_savepoint(job)
    uri = stopped.stdout.partition("savepoint ")[2].partition(": ")[0]

    folder = uri.removeprefix("file://")
    by_duckdb = duckdb.sql(f"select sum(total)::bigint from '{folder}/states/totals.total/*.parquet'").fetchall()
    by_polars = pl.read_parquet(f"{folder}/states/totals.total/*.parquet")
    assert by_duckdb == [(by_polars["total"].sum(),)]
    assert by_polars.columns == ["key_group", "user", "total"]
    read = savepoints.open(uri).frame("totals.digits")
    assert read.columns == ["key_group", "user", "map_key", "digits"]
    assert read["digits"].sum() == sum(json.loads(each["position"])["rows"] for each in _splits(uri))

    monkeypatch.setenv("SAVEPOINT_RATE", str(FULL_RATE))
    went_on = penstock("run", PROGRAM, "--from", uri, "-p", "2", "--state-dir", str(tmp_path / "second"), "--json")
    assert went_on.returncode == 0, went_on.stderr
    assert last_totals(target).equals(expected())
    assert pl.read_parquet(target / "*.parquet").height == ROWS, "each row once, over both runs"

    listed = json.loads(penstock("savepoints", "ls", str(place), "--json").stdout)
    assert [each["job"] for each in listed] == [job, job]
    checked = penstock("restore-check", PROGRAM, "--from", uri, "--json")
    assert checked.returncode == 0, checked.stdout + checked.stderr
    assert {each["verdict"] for each in json.loads(checked.stdout)["findings"]} == {"restored"}
    rows = json.loads(penstock("state", "read", uri, "totals.total", "--limit", "3", "--json").stdout)
    assert len(rows) == 3
    different = json.loads(penstock("savepoints", "diff", listed[0]["uri"], uri, "--json").stdout)
    assert {each["name"] for each in different if each["added"]} >= {"totals.total", "numbers.splits"}


def test_only_one_savepoint_is_taken_at_a_time_and_a_place_that_cannot_be_written_fails_it(
    tmp_path: Path, target: Path
) -> None:
    with LocalCluster(tmp_path / "state", task_managers=1, slots_per_task_manager=1) as cluster:
        job = cluster.client.submit(msgspec.json.encode(build(totals, parallelism=1))).id
        wait_until(lambda: cluster.client.job(job).state == "running")
        nowhere = tmp_path / "file"
        nowhere.write_text("not a folder")
        with pytest.raises(UserError, match="S027"):
            cluster.client.take_savepoint(job, folder=str(nowhere))
        refusals: list[str] = []

        def take() -> None:
            try:
                cluster.client.take_savepoint(job)
            except UserError as error:
                refusals.append(error.code)

        askers = [threading.Thread(target=take) for _ in range(4)]
        for asker in askers:
            asker.start()
        for asker in askers:
            asker.join()
        taken = cluster.client.savepoints(job)
        assert len(taken) + len(refusals) == 4
        assert set(refusals) <= {"S028"}
        wait_until(lambda: all(each.status == "completed" for each in cluster.client.savepoints(job)))
        cluster.client.cancel(job)


def _splits(uri: str) -> Any:
    return savepoints.open(uri).manifest.sources["numbers"]
