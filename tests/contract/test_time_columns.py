"""Event time in every form of a column: programs give the same rows, at the same moments."""

from typing import Any

import polars as pl
import pytest

import penstock as ps
from penstock import testing
from penstock.model.changes import CHANGE

START_US = 1_600_000_000_000_000
BEFORE_1970_US = -86_400_000_000 * 365
OFFSETS = [1, 4, 2, 9, 14, 11, 13, 25, 31, 29, 40]
KEYS = [0, 1, 0, 1, 1, 0, 0, 1, 0, 1, 0]

FACTORS = {"s": (1_000_000, 1), "ms": (1_000, 1), "us": (1, 1), "ns": (1, 1_000)}
DATETIMES = [
    (pl.Datetime(unit, zone), None)
    for unit, zone in (("ms", None), ("ms", "UTC"), ("us", "Asia/Tokyo"), ("ns", None), ("ns", "Asia/Tokyo"))
]
INTEGERS = [(pl.Int64(), unit) for unit in FACTORS]
OTHERS = [(pl.Int32(), "s"), (pl.UInt32(), "s"), (pl.UInt64(), "ms"), (pl.UInt64(), "ns")]


def column(dtype: pl.DataType, unit: str | None, micros: list[int]) -> pl.Series:
    """The moments as a column of this type."""
    if isinstance(dtype, pl.Datetime):
        moments = pl.Series("ts", micros).cast(pl.Datetime("us"))
        zoned = (
            moments.dt.replace_time_zone("UTC").dt.convert_time_zone(dtype.time_zone) if dtype.time_zone else moments
        )
        return zoned.dt.cast_time_unit(dtype.time_unit)
    multiplier, divisor = FACTORS[unit or "us"]
    return pl.Series("ts", [micro * divisor // multiplier for micro in micros], dtype=dtype)


def in_microseconds(frame: pl.DataFrame, unit: str | None) -> list[tuple[Any, ...]]:
    """Rows with every time as microseconds, sorted."""
    multiplier, divisor = FACTORS[unit or "us"]
    changed = []
    for name in frame.columns:
        kind = frame.schema[name]
        if isinstance(kind, pl.Datetime):
            changed.append(pl.col(name).dt.epoch("us"))
        elif name in ("ts", "window_start", "window_end", "ts_right") and kind.is_integer():
            changed.append(pl.col(name).cast(pl.Int64) * multiplier // divisor)
    return sorted(frame.with_columns(changed).rows(), key=str)


class Echo(ps.KeyedProcessFunction):
    """The time of each row and of each timer, in microseconds."""

    def process(self, ctx: ps.KeyedContext, n: int) -> tuple[int, str, int]:
        ctx.set_timer(ctx.timestamp + 5_000_000)
        return n, "row", ctx.timestamp

    def on_timer(self, ctx: ps.KeyedContext, time: int) -> tuple[int, str, int]:
        return ctx.key, "timer", time


def everything(left: ps.DataStream, right: ps.DataStream) -> dict[str, ps.DataStream]:
    keyed = left.key_by("key")
    echo = {"n": pl.Int64, "what": pl.String, "time": pl.Int64}
    return {
        "rows": left,
        "tumbling": keyed.window(ps.tumbling("10s")).agg(n=ps.count(), last=ps.last("n")),
        "sliding": left.window(ps.sliding("10s", every="5s")).agg(n=ps.count()),
        "session": keyed.window(ps.session("6s")).agg(n=ps.count()),
        "twice": keyed.window(ps.tumbling("5s")).agg(n=ps.count()).window(ps.tumbling("20s")).agg(n=ps.sum("n")),
        "count": keyed.window(ps.count_window(2)).agg(n=ps.count(), total=ps.sum("n")),
        "within": left.join(right, on="key", within=ps.tumbling("10s")).select("n", "n_right"),
        "near": left.join(right, on="key", within=ps.interval("-3s", "3s")).select("n", "n_right"),
        "as_of": left.join(right, on="key", within=ps.as_of()).select("n", "n_right"),
        "process": keyed.process(Echo(), output=echo, uid="echo"),
        "first": left.deduplicate("key", by="event_time", ttl="1h").select("n"),
        "top": keyed.top_n(1, by="n", within=ps.tumbling("10s")).select("n", "window_end"),
    }


def run(dtype: pl.DataType, unit: str | None, start_us: int) -> dict[str, list[tuple[Any, ...]]]:
    """What every program gives when event time looks like this."""

    def source(shift: int) -> testing.inputs.Input:
        times = column(dtype, unit, [start_us + (offset + shift) * 1_000_000 for offset in OFFSETS])
        frame = pl.DataFrame({"key": KEYS, "n": range(len(KEYS)), "ts": times})
        return testing.source(frame, event_time="ts", unit=unit, max_delay="5s", batch_rows=4)

    result = testing.run_stream(everything, {"left": source(0), "right": source(1)}, checkpoint_every=3)
    return {
        name: in_microseconds(frame if CHANGE not in frame.columns else result.table(name, keys=["key"]), unit)
        for name, frame in result.frames.items()
    }


@pytest.fixture(scope="module", name="expected")
def _expected() -> dict[int, dict[str, list[tuple[Any, ...]]]]:
    return {start: run(pl.Datetime("us"), None, start) for start in (START_US, BEFORE_1970_US)}


@pytest.mark.parametrize(("dtype", "unit"), [*DATETIMES, *INTEGERS, *OTHERS], ids=str)
def test_results_do_not_depend_on_the_form_of_time(expected, dtype, unit):
    found = run(dtype, unit, START_US)
    assert found == expected[START_US]
    assert all(found.values())


@pytest.mark.parametrize(("dtype", "unit"), DATETIMES, ids=str)
def test_times_before_1970_are_times_like_others(expected, dtype, unit):
    assert run(dtype, unit, BEFORE_1970_US) == expected[BEFORE_1970_US]


def test_the_result_that_all_are_compared_with_is_right(expected):
    found = expected[START_US]
    windows = [(key, (start - START_US) // 1_000_000, n) for key, start, _, n, _ in found["tumbling"]]
    assert sorted(windows) == [(0, 0, 2), (0, 10, 2), (0, 30, 1), (0, 40, 1), (1, 0, 2), (1, 10, 1), (1, 20, 2)]
    rows = sorted((time - START_US) // 1_000_000 for _, what, time in found["process"] if what == "row")
    assert rows == sorted(OFFSETS)
