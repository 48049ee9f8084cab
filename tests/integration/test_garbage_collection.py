"""`penstock gc` on the state directory of a job that has run, and that goes on afterwards."""

import json
import os
import subprocess
import sys
from pathlib import Path

import polars as pl
import pytest

PROGRAM = f"{Path(__file__).parent / 'savepoint_programs.py'}:totals"
LONG_AGO = 1_000_000_000

pytestmark = pytest.mark.timeout(180)


def penstock(*words: str) -> "subprocess.CompletedProcess[str]":
    return subprocess.run(
        [sys.executable, "-m", "penstock.cli", *words], capture_output=True, text=True, timeout=120, check=False
    )


def test_garbage_is_listed_then_gone_and_the_job_goes_on_from_what_is_left(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    state = tmp_path / "state"
    for name, value in {"ROWS": 2000, "RATE": 100_000, "OUT": tmp_path / "out"}.items():
        monkeypatch.setenv(f"SAVEPOINT_{name}", str(value))
    first = penstock("run", PROGRAM, "--state-dir", str(state), "-p", "2", "--checkpoint-interval", "100ms")
    assert first.returncode == 0, first.stderr
    [job] = (state / "jobs").iterdir()
    left_behind = {
        job / "checkpoints" / "99" / "1-totals-0.state": b"x" * 1000,
        job / "shared" / "1-totals-0" / "abcd": b"x" * 500,
        state / "savepoints" / "never-completed" / "states" / "totals.total" / "v-0-1-1-0.parquet": b"x" * 250,
    }
    young = state / "savepoints" / "in-progress" / "states" / "totals.total" / "v-0-1-1-0.parquet"
    for path, data in {**left_behind, young: b"x"}.items():
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(data)
    for path in state.rglob("*"):
        if path.is_file() and path != young:
            os.utime(path, (LONG_AGO, LONG_AGO))
    before = {path for path in state.rglob("*") if path.is_file()}

    dry = penstock("gc", "--state-dir", str(state), "--dry-run")
    assert dry.returncode == 0, dry.stderr
    assert "3 objects would go" in dry.stdout, dry.stdout
    assert "no checkpoint names it" in dry.stdout
    assert "it was never completed" in dry.stdout
    assert {path for path in state.rglob("*") if path.is_file()} == before
    listed = json.loads(penstock("gc", "--state-dir", str(state), "-n", "--json").stdout)
    assert {each["where"] for each in listed} == {f"file://{path}" for path in left_behind}
    assert sum(each["size"] for each in listed) == 1750

    done = penstock("gc", "--state-dir", str(state))
    assert done.returncode == 0, done.stderr
    assert {path for path in state.rglob("*") if path.is_file()} == before - left_behind.keys()
    assert penstock("gc", "--state-dir", str(state)).stdout == "no garbage\n"

    monkeypatch.setenv("SAVEPOINT_ROWS", "3000")
    second = penstock("run", PROGRAM, "--state-dir", str(state), "-p", "1", "--from", job.name)
    assert second.returncode == 0, second.stderr
    rows = pl.read_parquet(tmp_path / "out" / "*.parquet")
    assert rows.height >= 2000
    gone = penstock("gc", "--state-dir", str(state), "--ended", "0s", "--grace", "0s")
    assert gone.returncode == 0, gone.stderr
    assert [
        path for path in state.rglob("*") if path.is_file() and "jobs" in path.parts and "logs" not in path.parts
    ] == []


def test_a_state_directory_that_is_not_there_is_not_made(tmp_path: Path) -> None:
    missing = penstock("gc", "--state-dir", str(tmp_path / "nothing"))
    assert missing.returncode == 2
    assert "C001 there is no state directory" in missing.stderr
    assert not (tmp_path / "nothing").exists()
