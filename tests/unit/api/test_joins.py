"""Joins in programs: columns, keys, times, and what is refused."""

import polars as pl
import pytest

import penstock as ps
from penstock.model import specs
from penstock.model.errors import UserError

PERSON = pl.Schema({"id": pl.Int64, "name": pl.String, "ts": pl.Datetime("us"), "price": pl.Float64})


@pytest.fixture
def people(flow, table):
    return flow.read(table(schema=PERSON, kind="people"), event_time="ts", uid="people")


def test_columns_that_clash_get_a_suffix_and_shared_keys_come_once(bids, people):
    renamed = people.select("name", "ts", "price", bidder=ps.col("id"))
    joined = bids.join(renamed, on="bidder", within=ps.tumbling("10s"))
    assert joined.columns == [
        "auction", "bidder", "price", "channel", "ts", "name", "ts_right", "price_right", "window_start", "window_end",
    ]  # fmt: skip
    assert joined.event_time == specs.EventTime(column="window_end", unit="us", offset_us=-1)
    assert joined.changes is None


def test_keys_of_different_names_are_both_there(bids, people):
    joined = bids.join(people, left_on="bidder", right_on="id", within=ps.interval("-5s", "5s"), suffix="_of_person")
    assert "id" in joined.columns
    assert "price_of_person" in joined.columns
    assert joined.event_time == bids.event_time


def test_the_time_of_a_right_interval_join_is_that_of_the_right_side(bids, people):
    joined = bids.interval_join(people, left_on="bidder", right_on="id", lower="-5s", upper="1s", how="right")
    assert joined.event_time.column == "ts_right"
    with pytest.raises(UserError, match=r"full join at .* has rows of either side"):
        bids.interval_join(people, left_on="bidder", right_on="id", lower="-5s", upper="1s", how="full").window(
            ps.tumbling("1s")
        )


def test_semi_and_anti_joins_have_the_columns_of_the_left_side(bids, people):
    for how in ("semi", "anti"):
        joined = bids.join(people, left_on="bidder", right_on="id", how=how, within=ps.interval("0s", "5s"))
        assert joined.schema == bids.schema


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"on": "price"}, 'key "price" is Int64 on the left'),
        ({"on": "bidder"}, 'join: right side: there is no column "bidder"'),
        ({"left_on": "bidder"}, "1 keys on the left and 0 on the right"),
        ({"left_on": "bidder", "right_on": "id", "on": "x"}, "on= and left_on="),
        ({"left_on": "bidder", "right_on": "id", "how": "outer"}, "how='outer' is none of"),
        ({"left_on": "bidder", "right_on": "id", "suffix": ""}, 'two columns "ts"'),
        ({"left_on": "bidder", "right_on": "id", "within": "10s"}, "within='10s' is not a time"),
        ({"left_on": "bidder", "right_on": "id", "within": ps.tumbling("1s"), "ttl": "1h"}, "ttl= is for"),
        ({"left_on": "bidder", "right_on": "id", "within": ps.as_of(), "how": "full"}, 'cannot be how="full"'),
    ],
)
def test_joins_that_cannot_be_made_are_refused(bids, people, arguments, message):
    with pytest.raises(UserError) as caught:
        bids.join(people, **arguments)
    assert message in caught.value.what
    assert caught.value.fix


def test_a_join_in_time_needs_event_time_on_both_sides(flow, bids, table):
    timeless = flow.read(table(schema=PERSON, kind="other"), uid="timeless")
    with pytest.raises(UserError, match=r"P021.*right stream has no event time"):
        bids.join(timeless, left_on="bidder", right_on="id", within=ps.tumbling("1s"))
    with pytest.raises(UserError, match=r"P031.*interval"):
        ps.interval("5s", "-5s")


def test_outer_joins_over_all_of_time_update_and_inner_ones_do_not(bids, people):
    def over_all_of_time(left, how):
        return left.join(people, left_on="bidder", right_on="id", how=how, ttl="1h")

    assert over_all_of_time(bids, "inner").changes is None
    assert over_all_of_time(bids, "semi").changes is None
    for how in ("left", "right", "full", "anti"):
        assert over_all_of_time(bids, how).changes == specs.Changes(keys=None, updates=False)
    totals = bids.key_by("bidder").agg(total=ps.sum("price"))
    assert over_all_of_time(totals, "inner").changes == specs.Changes(keys=None, updates=False)
    with pytest.raises(UserError, match=r"window: the stream has no event time: join at"):
        over_all_of_time(bids, "inner").window(ps.tumbling("1s"))


def test_a_broadcast_side_makes_a_broadcast_join(flow, bids, people):
    bids.join(people.broadcast(), left_on="bidder", right_on="id").write(ps.print())
    graph = flow.plan(parallelism=2)
    (join,) = [link.operator for vertex in graph.vertices for link in vertex.chain if link.operator.name == "join"]
    assert join.spec.match == specs.BroadcastMatch()
    ports = {edge.port: edge.partitioning for edge in graph.edges if edge.target == join.uid}
    assert ports == {0: specs.Forward(), 1: specs.Broadcast()}
    with pytest.raises(UserError, match=r'broadcast rows cannot be how="full"'):
        bids.join(people.broadcast(), left_on="bidder", right_on="id", how="full")


def test_only_the_columns_that_are_looked_at_travel(flow, bids, people):
    joined = bids.join(people, left_on="bidder", right_on="id", within=ps.tumbling("10s"))
    joined.select("auction", "name").write(ps.print())
    graph = flow.plan(parallelism=2)
    read = {vertex.chain[0].operator.uid: vertex.chain[0].operator.spec.columns for vertex in graph.vertices[:2]}
    assert read == {"bids": ("auction", "bidder", "ts"), "people": ("id", "name", "ts")}
    (join,) = [link.operator for vertex in graph.vertices for link in vertex.chain if link.operator.name == "join"]
    assert [field.name for field in join.output] == ["auction", "name"]
    ports = {edge.port: edge.partitioning for edge in graph.edges if edge.target == join.uid}
    assert ports == {0: specs.Hash(keys=("bidder",)), 1: specs.Hash(keys=("id",))}
