"""Watermark strategies in a source: per split, through a restore, in every unit; what they must not say."""

import sys
from datetime import UTC, datetime, timedelta, timezone
from pathlib import Path
from typing import Any

import cloudpickle
import polars as pl
import pytest

import penstock as ps
from penstock.model import specs
from penstock.model.clocks import MAX_WATERMARK
from penstock.model.errors import UserError
from penstock.model.ids import CheckpointId
from penstock.operators.user_errors import FunctionFailed

sys.path.insert(0, str(Path(__file__).parent))
from list_source import NOW_US, PAUSE, ListSource, poll_to_end, start


def punctuated(expression: pl.Expr) -> specs.Punctuated:
    said = specs.Expression(name="said", text="said", polars=expression.meta.serialize())
    return specs.Punctuated(expression=said)


def generated(generator: ps.WatermarkGenerator) -> specs.Generated:
    function = specs.Function(name=type(generator).__name__, pickled=cloudpickle.dumps(generator))
    return specs.Generated(generator=function)


def reached(strategy: specs.WatermarkStrategy, items: list[Any], **options: Any) -> list[int | None]:
    """The watermark of each poll."""
    dtype = options.pop("dtype", None)
    operator, _, _ = start(ListSource({"a": items}, dtype=dtype), watermarks=strategy, **options)
    return [result.watermark for result in poll_to_end(operator)][: len(items) - 1]


class Lagging(ps.WatermarkGenerator):
    """`lag` behind the latest row, with its own memory of it."""

    def __init__(self, lag: Any) -> None:
        self.lag = lag
        self.opened: list[Any] = []

    def open(self, watermark: Any) -> None:
        self.opened.append(watermark)
        self.latest = None if watermark is None else watermark + self.lag

    def on_batch(self, frame: pl.DataFrame) -> Any:
        latest = frame["at"].max()
        self.latest = latest if self.latest is None else max(self.latest, latest)
        return self.latest - self.lag


def test_rows_for_which_the_expression_is_true_are_watermarks() -> None:
    assert reached(punctuated(pl.col("at") % 10 == 0), [10, 15, 20, 21, 5]) == [10, None, 20, None]


def test_a_value_is_a_watermark_and_null_is_none() -> None:
    value = pl.when(pl.col("at") % 10 == 0).then(pl.col("at") - 7)
    assert reached(punctuated(value), [10, 15, 20, 21, 5]) == [3, None, 13, None]


def test_the_highest_of_a_batch_counts_and_none_goes_back() -> None:
    assert reached(punctuated(pl.lit(True)), [10, 30, 20, 5, 6, 7], batch_rows=3) == [30, MAX_WATERMARK]


@pytest.mark.parametrize(("unit", "step"), [("s", 1_000_000), ("ms", 1_000), ("us", 1)])
def test_values_count_in_the_unit_of_the_event_time(unit: str, step: int) -> None:
    assert reached(punctuated(pl.col("at") - 1), [10, 20], unit=unit) == [9 * step]
    assert reached(generated(Lagging(2)), [10, 20], unit=unit) == [8 * step]


@pytest.mark.parametrize("dtype", [pl.Datetime("ms"), pl.Datetime("us", "Europe/Berlin"), pl.Datetime("ns", "UTC")])
def test_datetimes_are_points_of_time_in_any_zone(dtype: pl.DataType) -> None:
    scale = {"ms": 1_000, "us": 1_000_000, "ns": 1_000_000_000}[dtype.time_unit]  # type: ignore[attr-defined]
    items = [100 * scale, 200 * scale]
    assert reached(punctuated(pl.col("at") - pl.duration(seconds=3)), items, dtype=dtype) == [97_000_000]
    assert reached(generated(Lagging(timedelta(seconds=3))), items, dtype=dtype) == [97_000_000]


def test_a_datetime_with_or_without_zone_may_stand_for_a_number() -> None:
    class Says(ps.WatermarkGenerator):
        def __init__(self, said: datetime) -> None:
            self.said = said

        def on_batch(self, frame: pl.DataFrame) -> datetime:
            return self.said

    plain = datetime(1970, 1, 1, 0, 0, 5)  # noqa: DTZ001
    east = datetime(1970, 1, 1, 1, 0, 5, tzinfo=timezone(timedelta(hours=1)))
    for said in (plain, east, plain.replace(tzinfo=UTC)):
        assert reached(generated(Says(said)), [10, 20], unit="s") == [5_000_000]


def test_every_split_has_a_generator_of_its_own() -> None:
    source = ListSource({"a": [100, 110], "b": [20, 30]})
    operator, _, _ = start(source, watermarks=generated(Lagging(5)))
    # a: 95, b: 15, a: 105 and over, b: 25 and over
    assert [result.watermark for result in poll_to_end(operator)] == [None, 15, None, MAX_WATERMARK]


@pytest.mark.parametrize(
    ("dtype", "unit", "expected"),
    [
        (pl.Int64(), "ms", 98_000),
        (pl.Datetime("us"), "us", datetime(1970, 1, 1, 0, 1, 38)),  # noqa: DTZ001
        (pl.Datetime("ms", "UTC"), "us", datetime(1970, 1, 1, 0, 1, 38, tzinfo=UTC)),
    ],
)
def test_a_generator_goes_on_from_what_its_split_had_reached(dtype: pl.DataType, unit: str, expected: Any) -> None:
    lag: Any = 2_000 if dtype == pl.Int64() else timedelta(seconds=2)
    first = 100_000_000 if dtype == pl.Datetime("us") else 100_000
    items = [first, first // 2, first // 2, PAUSE]
    operator, _, _ = start(ListSource({"a": items}, dtype=dtype), watermarks=generated(Lagging(lag)), unit=unit)
    assert operator.poll().watermark == 98_000_000
    frames = [section.frame for section in operator.snapshot(CheckpointId(1))()]

    again, collected, _ = start(ListSource({"a": items}, dtype=dtype), watermarks=generated(Lagging(lag)), unit=unit)
    again.restore({"splits": frames})
    assert again.poll().watermark == 98_000_000
    assert again.poll().watermark is None
    assert len(collected.frames) == 2
    generator = again._splits["a"].strategy._generator  # type: ignore[index,union-attr]
    assert generator.opened == [expected]


def test_dropped_rows_say_nothing() -> None:
    strategy = punctuated(pl.lit(True))
    assert reached(strategy, [10, NOW_US * 9, 20, 1, 2, 3], batch_rows=3, on_bad_record="drop") == [20, MAX_WATERMARK]


@pytest.mark.parametrize("strategy", [punctuated(pl.col("at") + NOW_US * 9), generated(Lagging(-NOW_US * 9))])
def test_a_watermark_far_in_the_future_stops_the_job(strategy: specs.WatermarkStrategy) -> None:
    operator, collected, _ = start(ListSource({"a": [10]}), watermarks=strategy)
    with pytest.raises(UserError, match=r"P010 bids\[0\]: the watermark strategy says .* year 2454"):
        operator.poll()
    assert collected.frames == []


@pytest.mark.parametrize("said", ["soon", 1.5, True])
def test_what_is_no_time_is_refused(said: Any) -> None:
    class Says(ps.WatermarkGenerator):
        def on_batch(self, frame: pl.DataFrame) -> Any:
            return said

    operator, _, _ = start(ListSource({"a": [10]}), watermarks=generated(Says()))
    with pytest.raises(UserError, match=r"P014 bids\[0\]: Says.on_batch returned .*, which is no watermark"):
        operator.poll()


def test_a_generator_that_raises_names_its_line() -> None:
    class Broken(ps.WatermarkGenerator):
        def on_batch(self, frame: pl.DataFrame) -> Any:
            raise KeyError("lost")

    operator, _, _ = start(ListSource({"a": [10]}), watermarks=generated(Broken()))
    with pytest.raises(FunctionFailed, match=r"(?s)P007 bids\[0\]: Broken.on_batch raised KeyError.*raise KeyError"):
        operator.poll()
