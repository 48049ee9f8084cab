"""Windows as programs use them: late rows, sessions, and what is refused when the program is built."""

import polars as pl
import pytest

import penstock as ps
from penstock import col, testing
from penstock.model.errors import UserError


def bid(ts, price, auction=1, patience=5):
    return {"auction": auction, "price": price, "ts": ts, "patience": patience}


def bids(*elements, **options):
    return {"bids": testing.source(elements, event_time="ts", unit="s", **options)}


LATE = (
    bid(1, 5), testing.watermark(10), bid(2, 6), bid(3, 7, auction=2), testing.watermark(70), bid(4, 9), bid(80, 1),
)  # fmt: skip


@pytest.mark.parametrize("parallelism", [1, 3])
def test_late_rows_update_their_window_and_later_ones_go_aside(parallelism):
    def program(bids):
        window = bids.key_by("auction").window(ps.tumbling("10s"), allowed_lateness="1m", late_to="late")
        sums = window.agg(total=ps.sum("price"), uid="summing")
        assert sums.changes.keys == ("auction", "window_start", "window_end")
        late = sums.side_output("late")
        assert (late.schema, late.event_time) == (bids.schema, bids.event_time)
        return {"sums": sums.as_changelog(), "late": late.select("price", twice=col("price") * 2)}

    result = testing.run_stream(program, bids(*LATE), parallelism=parallelism)
    assert sorted(result.rows("sums")) == [
        (1, 0, 10, 5, "insert"),
        (1, 0, 10, 11, "update"),
        (1, 80, 90, 1, "insert"),
        (2, 0, 10, 7, "insert"),
    ]
    assert result.rows("late") == [(9, 18)]
    testing.assert_late(result, 1, operator="summing")


def test_a_late_output_that_nobody_reads_costs_nothing(flow, bids):
    sums = bids.key_by("auction").window(ps.tumbling("10s"), late_to="late").agg(total=ps.sum("price"), uid="sums")
    sums.write(ps.discard())
    operators = [link.operator for vertex in flow.plan(parallelism=2).vertices for link in vertex.chain]
    assert not any(operator.side_outputs for operator in operators)
    assert "sums-combine" in [operator.uid for operator in operators]


def test_late_rows_are_not_combined_before_they_are_judged(flow, bids):
    sums = bids.key_by("auction").window(ps.tumbling("10s"), late_to="late").agg(total=ps.sum("price"), uid="sums")
    sums.side_output("late").write(ps.discard())
    operators = [link.operator for vertex in flow.plan(parallelism=2).vertices for link in vertex.chain]
    assert "sums-combine" not in [operator.uid for operator in operators]


def test_without_lateness_results_only_insert(bids):
    assert bids.window(ps.tumbling("10s")).agg(n=ps.count()).changes is None


@pytest.mark.parametrize("parallelism", [1, 3])
def test_sessions_by_a_gap_and_by_a_gap_of_each_row(parallelism):
    rows = (bid(0, 1), bid(4, 2), bid(11, 3, patience=30), bid(40, 4), bid(3, 10, auction=2))

    def program(bids):
        keyed = bids.key_by("auction")
        return {
            "fixed": keyed.window(ps.session("5s")).agg(total=ps.sum("price"), uid="by-gap"),
            "own": keyed.window(ps.session(gap=col("patience"))).agg(total=ps.sum("price"), uid="by-row"),
            "all": bids.window(ps.session("7s")).agg(total=ps.sum("price"), uid="unkeyed"),
        }

    result = testing.run_stream(program, bids(*rows), parallelism=parallelism)
    assert sorted(result.rows("fixed")) == [(1, 0, 9, 3), (1, 11, 16, 3), (1, 40, 45, 4), (2, 3, 8, 10)]
    assert sorted(result.rows("own")) == [(1, 0, 9, 3), (1, 11, 45, 7), (2, 3, 8, 10)]
    assert sorted(result.rows("all")) == [(0, 18, 16), (40, 47, 4)]


@pytest.mark.parametrize("parallelism", [1, 2])
def test_sessions_with_late_rows_survive_a_crash(parallelism):
    rows = (
        bid(0, 1), bid(10, 2), testing.watermark(30), testing.checkpoint(), bid(5, 4), bid(2, 8),
        testing.crash(), testing.watermark(100), bid(6, 1), bid(200, 1),
    )  # fmt: skip

    def program(bids):
        window = bids.key_by("auction").window(ps.session("5s"), allowed_lateness="1m", late_to="late")
        made = window.agg(total=ps.sum("price"), uid="visits")
        return {"sessions": made.as_changelog(), "late": made.side_output("late")}

    result = testing.run_stream(program, bids(*rows, batch_rows=1), parallelism=parallelism)
    table = {}
    for auction, start, end, total, change in result.rows("sessions"):
        if change == "delete":
            assert table.pop((auction, start, end)) == total
        else:
            table[(auction, start, end)] = total
    assert table == {(1, 0, 15): 15, (1, 200, 205): 1}
    assert result["late"]["price"].to_list() == [1]


def test_what_is_no_window_is_refused(bids, flow, table):
    with pytest.raises(UserError, match="is not a window"):
        bids.window("10s")
    with pytest.raises(UserError, match=r'the gap "channel" is String'):
        bids.window(ps.session(gap=col("channel"))).agg(n=ps.count())
    with pytest.raises(UserError, match="longer than nothing"):
        ps.session("0s")
    with pytest.raises(UserError, match="cannot be"):
        bids.window(ps.tumbling("1s"), allowed_lateness=-1)
    clock = flow.read(table(schema=pl.Schema({"n": pl.Int64()})), time="processing", uid="clock")
    with pytest.raises(UserError, match="no row is ever late"):
        clock.window(ps.tumbling("1s"), late_to="late")


def test_an_unknown_side_output_names_the_nearest(bids):
    counts = bids.window(ps.tumbling("1s"), late_to="late-bids").agg(n=ps.count())
    with pytest.raises(UserError, match='did you mean "late-bids"'):
        counts.side_output("late-bid")
