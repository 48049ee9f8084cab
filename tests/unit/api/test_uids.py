"""Uids: given ones are unique, made ones depend on the place in the graph and on nothing else."""

import polars as pl
import pytest

import penstock as ps
from penstock import col
from penstock.api import Flow
from penstock.model import specs
from penstock.model.errors import UserError


def build(table, *, with_filter: bool, read_first: bool = False) -> dict[str, str]:
    schema = pl.Schema({"a": pl.Int64, "t": pl.Datetime("us")})
    flow = Flow("uids")
    if read_first:
        flow.read(table(kind="other", schema=schema)).write(table())
    stream = flow.read(table(schema=schema), event_time="t")
    if with_filter:
        stream = stream.filter(col("a") > 1).with_columns(b=1)
    stream.key_by("a").window(ps.tumbling("1s")).agg(n=ps.count()).write(table())
    return {type(node.operator.spec).__name__: node.operator.uid for node in flow._builder.logical().nodes}


def test_the_same_program_has_the_same_uids(table):
    assert build(table, with_filter=True) == build(table, with_filter=True)


def test_stateless_verbs_in_between_do_not_change_the_uids_of_stateful_ones(table):
    plain, filtered = build(table, with_filter=False), build(table, with_filter=True)
    for stateful in ("Source", "WindowAggregate", "Sink"):
        assert plain[stateful] == filtered[stateful]


def test_an_unrelated_stream_does_not_change_uids(table):
    alone, beside = build(table, with_filter=False), build(table, with_filter=False, read_first=True)
    assert alone["WindowAggregate"] == beside["WindowAggregate"]


def test_two_operators_in_the_same_place_get_different_uids(flow, bids, table):
    for _ in range(2):
        bids.key_by("auction").window(ps.tumbling("1s")).agg(n=ps.count()).write(table())
    uids = [node.operator.uid for node in flow._builder.logical().nodes]
    assert len(uids) == len(set(uids)) == 5


def test_a_uid_given_twice_is_refused_with_both_places(bids):
    bids.filter(col("price") > 1, uid="count")
    with pytest.raises(UserError) as caught:
        bids.filter(col("price") > 1, uid="count")
    assert caught.value.code == "P003"
    assert 'uid "count" used by 2 operators' in caught.value.what
    assert "test_uids.py" in caught.value.what
    assert "test_uids.py" in (caught.value.where or "")


@pytest.mark.parametrize("uid", ["", "a/b", "a#1", "a\nb"])
def test_a_uid_that_would_break_a_path_is_refused(bids, uid):
    with pytest.raises(UserError, match=r"P003.*cannot be used"):
        bids.filter(col("price") > 1, uid=uid)


def test_stateful_operators_without_uid_are_warned_about_once(flow, bids, table):
    bids.filter(col("price") > 1).write(table(), name="results")
    (warning,) = flow.plan().warnings
    assert warning.startswith("stateful operators without uid: results (")
    assert "bids" not in warning.partition(";")[0].replace("test_uids", "")


def test_a_program_whose_stateful_operators_are_named_has_no_warning(flow, bids, table):
    bids.write(table(), uid="out")
    assert flow.plan().warnings == ()


def test_a_stream_without_a_reader_is_named_with_its_place(flow, bids):
    bids.filter(col("price") > 1)
    with pytest.raises(UserError, match=r'P002 .*test_uids.py:\d+: operator "filter-1" has no consumer'):
        flow.plan()


def test_a_program_that_reads_nothing_is_refused():
    with pytest.raises(UserError, match='P002 program "empty" reads nothing'):
        Flow("empty").plan()


def test_operators_are_called_by_their_name_uid_or_verb(flow, bids, table):
    bids.filter(col("price") > 1).select("price", name="narrow").write(table(), uid="out")
    names = [node.operator.name for node in flow._builder.logical().nodes]
    assert names == ["bids", "filter", "narrow", "out"]
    assert isinstance(flow._builder.logical().nodes[-1].operator.spec, specs.Sink)
