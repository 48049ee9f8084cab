"""`penstock run --engine spark` and `penstock explain`, as a user types them."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

PROGRAM = """
import penstock as ps
from penstock import col


def sums(flow):
    rows = flow.read(ps.items([(1, 10), (1, 20), (2, 5)], schema={"key": int, "value": int}), uid="rows")
    rows.filter(col("value") > 5).key_by("key").agg(total=ps.sum("value"), uid="sums").as_changelog().write(
        ps.collect(), uid="out"
    )


def endless(flow):
    flow.read(ps.nexmark(), uid="bids").write(ps.discard())
"""


@pytest.fixture
def program(tmp_path: Path) -> Path:
    file = tmp_path / "prog.py"
    file.write_text(PROGRAM)
    return file


def penstock(*words: str) -> subprocess.CompletedProcess[str]:
    conf = ("--master", "local[1]", "--conf", "spark.driver.memory=1g", "--conf", "spark.sql.shuffle.partitions=1")
    command = [sys.executable, "-m", "penstock.cli", *words, *(conf if "spark" in words else ())]
    env = {**os.environ, "COLUMNS": "200"}
    return subprocess.run(command, check=False, capture_output=True, text=True, timeout=800, env=env)


def test_a_program_runs_on_spark(program: Path) -> None:
    done = penstock("run", f"{program}:sums", "--engine", "spark", "--json")
    assert done.returncode == 0, done.stderr
    rows = json.loads(done.stdout)["collected"]["out"]
    assert rows == [{"key": 1, "total": 30, "change": "insert"}]


def test_explain_shows_how_operators_run_and_the_plan(program: Path) -> None:
    done = penstock("explain", f"{program}:sums", "--engine", "spark")
    assert done.returncode == 0, done.stderr
    assert "sums  native" in " ".join(done.stdout.split()).replace("sums native", "sums  native")
    assert "HashAggregate" in done.stdout
    assert "read by the engine's own readers" in done.stdout


def test_what_never_ends_is_refused_at_its_line(program: Path) -> None:
    done = penstock("run", f"{program}:endless", "--engine", "spark")
    assert done.returncode == 2
    assert "prog.py:14" in done.stderr
    assert "never ends" in done.stderr
    assert "fix:" in done.stderr
