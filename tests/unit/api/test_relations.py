"""Deduplication, distinct, top-n, lookups and co-groups in programs."""

import polars as pl
import pytest

import penstock as ps
from penstock.model import specs
from penstock.model.errors import UserError


def test_keeping_the_first_only_inserts_and_keeping_the_last_updates(bids):
    assert bids.deduplicate("auction").changes is None
    assert bids.key_by("auction").deduplicate(keep="last").changes == specs.Changes(keys=("auction",))
    assert bids.deduplicate("auction", by="event_time").event_time == bids.event_time
    with pytest.raises(UserError, match=r"P020.*deduplicate"):
        bids.deduplicate()
    with pytest.raises(UserError, match=r"P021.*no event time"):
        bids.select("auction").deduplicate("auction", by="event_time")


def test_distinct_has_the_columns_it_was_asked_for(bids):
    assert bids.distinct("auction", "channel").columns == ["auction", "channel"]
    assert bids.distinct().columns == bids.columns


def test_running_top_n_updates_and_windowed_top_n_does_not(bids):
    keyed = bids.key_by("auction")
    assert keyed.top_n(3, by="price").changes == specs.Changes(keys=None, updates=False)
    ranked = keyed.top_n(3, by=["price", "ts"], descending=[True, False], rank="place")
    assert ranked.changes == specs.Changes(keys=("auction", "place"))
    assert ranked.schema["place"] == pl.Int64()
    windowed = keyed.top_n(3, by="price", within=ps.tumbling("10s"))
    assert windowed.changes is None
    assert windowed.columns == [*bids.columns, "window_start", "window_end"]
    assert windowed.event_time.column == "window_end"
    for wrong in ({"n": 0, "by": "price"}, {"n": 1, "by": []}, {"n": 1, "by": "price", "descending": []}):
        with pytest.raises(UserError, match=r"P020.*top_n"):
            bids.top_n(**wrong)
    with pytest.raises(UserError, match=r'a column "price" already'):
        bids.top_n(1, by="price", rank="price")


def test_a_lookup_gives_columns_of_its_own(bids):
    joined = bids.join(ps.lookup(lambda bidder: None, output={"name": str, "price": float}), on="bidder", how="left")
    assert joined.schema["name"] == pl.String()
    assert joined.schema["price_right"] == pl.Float64()
    assert joined.event_time == bids.event_time
    with pytest.raises(UserError, match=r"P031.*lookup"):
        bids.join(ps.lookup(lambda bidder: None, output={"name": str}), on="bidder", how="full")
    with pytest.raises(UserError, match=r"P031.*lookup"):
        ps.lookup(lambda bidder: None, per="row")


def test_a_co_group_has_the_columns_of_its_function_and_the_window(bids):
    made = bids.co_group(bids, lambda left, right: left, on="auction", within=ps.tumbling("1s"), output={"n": int})
    assert made.columns == ["n", "window_start", "window_end"]
    with pytest.raises(UserError, match=r"P031.*co_group"):
        bids.co_group(bids, lambda left, right: left, on="auction", within="1s", output={"n": int})


def test_columns_that_nobody_looks_at_do_not_travel(flow, bids):
    top = bids.key_by("auction").top_n(2, by="price", within=ps.tumbling("1s"))
    top.deduplicate("auction").select("auction").write(ps.print())
    graph = flow.plan(parallelism=2)
    assert graph.vertices[0].chain[0].operator.spec.columns == ("auction", "price", "ts")
