"""The Nexmark queries of the benchmark, on a small stretch of events, against their reference in Polars."""

import sys
from pathlib import Path

import polars as pl
import pytest

sys.path.insert(0, str(Path(__file__).parents[2]))
from benchmarks import data, queries, reference

from penstock import testing

BIDS = 20_000


@pytest.fixture(scope="module")
def files(tmp_path_factory: pytest.TempPathFactory) -> data.Files:
    before, data.CACHE = data.CACHE, tmp_path_factory.mktemp("nexmark")
    try:
        return data.events(BIDS)
    finally:
        data.CACHE = before


@pytest.mark.parametrize("parallelism", [1, 2])
@pytest.mark.parametrize("query", queries.QUERIES)
def test_a_query_gives_what_polars_gives(query: str, parallelism: int, files: data.Files) -> None:
    expected = reference.QUERIES[query](reference.scan(files)).collect()
    result = testing.run_stream(queries.program(query, files, "unused"), parallelism=parallelism)
    found = result.frame
    if "change" in found.columns:
        found = result.table(keys=queries.QUERIES[query].keys)
    schema = expected.schema
    testing.assert_rows(found.select(schema.names()).cast(pl.Schema(schema)), expected)
