"""Event time travels with a stream, and where it is lost is remembered."""

import inspect

import polars as pl
import pytest

import penstock as ps
from penstock import col
from penstock.api import places
from penstock.model import specs
from penstock.model.errors import UserError


def line(offset: int) -> str:
    frame = inspect.currentframe()
    assert frame is not None
    assert frame.f_back is not None
    return places.render(__file__, frame.f_back.f_lineno + offset)


def test_a_window_after_a_select_that_dropped_the_time_names_that_select(bids):
    prices = bids.select("auction", "price")
    dropped_at = line(-1)
    with pytest.raises(UserError) as caught:
        prices.filter(col("price") > 1).key_by("auction").window(ps.tumbling("10s"))
    assert caught.value.where == line(-1)
    assert caught.value.code == "P021"
    assert caught.value.what == (
        f'window: the stream has no event time: select at {dropped_at} dropped the event-time column "ts"'
    )
    assert caught.value.fix == 'keep "ts" unchanged in that select'


def test_a_renamed_time_column_is_still_the_time(bids):
    renamed = bids.select("auction", time=col("ts"))
    assert renamed.event_time == specs.EventTime(column="time", unit="us")


def test_a_replaced_time_column_is_no_longer_the_time(bids):
    moved = bids.with_columns(ts=col("ts").dt.truncate("1h"))
    with pytest.raises(UserError, match=r"with_columns at .* dropped"):
        moved.window(ps.tumbling("10s"))


def test_a_function_keeps_the_time_when_its_output_has_it(bids):
    def double(price: int, ts: object) -> None: ...

    kept = bids.map(double, output={"ts": pl.Datetime("us"), "x": pl.Int64})
    assert kept.event_time == bids.event_time
    lost = bids.map(double, output={"x": pl.Int64})
    with pytest.raises(UserError, match=r"map at .* dropped"):
        lost.window(ps.tumbling("10s"))


def test_a_union_of_different_times_has_none(flow, bids, table):
    other = flow.read(table(schema=bids.schema), uid="other")
    with pytest.raises(UserError, match="of streams whose event time differs"):
        bids.union(other).window(ps.tumbling("10s"))


def test_a_stream_read_without_a_time_says_how_to_give_one(flow, table):
    stream = flow.read(table(schema=pl.Schema({"a": pl.Int64})))
    with pytest.raises(UserError, match="its source was read without one") as caught:
        stream.window(ps.tumbling("10s"))
    assert 'event_time="column"' in (caught.value.fix or "")


def test_an_integer_time_needs_its_unit(flow, table):
    numbers = table(schema=pl.Schema({"t": pl.Int64, "s": pl.String}))
    assert flow.read(numbers, event_time="t", unit="ms").event_time == specs.EventTime(column="t", unit="ms")
    with pytest.raises(UserError, match=r"P010.*its unit must be given"):
        flow.read(numbers, event_time="t")
    with pytest.raises(UserError, match=r"P010.*must be a Datetime or an integer"):
        flow.read(numbers, event_time="s")
    with pytest.raises(UserError, match='did you mean "t"'):
        flow.read(numbers, event_time="T")


def test_a_datetime_column_knows_its_unit(flow, table):
    times = table(schema=pl.Schema({"t": pl.Datetime("ms", "UTC")}))
    stream = flow.read(times, event_time="t", max_delay="2s", idle_after="10s", uid="times")
    assert stream.event_time == specs.EventTime(column="t", unit="ms")
    made = stream.window(ps.tumbling("10s")).agg(n=ps.count())
    assert made.schema["window_start"] == pl.Datetime("ms", "UTC")
    made.write(table())
    source = flow.plan().vertices[0].chain[0].operator.spec
    assert (source.watermarks.delay_us, source.idle_after_us, source.time_kind) == (2_000_000, 10_000_000, "event")
    with pytest.raises(UserError, match="leave out unit"):
        flow.read(times, event_time="t", unit="us")


def test_ingestion_time_adds_a_column(flow, table):
    lines = table(schema=pl.Schema({"line": pl.String}))
    stream = flow.read(lines, time="ingestion", uid="lines")
    assert stream.schema == {"line": pl.String, "ingested_at": pl.Datetime("us")}
    assert stream.event_time == specs.EventTime(column="ingested_at")
    with pytest.raises(UserError, match='a column "line" already'):
        flow.read(lines, time="ingestion", event_time="line")


def test_processing_time_goes_by_the_clock(flow, table):
    lines = table(schema=pl.Schema({"line": pl.String}))
    counts = flow.read(lines, time="processing").key_by("line").window(ps.tumbling("5s")).agg(n=ps.count())
    assert counts.event_time is None
    assert counts.schema["window_end"] == pl.Datetime("us")
    again = counts.window(ps.tumbling("1m")).agg(n=ps.sum("n"))
    assert again.columns == ["window_start", "window_end", "n"]
    with pytest.raises(UserError, match="give one of the two"):
        flow.read(lines, time="processing", event_time="line")
    with pytest.raises(UserError, match="time='later' is not known"):
        flow.read(lines, time="later")
