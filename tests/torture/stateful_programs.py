"""Jobs with sessions, joins, functions, calls and a database under them, and what each must come to.

Rows are made of their number alone, so that an oracle can make them too.
"""

import asyncio
import random
import time
from collections.abc import Iterator
from datetime import timedelta
from typing import Any

import numpy as np
import polars as pl
from oracles import EqualRows, GrowingSessions, Oracle

import penstock as ps
from penstock import col

SECONDS = 5
"""That each job takes when nothing befalls it."""
STEP_US = 1_000
"""Of event time, from row to row."""
START = "2026-01-01"
START_US = 1_767_225_600_000_000

SESSION_ROWS = 30_000
SESSION_KEYS = 300
BATCH_ROWS = 120
GAP_US = 250_005
"""Times are multiples of 10 us, so no row is exactly a gap away from another."""
DISORDER_US = 200_000
LATENESS_US = 5_000_000
TOO_LATE_FROM, TOO_LATE_EVERY, TOO_LATE_BY_US = 12_000, 97, 3_600_000_000
"""Some rows come an hour late; not among the first, which may all be in front of the first watermark."""

JOINED_ROWS, JOINED_KEYS = 20_000, 50
EARLIER_US, LATER_US = 50_000, 200_000

VISITS, VISITORS = 30_000, 200
FORGET_US = 300_000
PERIOD_US = 2_000_000
PATIENCE_US = 150_000

EVENTS, CARDS, RULES, RULE_GROUPS = 20_000, 400, 40, 20

CALLS = 15_000
CHANCE = random.Random()
FAILS = 0.02

STORED_ROWS, STORED_KEYS = 30_000, 6_000


def mixed(number: Any, seed: int) -> Any:
    """A number that looks like chance, of an expression or of an array."""
    spread = (number + seed * 1_000) * 2_654_435_761 % 4_294_967_296
    return spread // 65_536


def numbered(flow: ps.Flow, rows: int, name: str = "n", *, splits: int = 4, late_us: int = 0) -> ps.DataStream:
    columns = {name: ps.sequence(), "ts": ps.timestamps(START, timedelta(microseconds=STEP_US))}
    source = ps.generate(columns, rows=rows, rate=rows / SECONDS, splits=splits)
    return flow.read(source, event_time="ts", uid=f"source-{name}")


def numbers(rows: int, name: str = "n") -> pl.DataFrame:
    row = np.arange(rows)
    return pl.DataFrame({name: row, "ts": START_US + row * STEP_US})


# ---------------------------------------------------------------- sessions with late rows


def sessions(flow: ps.Flow, out: str, seed: int) -> None:
    """Most late rows still change their session; those of an hour ago are put aside."""
    clicks = flow.read(ps.items(_clicks(seed), batch_rows=BATCH_ROWS), event_time="ts", unit="us", uid="clicks")
    window = (
        clicks.map_batches(in_its_time, output=_clicks(seed).schema, uid="pace")
        .key_by("key")
        .window(
            ps.session(timedelta(microseconds=GAP_US)),
            allowed_lateness=timedelta(microseconds=LATENESS_US),
            late_to="late",
        )
    )
    grown = window.agg(rows=ps.count(), total=ps.sum("value"), uid="sessions")
    changes = grown.as_changelog().select(
        "key", "rows", "total", "change", start=col("window_start"), end=col("window_end")
    )
    nothing = col("value") * 0
    late = grown.side_output("late").select(
        "key", rows=nothing, total=nothing, change=ps.lit("late"), start=col("ts"), end=nothing
    )
    changes.union(late, uid="both").write(ps.parquet(out), uid="result")


def in_its_time(frame: pl.DataFrame) -> pl.DataFrame:
    time.sleep(frame.height / SESSION_ROWS * SECONDS)
    return frame


def expected_of_sessions(seed: int) -> Oracle:
    clicks = _clicks(seed)
    in_time = clicks.filter(pl.col("ts") >= START_US - DISORDER_US).sort("key", "ts")
    new = (pl.col("ts").diff().over("key") > GAP_US).fill_null(value=True)
    rows = pl.len().cast(pl.Int64)
    grown = (
        in_time.with_columns(session=new.cum_sum())
        .group_by("key", "session")
        .agg(
            start=pl.col("ts").min(),
            end=pl.col("ts").max() + GAP_US,
            rows=rows,
            total=pl.sum("value"),
        )
        .select("key", "start", "end", "rows", "total")
    )
    late = clicks.filter(pl.col("ts") < START_US - DISORDER_US).select("key", start="ts")
    return GrowingSessions(grown, late)


def _clicks(seed: int) -> pl.DataFrame:
    row = np.arange(SESSION_ROWS)
    ts = START_US + row * STEP_US - mixed(row * 7, seed) % (DISORDER_US // 10) * 10
    too_late = (row >= TOO_LATE_FROM) & (row % TOO_LATE_EVERY == 0)
    return pl.DataFrame({"key": mixed(row, seed) % SESSION_KEYS, "ts": ts - too_late * TOO_LATE_BY_US, "value": row})


# ---------------------------------------------------------------- interval join


def interval_join(flow: ps.Flow, out: str, seed: int) -> None:
    left, right = (
        numbered(flow, JOINED_ROWS, name).with_columns(key=mixed(col(name), seed + number) % JOINED_KEYS)
        for number, name in enumerate("nm")
    )
    near = ps.interval(-timedelta(microseconds=EARLIER_US), timedelta(microseconds=LATER_US))
    left.join(right, on="key", within=near, uid="near").select("n", "m").write(ps.parquet(out), uid="result")


def expected_of_interval_join(seed: int) -> Oracle:
    left, right = (
        numbers(JOINED_ROWS, name).with_columns(key=mixed(pl.col(name), seed + number) % JOINED_KEYS)
        for number, name in enumerate("nm")
    )
    apart = pl.col("ts_right") - pl.col("ts")
    return EqualRows(left.join(right, on="key").filter(apart.is_between(-EARLIER_US, LATER_US)).select("n", "m"))


# ---------------------------------------------------------------- both kinds of timers, and a time to live


class Visits(ps.KeyedProcessFunction):
    """Numbers the visits of a streak, which is forgotten after a silence; tells of each visit a while later.

    The clock tells of visits, and so does the end of a period, whichever comes first.
    """

    streak = ps.ValueState(int, default=0, ttl=ps.ttl(timedelta(microseconds=FORGET_US), time="event"))
    periods = ps.MapState(int, int)
    untold = ps.ListState(int)

    def process(self, ctx: ps.KeyedContext, n: int) -> tuple[str, int, int]:
        self.streak.value += 1
        period = ctx.timestamp // PERIOD_US
        self.periods[period] = self.periods.get(period, 0) + 1
        self.untold.add(n)
        ctx.set_timer((period + 1) * PERIOD_US - 1)
        ctx.set_processing_timer(ctx.processing_time + PATIENCE_US)
        return "visit", n, self.streak.value

    def on_processing_timer(self, ctx: ps.KeyedContext, time: int) -> list[tuple[str, int, int]]:
        untold = self.untold.get()
        self.untold.clear()
        return [("told", n, ctx.key) for n in untold]

    def on_timer(self, ctx: ps.KeyedContext, time: int) -> Iterator[tuple[str, int, int]]:
        yield from self.on_processing_timer(ctx, time)
        period = time // PERIOD_US
        yield "period", period * VISITORS + ctx.key, self.periods[period]
        self.periods.remove(period)


def timers(flow: ps.Flow, out: str, seed: int) -> None:
    visits = numbered(flow, VISITS, splits=1).with_columns(key=mixed(col("n"), seed) % VISITORS)
    output = {"what": str, "n": int, "number": int}
    visits.key_by("key").process(Visits(), output=output, uid="visits").write(ps.parquet(out), uid="result")


def expected_of_timers(seed: int) -> Oracle:
    visits = numbers(VISITS).with_columns(key=mixed(pl.col("n"), seed) % VISITORS)
    new = (pl.col("ts").diff() >= FORGET_US).fill_null(value=True).cum_sum()
    streaks = visits.sort("key", "ts").with_columns(streak=new.over("key"))
    seen = streaks.with_columns(number=pl.int_range(1, pl.len() + 1).over("key", "streak"))
    periods = visits.group_by("key", period=pl.col("ts") // PERIOD_US).agg(number=pl.len().cast(pl.Int64))
    parts = [
        seen.select(what=pl.lit("visit"), n="n", number="number"),
        visits.select(what=pl.lit("told"), n="n", number="key"),
        periods.select(what=pl.lit("period"), n=pl.col("period") * VISITORS + pl.col("key"), number="number"),
    ]
    return EqualRows(pl.concat(parts))


# ---------------------------------------------------------------- broadcast rules


class Judge(ps.BroadcastProcessFunction):
    """Every event of a card against every rule of its group, whichever comes first."""

    rules = ps.BroadcastState(int, int)
    events = ps.ListState(int)

    def process(self, ctx: ps.KeyedContext, n: int) -> list[tuple[int, int]]:
        self.events.add(n)
        return [(n, rule) for rule, group in self.rules.items() if group == ctx.key % RULE_GROUPS]

    def process_broadcast(self, ctx: ps.KeyedContext, rule: int, group: int) -> None:
        self.rules[rule] = group

        def judge(ctx: ps.KeyedContext) -> Iterator[tuple[int, int]]:
            if group == ctx.key % RULE_GROUPS:
                for n in self.events:
                    yield n, rule

        ctx.for_each_key(self.events, judge)


def broadcast_rules(flow: ps.Flow, out: str, seed: int) -> None:
    events = numbered(flow, EVENTS).with_columns(card=mixed(col("n"), seed) % CARDS)
    made = flow.read(ps.generate({"rule": ps.sequence()}, rows=RULES, rate=RULES / SECONDS, splits=1), uid="rules")
    rules = made.with_columns(group=mixed(col("rule"), seed) % RULE_GROUPS)
    judged = events.key_by("card").connect(rules.broadcast())
    judged.process(Judge(), output={"n": int, "rule": int}, uid="judge").write(ps.parquet(out), uid="result")


def expected_of_broadcast_rules(seed: int) -> Oracle:
    events = numbers(EVENTS).with_columns(group=mixed(pl.col("n"), seed) % CARDS % RULE_GROUPS)
    rules = pl.DataFrame({"rule": np.arange(RULES)}).with_columns(group=mixed(pl.col("rule"), seed) % RULE_GROUPS)
    return EqualRows(events.join(rules, on="group").select("n", "rule"))


# ---------------------------------------------------------------- asynchronous calls


async def answer(n: int, key: int) -> tuple[int, int]:
    """From somewhere that takes its time, and is not always there."""
    await asyncio.sleep(n % 17 / 1_000)
    if CHANCE.random() < FAILS:  # whether it fails must not depend on the row: the next try has to have a chance
        raise ConnectionError("not there")
    return n, n * key


def calls(flow: ps.Flow, out: str, seed: int) -> None:
    asked = numbered(flow, CALLS).with_columns(key=mixed(col("n"), seed)).key_by("key")
    output = {"n": int, "answer": int}
    answers = asked.map_async(
        answer, output=output, capacity=200, ordered=seed % 2 == 0, retries=8, backoff="1ms", uid="calls"
    )
    answers.write(ps.parquet(out), uid="result")


def expected_of_calls(seed: int) -> Oracle:
    return EqualRows(numbers(CALLS).select("n", answer=pl.col("n") * mixed(pl.col("n"), seed)))


# ---------------------------------------------------------------- state in RocksDB


class Ledger(ps.KeyedProcessFunction):
    """Numbers the rows of an account for ever, and gives what a period came to at its end."""

    rows = ps.ValueState(int, default=0)
    periods = ps.MapState(int, int)
    latest = ps.ListState(int)

    def process(self, ctx: ps.KeyedContext, n: int) -> tuple[str, int, int]:
        period = ctx.timestamp // PERIOD_US
        self.rows.value += 1
        self.periods[period] = self.periods.get(period, 0) + n
        self.latest.add(n)
        ctx.set_timer((period + 1) * PERIOD_US - 1)
        return "row", ctx.key, self.rows.value

    def on_timer(self, ctx: ps.KeyedContext, time: int) -> tuple[str, int, int]:
        period = time // PERIOD_US
        total = self.periods[period]
        self.periods.remove(period)
        return "period", period * STORED_KEYS + ctx.key, total


def ledger(flow: ps.Flow, out: str, seed: int) -> None:
    rows = numbered(flow, STORED_ROWS).with_columns(key=mixed(col("n"), seed) % STORED_KEYS)
    output = {"what": str, "n": int, "number": int}
    rows.key_by("key").process(Ledger(), output=output, uid="ledger").write(ps.parquet(out), uid="result")


def expected_of_ledger(seed: int) -> Oracle:
    rows = numbers(STORED_ROWS).with_columns(key=mixed(pl.col("n"), seed) % STORED_KEYS)
    counted = rows.select(n="key", number=pl.int_range(1, pl.len() + 1).over("key"))
    periods = rows.group_by("key", period=pl.col("ts") // PERIOD_US).agg(number=pl.col("n").sum())
    ended = periods.select(n=pl.col("period") * STORED_KEYS + pl.col("key"), number="number")
    named = [("row", counted), ("period", ended)]
    return EqualRows(pl.concat(frame.select(pl.lit(what).alias("what"), "n", "number") for what, frame in named))
