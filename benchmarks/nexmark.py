"""Nexmark queries from Parquet to Parquet against one-shot Polars on one thread, and two slots against one."""

from collections.abc import Iterator
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from statistics import median

import polars as pl

from benchmarks import data, jobs
from benchmarks.figures import Figure, interleaved, median_ratio
from benchmarks.queries import QUERIES, STATEFUL, program
from benchmarks.reference import Reference
from penstock.local import LocalCluster

ROWS = 10_000_000
GOALS = {"q0": 2.0, "q1": 1.3, "q2": 1.3, "q5": 1.0, "q7": 1.0, "q12": 1.0}
"""Time as a multiple of the reference's."""
TWO_SLOTS_GOAL = 1.7


def run(*, repeats: int, rows: int = ROWS) -> Iterator[Figure]:
    """All queries with one slot, then the stateful ones with two against one."""
    files = data.bids(rows)
    out = data.scratch("nexmark-out")
    with Reference() as reference, jobs.cluster("nexmark", task_managers=2) as cluster:
        for query in QUERIES:
            ours = Ours(cluster, query, files, out / query, parallelism=1)
            expected = out / f"{query}-reference.parquet"
            reference.run(query, files, expected)
            ours.run()
            require_equal(query, ours.out, expected)
            taken = interleaved(
                {"ours": ours.run, "reference": partial(reference.run, query, files, expected)}, repeats
            )
            ratio = median_ratio(taken["ours"], taken["reference"])
            yield Figure(bench="nexmark", case=query, metric="time to polars", value=ratio, goal=GOALS[query])
            yield from _information(query, rows, ours, taken["ours"][-repeats:])
        for query in STATEFUL:
            one, two = (
                Ours(cluster, query, files, out / f"{query}-of-{slots}", parallelism=slots) for slots in (1, 2)
            )
            two.run()
            require_equal(query, two.out, out / f"{query}-reference.parquet")
            taken = interleaved({"one": one.run, "two": two.run}, repeats)
            yield Figure(
                bench="nexmark",
                case=query,
                metric="speed of two slots to one",
                value=median_ratio(taken["one"], taken["two"]),
                better="higher",
                goal=TWO_SLOTS_GOAL,
            )


@dataclass(slots=True)
class Ours:
    """A query on the cluster, run again and again."""

    cluster: LocalCluster
    query: str
    files: str
    folder: Path
    parallelism: int
    runs: int = 0
    in_all: list[float] = field(default_factory=list)

    @property
    def out(self) -> Path:
        """Where the last run has written: each into a folder of its own, or results would add up."""
        return self.folder / str(self.runs)

    def run(self) -> float:
        """Seconds of one run."""
        self.runs += 1
        view = jobs.submit(
            self.cluster,
            program(self.query, self.files, str(self.out)),
            parallelism=self.parallelism,
            settings=jobs.EVERY_SECOND,
        )
        view = jobs.finish(self.cluster, view.id)
        self.in_all.append(jobs.seconds_in_all(view))
        return jobs.seconds_running(view)


def _information(query: str, rows: int, ours: Ours, taken: list[float]) -> Iterator[Figure]:
    figure = partial(Figure, bench="nexmark", case=query)
    yield figure(metric="rows/s", value=rows / median(taken), better="higher")
    yield figure(metric="seconds with deployment", value=median(ours.in_all[-len(taken) :]))


def require_equal(query: str, folder: Path, expected: Path) -> None:
    """The rows are the same, in whatever order they come."""
    right = pl.scan_parquet(expected)
    left = pl.scan_parquet(folder / "*.parquet").select(right.collect_schema().names())
    found, wanted = (
        frame.select(pl.len(), pl.struct(pl.all()).hash(seed=1).sum().alias("hash")).collect(engine="streaming").row(0)
        for frame in (left, right.cast(left.collect_schema()))
    )
    if found != wanted:
        raise AssertionError(f"{query}: the result differs from the reference: {found[0]} rows, not {wanted[0]}")
