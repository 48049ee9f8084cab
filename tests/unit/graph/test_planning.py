"""From the program as written to fused, chained vertices."""

import msgspec
import polars as pl
import pytest

from penstock.graph import JobGraph, LogicalGraph
from penstock.model import specs
from penstock.model.errors import UserError


def shape(graph: JobGraph) -> dict[str, list[tuple[str, int | None]]]:
    return {vertex.id: [(link.operator.uid, link.parent) for link in vertex.chain] for vertex in graph.vertices}


def spec(graph: JobGraph, uid: str) -> specs.OperatorSpec:
    return next(link.operator.spec for v in graph.vertices for link in v.chain if link.operator.uid == uid)


def output(graph: JobGraph, uid: str) -> list[str]:
    return next(
        [field.name for field in link.operator.output]
        for v in graph.vertices
        for link in v.chain
        if link.operator.uid == uid
    )


# ---------------------------------------------------------------- fusing and chaining


def test_neighbouring_expressions_become_one_operator_in_order(program):
    program.source()
    program.filter("cheap", "bids")
    program.with_columns("double", "cheap", double=pl.col("price") * 2)
    program.select("narrow", "double", "auction", "double")
    program.sink("out", "narrow")
    graph = program.plan(parallelism=2)
    assert shape(graph) == {"bids": [("bids", None), ("cheap", 0), ("out", 1)]}
    fused = graph.vertices[0].chain[1].operator
    assert [type(step) for step in fused.spec.steps] == [specs.Filter, specs.WithColumns, specs.Select]
    assert fused.name == "cheap, double, narrow"
    assert [field.name for field in fused.output] == ["auction", "double"]


def test_a_stream_with_two_readers_is_not_fused_but_chained_as_a_tree(program):
    program.source()
    program.filter("all", "bids")
    program.filter("left", "all")
    program.filter("right", "all")
    program.filter("right2", "right")
    program.sink("out-left", "left")
    program.sink("out-right", "right2")
    assert shape(program.plan(parallelism=3)) == {
        "bids": [("bids", None), ("all", 0), ("left", 1), ("right", 1), ("out-left", 2), ("out-right", 3)]
    }


def test_a_hash_edge_ends_a_chain_and_one_subtask_needs_none(program):
    program.source()
    process = specs.Process(
        keys=("auction",),
        function=specs.Function(name="f", pickled=b"", columns=("price",)),
        output=program.outputs["bids"],
    )
    program.add("total", process, "bids", by=specs.Hash(keys=("auction",)))
    program.sink("out", "total")
    wide = program.plan(parallelism=2)
    assert list(shape(wide)) == ["bids", "total"]
    assert wide.edges[0].partitioning == specs.Hash(keys=("auction",))
    assert shape(program.plan(parallelism=1)) == {"bids": [("bids", None), ("total", 0), ("out", 1)]}


def test_a_forward_edge_between_different_parallelisms_is_rebalanced(program):
    program.source(parallelism=1)
    program.filter("cheap", "bids")
    program.sink("out", "cheap")
    graph = program.plan(parallelism=2)
    assert [(edge.source, edge.target, edge.partitioning) for edge in graph.edges] == [
        ("bids", "cheap", specs.Rebalance())
    ]
    assert {vertex.id: vertex.parallelism for vertex in graph.vertices} == {"bids": 1, "cheap": 2}


def test_a_union_heads_a_vertex_and_keeps_its_ports(program):
    program.source("a", "price", "ts")
    program.source("b", "price", "ts")
    program.add("both", specs.Union(columns=("price", "ts")), "a", "b", "a")
    program.sink("out", "both")
    graph = program.plan(parallelism=2)
    assert shape(graph) == {"a": [("a", None)], "b": [("b", None)], "both": [("both", None), ("out", 0)]}
    assert [(edge.source, edge.port) for edge in graph.edges] == [("a", 0), ("b", 1), ("a", 2)]


# ---------------------------------------------------------------- columns


def test_a_source_reads_only_what_is_looked_at(program):
    program.source(event_time=specs.EventTime(column="ts"))
    program.filter("cheap", "bids", pl.col("price") > 1)
    program.select("narrow", "cheap", "auction")
    program.sink("out", "narrow")
    graph = program.plan()
    assert spec(graph, "bids").columns == ("auction", "price", "ts")
    assert output(graph, "bids") == ["auction", "price", "ts"]
    assert output(graph, "cheap") == ["auction"]


def test_filters_right_behind_a_source_are_shown_to_it_and_stay(program):
    program.source()
    program.filter("cheap", "bids")
    program.filter("cheaper", "cheap")
    program.select("narrow", "cheaper", "auction")
    program.filter("later", "narrow", pl.col("auction") > 1)
    program.sink("out", "later")
    graph = program.plan()
    shown = [predicate.text for predicate in spec(graph, "bids").predicates]
    steps = spec(graph, "cheap").steps
    assert shown == [step.predicate.text for step in steps[:2]]
    assert [type(step) for step in steps] == [specs.Filter, specs.Filter, specs.Select, specs.Filter]


def test_a_source_that_others_read_too_is_shown_no_filter(program):
    program.source()
    program.filter("cheap", "bids")
    program.sink("out", "cheap")
    program.sink("all", "bids")
    assert spec(program.plan(), "bids").predicates == ()


def test_a_source_with_event_time_is_shown_no_filter_since_every_row_tells_the_time(program):
    program.source(event_time=specs.EventTime(column="ts"))
    program.filter("cheap", "bids")
    program.sink("out", "cheap")
    assert spec(program.plan(), "bids").predicates == ()


def test_a_sink_needs_everything(program):
    program.source()
    program.filter("cheap", "bids")
    program.sink("out", "cheap")
    assert spec(program.plan(), "bids").columns is None


def test_a_function_with_named_columns_needs_those_and_one_without_needs_all(program):
    program.source()
    program.source("other")
    named = specs.Map(
        function=specs.Function(name="f", pickled=b"", columns=("price",)), output=program.outputs["bids"]
    )
    program.add("named", named, "bids")
    whole = specs.Map(function=specs.Function(name="f", pickled=b""), output=program.outputs["bids"])
    program.add("whole", whole, "other")
    program.sink("out", "named")
    program.sink("out2", "whole")
    graph = program.plan()
    assert spec(graph, "bids").columns == ("price",)
    assert spec(graph, "other").columns is None


def test_expressions_that_nobody_looks_at_are_dropped(program):
    program.source()
    program.with_columns("made", "bids", x=pl.col("price") * 2, y=pl.col("bidder") * 2)
    program.select("narrow", "made", "x", z=pl.col("auction"))
    program.select("narrower", "narrow", "x")
    program.sink("out", "narrower")
    graph = program.plan()
    assert spec(graph, "bids").columns == ("price",)
    steps = spec(graph, "made").steps
    assert [[made.name for made in step.expressions] for step in steps] == [["x"], ["x"], ["x"]]


def test_two_readers_need_the_columns_of_both(program):
    program.source()
    program.select("a", "bids", "auction")
    program.select("b", "bids", "bidder")
    program.sink("out-a", "a")
    program.sink("out-b", "b")
    assert spec(program.plan(), "bids").columns == ("auction", "bidder")


def test_rows_without_columns_do_not_exist(program):
    program.source("bids", "channel", "price")
    program.select("ones", "bids", one=pl.lit(1))
    program.sink("out", "ones")
    assert spec(program.plan(), "bids").columns == ("channel",)


def test_an_expression_over_a_selection_needs_all_columns(program):
    program.source("bids", "auction", "price")
    program.select("sums", "bids", total=pl.sum_horizontal(pl.all()))
    program.sink("out", "sums")
    assert spec(program.plan(), "bids").columns is None


def test_a_union_passes_on_what_is_needed(program):
    program.source("a")
    program.source("b")
    program.add("both", specs.Union(columns=tuple(field.name for field in program.outputs["a"])), "a", "b")
    program.select("narrow", "both", "price")
    program.sink("out", "narrow")
    graph = program.plan(parallelism=2)
    assert spec(graph, "both").columns == ("price",)
    assert spec(graph, "b").columns == ("price",)


def test_an_ingestion_column_is_made_and_not_read(program):
    source = specs.Source(
        connector=specs.Connector(kind="lines"),
        event_time=specs.EventTime(column="at"),
        time_kind="ingestion",
        ingestion_column="at",
    )
    types = (specs.Field("line", "String"), specs.Field("other", "String"), specs.Field("at", "Datetime(us)"))
    program.add("lines", source, output=types)
    program.select("narrow", "lines", "line")
    program.sink("out", "narrow")
    graph = program.plan()
    assert spec(graph, "lines").columns == ("line",)
    assert output(graph, "lines") == ["line", "at"]


def test_columns_that_only_the_sender_needs_do_not_cross_an_exchange(program):
    program.source()
    program.filter("cheap", "bids", pl.col("bidder") > 1)
    process = specs.Process(
        keys=("auction",),
        function=specs.Function(name="f", pickled=b"", columns=("price",)),
        output=program.outputs["bids"],
    )
    program.add("total", process, "cheap", by=specs.Hash(keys=("auction",)))
    program.sink("out", "total")
    graph = program.plan(parallelism=2)
    assert output(graph, "cheap") == ["auction", "price"]
    assert [type(step) for step in spec(graph, "cheap").steps] == [specs.Filter, specs.Select]


def test_the_columns_of_a_hash_edge_are_needed_by_the_edge_itself(program):
    program.source()
    named = specs.Map(
        function=specs.Function(name="f", pickled=b"", columns=("price",)), output=program.outputs["bids"]
    )
    program.add("named", named, "bids", by=specs.Hash(keys=("auction",)))
    program.sink("out", "named")
    assert spec(program.plan(parallelism=2), "bids").columns == ("auction", "price")


# ---------------------------------------------------------------- combining


def test_a_parallel_window_is_combined_before_the_exchange(program):
    program.source()
    program.window("top", "bids", "auction")
    program.sink("out", "top")
    graph = program.plan(parallelism=2)
    assert shape(graph) == {
        "bids": [("bids", None), ("top-combine", 0)],
        "top": [("top", None), ("out", 0)],
    }
    combine, window = spec(graph, "top-combine"), spec(graph, "top")
    assert (combine.keys, combine.assigner, combine.aggregates) == (window.keys, window.assigner, window.aggregates)
    assert window.input_is_partial
    assert graph.edges[0].producer == 1
    assert graph.edges[0].partitioning == specs.Hash(keys=("auction",))
    assert "auction" in output(graph, "top-combine")


def test_a_window_in_one_subtask_aggregates_itself(program):
    program.source()
    program.window("top", "bids", "auction")
    program.sink("out", "top")
    graph = program.plan(parallelism=1)
    assert shape(graph) == {"bids": [("bids", None), ("top", 0), ("out", 1)]}
    assert not spec(graph, "top").input_is_partial


def test_a_window_without_a_key_is_combined_in_parallel_and_finished_by_one(program):
    program.source()
    program.window("top", "bids")
    program.sink("out", "top")
    graph = program.plan(parallelism=4)
    assert [(vertex.id, vertex.parallelism) for vertex in graph.vertices] == [("bids", 4), ("top", 1), ("out", 4)]
    assert [edge.partitioning for edge in graph.edges] == [specs.Rebalance(), specs.Rebalance()]
    assert spec(graph, "top").input_is_partial


def test_windows_by_the_clock_are_not_combined(program):
    program.source()
    program.window("top", "bids", "auction", processing_time=True)
    program.sink("out", "top")
    graph = program.plan(parallelism=2)
    assert not spec(graph, "top").input_is_partial
    assert "bids" in shape(graph)


# ---------------------------------------------------------------- refusals and JSON


def test_more_parallelism_than_key_groups_is_refused(program):
    program.source()
    program.filter("cheap", "bids", parallelism=200)
    program.sink("out", "cheap")
    with pytest.raises(UserError) as caught:
        program.plan()
    assert caught.value.code == "P013"
    assert caught.value.where == "prog.py:1"
    assert 'operator "cheap" has parallelism 200; allowed is 1 to 128' in caught.value.what
    with pytest.raises(UserError, match="P013 max parallelism must be from 1 to 32768"):
        program.plan(max_parallelism=40_000)


def test_dangling_doubled_and_circular_graphs_are_refused(program):
    program.source()
    program.filter("cheap", "bids")
    with pytest.raises(UserError, match=r'P002 prog.py:1: operator "cheap" has no consumer'):
        program.plan()
    program.sink("out", "cheap")
    program.sink("out", "cheap")
    with pytest.raises(UserError, match=r'P003 prog.py:3: uid "out" used by 2 operators'):
        program.plan()
    program.nodes.pop()
    program.nodes.reverse()
    with pytest.raises(UserError, match="in a cycle"):
        program.plan()


def test_graphs_survive_json(program):
    program.source()
    program.filter("cheap", "bids")
    program.window("top", "cheap", "auction", processing_time=True)
    program.sink("out", "top")
    for graph, kind in ((program.plan(parallelism=2), JobGraph), (program.logical(), LogicalGraph)):
        assert msgspec.json.decode(msgspec.json.encode(graph), type=kind) == graph
