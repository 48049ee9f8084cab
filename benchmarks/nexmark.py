"""Nexmark queries from Parquet to Parquet against one-shot Polars on one thread, and two slots against one."""

import re
from collections.abc import Iterator, Sequence
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
TWO_SLOTS_GOAL = 1.7


def run(*, repeats: int, rows: int = ROWS, cases: Sequence[str] | None = None) -> Iterator[Figure]:
    """All queries, or just these, with one slot; then the stateful ones with two against one."""
    chosen = list(QUERIES) if cases is None else list(cases)
    if unknown := set(chosen) - set(QUERIES):
        raise SystemExit(f"no query {', '.join(sorted(unknown))}; there are {', '.join(QUERIES)}")
    files = data.events(rows)
    out = data.scratch("nexmark-out")
    with Reference() as reference, jobs.cluster("nexmark", task_managers=2) as cluster:
        for query in chosen:
            ours = Ours(cluster, query, files, out / query, parallelism=1)
            expected = out / f"{query}-reference.parquet"
            reference.run(query, files, expected)
            ours.run()
            require_equal(query, ours.out, expected)
            taken = interleaved(
                {"ours": ours.run, "reference": partial(reference.run, query, files, expected)}, repeats
            )
            ratio = median_ratio(taken["ours"], taken["reference"])
            yield Figure(bench="nexmark", case=query, metric="time to polars", value=ratio, goal=QUERIES[query].goal)
            yield from _information(query, rows, ours, taken["ours"][-repeats:])
        for query in (each for each in STATEFUL if each in chosen):
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
    files: data.Files
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
    left = result(query, folder).select(right.collect_schema().names())
    found, wanted = (
        frame.select(pl.len(), pl.struct(pl.all()).hash(seed=1).sum().alias("hash")).collect(engine="streaming").row(0)
        for frame in (left, right.cast(left.collect_schema()))
    )
    if found != wanted:
        raise AssertionError(f"{query}: the result differs from the reference: {found[0]} rows, not {wanted[0]}")


def result(query: str, folder: Path) -> pl.LazyFrame:
    """What a query has written; of one that updates earlier rows, what is left of them in the end."""
    # In the order in which one slot has written them: the name ends with the checkpoint and a number.
    parts = sorted(folder.rglob("*.parquet"), key=lambda path: [int(each) for each in re.findall(r"\d+", path.name)])
    rows = pl.scan_parquet(parts, hive_partitioning=bool(QUERIES[query].partition_by))
    if "change" not in rows.collect_schema():
        return rows
    keys = QUERIES[query].keys
    if keys is not None:
        return rows.unique(keys, keep="last", maintain_order=True).filter(pl.col("change") != "delete").drop("change")
    count = pl.when(pl.col("change") == "delete").then(-1).otherwise(1).sum()
    left = rows.group_by(pl.exclude("change")).agg(__count=count)
    return left.filter(pl.col("__count") > 0).select(pl.exclude("__count").repeat_by("__count")).explode(pl.all())
