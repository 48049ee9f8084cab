"""The test kit: scripts of rows, time and faults in; rows, watermarks and counters out."""

from datetime import datetime
from pathlib import Path
from typing import Any

import polars as pl
import pytest

import penstock as ps
from penstock import col, testing


def totals(bids: ps.DataStream) -> ps.DataStream:
    return bids.key_by("auction").window(ps.tumbling("10s")).agg(total=ps.sum("price"), uid="totals")


def bid(ts: int, price: int, auction: int = 1) -> dict[str, int]:
    return {"auction": auction, "price": price, "ts": ts}


def bids(*elements: Any, **options: Any) -> dict[str, Any]:
    return {"bids": testing.source(elements, event_time="ts", unit="s", **options)}


def test_a_window_fires_at_the_watermark_that_the_script_gives() -> None:
    script = bids(
        bid(1, 5), bid(9, 6), testing.watermark(10), bid(9, 100), bid(11, 7), testing.watermark(20), bid(25, 1)
    )
    result = testing.run_stream(totals, script)
    expected = [[(1, 0, 10, 11)], testing.watermark(10), [(1, 10, 20, 7)], testing.watermark(20), [(1, 20, 30, 1)]]
    testing.assert_events(result, expected, unit="s")
    testing.assert_late(result, 1)
    testing.assert_late(result, 1, operator="totals")
    assert result.watermarks() == [10_000_000, 20_000_000]


def test_event_time_does_not_move_by_itself_unless_a_delay_is_given() -> None:
    rows = [bid(ts, 1) for ts in (1, 25, 2)]
    patient = testing.run_stream(totals, bids(*rows, batch_rows=1))
    testing.assert_rows(patient, [{"window_start": 0, "total": 2}, {"window_start": 20, "total": 1}])
    strict = testing.run_stream(totals, bids(*rows, batch_rows=1, max_delay="1s"))
    testing.assert_late(strict, 1)
    assert strict.watermarks() == [-1, 23_999_999]


def test_an_idle_input_holds_nobody_back() -> None:
    def both(left: ps.DataStream, right: ps.DataStream) -> ps.DataStream:
        return totals(left.union(right))

    def run(signal: list[Any]) -> testing.StreamResult:
        left = testing.source([*signal, testing.pause("10s"), bid(3, 1)], event_time="ts", unit="s")
        right = testing.source([bid(5, 10), testing.watermark(10), testing.pause("1m")], event_time="ts", unit="s")
        return testing.run_stream(both, {"left": left, "right": right})

    testing.assert_late(run([]), 0)
    testing.assert_late(run([testing.idle()]), 1)


def test_splits_hold_each_other_back() -> None:
    slow, fast = [testing.pause("5s"), bid(2, 1), testing.watermark(30)], [bid(3, 1), testing.watermark(30)]
    given = testing.source(slow, fast, event_time="ts", unit="s")
    for parallelism in (1, 2, 3):
        result = testing.run_stream(totals, {"bids": given}, parallelism=parallelism)
        testing.assert_rows(result, [(1, 0, 10, 2)])
        assert result.watermarks() == [30_000_000]


def test_batches_are_cut_as_the_script_says() -> None:
    def heights(rows: ps.DataStream) -> ps.DataStream:
        return rows.map_batches(lambda frame: pl.DataFrame({"height": [frame.height]}), output={"height": pl.Int64})

    one_by_one = [{"x": number} for number in range(5)]
    given = testing.source([*one_by_one, [{"x": 7}, {"x": 8}], pl.DataFrame({"x": [9, 10, 11]})], batch_rows=2)
    result = testing.run_stream(heights, {"rows": given})
    assert result.rows() == [(2,), (2,), (1,), (2,), (2,), (1,)]


def test_a_program_gets_inputs_by_uid_and_its_sinks_are_caught() -> None:
    def program(flow: ps.Flow) -> None:
        orders = flow.read(
            ps.csv("no/such/file.csv", schema={"item": pl.String, "at": pl.Datetime("us")}),
            event_time="at",
            max_delay="5s",
            uid="orders",
        )
        orders.key_by("item").window(ps.tumbling("1m")).agg(n=ps.count()).write(ps.parquet("out"), uid="counts")
        orders.filter(col("item") == "tea").write(ps.print(), uid="tea")

    noon = datetime(2026, 1, 1, 12)  # noqa: DTZ001 - the column has no zone
    rows = [{"item": "tea", "at": noon}, {"item": "rye", "at": noon.replace(second=59)}]
    result = testing.run_stream(program, {"orders": rows})
    testing.assert_rows(result, [{"item": "tea", "n": 1}, {"item": "rye", "n": 1}], name="counts")
    testing.assert_rows(result, [("tea", noon)], name="tea")
    assert not Path("out").exists()
    assert list(result.frames) == ["counts", "tea"]


def test_several_streams_come_back_by_name() -> None:
    def split(rows: ps.DataStream) -> dict[str, ps.DataStream]:
        return {"even": rows.filter(col("x") % 2 == 0), "odd": rows.filter(col("x") % 2 == 1)}

    result = testing.run_stream(split, {"rows": [{"x": number} for number in range(5)]})
    assert result["even"]["x"].to_list() == [0, 2, 4]
    assert result.rows("odd") == [(1,), (3,)]


@pytest.mark.parametrize("crash_after", [1, 4, 9, (3, 3), (2, 2, 2)])
@pytest.mark.parametrize(("before", "after"), [(1, 1), (1, 3), (3, 1), (3, 2)])
def test_a_crash_changes_nothing(crash_after: int | tuple[int, ...], before: int, after: int) -> None:
    rows = [bid(number, number, auction=number % 4) for number in range(12)]
    result = testing.run_stream(
        totals,
        bids(*rows, testing.watermark(20), batch_rows=1),
        parallelism=before,
        crash_after=crash_after,
        restore_parallelism=after,
        checkpoint_every=2,
    )
    expected = pl.DataFrame(rows).group_by("auction", window_start=pl.col("ts") // 10 * 10).agg(total=pl.sum("price"))
    testing.assert_rows(result, expected)
    assert result.restarts == (1 if isinstance(crash_after, int) else len(crash_after))


def test_what_follows_a_checkpoint_in_the_script_is_taken_back_by_a_crash() -> None:
    script = [{"x": 1}, testing.checkpoint(), {"x": 2}, testing.crash(parallelism=2), {"x": 3}]
    result = testing.run_stream(lambda rows: rows, {"rows": script}, checkpoint_every=0)
    assert result.rows() == [(1,), (2,), (3,)]
    assert (result.restarts, result.checkpoints) == (1, 2)


def test_processing_time_passes_in_pauses() -> None:
    def minutes(rows: ps.DataStream) -> ps.DataStream:
        return rows.window(ps.tumbling("1m")).agg(n=ps.count())

    script = [{"x": 1}, {"x": 2}, testing.pause("5m"), {"x": 3}]
    result = testing.run_stream(minutes, {"rows": testing.source(script, time="processing")})
    assert result.frame["n"].to_list() == [2, 1]


def test_the_same_seed_gives_the_same_run() -> None:
    rows = [bid(number, number, auction=number % 4) for number in range(12)]
    runs = [
        testing.run_stream(totals, bids(*rows, batch_rows=2), parallelism=3, crash_after=5, seed=7) for _ in range(2)
    ]
    events = [
        [sorted(event.rows()) if isinstance(event, pl.DataFrame) else event for event in run.events()] for run in runs
    ]
    assert events[0] == events[1]


def broken(x: int) -> int:
    return 1 // (x - 2)


def test_a_function_that_raises_fails_the_test_with_its_own_error() -> None:
    with pytest.raises(testing.StreamFailedError, match="ZeroDivisionError") as error:
        testing.run_stream(lambda rows: rows.map(broken, output={"y": pl.Int64}), {"rows": [{"x": 1}, {"x": 2}]})
    assert error.value.code == "P007"


def test_inputs_that_do_not_fit_are_named() -> None:
    with pytest.raises(ps.UserError, match="the function takes bids; the inputs are bid"):
        testing.run_stream(totals, {"bid": []})
    with pytest.raises(ps.UserError, match='no column "cost"'):
        testing.run_stream(lambda rows: rows, {"rows": testing.source([{"cost": 1}], schema={"price": pl.Int64})})
    with pytest.raises(ps.UserError, match="columns of input"):
        testing.run_stream(lambda rows: rows, {"rows": []})

    def program(flow: ps.Flow) -> None:
        flow.read(ps.items([1]), uid="numbers").write(ps.discard())

    with pytest.raises(ps.UserError, match='no source has the uid or name "nothing"; there are: numbers'):
        testing.run_stream(program, {"nothing": [{"x": 1}]})


def test_sources_that_are_not_replaced_are_read_as_they_are() -> None:
    def program(flow: ps.Flow) -> None:
        flow.read(ps.items([1, 2, 3]), uid="numbers").write(ps.discard(), uid="sink")

    assert testing.run_stream(program).rows() == [(1,), (2,), (3,)]


def test_a_changelog_comes_to_a_table() -> None:
    def running(rows: ps.DataStream) -> ps.DataStream:
        return rows.key_by("key").agg(n=ps.count(), total=ps.sum("x"))

    rows = testing.source([{"key": number % 2, "x": number} for number in range(6)], batch_rows=2)
    result = testing.run_stream(running, {"rows": rows}, crash_after=3)
    testing.assert_rows(result.table(keys=["key"]), [(0, 3, 6), (1, 3, 9)])
    assert result.frame["change"].to_list().count("update") == 4
