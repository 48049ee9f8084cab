"""Programs of every operator: Spark gives what the stream engine gives."""

import random
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import polars as pl
import pytest

import penstock as ps
from penstock import batch, col, testing
from penstock.api.programs import build
from penstock.model.errors import UserError
from penstock.model.settings import JobSettings, with_values

sys.path.insert(0, str(Path(__file__).parents[1] / "contract"))
import interpreter
import operator_cases
import updating_cases
import window_cases

SCHEMA = {"id": pl.Int64, "key": pl.Int64, "ts": pl.Int64, "value": pl.Int64, "text": pl.String}
WHOLE = ("*",)
NATIVE = {"select, with_columns, filter", "explode, rebalance", "union", "windows of windows", "tumbling",
          "sliding", "window without key", "distinct, list, quantile", "running aggregates",
          "sessions", "late rows to a side output"}  # fmt: skip


def rows(seed: int, count: int = 120) -> pl.DataFrame:
    """In order of time, no two at the same."""
    rng = random.Random(seed)
    times = sorted(rng.sample(range(count * 2), count))
    made = [
        (seed * 1000 + number, rng.randrange(4), time, rng.randrange(-8, 30), " ".join(rng.choices("abc", k=2)))
        for number, time in enumerate(times)
    ]
    return pl.DataFrame(made, schema=SCHEMA, orient="row")


def program(make: Callable[..., Any], names: tuple[str, ...]) -> Callable[[ps.Flow], None]:
    def built(flow: ps.Flow) -> None:
        streams = {
            name: flow.read(ps.items(rows(seed), batch_rows=1), event_time="ts", unit="s", uid=f"in-{name}")
            for seed, name in enumerate(names, 1)
        }
        for name, stream in make(**streams).items():
            shown = stream if stream.changes is None else stream.as_changelog()
            shown.write(ps.collect(), uid=f"out-{name}")

    return built


def compared(built: Callable[[ps.Flow], None], spark: Any, keys: dict[str, tuple[str, ...]]) -> batch.BatchResult:
    result = batch.run(flow_of(built), spark)
    expected = testing.run_stream(built)
    for uid, found in result.frames.items():
        wanted, name = expected[uid], uid.removeprefix("out-")
        if "change" in wanted.columns:
            by = keys.get(name)
            wanted = expected.table(uid, keys=None if by in (None, WHOLE) else by)
            found = found.drop("change")
        rounded = [pl.col(each).round(9) for each, kind in wanted.schema.items() if kind.is_float()]
        testing.assert_rows(found.select(wanted.columns).with_columns(rounded), wanted.with_columns(rounded))
    assert result.frames.keys() == expected.frames.keys()
    return result


def flow_of(built: Callable[[ps.Flow], None]) -> Any:
    """Its times are in 1970."""
    flow = ps.Flow("cases", settings=with_values(JobSettings(), {"source.check_unit": False}, where=""))
    built(flow)
    return flow.plan()


CASES = [*operator_cases.CASES, *window_cases.CASES, *updating_cases.CASES]
TIMERS = "process with timers"
"""In a batch time is always as far as the next row; in a stream it lags behind, so that it is no measure for this."""


@pytest.mark.parametrize("case", [case for case in CASES if case.name != TIMERS], ids=lambda case: case.name)
def test_a_case_of_the_contract(case: Any, spark: Any) -> None:
    result = compared(program(case.build, case.inputs), spark, case.keys)
    if case.name in NATIVE:
        assert not {uid: way for uid, way in result.operators.items() if way != "native" and not uid.startswith("in-")}


def test_timers_fire_between_rows(spark: Any) -> None:
    case = next(case for case in CASES if case.name == TIMERS)
    script = [each for row in rows(1).to_dicts() for each in (interpreter.Mark(row["ts"] - 1), row)]
    found = batch.run(flow_of(program(case.build, case.inputs)), spark).frames["out-result"]
    testing.assert_rows(found, case.meaning(script)["result"])


def joined(left: ps.DataStream, right: ps.DataStream, how: str, **match: Any) -> ps.DataStream:
    renamed = right.select(key="key", other="value", rts="ts", rid="id")
    return left.select("id", "key", "ts").join(renamed, on="key", how=how, **match)


@pytest.mark.parametrize("how", ["inner", "left", "right", "full", "semi", "anti"])
def test_joins(how: str, spark: Any) -> None:
    def make(left: ps.DataStream, right: ps.DataStream) -> dict[str, ps.DataStream]:
        return {
            "window": joined(left, right, how, within=ps.tumbling("10s")),
            "sliding": joined(left, right, how, within=ps.sliding("8s", every="4s")),
            "interval": joined(left, right, how, within=ps.interval("-3s", "5s")),
        }

    result = compared(program(make, ("left", "right")), spark, {})
    assert all(way == "native" for uid, way in result.operators.items() if not uid.startswith("in-"))


def test_joins_with_versions(spark: Any) -> None:
    def make(left: ps.DataStream, right: ps.DataStream) -> dict[str, ps.DataStream]:
        versions = right.select("key", "ts", price="value")
        return {
            "inner": left.select("id", "key", "ts").join(versions, on="key", within=ps.as_of()),
            "left": left.select("id", "key", "ts").join(versions, on="key", how="left", within=ps.as_of(max_age="4s")),
        }

    compared(program(make, ("left", "right")), spark, {})


def test_rows_of_rank(spark: Any) -> None:
    def make(left: ps.DataStream) -> dict[str, ps.DataStream]:
        keyed = left.key_by("key")
        return {
            "top": keyed.top_n(3, by="value", descending=True, rank="place"),
            "first": keyed.deduplicate(keep="first", by="event_time"),
            "last": keyed.deduplicate(keep="last", by="event_time"),
        }

    compared(program(make, ("left",)), spark, {"top": ("key", "place"), "last": ("key",)})


def test_windows_with_triggers_run_in_python(spark: Any) -> None:
    def make(left: ps.DataStream) -> dict[str, ps.DataStream]:
        return {"counts": left.key_by("key").window(ps.count_window(4)).agg(total=ps.sum("value"))}

    result = compared(program(make, ("left",)), spark, {})
    assert any(way.startswith("in Python") for way in result.operators.values())


def test_a_custom_aggregate_runs_in_python(spark: Any) -> None:
    class Spread(ps.MergeableAggregate):
        def fold(self, value: Any) -> dict[str, Any]:
            return {"low": value.min(), "high": value.max()}

        def merge(self, low: Any, high: Any) -> dict[str, Any]:
            return {"low": low.min(), "high": high.max()}

        def finish(self, low: Any, high: Any) -> Any:
            return high - low

    def make(left: ps.DataStream) -> dict[str, ps.DataStream]:
        window = left.key_by("key").window(ps.tumbling("10s"))
        return {"spread": window.agg(spread=Spread("value"), about=ps.approx_count_distinct("value"))}

    compared(program(make, ("left",)), spark, {})


def test_asynchronous_functions(spark: Any) -> None:
    async def doubled(id: int, value: int) -> tuple[int, int]:  # noqa: A002 - a column
        return id, value * 2

    def make(left: ps.DataStream) -> dict[str, ps.DataStream]:
        return {"out": left.map_async(doubled, output={"id": pl.Int64, "twice": pl.Int64})}

    compared(program(make, ("left",)), spark, {})


def test_files_of_every_format(spark: Any, tmp_path: Path) -> None:
    given = rows(1).with_columns(
        small=pl.col("key").cast(pl.UInt8), at=pl.from_epoch("ts", time_unit="s").cast(pl.Datetime("ms")),
        big=pl.col("id").cast(pl.UInt64), half=pl.col("value") / 2,
    )  # fmt: skip
    formats = {"parquet": ps.parquet, "csv": ps.csv, "jsonl": ps.json_lines}
    for name, make in formats.items():
        source, out = tmp_path / f"in-{name}", tmp_path / f"out-{name}"
        source.mkdir()
        {"parquet": given.write_parquet, "csv": given.write_csv, "jsonl": given.write_ndjson}[name](
            source / f"rows.{name}"
        )

        def copy(flow: ps.Flow, make: Any = make, source: Path = source, out: Path = out) -> None:
            flow.read(make(source), uid="in").filter(col("value") >= 0).write(make(out), uid="out")

        batch.run(build(copy), spark)
        parts = [part for part in out.rglob(f"*.{name}") if "_penstock" not in part.parts]
        read = {"parquet": pl.read_parquet, "csv": pl.read_csv, "jsonl": pl.read_ndjson}[name]
        found = pl.concat([read(part) for part in parts])
        wanted = given.filter(pl.col("value") >= 0)
        assert parts
        testing.assert_rows(found.select("id", "value", "text"), wanted.select("id", "value", "text"))
        if name == "parquet":
            testing.assert_rows(found, wanted)  # also types that Spark lacks


def test_an_error_of_a_function_leaves_nothing_behind(spark: Any, tmp_path: Path) -> None:
    def fails(id: int) -> int:  # noqa: A002 - a column
        if id == 1050:
            raise ValueError("not this one")
        return id

    def broken(flow: ps.Flow) -> None:
        stream = flow.read(ps.items(rows(1)), uid="in")
        stream.map(fails, output={"id": pl.Int64}).write(ps.parquet(tmp_path / "out"), uid="out")

    with pytest.raises(UserError, match="P007") as raised:
        batch.run(build(broken), spark)
    assert "not this one" in str(raised.value)
    assert not [path for path in (tmp_path / "out").rglob("*") if path.is_file()]


@pytest.mark.parametrize("bad", ["stop", "drop"])
def test_rows_without_time(bad: str, spark: Any, tmp_path: Path) -> None:
    holes = rows(1).with_columns(ts=pl.when(pl.col("id") != 1050).then(pl.col("ts")))
    holes.write_parquet(tmp_path / "rows.parquet")

    def counted(flow: ps.Flow) -> None:
        flow.configure({"source.on_bad_record": bad})
        read = flow.read(ps.parquet(tmp_path / "rows.parquet"), event_time="ts", unit="s", uid="rows")
        read.window(ps.tumbling("1h")).agg(n=ps.count()).select("n").write(ps.collect(), uid="out")

    if bad == "drop":
        assert batch.run(flow_of(counted), spark).collected().rows() == [(119,)]
        return
    with pytest.raises(UserError, match="R004") as raised:
        batch.run(flow_of(counted), spark)
    assert "rows" in raised.value.what
    assert raised.value.fix


@pytest.mark.parametrize(
    ("make", "what"),
    [
        (lambda flow: flow.read(ps.nexmark()), "never ends"),
        (lambda flow: flow.read(ps.items(rows(1)), time="processing").key_by("key").window(ps.tumbling("1s"))
            .agg(n=ps.count()), "by the clock"),
    ],
)  # fmt: skip
def test_what_has_no_meaning_in_a_batch_is_refused_at_its_line(make: Any, what: str, spark: Any) -> None:
    def refused(flow: ps.Flow) -> None:
        make(flow).write(ps.discard(), uid="out")

    with pytest.raises(UserError, match="P081") as raised:
        batch.run(build(refused), spark)
    assert what in raised.value.what
    assert "test_operators_on_spark.py" in (raised.value.where or "")
    assert raised.value.fix
