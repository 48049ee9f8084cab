"""`penstock verify`: both engines over the same input, and a difference is found and shown."""

import contextlib
from collections.abc import Callable
from pathlib import Path
from typing import Any

import polars as pl
import pytest
import typer
from benchmarks import data
from test_nexmark_on_spark import program

import penstock as ps
from penstock import batch
from penstock.api.programs import build
from penstock.cli import verifying

EXAMPLES = Path(__file__).parents[2] / "examples"
BOUNDED = ("deduplication", "fraud_rules", "price_as_of", "running_totals", "sessionisation", "trending")

DIFFERS = """
import polars as pl
from pyspark import TaskContext

import penstock as ps


def planted(key: int, value: int) -> tuple[int, int]:
    return key, value + (1 if key == 3 and TaskContext.get() is not None else 0)


def sums(flow):
    rows = flow.read(ps.items([(key, key * 10) for key in range(8)], schema={"key": int, "value": int}), uid="rows")
    added = rows.map(planted, output={"key": int, "total": int})
    added.key_by("key").agg(total=ps.sum("total"), uid="sums").write(ps.discard(), uid="out")
"""


def differences(graph: Any, folder: Path) -> list[Any]:
    return verifying.differences_of(batch, graph, folder)


@pytest.mark.parametrize("name", BOUNDED)
def test_the_bounded_examples_are_the_same_on_both(name: str, tmp_path: Path, spark: Any) -> None:
    found = differences(build(f"{EXAMPLES / name}.py:{name}"), tmp_path)
    assert found
    for each in found:
        assert not each.count, f"{each.only_on_stream}\n{each.only_on_spark}"


@pytest.mark.parametrize("query", ["q4", "q6", "q8", "q11"])
def test_queries_are_the_same_on_both(query: str, tmp_path: Path, spark: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(data, "CACHE", tmp_path / "events")
    (each,) = differences(build(program(query, data.events(4_000), ps.discard())), tmp_path / "work")
    assert each.rows
    assert not each.count, f"{each.only_on_stream}\n{each.only_on_spark}"


def test_a_planted_difference_is_found_and_shown(
    tmp_path: Path, spark: Any, capsys: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / "prog.py"
    file.write_text(DIFFERS)
    with pytest.raises(typer.Exit) as ended:
        verifying.verify(f"{file}:sums")
    assert ended.value.exit_code == 1
    shown = capsys.readouterr().out
    assert "out: 2 rows differ, of 8" in shown
    for part in ("only on the stream: 1 rows", "only on Spark: 1 rows", "key_group", "30", "31"):
        assert part in shown
    assert "== plan of the stream ==" in shown
    assert "HashAggregate" in shown


ROWS = pl.DataFrame({"key": [1, 1, 2, None], "x": [0.1 + 0.2, 5.0, float("nan"), 1.0], "l": [[1], [], None, [2]]})


@pytest.mark.parametrize(
    ("change", "count"),
    [
        (lambda rows: rows, 0),
        (lambda rows: rows.reverse(), 0),
        (lambda rows: rows.with_columns(x=pl.when(pl.col("x") < 0.5).then(0.3).otherwise("x")), 0),
        (lambda rows: rows.with_columns(x=pl.when(pl.col("x") == 5).then(5.0001).otherwise("x")), 2),
        (lambda rows: rows.head(3), 1),
        (lambda rows: pl.concat([rows, rows.head(1)]), 1),
        (lambda rows: rows.with_columns(key=pl.col("key").fill_null(9)), 2),
        (lambda rows: rows.with_columns(l=pl.lit([1])), 6),
    ],
)
def test_rows_are_compared_as_multisets(change: Callable[[pl.DataFrame], pl.DataFrame], count: int) -> None:
    shape = batch.Shape("out", group_keys=("key",))
    difference = batch.compare(shape, ROWS, change(ROWS), 128)
    assert difference.count == count
    for rows in (difference.only_on_stream, difference.only_on_spark):
        with contextlib.suppress(IndexError):
            assert rows.is_empty() or rows.columns[0] == "key_group"


def test_a_changelog_is_compared_by_what_it_comes_to() -> None:
    changes = pl.DataFrame(
        {"key": [1, 2, 1, 2], "n": [1, 1, 2, 1], "change": ["insert", "insert", "update", "delete"]}
    )
    final = pl.DataFrame({"key": [1], "n": [2], "change": ["insert"]})
    assert not batch.compare(batch.Shape("out", "change", ("key",)), changes, final, 128).count
    assert batch.compare(batch.Shape("out", "change", ("key",)), changes[:2], final, 128).count == 3
