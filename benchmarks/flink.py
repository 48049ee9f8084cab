"""The stateful Nexmark queries on Flink SQL (`PEER=flink`), from the same files, one slot against one slot.

Flink comes from PyPI (`apache-flink`) into an environment of its own. What is in that package reads CSV and not
Parquet, so both sides read the same CSV files here, with just the columns that the queries need.
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

import penstock as ps
from benchmarks import data, jobs
from benchmarks.figures import Figure, interleaved, median_ratio
from benchmarks.queries import QUERIES, STATEFUL
from penstock.local import LocalCluster

ROWS = 10_000_000
GOAL = 5.0
COLUMNS = ("auction", "bidder", "price", "ts")
_REQUIREMENT = "apache-flink==2.3.*"
_TIME_FORMAT = "%Y-%m-%d %H:%M:%S%.3f"


def run(*, repeats: int, rows: int = ROWS) -> Iterator[Figure]:
    """Speed as a multiple of Flink's."""
    files, out = csv_bids(rows), data.scratch("flink-out")
    with Flink(environment()) as flink, jobs.cluster("flink", task_managers=1) as cluster:
        source = partial(flink.run, "source", files, out / "source")
        source()
        reading = source()
        yield Figure(bench="flink", case="source", metric="rows/s of flink", value=rows / reading, better="higher")
        for query in STATEFUL:
            theirs = partial(flink.run, query, files, out / f"{query}-flink")
            ours = partial(_ours, cluster, query, files, out / f"{query}-penstock")
            ours()
            theirs()
            taken = interleaved({"ours": ours, "theirs": theirs}, repeats)
            _require_as_many_rows(query, out)
            figure = partial(Figure, bench="flink", case=query, better="higher")
            yield figure(metric="speed to flink", value=median_ratio(taken["theirs"], taken["ours"]), goal=GOAL)
            without_reading = [seconds - reading for seconds in taken["theirs"]]
            ratio = median_ratio(without_reading, taken["ours"])
            yield figure(metric="speed to flink less its reading", value=ratio)
            yield figure(metric="rows/s", value=rows / median(taken["ours"]))
            yield figure(metric="rows/s of flink", value=rows / median(taken["theirs"]))


def csv_bids(rows: int) -> Path:
    """A folder of CSV files without header, as Flink reads them."""
    parquet = data.bids(rows)
    folder = Path(parquet).parent.with_suffix(".csv")
    if not folder.exists():
        draft = folder.with_suffix(".draft")
        shutil.rmtree(draft, ignore_errors=True)
        draft.mkdir()
        for file in sorted(Path(parquet).parent.glob("*.parquet")):
            bids = pl.read_parquet(file, columns=list(COLUMNS))
            bids.write_csv(draft / f"{file.stem}.csv", include_header=False, datetime_format=_TIME_FORMAT)
        draft.rename(folder)
    return folder


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

    def __init__(self, python: Path) -> None:
        self._process = subprocess.Popen(
            [python, str(Path(__file__).with_name("flink_sql.py"))],
            env={**os.environ, "PYTHONWARNINGS": "ignore"},
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            text=True,
        )

    def run(self, query: str, files: Path, out: Path) -> float:
        """Seconds of one query."""
        shutil.rmtree(out, ignore_errors=True)
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.write(json.dumps({"query": query, "files": str(files), "out": str(out)}) + "\n")
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


def _ours(cluster: LocalCluster, query: str, files: Path, out: Path) -> float:
    shutil.rmtree(out, ignore_errors=True)

    def program(flow: ps.Flow) -> None:
        schema = {"auction": int, "bidder": int, "price": int, "ts": pl.Datetime("ms")}
        bids = flow.read(ps.csv(f"{files}/*.csv", header=False), schema=schema, event_time="ts", uid="bids")
        QUERIES[query](bids).write(ps.csv(str(out)), uid="result")

    view = jobs.submit(cluster, program, parallelism=1, settings=jobs.EVERY_SECOND)
    return jobs.seconds_in_all(jobs.finish(cluster, view.id))  # Flink's time has its deployment in it too


def _require_as_many_rows(query: str, out: Path) -> None:
    ours = sum(pl.read_csv(file).height for file in (out / f"{query}-penstock").glob("*.csv"))
    theirs = sum(
        pl.read_csv(file, has_header=False).height
        for file in (out / f"{query}-flink").glob("**/part-*")
        if file.stat().st_size
    )
    if ours != theirs:
        raise AssertionError(f"{query}: {ours} rows, and {theirs} of Flink")
