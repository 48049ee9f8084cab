"""The stateful Nexmark queries on Flink SQL (`PEER=flink`), one slot against one slot.

Flink comes from PyPI (`apache-flink`) into an environment of its own. That package cannot read Parquet, and reading
CSV would take most of its time, so it reads only numbers and makes the bids of them: as many, with the same skew, in
the same order. Ours are read from Parquet with all that is in them.
"""

import json
import os
import shutil
import subprocess
import sys
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from statistics import median
from types import TracebackType

import polars as pl

from benchmarks import data, jobs
from benchmarks.figures import Figure, interleaved, median_ratio
from benchmarks.nexmark import Ours
from benchmarks.queries import STATEFUL

ROWS = 10_000_000
GOAL = 5.0
_REQUIREMENT = "apache-flink==2.3.*"


def run(*, repeats: int, rows: int = ROWS) -> Iterator[Figure]:
    """Speed as a multiple of Flink's."""
    files, out = data.events(rows), data.scratch("flink-out")
    with Flink(environment(), _numbers(rows)) as flink, jobs.cluster("flink", task_managers=1) as cluster:
        source = partial(flink.run, "source", out / "source")
        source()
        yield Figure(bench="flink", case="source", metric="rows/s of flink", value=rows / source(), better="higher")
        for query in STATEFUL:
            theirs = partial(flink.run, query, out / f"{query}-flink")
            ours = Ours(cluster, query, files, out / f"{query}-penstock", parallelism=1)
            ours.run()
            theirs()
            taken = interleaved({"ours": partial(_seconds_in_all, ours), "theirs": theirs}, repeats)
            _require_about_as_many_rows(query, ours.out, out / f"{query}-flink")
            figure = partial(Figure, bench="flink", case=query, better="higher")
            yield figure(metric="speed to flink", value=median_ratio(taken["theirs"], taken["ours"]), goal=GOAL)
            yield figure(metric="rows/s", value=rows / median(taken["ours"]))
            yield figure(metric="rows/s of flink", value=rows / median(taken["theirs"]))


def environment() -> Path:
    """The Python that has Flink; installed when it is not there yet."""
    if shutil.which("java") is None:
        sys.exit("Flink needs Java 11 or 17. On Debian and Ubuntu: apt-get install openjdk-17-jre-headless")
    folder = data.CACHE / "flink-venv"
    if not (folder / "installed").exists():
        print(f"installing {_REQUIREMENT} into {folder} (once, about 400 MB)", file=sys.stderr, flush=True)
        subprocess.run([sys.executable, "-m", "venv", str(folder)], check=True)
        subprocess.run([folder / "bin" / "pip", "install", "--quiet", _REQUIREMENT], check=True)
        (folder / "installed").touch()
    return folder / "bin" / "python"


class Flink:
    """One JVM with a session in it. A context manager."""

    def __init__(self, python: Path, numbers: Path) -> None:
        self._numbers = numbers
        self._process = subprocess.Popen(
            [python, str(Path(__file__).with_name("flink_sql.py"))],
            env={**os.environ, "PYTHONWARNINGS": "ignore"},
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            text=True,
        )

    def run(self, query: str, out: Path) -> float:
        """Seconds of one query."""
        shutil.rmtree(out, ignore_errors=True)
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.write(json.dumps({"query": query, "numbers": str(self._numbers), "out": str(out)}) + "\n")
        self._process.stdin.flush()
        for line in self._process.stdout:
            if line.startswith("{"):
                return float(json.loads(line)["seconds"])
        raise RuntimeError(f"Flink ended during {query}; run benchmarks/flink_sql.py by hand to see why")

    def __enter__(self) -> "Flink":
        return self

    def __exit__(self, *_: type[BaseException] | BaseException | TracebackType | None) -> None:
        self._process.kill()
        self._process.communicate()


def _numbers(rows: int) -> Path:
    """0, 1, 2, ... a line each, in one file."""
    path = data.CACHE / f"numbers-{rows}.csv.gz"
    if not path.exists():
        draft = path.with_name(f"draft-{path.name}")
        pl.DataFrame({"n": range(rows)}).write_csv(draft, include_header=False, compression="gzip")
        draft.rename(path)
    return path


def _seconds_in_all(ours: Ours) -> float:
    """With deployment, which is part of Flink's time too."""
    ours.run()
    return ours.in_all[-1]


def _require_about_as_many_rows(query: str, ours: Path, theirs: Path) -> None:
    """The random numbers differ, so the number of different bidders does, a little."""
    found = pl.scan_parquet(ours / "*.parquet").select(pl.len()).collect().item()
    parts = [file for file in theirs.glob("**/part-*") if file.stat().st_size]
    of_flink = sum(pl.read_csv(file, has_header=False).height for file in parts)
    if abs(found / of_flink - 1) > 0.02:
        raise AssertionError(f"{query}: {found} rows, and {of_flink} of Flink")
