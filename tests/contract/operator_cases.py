"""Programs of every operator, each with its meaning in plain Python. `test_operators_under_faults` runs them."""

import math
from collections import defaultdict
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import interpreter
import polars as pl
from interpreter import Output, Row, Script, by_key, rows_of, windows

import penstock as ps
from penstock import col

SECOND = 1_000_000

WHOLE_ROWS = ("*",)
"""Rows of an output are taken back by all of their values."""


@dataclass(frozen=True, slots=True)
class Case:
    """`build` makes streams of the streams `left` (and `right`); `meaning` says what comes out of each."""

    name: str
    build: Callable[..., Any]
    meaning: Callable[..., dict[str, list[Output]]]
    inputs: tuple[str, ...] = ("left",)
    keys: dict[str, tuple[str, ...]] = field(default_factory=dict)
    """Outputs that update earlier rows, by these columns or `WHOLE_ROWS`: what is left in the end is compared."""
    in_time: bool = False
    """Rows are never late: for programs whose result depends on more than the order within one input."""


# ---------------------------------------------------------------- columns and rows


def expressions(left: ps.DataStream) -> dict[str, ps.DataStream]:
    doubled = left.with_columns(double=col("value") * 2).filter(col("double") > 4)
    return {"result": doubled.select("key", "double", shifted=col("ts") + 1)}


def expressions_mean(left: Script) -> dict[str, list[Output]]:
    doubled = [(row["key"], row["value"] * 2, row["ts"] + 1) for row in rows_of(left)]
    return {"result": [row for row in doubled if row[1] > 4]}


def exploded(left: ps.DataStream) -> dict[str, ps.DataStream]:
    words = left.select("key", word=col("text").str.split(" ")).explode("word")
    return {"result": words.rebalance().filter(col("word") != "b")}


def exploded_mean(left: Script) -> dict[str, list[Output]]:
    words = [(row["key"], word) for row in rows_of(left) for word in row["text"].split(" ")]
    return {"result": [row for row in words if row[1] != "b"]}


def per_record(key: int, value: int) -> tuple[int, int]:
    return key, value + 1


def per_record_many(key: int, more: int) -> list[tuple[int, int]]:
    return [(key, number) for number in range(more % 3)]


def per_batch(frame: pl.DataFrame) -> pl.DataFrame:
    return frame.with_columns(number=pl.col("number") * 10)


def mapped(left: ps.DataStream) -> dict[str, ps.DataStream]:
    more = left.map(per_record, output={"key": pl.Int64, "more": pl.Int64})
    many = more.flat_map(per_record_many, output={"key": pl.Int64, "number": pl.Int64})
    return {"result": many.map_batches(per_batch, output=many.schema)}


def mapped_mean(left: Script) -> dict[str, list[Output]]:
    return {"result": [(row["key"], number * 10) for row in rows_of(left) for number in range((row["value"] + 1) % 3)]}


def united(left: ps.DataStream, right: ps.DataStream) -> dict[str, ps.DataStream]:
    both = left.union(right)
    counts = both.key_by("key").window(ps.tumbling("10s")).agg(n=ps.count(), total=ps.sum("value"))
    return {"all": both.select("key", "value"), "counts": counts}


def united_mean(left: Script, right: Script) -> dict[str, list[Output]]:
    rows = rows_of(left) + rows_of(right)
    groups, _ = windows([*rows], lambda row: row["key"], 10, 10)
    return {
        "all": [(row["key"], row["value"]) for row in rows],
        "counts": [
            (key, start, start + 10, len(group), sum(row["value"] for row in group))
            for (key, start), group in groups.items()
        ],
    }


def broadcast(left: ps.DataStream) -> dict[str, ps.DataStream]:
    keyed = left.key_by("key").window(ps.tumbling("5s", offset="2s")).agg(n=ps.count())
    return {"result": keyed.window(ps.tumbling("5s", offset="2s")).agg(keys=ps.count(), most=ps.max("n"))}


def broadcast_mean(left: Script) -> dict[str, list[Output]]:
    groups, _ = windows(left, lambda row: row["key"], 5, 5, offset=2)
    starts: dict[int, list[int]] = defaultdict(list)
    for (_, start), group in groups.items():
        starts[start].append(len(group))
    return {"result": [(start, start + 5, len(counts), max(counts)) for start, counts in starts.items()]}


# ---------------------------------------------------------------- windows


def tumbling(left: ps.DataStream) -> dict[str, ps.DataStream]:
    return {
        "result": left.key_by("key")
        .window(ps.tumbling("10s"))
        .agg(
            n=ps.count(),
            total=ps.sum("value"),
            low=ps.min("value"),
            high=ps.max("value"),
            first=ps.first("text"),
            last=ps.last("text"),
            cheapest=ps.min_by("text", by=col("value") * 1000 + col("id")),
            dearest=ps.max_by("text", by=col("value") * 1000 + col("id")),
            some=ps.any(col("value") > 10),
            every=ps.all(col("value") > 0),
        )
    }


def tumbling_mean(left: Script) -> dict[str, list[Output]]:
    groups, _ = windows(left, lambda row: row["key"], 10, 10)
    rank = lambda row: row["value"] * 1000 + row["id"]  # noqa: E731
    return {
        "result": [
            (
                key,
                start,
                start + 10,
                len(rows),
                sum(row["value"] for row in rows),
                min(row["value"] for row in rows),
                max(row["value"] for row in rows),
                interpreter.first_by_time(rows, "text"),
                interpreter.last_by_time(rows, "text"),
                min(rows, key=rank)["text"],
                max(rows, key=rank)["text"],
                any(row["value"] > 10 for row in rows),
                all(row["value"] > 0 for row in rows),
            )
            for (key, start), rows in groups.items()
        ]
    }


def moments(left: ps.DataStream) -> dict[str, ps.DataStream]:
    made = left.key_by("key").window(ps.tumbling("15s")).agg(mean=ps.mean("value"), std=ps.std("value"))
    return {"result": made.select("key", "window_start", mean=col("mean").round(6), std=col("std").round(6))}


def moments_mean(left: Script) -> dict[str, list[Output]]:
    groups, _ = windows(left, lambda row: row["key"], 15, 15)
    result: list[Output] = []
    for (key, start), rows in groups.items():
        values = [row["value"] for row in rows]
        variance = interpreter.variance(values)
        std = None if variance is None else round(math.sqrt(variance), 6)
        result.append((key, start, round(interpreter.mean(values), 6), std))
    return {"result": result}


def sliding(left: ps.DataStream) -> dict[str, ps.DataStream]:
    window = left.key_by("key").window(ps.sliding("12s", every="4s"))
    return {"result": window.agg(n=ps.count(), total=ps.sum("value"))}


def sliding_mean(left: Script) -> dict[str, list[Output]]:
    groups, _ = windows(left, lambda row: row["key"], 12, 4)
    return {
        "result": [
            (key, start, start + 12, len(rows), sum(row["value"] for row in rows))
            for (key, start), rows in groups.items()
        ]
    }


def unkeyed(left: ps.DataStream) -> dict[str, ps.DataStream]:
    window = left.window(ps.sliding("10s", every="5s"))
    return {"result": window.agg(n=ps.count(), high=ps.max("value"), id=ps.max_by("id", by=col("id")))}


def unkeyed_mean(left: Script) -> dict[str, list[Output]]:
    groups, _ = windows(left, lambda row: 0, 10, 5)
    return {
        "result": [
            (start, start + 10, len(rows), max(row["value"] for row in rows), max(row["id"] for row in rows))
            for (_, start), rows in groups.items()
        ]
    }


def distinct_aggregates(left: ps.DataStream) -> dict[str, ps.DataStream]:
    window = left.key_by("key").window(ps.tumbling("10s"))
    made = window.agg(values=ps.count_distinct("value"), ids=ps.collect_list("id"), half=ps.quantile("value", 0.5))
    return {
        "result": made.with_columns(ids=col("ids").list.len()).select("key", "window_start", "values", "ids", "half")
    }


def distinct_aggregates_mean(left: Script) -> dict[str, list[Output]]:
    groups, _ = windows(left, lambda row: row["key"], 10, 10)
    result: list[Output] = []
    for (key, start), rows in groups.items():
        values = sorted(row["value"] for row in rows)
        position = 0.5 * (len(values) - 1)
        low, high = values[math.floor(position)], values[math.ceil(position)]
        result.append((key, start, len(set(values)), len(rows), low + (high - low) * (position % 1)))
    return {"result": result}


# ---------------------------------------------------------------- without windows


def running(left: ps.DataStream) -> dict[str, ps.DataStream]:
    made = left.key_by("key").agg(n=ps.count(), total=ps.sum("value"), high=ps.max("value"))
    return {"result": made, "many": made.filter(col("n") > 3)}


def running_mean(left: Script) -> dict[str, list[Output]]:
    result = [
        (key, len(rows), sum(row["value"] for row in rows), max(row["value"] for row in rows))
        for key, rows in by_key(rows_of(left)).items()
    ]
    return {"result": result, "many": [row for row in result if row[1] > 3]}


# ---------------------------------------------------------------- functions


class Alarms(ps.KeyedProcessFunction):
    """A running number per row; a timer five seconds after the first row of a key, which starts anew."""

    seen = ps.ValueState(int, default=0)
    total = ps.ValueState(int, default=0)

    def process(self, ctx: ps.KeyedContext, value: int, ts: int) -> tuple[int, str, int]:
        self.seen.value += 1
        self.total.value += value
        if self.seen.value == 1:
            ctx.set_timer((ts + 5) * SECOND)
        return ctx.key, "row", self.seen.value

    def on_timer(self, ctx: ps.KeyedContext, time: int) -> tuple[int, str, int]:
        total = self.total.value
        self.seen.clear()
        self.total.clear()
        return ctx.key, f"until {time // SECOND}", total


ALARM = {"key": pl.Int64, "what": pl.String, "number": pl.Int64}


def process(left: ps.DataStream) -> dict[str, ps.DataStream]:
    return {"result": left.key_by("key").process(Alarms(), output=ALARM, uid="alarms")}


def process_mean(left: Script) -> dict[str, list[Output]]:
    seen: dict[int, int] = defaultdict(int)
    total: dict[int, int] = defaultdict(int)
    timers: set[tuple[int, int]] = set()
    result: list[Output] = []

    def fire(watermark: float) -> None:
        for time, key in sorted(timers):
            if time <= watermark:
                timers.discard((time, key))
                result.append((key, f"until {time}", total.pop(key, 0)))
                seen.pop(key, None)

    for each in left:
        if isinstance(each, interpreter.Mark):
            fire(each.time)
            continue
        key = each["key"]
        seen[key] += 1
        total[key] += each["value"]
        if seen[key] == 1:
            timers.add((each["ts"] + 5, key))
        result.append((key, "row", seen[key]))
    fire(interpreter.END)
    return {"result": result}


class Kinds(ps.KeyedProcessFunction):
    """One state of each kind."""

    recent = ps.ListState(int)
    texts = ps.MapState(str, int)
    total = ps.ReducingState(lambda one, other: one + other, int)

    def process(self, ctx: ps.KeyedContext, value: int, text: str) -> tuple[int, int, int, int]:
        self.recent.add(value)
        if len(self.recent) > 3:
            self.recent.update(self.recent.get()[-3:])
        self.texts[text] = (self.texts.get(text) or 0) + 1
        self.total.add(value)
        return ctx.key, sum(self.recent), len(self.texts), self.total.get() or 0


def kinds(left: ps.DataStream) -> dict[str, ps.DataStream]:
    output = {"key": pl.Int64, "recent": pl.Int64, "texts": pl.Int64, "total": pl.Int64}
    return {"result": left.key_by("key").process(Kinds(), output=output, uid="kinds")}


def kinds_mean(left: Script) -> dict[str, list[Output]]:
    result: list[Output] = []
    for key, rows in by_key(rows_of(left)).items():
        for end in range(1, len(rows) + 1):
            before = rows[:end]
            values = [row["value"] for row in before]
            result.append((key, sum(values[-3:]), len({row["text"] for row in before}), sum(values)))
    return {"result": result}


CASES = [
    Case("select, with_columns, filter", expressions, expressions_mean),
    Case("explode, rebalance", exploded, exploded_mean),
    Case("map, flat_map, map_batches", mapped, mapped_mean),
    Case("union", united, united_mean, inputs=("left", "right"), in_time=True),
    Case("windows of windows", broadcast, broadcast_mean),
    Case("tumbling", tumbling, tumbling_mean),
    Case("mean and deviation", moments, moments_mean),
    Case("sliding", sliding, sliding_mean),
    Case("window without key", unkeyed, unkeyed_mean),
    Case("distinct, list, quantile", distinct_aggregates, distinct_aggregates_mean),
    Case("running aggregates", running, running_mean, keys={"result": ("key",), "many": ("key",)}),
    Case("process with timers", process, process_mean),
    Case("process with every kind of state", kinds, kinds_mean),
]

__all__ = ["CASES", "Case", "Row"]
