"""The programs that are simulated, each with its answer.

No row is ever late: within a split rows are out of order by less than the allowed delay, a split that falls silent
says nothing more in its life, and where splits appear any time, nothing depends on time. So the answer depends on the
rows alone, not on what arrives when, and a plain recomputation gives it.
"""

import asyncio
from collections.abc import Iterator

import narwhals as nw
import polars as pl

from penstock.api import session, sliding, trigger, tumbling
from penstock.api.aggregates import count, max_, sum_
from penstock.api.streams import DataStream
from penstock.operators.contexts import KeyedContext
from penstock.operators.user_functions import KeyedProcessFunction
from penstock.operators.user_states import ValueState
from penstock.testing.answers import Answer, ExactRows, Row, StandingRows, SumsPerKey, Together
from penstock.testing.endpoints import SinkOutput
from penstock.testing.function_programs import connected, judged, waiting
from penstock.testing.program_inputs import SCHEMA, SECOND_US, Input, Program, grouped, window_answer

JOINED_FROM = 75
"""Joined are rows with such values: one in five, or there are too many pairs."""


class Sessions(KeyedProcessFunction):
    """Sums per key and bucket, given out by a timer at the end of the bucket; a second timer gives the count."""

    total = ValueState(int, default=0)
    rows = ValueState(int, default=0)

    def process(self, ctx: KeyedContext, value: int, end: int) -> tuple[int, int, str, int] | None:
        """Count, and set both timers; the first row of a bucket is announced."""
        self.total.value += value
        self.rows.value += 1
        ctx.set_timer(end - 1)
        ctx.set_timer(end + 3 * SECOND_US)
        return (*ctx.key, "opened", 0) if self.rows.value == 1 else None

    def on_timer(self, ctx: KeyedContext, time: int) -> tuple[int, int, str, int]:
        """The end of the bucket, or some time later."""
        if time < ctx.key[1]:
            return (*ctx.key, "sum", self.total.value)
        rows = self.rows.value
        self.total.clear()
        self.rows.clear()
        return (*ctx.key, "count", rows)


class Tally(KeyedProcessFunction):
    """Numbers the rows of a key, in whatever order they come."""

    rows = ValueState(int, default=0)

    def process(self, ctx: KeyedContext, value: int) -> tuple[int, int]:
        """One more."""
        self.rows.value += 1
        return ctx.key, self.rows.value


def doubled(key: int, ts: int, value: int, name: str) -> tuple[int, int, int, str]:
    """For `map`: one row in, one row out."""
    return key, ts, value * 2, name


# ---------------------------------------------------------------- programs and their answers


def _tumbling(streams: list[DataStream], inputs: list[list[Input]], width: int) -> Answer:
    window = streams[0].key_by("key").window(tumbling(width))
    window.agg(rows=count(), total=sum_("value"), uid="window").write(SinkOutput(), uid="sink")
    return ExactRows(window_answer(inputs[0], width, width))


def _sliding(streams: list[DataStream], inputs: list[list[Input]], width: int) -> Answer:
    window = streams[0].filter(nw.col("value") >= 0).key_by("key").window(sliding(2 * width, every=width))
    window.agg(rows=count(), total=sum_("value"), uid="window").write(SinkOutput(), uid="sink")
    return ExactRows(window_answer([row for row in inputs[0] if row[2] >= 0], 2 * width, width))


def _union(streams: list[DataStream], inputs: list[list[Input]], width: int) -> Answer:
    both = streams[0].union(streams[1], uid="both").map(doubled, output=SCHEMA)
    window = both.key_by("name").window(tumbling(width))
    result = window.agg(rows=count(), total=sum_("value"), most=max_("value"), uid="window")
    result.write(SinkOutput(), uid="sink")

    def answer() -> Iterator[Row]:
        rows = inputs[0] + inputs[1]
        for (name, start), values in grouped(rows, lambda row: row[3], width, width).items():
            yield name, start, start + width * SECOND_US, len(values), 2 * sum(values), 2 * max(values)

    return ExactRows(answer())


def _process(streams: list[DataStream], inputs: list[list[Input]], width: int) -> Answer:
    size = width * SECOND_US
    buckets = streams[0].with_columns(end=(nw.col("ts") // size + 1) * size)
    output = pl.Schema({"key": pl.Int64(), "end": pl.Int64(), "what": pl.String(), "number": pl.Int64()})
    buckets.key_by("key", "end").process(Sessions(), output=output, uid="sessions").write(SinkOutput(), uid="sink")

    def answer() -> Iterator[Row]:
        for (key, start), values in grouped(inputs[0], lambda row: row[0], width, width).items():
            yield key, start + size, "opened", 0
            yield key, start + size, "sum", sum(values)
            yield key, start + size, "count", len(values)

    return ExactRows(answer())


def _clock(streams: list[DataStream], inputs: list[list[Input]], width: int) -> Answer:
    window = streams[0].key_by("key").window(tumbling(width))
    window.agg(rows=count(), total=sum_("value"), uid="window").write(SinkOutput(), uid="sink")
    values: dict[int, list[int]] = {}
    for key, _, value, _ in inputs[0]:
        values.setdefault(key, []).append(value)
    return SumsPerKey(values)


def _tally(streams: list[DataStream], inputs: list[list[Input]], width: int) -> Answer:
    return _tallied(streams[0], inputs[0], "sink")


def _two_pipelines(streams: list[DataStream], inputs: list[list[Input]], width: int) -> Answer:
    """Nothing connects them: two regions, that fail each by itself."""
    windows = _tumbling(streams[:1], inputs[:1], width)
    return Together({5: windows, 2: _tallied(streams[1], inputs[1], "tallies")})


def _tallied(stream: DataStream, rows: list[Input], uid: str) -> Answer:
    output = pl.Schema({"key": pl.Int64(), "number": pl.Int64()})
    stream.key_by("key").process(Tally(), output=output, uid=f"{uid}-tally").write(SinkOutput(), uid=uid)
    numbers: dict[int, int] = {}
    answer = []
    for key, _, _, _ in rows:
        numbers[key] = numbers.get(key, 0) + 1
        answer.append((key, numbers[key]))
    return ExactRows(answer)


def _loop(streams: list[DataStream], inputs: list[list[Input]], width: int) -> Answer:
    """Each row goes round as often as its value says, and leaves with its turns."""
    turns = nw.col("value").clip(0) % (4 * width)
    started = streams[0].with_columns(left=turns, turn=nw.col("value") * 0)

    def body(inside: DataStream) -> tuple[DataStream, DataStream]:
        again = inside.filter(nw.col("left") > 0)
        if width > 1:  # else all stays in one task, and subtasks know of each other by their marks alone
            again = again.key_by(other=nw.col("key") + nw.col("turn"))
        return again.map(turned, output=started.schema), inside.filter(nw.col("left") <= 0)

    started.iterate(body, uid="loop").write(SinkOutput(), uid="sink")
    rows = ((key, ts, value, name, 0, max(0, value) % (4 * width)) for key, ts, value, name in inputs[0])
    return ExactRows(rows)


def turned(key: int, ts: int, value: int, name: str, left: int, turn: int) -> tuple[int, int, int, str, int, int]:
    """For `map` inside a loop: one turn more."""
    return key, ts, value, name, left - 1, turn + 1


async def doubled_later(key: int, ts: int, value: int, name: str) -> tuple[int, int, int, str]:
    """For `map_async`: some rows take longer than others."""
    await asyncio.sleep(ts % 97 / 1000)
    return key, ts, value * 2, name


def _asynchronous(streams: list[DataStream], inputs: list[list[Input]], width: int) -> Answer:
    called = streams[0].map_async(doubled_later, output=SCHEMA, capacity=8, ordered=width == 1, uid="async")
    window = called.key_by("key").window(tumbling(width))
    window.agg(rows=count(), total=sum_("value"), uid="window").write(SinkOutput(), uid="sink")
    doubled_rows = [(key, ts, value * 2, name) for key, ts, value, name in inputs[0]]
    return ExactRows(window_answer(doubled_rows, width, width))


def _sessions(streams: list[DataStream], inputs: list[list[Input]], width: int) -> Answer:
    """Results of a session are shown while it grows, and taken back when it has other bounds."""
    window = streams[0].key_by("key").window(session(width / 4)).trigger(trigger.every(width / 2))
    shown = window.agg(rows=count(), total=sum_("value"), uid="window")
    shown.as_changelog().write(SinkOutput(), uid="sink")
    gap = width * SECOND_US // 4
    opened: dict[int, tuple[int, int, int, int]] = {}
    standing: list[Row] = []
    for key, ts, value, _ in sorted(inputs[0]):
        start, end, rows, total = opened.get(key, (ts, ts, 0, 0))
        if ts > end:
            standing.append((key, start, end, rows, total))
            start, rows, total = ts, 0, 0
        opened[key] = start, ts + gap, rows + 1, total + value
    return StandingRows([*standing, *((key, *last) for key, last in opened.items())])


def _joined(streams: list[DataStream], inputs: list[list[Input]], width: int) -> Answer:
    """Windows that overlap: most rows meet in several of them."""
    left, right = (stream.filter(nw.col("value") >= JOINED_FROM) for stream in streams)
    pairs = left.join(right, on="key", within=sliding(2 * width, every=width), suffix="_right", uid="join")
    pairs.select("key", "window_start", "ts", "ts_right").write(SinkOutput(), uid="sink")
    lefts, rights = (_times([row for row in rows if row[2] >= JOINED_FROM], 2 * width, width) for rows in inputs)
    return ExactRows(
        (*window, ts, other) for window, times in lefts.items() for ts in times for other in rights.get(window, ())
    )


def _times(rows: list[Input], width: int, every: int) -> dict[tuple[object, int], list[int]]:
    return grouped([(key, ts, ts, name) for key, ts, _, name in rows], lambda row: row[0], width, every)


PROGRAMS: dict[str, Program] = {
    "loop": Program(_loop),
    "tumbling": Program(_tumbling),
    "sliding": Program(_sliding),
    "union": Program(_union, sources=2),
    "process": Program(_process),
    "clock": Program(_clock, time="processing"),
    "silent split": Program(_tumbling, falls_silent=True),
    "growing input": Program(_tally, grows=True),
    "two pipelines": Program(_two_pipelines, sources=2),
    "async": Program(_asynchronous),
    "connect": Program(connected, sources=2),
    "broadcast": Program(judged, sources=2),
    "operator state": Program(waiting),
    "sessions": Program(_sessions),
    "sliding join": Program(_joined, sources=2),
}
