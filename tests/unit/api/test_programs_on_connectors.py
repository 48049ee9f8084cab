"""Whole programs on the connectors that ship."""

from pathlib import Path

import polars as pl
import pytest

import penstock as ps
from penstock import col
from penstock.api import Flow, KeyedStream, build, streams
from penstock.graph import execution
from penstock.model.errors import UserError

EXAMPLES = Path(__file__).parents[3] / "examples"


def test_the_word_count_of_the_papers_is_built_from_its_example():
    graph = build(str(EXAMPLES / "word_count.py"), parallelism=2)
    assert graph.name == "word-count"
    assert not graph.bounded
    assert [vertex.id for vertex in graph.vertices] == ["lines", "counts"]
    assert graph.warnings == ()
    assert graph.vertices[1].chain[0].operator.output[0].name == "word"


def test_the_word_count_is_at_most_fifteen_lines():
    source = (EXAMPLES / "word_count.py").read_text()
    program = source.partition('"""\n\n')[2]
    assert len([line for line in program.splitlines() if line.strip()]) <= 15


def test_files_give_their_columns_and_are_read_by_those_needed(tmp_path):
    frame = pl.DataFrame({"a": [1, 2], "b": ["x", "y"], "t": [1, 2]})
    frame.write_parquet(tmp_path / "part.parquet")
    flow = Flow("files")
    stream = flow.read(ps.parquet(tmp_path), event_time="t", unit="ms", uid="in")
    assert stream.schema == frame.schema
    stream.key_by("a").window(ps.tumbling("1s")).agg(n=ps.count()).write(ps.parquet(tmp_path / "out"), uid="out")
    source = flow.plan(parallelism=2).vertices[0].chain[0].operator.spec
    assert source.columns == ("a", "t")


def test_items_run_through_every_stateless_verb():
    flow = Flow("items")
    rows = flow.read(ps.items([{"line": "to be"}, {"line": "or not"}]), uid="in")
    words = rows.select(word=col("line").str.split(" ")).explode("word")
    words.union(words.filter(col("word") == "be")).rebalance().write(ps.discard(), uid="out")
    (region,) = execution(flow.plan(parallelism=2))
    assert len(region.tasks) == 6


def test_a_missing_file_is_reported_at_the_read(tmp_path):
    with pytest.raises(UserError) as caught:
        Flow("files").read(ps.parquet(tmp_path / "nothing" / "*.parquet"))
    assert Path(__file__).name in (caught.value.where or "")


def test_what_can_only_be_read_is_not_written_to():
    flow = Flow("wrong")
    with pytest.raises(UserError, match="can only be read from"):
        flow.read(ps.items([1])).write(ps.items([1]))


def test_a_sink_refuses_partition_columns_that_are_not_there(tmp_path):
    stream = Flow("wrong").read(ps.items([{"day": 1}]))
    with pytest.raises(UserError, match="partition_by"):
        stream.write(ps.parquet(tmp_path, partition_by="dya"))


def test_verbs_have_no_surprises_in_their_signatures():
    import inspect

    for verb in ("select", "with_columns", "filter", "explode", "union", "map", "flat_map", "map_batches", "write"):
        parameters = inspect.signature(getattr(streams.DataStream, verb)).parameters
        assert {"uid", "name", "parallelism"} <= set(parameters)
    for keyed in (KeyedStream.process, streams.WindowedStream.agg, Flow.read):
        assert {"uid", "name", "parallelism"} <= set(inspect.signature(keyed).parameters)
