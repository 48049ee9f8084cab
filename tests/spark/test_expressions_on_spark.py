"""Every native expression means on Spark what it means in Polars: on values that are meant to be difficult."""

import math
import random
from datetime import date, datetime, timedelta
from typing import Any

import narwhals as nw
import polars as pl
import pytest
from pyspark.sql import functions as F  # noqa: N812 - as everybody calls it

from penstock.api.expressions import native, serialize
from penstock.batch.columns import from_arrow, spark_schema, to_arrow
from penstock.batch.expressions import NotNative, Translation
from penstock.batch.tables import named
from penstock.state.key_groups import key_groups

ROWS = 500
BIG = 2**63 - 1
POOLS: dict[str, tuple[pl.DataType, list[Any]]] = {
    "i": (pl.Int64(), [None, 0, 1, -1, 2, -2, 3, 7, -7, 100, 10**12, BIG, -BIG - 1]),
    "j": (pl.Int64(), [None, 0, 1, -1, 2, -3, 5, 60, BIG, -BIG - 1]),
    "small": (pl.Int32(), [None, 0, 1, -1, 9, -10, 2**31 - 1, -(2**31)]),
    "tiny": (pl.Int8(), [None, 0, 1, -1, 127, -128]),
    "u8": (pl.UInt8(), [None, 0, 1, 255]),
    "u32": (pl.UInt32(), [None, 0, 7, 2**32 - 1]),
    "u64": (pl.UInt64(), [None, 0, 7, 2**64 - 1]),
    "x": (pl.Float64(), [None, 0.0, -0.0, 1.0, -1.5, 2.5, 1e300, -1e300, math.nan, math.inf, -math.inf, 0.1]),
    "y": (pl.Float64(), [None, 0.0, -0.0, 1.0, -2.0, 0.3, math.nan, math.inf]),
    "b": (pl.Boolean(), [None, True, False]),
    "c": (pl.Boolean(), [None, True, False]),
    "s": (pl.String(), [None, "", "a", "A", "abc", "a/b/c", "//", "äöü", "日本", "straße", "x&channel_id=12",
                       " a ", "cc", "😀"]),
    "t": (pl.String(), [None, "", "a", "b", "abc", "Z", "é"]),
    "d": (pl.Date(), [None, date(1970, 1, 1), date(1969, 12, 31), date(2024, 2, 29), date(2023, 1, 1),
                      date(1583, 1, 1), date(2026, 11, 22)]),
    "ms": (pl.Datetime("ms"), [None, datetime(1970, 1, 1), datetime(1969, 12, 31, 23, 59, 59, 999000),
                               datetime(2024, 2, 29, 12, 30, 15, 123000), datetime(2026, 11, 22, 23, 59, 59)]),
    "us": (pl.Datetime("us"), [None, datetime(1970, 1, 1), datetime(1969, 12, 31, 23, 59, 59, 999999),
                               datetime(2024, 12, 30, 1, 2, 3, 456789), datetime(2021, 1, 3)]),
    "utc": (pl.Datetime("us", "UTC"), [None, datetime(2024, 3, 31, 1, 30), datetime(1960, 5, 5, 5, 5, 5, 5)]),
    "l": (pl.List(pl.Int64()), [None, [], [1], [1, None, 3], [4, 5, 6, 7]]),
    "k": (pl.String(), [None, "apple", "google", "other", ""]),
}  # fmt: skip
SCHEMA = pl.Schema({name: kind for name, (kind, _) in POOLS.items()})

i, j, x, y, s, t = (pl.col(name) for name in ("i", "j", "x", "y", "s", "t"))
b, c, d, ms, us, utc = (pl.col(name) for name in ("b", "c", "d", "ms", "us", "utc"))

NATIVE = [
    i + j, i - j, i * j, i + 1, i * 3, i % 7, i % -7, i % j, i // 7, i // -7, i // j, i / j, i / 3, x / y, x / 2.5,
    -i, i.abs(), x + y, x * y, x - y, -x, x.abs(), pl.col("small") + 1, pl.col("small") * pl.col("small"),
    pl.col("tiny") + pl.col("tiny"), pl.col("small") + i, i * 0.908, i + x,
    i == j, i != j, i < j, i >= 2, x == y, x < y, x >= y, x > 1, i > 1.5, s == t, s < t, s >= "a",
    b == c, d < date(2000, 1, 1), ms >= datetime(2000, 1, 1), us >= datetime(2000, 1, 1),
    d == us, i.eq_missing(j), i.ne_missing(j),
    s.eq_missing(t), pl.col("u8") < 9, pl.col("u64") > i, pl.col("u32") == i,
    b & c, b | c, ~b, b ^ c, pl.all_horizontal(b, c), pl.any_horizontal(b, c), (i > 0) & (j > 0),
    i.is_null(), x.is_not_null(), x.is_nan(), x.is_not_nan(), i.is_in([1, 2, 100]), s.is_in(["a", "abc"]),
    i.is_between(-1, 7), i.is_between(-1, 7, closed="none"), x.is_between(0.0, 1.0),
    pl.when(i > 1).then(j).otherwise(i), pl.when(b).then(pl.lit("yes")).otherwise(None), pl.when(b).then(x),
    pl.when(i > 1).then(pl.lit("a")).when(j > 1).then(pl.lit("b")).otherwise(pl.lit("c")),
    pl.coalesce(i, j), i.fill_null(0), s.fill_null("none"), x.fill_null(1.5), pl.lit(7), pl.lit("text"), pl.lit(1.5),
    pl.lit(None, pl.Int64), pl.lit(True), pl.lit(datetime(2024, 1, 2, 3, 4, 5, 6)), pl.lit(date(2024, 1, 2)),
    i.cast(pl.Float64), pl.col("small").cast(pl.Int64), pl.col("tiny").cast(pl.Int16), i.cast(pl.String),
    b.cast(pl.Int64), pl.col("u32").cast(pl.Int64), ms.cast(pl.Datetime("us")), d.cast(pl.Datetime("us")),
    i.cast(pl.Int32, strict=False), b.cast(pl.String),
    s.str.starts_with("a"), s.str.ends_with("c"), s.str.contains("b", literal=True), s.str.len_bytes(),
    s.str.len_chars(), s.str.split("/"), s.str.count_matches("c", literal=True), s + t,
    s.str.extract(r"(?:&|^)channel_id=([^&]*)", 1), s.str.split("/").list.get(1, null_on_oob=True),
    pl.col("k").replace_strict({"apple": "0", "google": "1"}, default=None, return_dtype=pl.String),
    pl.col("k").replace_strict({"apple": 1, "google": 2}, default=9, return_dtype=pl.Int64),
    pl.concat_str(s, t, separator="-"),
    ms.dt.year(), us.dt.month(), us.dt.day(), us.dt.hour(), ms.dt.minute(), us.dt.second(), d.dt.weekday(),
    us.dt.weekday(), us.dt.week(), us.dt.quarter(), us.dt.ordinal_day(), d.dt.year(), us.dt.date(), ms.dt.date(),
    ms.dt.timestamp("ms"), us.dt.timestamp("ms"), us.dt.timestamp("us"), utc.dt.hour(), utc.dt.date(),
    us.dt.truncate("10s"), us.dt.truncate("1m"), ms.dt.truncate("1h"), us.dt.truncate("1d"), us.dt.truncate("1w"),
    us.dt.truncate("2w"), utc.dt.truncate("15m"), us.dt.to_string("%Y-%m-%d"), ms.dt.to_string("%H:%M:%S"),
    pl.col("l").list.len(), pl.col("l").list.get(2, null_on_oob=True), pl.struct(i, s),
    pl.struct("i", "x").struct.field("x"),
    native(nw.col("i").is_in([1, 2])), native(nw.when(nw.col("i") > 1).then(nw.lit("a")).otherwise(nw.lit("b"))),
    native(nw.col("us").dt.truncate("1h")), native(nw.col("s").str.len_chars() > 2), native(~nw.col("b")),
    native(nw.coalesce(nw.col("i"), nw.col("j"))), native(nw.col("x").is_nan()),
    s.str.to_lowercase(), t.str.to_uppercase(),
]  # fmt: skip

NOT_NATIVE = [
    x // y, x.round(1), i.cast(pl.Int32), x.cast(pl.Int64), s.cast(pl.Int64), s.str.contains(r"\d"),
    us.dt.to_string("%j"), us - us, pl.col("u8") + 1, s.str.extract(r"(a|b)?", 1), us.dt.truncate("1mo"),
    i.map_elements(lambda value: value, return_dtype=pl.Int64), s.str.split(t), x.exp(),
    x == math.nan, ms < us, ms < datetime(2000, 1, 1, microsecond=1),
]  # fmt: skip
"""What Polars computes in a Python worker."""


@pytest.fixture(scope="module")
def values() -> pl.DataFrame:
    rng = random.Random(7)
    columns = [pl.Series(name, [rng.choice(pool) for _ in range(ROWS)], kind) for name, (kind, pool) in POOLS.items()]
    return pl.DataFrame(columns)


@pytest.fixture(scope="module")
def rows(values: pl.DataFrame, spark: Any) -> Any:
    frame = spark.createDataFrame(_table(values), spark_schema(SCHEMA))
    return frame.coalesce(1).persist()


def _table(values: pl.DataFrame) -> Any:
    import pyarrow as pa

    return pa.Table.from_batches([to_arrow(values, values.schema)])


def _translation() -> Translation:
    return Translation(SCHEMA, {name: named(name) for name in SCHEMA})


def test_native_expressions_give_what_polars_gives(values: pl.DataFrame, rows: Any) -> None:
    translation, made, expected = _translation(), [], []
    for number, expr in enumerate(NATIVE):
        name = f"e{number}"
        made.append(translation.native(serialize(name, expr.alias(name))).alias(name))
        column = values.select(expr.alias(name)).to_series()
        expected.append(column if len(column) == ROWS else column.new_from_index(0, ROWS))
    table = rows.select(*made).toArrow().combine_chunks()
    schema = {column.name: column.dtype for column in expected}
    found = from_arrow(table.to_batches()[0], schema)
    wrong = []
    for expr, column in zip(NATIVE, expected, strict=True):
        other = found.get_column(column.name)
        for index, (one, two) in enumerate(zip(column.to_list(), other.to_list(), strict=True)):
            if not _same(one, two):
                given = values.select(expr.meta.root_names() or ["i"]).row(index)
                wrong.append(f"{expr}: {given} gives {two!r} on Spark, {one!r} in Polars")
                break
    assert not wrong, "\n".join(wrong)


def _same(one: Any, two: Any) -> bool:
    if isinstance(one, float) and isinstance(two, float):
        if math.isnan(one) or math.isnan(two):
            return math.isnan(one) and math.isnan(two)
        return one == two and math.copysign(1, one) == math.copysign(1, two)
    if isinstance(one, dict):
        return one.keys() == two.keys() and all(_same(one[key], two[key]) for key in one)
    return type(one) is type(two) and one == two


@pytest.mark.parametrize("number", range(len(NOT_NATIVE)))
def test_what_would_be_another_result_is_not_native(number: int) -> None:
    with pytest.raises(NotNative):
        _translation().native(serialize("e", NOT_NATIVE[number].alias("e")))


def test_a_week_begins_on_monday(rows: Any) -> None:
    week = _translation().native(serialize("w", us.dt.truncate("1w").alias("w")))
    found = {row.w for row in rows.select(week).collect() if row.w is not None}
    assert {each.weekday() for each in found} == {0}
    assert all(each.time() == datetime.min.time() for each in found)
    assert timedelta(days=1) not in {each - datetime(1970, 1, 1) for each in found}


KEYS = ["i", "small", "tiny", "u8", "u32", "u64", "x", "b", "s", "d", "ms", "us", "utc"]


@pytest.mark.parametrize("names", [[name] for name in KEYS] + [["s", "i"], ["x", "s", "d"], ["b", "u64", "s", "us"]])
@pytest.mark.parametrize("max_parallelism", [128, 1000])
def test_key_groups_are_those_of_sparks_own_hash(
    names: list[str], max_parallelism: int, values: pl.DataFrame, rows: Any
) -> None:
    from penstock.batch.columns import key_group

    group = key_group(rows, {name: SCHEMA[name] for name in names}, max_parallelism)
    found = [row[0] for row in rows.select(group).collect()]
    assert found == key_groups(values, names, max_parallelism).tolist()


def test_the_hash_is_not_another_functions(rows: Any) -> None:
    """The test above can fail: another seed gives other groups."""
    other = rows.select(F.pmod(F.xxhash64(F.lit(1), "i"), F.lit(128))).collect()
    group = rows.select(F.pmod(F.xxhash64("i"), F.lit(128))).collect()
    assert other != group
