"""Savepoints as DataFrames, and back: a stream goes on from what Spark wrote."""

from pathlib import Path
from typing import Any

import polars as pl
import pytest
from pyspark.sql import functions as F  # noqa: N812 - as everybody calls it

import penstock as ps
from penstock import batch, savepoints, testing
from penstock.model.errors import UserError

ROWS = [(key, key * 10 + number) for number in range(6) for key in range(40)]
COUNT = {"key": pl.Int64, "seen": pl.Int64, "total": pl.Int64}


class Counting(ps.KeyedProcessFunction):
    seen = ps.ValueState(int, default=0)
    values = ps.MapState(int, int)

    def process(self, ctx: ps.KeyedContext, value: int) -> tuple[int, int, int]:
        self.seen.value += 1
        self.values[value % 3] = (self.values.get(value % 3) or 0) + value
        return ctx.key, self.seen.value, sum(self.values.values())


def counting(flow: ps.Flow) -> None:
    rows = flow.read(ps.items(ROWS, schema={"key": int, "value": int}), uid="rows")
    rows.key_by("key").process(Counting(), output=COUNT, uid="counting").write(ps.collect(), uid="out")


@pytest.fixture
def given(tmp_path: Path) -> str:
    """The state of other rows, which came before."""
    keys = list(range(40))
    builder = savepoints.Builder(max_parallelism=128)
    builder.add("counting.seen", pl.DataFrame({"key": keys, "seen": [100 + key for key in keys]}), keys="key")
    entries = pl.DataFrame({"key": keys, "map_key": [0] * 40, "values": [1_000] * 40})
    builder.add("counting.values", entries, keys="key", kind="map")
    return builder.write(str(tmp_path / "given"))


def last_rows(start: str, **options: Any) -> dict[int, tuple[int, int]]:
    result = testing.run_stream(counting, start_from=start, **options)
    return {key: (seen, total) for key, seen, total in result.rows()}


def test_states_are_dataframes(given: str, spark: Any) -> None:
    frames = batch.read_savepoint(spark, given)
    assert sorted(frames) == ["counting.seen", "counting.values"]
    seen = frames["counting.seen"]
    assert seen.columns == ["key_group", "key", "seen"]
    expected = savepoints.open(given).frame("counting.seen").rows()
    assert sorted(map(tuple, seen.collect())) == sorted(expected)
    assert seen.where(F.pmod(F.xxhash64("key"), F.lit(128)) != F.col("key_group")).count() == 0


def test_a_stream_goes_on_from_what_spark_repaired(given: str, spark: Any, tmp_path: Path) -> None:
    frames = batch.read_savepoint(spark, given)
    repaired = frames["counting.seen"].withColumn("seen", F.col("seen") * 2).drop("key_group")
    uri = batch.write_savepoint(spark, str(tmp_path / "repaired"), {"counting.seen": repaired}, like=given)
    found = last_rows(uri, parallelism=3)
    added = {key: sum(value for each, value in ROWS if each == key) for key in range(40)}
    assert found == {key: (2 * (100 + key) + 6, 1_000 + added[key]) for key in range(40)}


def test_another_max_parallelism(given: str, spark: Any, tmp_path: Path) -> None:
    uri = batch.write_savepoint(spark, str(tmp_path / "recut"), {}, like=given, max_parallelism=1_000)
    manifest = savepoints.open(uri).manifest
    assert manifest.max_parallelism == 1_000
    assert {state.name: state.rows for state in manifest.states} == {"counting.seen": 40, "counting.values": 40}
    found = last_rows(uri, max_parallelism=1_000, parallelism=2)
    assert {seen for seen, _ in found.values()} == {106 + key for key in range(40)}


def test_what_does_not_fit_is_refused(given: str, spark: Any, tmp_path: Path) -> None:
    frames = batch.read_savepoint(spark, given)
    with pytest.raises(UserError, match="S024"):
        batch.write_savepoint(spark, str(tmp_path / "new"), {"counting.gone": frames["counting.seen"]}, like=given)
    wrong = {"counting.seen": frames["counting.seen"].drop("seen")}
    with pytest.raises(UserError, match="S029"):
        batch.write_savepoint(spark, str(tmp_path / "new"), wrong, like=given)
    with pytest.raises(UserError, match="S021"):
        batch.write_savepoint(spark, given, {}, like=given)
