"""The Nexmark queries of the benchmark on Spark, against their reference in Polars."""

from pathlib import Path
from typing import Any

import polars as pl
import pytest
from benchmarks import data, queries, reference

import penstock as ps
from penstock import batch, testing
from penstock.api.programs import build

BIDS = 20_000

IN_PYTHON = {"last-ten", "side"}
"""A function of the program's own, and rows that it holds itself; everything else is native."""


@pytest.fixture(scope="module")
def files(tmp_path_factory: pytest.TempPathFactory) -> data.Files:
    before, data.CACHE = data.CACHE, tmp_path_factory.mktemp("nexmark")
    try:
        return data.events(BIDS)
    finally:
        data.CACHE = before


def program(query: str, files: data.Files, sink: Any) -> Any:
    described = queries.QUERIES[query]

    def build_query(flow: ps.Flow) -> None:
        result = described.build(queries.Site(flow, files, timed=described.timed))
        if result.changes is not None:
            result = result.as_changelog()
        result.write(sink, uid="result")

    return build_query


@pytest.mark.parametrize("query", queries.QUERIES)
def test_a_query_gives_what_polars_gives(query: str, files: data.Files, spark: Any) -> None:
    expected = reference.QUERIES[query](reference.scan(files)).collect()
    result = batch.run(build(program(query, files, ps.collect())), spark)
    found = result.collected()
    testing.assert_rows(found.select(expected.columns).cast(pl.Schema(expected.schema)), expected)
    in_python = {uid: way for uid, way in result.operators.items() if way != "native"}
    assert in_python.keys() <= IN_PYTHON, in_python


def test_parquet_is_written_by_partition(files: data.Files, spark: Any, tmp_path: Path) -> None:
    expected = reference.QUERIES["q10"](reference.scan(files)).collect()
    sink = ps.parquet(tmp_path / "out", partition_by=["day", "hour"])
    batch.run(build(program("q10", files, sink)), spark)
    parts = list((tmp_path / "out").rglob("*.parquet"))
    assert {part.parent.parent.name.partition("=")[0] for part in parts} == {"day"}
    found = pl.read_parquet(parts, hive_partitioning=False)
    testing.assert_rows(found.select(expected.columns).cast(pl.Schema(expected.schema)), expected)
    assert not list((tmp_path / "out" / "_penstock" / "staging").iterdir())
