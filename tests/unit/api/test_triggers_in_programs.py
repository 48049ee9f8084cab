"""Triggers, evictors and window functions as programs use them."""

import polars as pl
import pytest

import penstock as ps
from penstock import col, testing
from penstock.model.errors import UserError


def bid(ts, price, auction=1):
    return {"auction": auction, "price": price, "ts": ts}


def given(*elements):
    return {"bids": testing.source(elements, event_time="ts", unit="s")}


@pytest.mark.parametrize("parallelism", [1, 3])
def test_the_listing_of_the_papers(parallelism):
    """A global window, a trigger every 1000 rows, the last 100 kept."""

    def program(bids):
        window = bids.window(ps.global_window()).trigger(ps.trigger.count(1000)).evict(ps.evictor.count(100))
        keyed = bids.key_by("auction").window(ps.global_window()).trigger(ps.trigger.count(1000))
        return {
            "all": window.agg(total=ps.sum("price"), rows=ps.count(), uid="unkeyed"),
            "each": keyed.evict(ps.evictor.count(100)).agg(total=ps.sum("price"), uid="keyed"),
        }

    rows = [bid(n, n, auction=n % 2) for n in range(2_500)]
    result = testing.run_stream(program, given(*rows), parallelism=parallelism)
    assert [count for _, count in result.rows("all")] == [100, 100]
    if parallelism == 1:
        assert result.rows("all") == [(sum(range(900, 1000)), 100), (sum(range(1900, 2000)), 100)]
    assert sorted(result.rows("each")) == [(own, sum(range(1800 + own, 2000, 2))) for own in (0, 1)]


def test_count_windows_and_functions_over_rows():
    def spread(rows):
        return pl.DataFrame({"spread": [rows["price"].max() - rows["price"].min()]})

    def program(bids):
        keyed = bids.key_by("auction")
        return {
            "three": keyed.window(ps.count_window(3)).agg(total=ps.sum("price"), uid="w3"),
            "sliding": keyed.window(ps.count_window(3, every=2)).agg(total=ps.sum("price"), uid="w32"),
            "spread": keyed.window(ps.tumbling("10s")).apply(spread, output={"spread": int}, uid="wa"),
            "largest": keyed.window(ps.tumbling("10s")).reduce(
                lambda a, b: a if a["price"] > b["price"] else b, uid="wr"
            ),
        }

    result = testing.run_stream(program, given(*(bid(n, 2**n) for n in range(7))))
    assert result.rows("three") == [(1, 7), (1, 56)]
    assert result.rows("sliding") == [(1, 3), (1, 14), (1, 56)]
    assert result.rows("spread") == [(1, 0, 10, 63)]
    assert result.rows("largest") == [(1, 0, 10, 64, 6)]


@pytest.mark.parametrize("parallelism", [1, 2])
def test_functions_over_aggregates(parallelism):
    def told(aggregates, window):
        assert aggregates.height == 1
        assert aggregates["window_start"].item() == window.start
        return pl.DataFrame({"told": [f"{aggregates['n'].item()} of {window.key} until {window.end}"] * window.key[0]})

    def program(bids):
        window = bids.key_by("auction").window(ps.tumbling("10s"), late_to="late")
        made = window.apply(told, of={"n": ps.count()}, output={"told": str}, uid="told")
        counted = bids.window(ps.count_window(2))
        pairs = counted.apply(lambda rows: rows.select("total"), of={"total": ps.sum("price")}, output={"total": int})
        return {"told": made, "late": made.side_output("late").select("price"), "pairs": pairs}

    rows = [bid(1, 1), bid(2, 3, auction=2), bid(3, 5), bid(4, 7, auction=0), testing.watermark(12), bid(3, 9)]
    result = testing.run_stream(program, given(*rows), parallelism=parallelism, crash_after=3)
    expected = [(1, 0, 10, "2 of (1,) until 10"), *[(2, 0, 10, "1 of (2,) until 10")] * 2]
    assert sorted(result.rows("told")) == expected
    assert result.rows("late") == [(9,)]
    assert sum(total for (total,) in result.rows("pairs")) >= 16


def test_functions_over_aggregates_are_called_for_each_firing():
    def program(bids):
        window = bids.key_by("auction").window(ps.tumbling("10s")).trigger(ps.trigger.every("5s"))
        return window.apply(lambda rows: rows.select("n"), of={"n": ps.count()}, output={"n": int}, uid="each")

    rows = [bid(1, 1), testing.watermark(6), bid(7, 1), bid(8, 1), testing.watermark(30)]
    assert testing.run_stream(program, given(*rows)).rows() == [(1, 0, 10, 1), (1, 0, 10, 3)]


def test_early_results_are_updates_and_purged_ones_are_not(bids):
    keyed = bids.key_by("auction").window(ps.tumbling("1m"))
    early = keyed.trigger(ps.trigger.every("10s")).agg(n=ps.count())
    assert early.changes.keys == ("auction", "window_start", "window_end")
    assert keyed.trigger(ps.trigger.purging(ps.trigger.every("10s"))).agg(n=ps.count()).changes is None
    assert keyed.trigger(ps.trigger.event_time()).agg(n=ps.count()).changes is None


def test_what_does_not_go_together_is_refused(bids):
    with pytest.raises(UserError, match="without a trigger it never fires"):
        bids.window(ps.global_window()).agg(n=ps.count())
    with pytest.raises(UserError, match="of its own"):
        bids.window(ps.count_window(3)).trigger(ps.trigger.count(1)).agg(n=ps.count())
    with pytest.raises(UserError, match="not a number"):
        bids.window(ps.global_window()).trigger(ps.trigger.delta(col("channel"), 1)).agg(n=ps.count())
    with pytest.raises(UserError, match="is not a trigger"):
        bids.window(ps.global_window()).trigger(3)
    with pytest.raises(UserError, match="is not an evictor"):
        bids.window(ps.global_window()).evict(3)
    for wrong in (lambda: ps.trigger.count(0), lambda: ps.count_window(0), lambda: ps.evictor.count(-1)):
        with pytest.raises(UserError, match="number"):
            wrong()
