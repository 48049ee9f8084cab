"""The verbs of a stream: what they add to the graph, and what they refuse."""

import polars as pl
import pytest

import penstock as ps
from penstock import col
from penstock.api import Flow, KeyedStream
from penstock.model import specs
from penstock.model.errors import UserError


def node(flow: Flow, uid: str) -> specs.Operator:
    return next(each.operator for each in flow._builder.logical().nodes if each.operator.uid == uid)


def test_select_and_with_columns_know_the_types_they_make(bids):
    made = bids.with_columns(euros=col("price") * 0.9).select("auction", "euros", half=col("euros") / 2)
    assert made.schema == {"auction": pl.Int64, "euros": pl.Float64, "half": pl.Float64}


def test_explode_takes_lists_only(bids):
    words = bids.select("ts", word=col("channel").str.split(" ")).explode("word")
    assert words.schema["word"] == pl.String()
    with pytest.raises(UserError, match='"channel" is String, not a List'):
        bids.explode("channel")
    with pytest.raises(UserError, match='did you mean "channel"'):
        bids.explode("chanel")


def test_union_wants_the_same_columns_and_types(flow, bids, table):
    both = bids.union(bids.filter(col("price") > 1))
    assert both.schema == bids.schema
    assert both.event_time == bids.event_time
    with pytest.raises(UserError, match='no column "bidder"'):
        bids.union(bids.select("auction", "price", "channel", "ts"))
    with pytest.raises(UserError, match="Int64 here and Float64 in stream 1"):
        bids.union(bids.with_columns(price=col("price") * 0.5))
    with pytest.raises(UserError, match='has a column "x" more'):
        bids.union(bids.with_columns(x=1))


def test_key_by_takes_columns_and_named_expressions(bids):
    keyed = bids.key_by("auction", bucket=col("price") // 100)
    assert isinstance(keyed, KeyedStream)
    assert keyed.keys == ("auction", "bucket")
    assert bids.key_by(col("auction")).keys == ("auction",)
    with pytest.raises(UserError, match="has no name of its own"):
        bids.key_by(col("price") // 100)
    with pytest.raises(UserError, match='did you mean "auction"'):
        bids.key_by("action")


@pytest.mark.parametrize("kind", [pl.List(pl.Int64), pl.Struct({"a": pl.Int64})])
def test_a_key_that_cannot_be_hashed_is_refused(flow, table, kind):
    stream = flow.read(table(schema=pl.Schema({"k": kind})))
    with pytest.raises(UserError, match=r"P005.*key_by.*cannot be a key"):
        stream.key_by("k")


def test_floats_and_strings_can_be_keys(flow, table):
    stream = flow.read(table(schema=pl.Schema({"f": pl.Float64, "s": pl.String, "d": pl.Date})))
    assert stream.key_by("f", "s", "d").keys == ("f", "s", "d")


def test_window_results_have_keys_bounds_and_aggregates(flow, bids, table):
    hot = (
        bids.key_by("auction")
        .window(ps.sliding("10s", every="2s"))
        .agg(bids=ps.count(), top=ps.max("price"), mean=ps.mean(col("price") * 2), who=ps.max_by("bidder", "price"))
    )
    time = pl.Datetime("us")
    assert hot.schema == {
        "auction": pl.Int64, "window_start": time, "window_end": time,
        "bids": pl.Int64, "top": pl.Int64, "mean": pl.Float64, "who": pl.Int64,
    }  # fmt: skip
    assert hot.event_time == specs.EventTime(column="window_end", unit="us", offset_us=-1)
    hot.write(table(), uid="out")
    window = next(each.operator.spec for each in flow._builder.logical().nodes if "window" in each.operator.uid)
    assert window.assigner == specs.Sliding(size_us=10_000_000, slide_us=2_000_000)
    assert [aggregate.function for aggregate in window.aggregates] == ["count", "max", "mean", "max_by"]


def test_aggregates_are_checked_like_expressions(bids):
    window = bids.key_by("auction").window(ps.tumbling("10s"))
    with pytest.raises(UserError, match='did you mean "price"'):
        window.agg(top=ps.max("pricee"))
    with pytest.raises(UserError, match="takes numbers and durations, and this is String"):
        window.agg(top=ps.sum("channel"))
    with pytest.raises(UserError, match="takes booleans, and this is Int64"):
        window.agg(top=ps.any("price"))
    with pytest.raises(UserError, match='has a column "auction" already'):
        window.agg(auction=ps.count())
    with pytest.raises(UserError, match="is not an aggregate"):
        window.agg(top=col("price").max())
    with pytest.raises(UserError, match="no aggregate given"):
        window.agg()


def test_every_aggregate_has_the_type_that_polars_gives(bids):
    typed = bids.with_columns(flag=col("price") > 1).key_by("auction").window(ps.tumbling("10s"))
    made = typed.agg(
        {"name": ps.first("channel")},
        last=ps.last("ts"), low=ps.min("price"), total=ps.sum("price"), v=ps.var("price"), s=ps.std("price"),
        some=ps.any("flag"), every=ps.all("flag"), cheapest=ps.min_by("channel", "price"), n=ps.count("channel"),
    )  # fmt: skip
    assert dict(made.schema.items()) == {
        "auction": pl.Int64(), "window_start": pl.Datetime("us"), "window_end": pl.Datetime("us"),
        "name": pl.String(), "last": pl.Datetime("us"), "low": pl.Int64(), "total": pl.Int64(), "v": pl.Float64(),
        "s": pl.Float64(), "some": pl.Boolean(), "every": pl.Boolean(), "cheapest": pl.String(), "n": pl.Int64(),
    }  # fmt: skip


def test_a_window_without_a_key_runs_once(flow, bids, table):
    bids.window(ps.tumbling("1m")).agg(n=ps.count(), uid="all").write(table())
    (window,) = [each for each in flow._builder.logical().nodes if each.operator.uid == "all"]
    assert window.parallelism == 1
    with pytest.raises(UserError, match="without a key cannot have parallelism 4"):
        bids.window(ps.tumbling("1m")).agg(n=ps.count(), parallelism=4)


def test_window_sizes_that_make_no_sense_are_refused():
    with pytest.raises(UserError, match="longer than nothing"):
        ps.tumbling("0s")
    with pytest.raises(UserError, match="not a multiple"):
        ps.sliding("10s", every="3s")
    with pytest.raises(UserError, match='cannot read "ten" as a duration') as caught:
        ps.tumbling("ten")
    assert caught.value.where is not None
    assert "test_streams.py" in caught.value.where
    assert ps.tumbling("10s", offset="12s").offset_us == 2_000_000


def test_rebalance_broadcast_and_key_by_mark_the_next_edge(flow, bids, table):
    bids.rebalance().filter(col("price") > 1, uid="a").broadcast().filter(col("price") > 1, uid="b").write(table())
    partitioning = {edge.target: edge.partitioning for edge in flow._builder.logical().edges}
    assert partitioning["a"] == specs.Rebalance()
    assert partitioning["b"] == specs.Broadcast()


def test_process_needs_a_key(bids):
    with pytest.raises(UserError, match="state is kept by key"):
        bids.process(ps.KeyedProcessFunction())
    with pytest.raises(UserError, match="is not a ProcessFunction"):
        bids.process(object())


def test_write_asks_the_sink_and_names_the_place(bids, table):
    with pytest.raises(UserError, match="cannot write price") as caught:
        bids.write(table(refuses="price"))
    assert "test_streams.py" in (caught.value.where or "")
    with pytest.raises(UserError, match='"results" cannot be written to'):
        bids.write("results")


def test_reading_from_what_is_no_source_shows_how(flow):
    with pytest.raises(UserError, match=r'"bids.parquet" cannot be read from') as caught:
        flow.read("bids.parquet")
    assert "ps.parquet" in (caught.value.fix or "")


def test_a_source_without_columns_asks_for_a_schema(flow, table):
    with pytest.raises(UserError, match="the columns of table are not known"):
        flow.read(table())
    assert flow.read(table(), schema={"a": pl.Int64}).columns == ["a"]
    with pytest.raises(UserError, match="schema= differs from the columns that table has"):
        flow.read(table(schema=pl.Schema({"b": pl.Int64})), schema={"a": pl.Int64})


def test_parallelism_below_one_is_refused(bids):
    with pytest.raises(UserError, match=r"P013.*parallelism must be a whole number from 1 on; got 0"):
        bids.filter(col("price") > 1, parallelism=0)


def test_every_public_name_is_there():
    assert set(ps.__all__) == set(ps._HOME_OF)
    for name in ps.__all__:
        assert getattr(ps, name) is not None
    with pytest.raises(AttributeError, match="no attribute 'tumblin'"):
        _ = ps.tumblin  # type: ignore[attr-defined]


def test_an_unknown_side_output_is_refused_with_what_there_is(bids):
    with pytest.raises(UserError, match="no side output") as refused:
        bids.side_output("late")
    assert "it has (none)" in str(refused.value)


@pytest.mark.parametrize(
    ("name", "meant"),
    [("where", "filter"), ("groupBy", "key_by"), ("with_column", "with_columns"), ("print", r"write\(ps.print\(\)\)")],
)
def test_who_looks_for_a_verb_of_another_system_is_told_ours(bids, name, meant):
    with pytest.raises(AttributeError, match=f"a DataStream has no verb {name}; did you mean {meant}"):
        getattr(bids, name)
    with pytest.raises(AttributeError, match="a WindowedStream has no verb sum; did you mean agg"):
        bids.key_by("auction").window(ps.tumbling("1s")).sum("price")
    assert not hasattr(bids, "nothing_like_it")
