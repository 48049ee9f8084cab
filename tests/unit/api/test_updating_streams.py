"""Updating streams: their type says so, verbs keep it right, and what cannot take them refuses by name."""

import polars as pl
import pytest

import penstock as ps
from penstock import col
from penstock.model import specs
from penstock.model.changes import CHANGE
from penstock.model.errors import UserError


def operator(flow, verb):
    return next(each.operator for each in flow._builder.logical().nodes if each.operator.uid.startswith(verb))


@pytest.fixture
def totals(bids):
    return bids.key_by("auction").agg(total=ps.sum("price"), bids=ps.count())


def test_a_running_aggregate_says_that_it_updates_by_its_keys(flow, bids, totals):
    assert bids.changes is None
    assert totals.changes == specs.Changes(keys=("auction",))
    assert totals.schema == {"auction": pl.Int64, "total": pl.Int64, "bids": pl.Int64}
    made = operator(flow, "agg")
    assert [field.name for field in made.output] == [CHANGE, "auction", "total", "bids"]
    assert made.changes == totals.changes
    assert bids.agg(n=ps.count()).changes == specs.Changes(keys=())


def test_select_follows_the_keys(totals):
    renamed = totals.select("total", item=col("auction"))
    assert renamed.changes == specs.Changes(keys=("item",))
    assert renamed.schema == {"total": pl.Int64, "item": pl.Int64}


def test_select_without_the_keys_has_deletes_and_inserts(flow, totals):
    lost = totals.select("total")
    assert lost.changes == specs.Changes(keys=None, updates=False)
    assert operator(flow, "retract").spec == specs.Retract(keys=("auction",))


def test_a_filter_by_values_takes_back_what_no_longer_passes(flow, totals):
    assert totals.filter(col("auction") > 3).changes == specs.Changes(keys=("auction",))
    assert not any(each.operator.uid.startswith("retract") for each in flow._builder.logical().nodes)
    assert totals.filter(col("total") > 3).changes == specs.Changes(keys=("auction",), updates=False)
    assert operator(flow, "retract").spec == specs.Retract(keys=("auction",))


def test_with_columns_keeps_the_keys_unless_it_replaces_them(totals):
    assert totals.with_columns(mean=col("total") / col("bids")).changes == totals.changes
    assert totals.with_columns(auction=col("auction") // 2).changes == specs.Changes(keys=None, updates=False)


@pytest.mark.parametrize(
    ("verb", "use"),
    [
        ("map", lambda stream: stream.map(lambda total: total, output={"total": pl.Int64})),
        ("explode", lambda stream: stream.with_columns(x=pl.concat_list("total")).explode("x")),
        ("map_batches", lambda stream: stream.map_batches(lambda frame: frame, output=stream.schema)),
    ],
)
def test_verbs_that_cannot_take_updates_refuse(totals, verb, use):
    with pytest.raises(UserError, match=rf"(?s)P030.*{verb}.*by auction.*as_changelog"):
        use(totals)


def test_aggregates_and_top_n_take_updates_and_say_what_they_cannot(bids, totals):
    again = totals.key_by("total").agg(n=ps.count(), high=ps.max("auction"))
    assert again.changes == specs.Changes(keys=("total",))
    assert totals.top_n(3, by="total").changes == specs.Changes(keys=None, updates=False)
    with pytest.raises(UserError, match=r"(?s)P065.*ttl"):
        totals.key_by("total").agg(n=ps.count(), ttl="1h")
    with pytest.raises(UserError, match=r"(?s)P065.*ttl"):
        totals.top_n(3, by="total", ttl="1h")
    with pytest.raises(UserError, match=r"(?s)P066.*no event time.*max_by"):
        totals.agg(last=ps.last("total"))
    listed = totals.with_columns(both=pl.concat_list("auction", "total"))
    with pytest.raises(UserError, match=r'(?s)P067.*"both".*List'):
        listed.top_n(3, by="total")
    with pytest.raises(UserError, match=r"(?s)P067.*List"):
        listed.agg(lists=ps.count_distinct("both"))
    late = bids.deduplicate("auction", keep="last", by="event_time")
    with pytest.raises(UserError, match=r"(?s)P030.*top_n in windows"):
        late.top_n(3, by="price", within=ps.tumbling("10s"))


def test_files_refuse_updates_and_screens_show_a_changelog(flow, totals, tmp_path):
    with pytest.raises(UserError, match=r"(?s)P030.*parquet.*as_changelog"):
        totals.write(ps.parquet(tmp_path))
    totals.as_changelog().write(ps.parquet(tmp_path))
    totals.write(ps.print())
    assert "change" in [field.name for field in operator(flow, "write").output]


def test_a_changelog_only_inserts(bids, totals):
    log = totals.as_changelog()
    assert log.changes is None
    assert log.schema["change"] == pl.String()
    assert totals.as_changelog("what").columns[-1] == "what"
    assert bids.as_changelog().schema["change"] == pl.String()
    with pytest.raises(UserError, match='a column "total" already'):
        totals.as_changelog("total")


def test_changes_of_a_key_take_one_way_where_the_parallelism_changes(flow, totals):
    totals.as_changelog().write(ps.print(), parallelism=3)
    totals.with_columns(x=1, parallelism=3).write(ps.print(), parallelism=3)
    graph = flow.plan(parallelism=2)
    spread = {edge.target: edge.partitioning for edge in graph.edges}
    assert specs.Hash(keys=("auction",)) in [spread[target] for target in spread if target.startswith("with_columns")]


def test_the_time_to_live_goes_by_event_time_where_there_is_one(flow, bids, table):
    bids.key_by("auction").agg(n=ps.count(), ttl="1h")
    time = specs.EventTime(column="ts", unit="us")
    assert operator(flow, "agg").spec.ttl == specs.TimeToLive(us=3_600_000_000, event_time=time)
    with pytest.raises(UserError, match=r"P011.*ttl"):
        bids.key_by("auction").agg(n=ps.count(), ttl="0s")


def test_a_union_of_updating_streams_keeps_their_rows_apart(bids, totals):
    with pytest.raises(UserError, match=r'(?s)P030.*by auction.*source="origin"'):
        totals.union(totals.filter(col("auction") > 3))
    both = totals.union(totals.filter(col("auction") > 3), source="origin")
    assert both.changes == specs.Changes(keys=("origin", "auction"))
    assert both.schema["origin"] == pl.Int32()
    with pytest.raises(UserError, match=r"(?s)P030.*not all do so"):
        totals.union(bids.select("auction", total=col("price"), bids=col("bidder")), source="origin")
