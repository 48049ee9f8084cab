"""Small jobs with known answers, for the simulation. Everything about a job is drawn from one source of chance.

No row is ever late: within a split rows are out of order by less than the allowed delay. So the answer depends on the
rows alone, not on what arrives when, and a plain recomputation gives the expected output exactly.
"""

import random
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass

import narwhals as nw
import polars as pl

from penstock.api import Flow, sliding, tumbling
from penstock.api.aggregates import count, max_, sum_
from penstock.api.streams import DataStream
from penstock.graph import JobGraph
from penstock.model.settings import (
    CheckpointSettings,
    ExchangeSettings,
    JobSettings,
    RestartSettings,
    SourceSettings,
)
from penstock.operators.contexts import KeyedContext
from penstock.operators.user_functions import KeyedProcessFunction
from penstock.operators.user_states import ValueState
from penstock.testing.endpoints import Row, SinkOutput, SourceInput, SplitInput
from penstock.testing.world import WALL_START_US

SECOND_US = 1_000_000
SPAN_US = 20 * SECOND_US
MAX_DELAY_US = SECOND_US
MAX_PARALLELISM = 16
SCHEMA = pl.Schema({"key": pl.Int64(), "ts": pl.Int64(), "value": pl.Int64(), "name": pl.String()})

Input = tuple[int, int, int, str]
"""key, ts, value, name."""


@dataclass(frozen=True, slots=True)
class Job:
    """A job graph, its input, and what must come out of it."""

    kind: str
    graph: JobGraph
    sources: dict[str, SourceInput]
    expected: "Counter[Row]"


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


def doubled(key: int, ts: int, value: int, name: str) -> tuple[int, int, int, str]:
    """For `map`: one row in, one row out."""
    return key, ts, value * 2, name


def draw_job(rng: random.Random) -> Job:
    """A job, its parameters and its input."""
    kind = rng.choice(list(_PROGRAMS))
    source_count = 2 if kind == "union" else 1
    sources = {f"source-{number}": _draw_source(rng, f"source-{number}") for number in range(source_count)}
    flow = Flow(f"sim-{kind}", settings=_draw_settings(rng))
    streams = [
        flow.read(source, event_time="ts", unit="us", max_delay=MAX_DELAY_US / SECOND_US, uid=name)
        for name, source in sources.items()
    ]
    inputs = [row for source in sources.values() for split in source.splits for row in split.rows.rows()]
    width = rng.choice((1, 2, 4))
    results, expected = _PROGRAMS[kind](streams, inputs, width)
    results.write(SinkOutput(), uid="sink")
    graph = flow.plan(parallelism=rng.choice((1, 2, 2, 3)), max_parallelism=MAX_PARALLELISM)
    return Job(kind, graph, sources, Counter(expected))


# ---------------------------------------------------------------- programs and their answers

Program = Callable[[list[DataStream], list[Input], int], tuple[DataStream, Iterator[Row]]]


def _tumbling(streams: list[DataStream], rows: list[Input], width: int) -> tuple[DataStream, Iterator[Row]]:
    window = streams[0].key_by("key").window(tumbling(width))
    return window.agg(rows=count(), total=sum_("value"), uid="window"), _window_answer(rows, width, width)


def _sliding(streams: list[DataStream], rows: list[Input], width: int) -> tuple[DataStream, Iterator[Row]]:
    window = streams[0].filter(nw.col("value") >= 0).key_by("key").window(sliding(2 * width, every=width))
    answer = _window_answer([row for row in rows if row[2] >= 0], 2 * width, width)
    return window.agg(rows=count(), total=sum_("value"), uid="window"), answer


def _union(streams: list[DataStream], rows: list[Input], width: int) -> tuple[DataStream, Iterator[Row]]:
    both = streams[0].union(streams[1], uid="both").map(doubled, output=SCHEMA)
    window = both.key_by("name").window(tumbling(width))

    def answer() -> Iterator[Row]:
        for (name, start), values in _grouped(rows, lambda row: row[3], width, width).items():
            yield name, start, start + width * SECOND_US, len(values), 2 * sum(values), 2 * max(values)

    return window.agg(rows=count(), total=sum_("value"), most=max_("value"), uid="window"), answer()


def _process(streams: list[DataStream], rows: list[Input], width: int) -> tuple[DataStream, Iterator[Row]]:
    size = width * SECOND_US
    buckets = streams[0].with_columns(end=(nw.col("ts") // size + 1) * size)
    output = pl.Schema({"key": pl.Int64(), "end": pl.Int64(), "what": pl.String(), "number": pl.Int64()})

    def answer() -> Iterator[Row]:
        for (key, start), values in _grouped(rows, lambda row: row[0], width, width).items():
            yield key, start + size, "opened", 0
            yield key, start + size, "sum", sum(values)
            yield key, start + size, "count", len(values)

    return buckets.key_by("key", "end").process(Sessions(), output=output, uid="sessions"), answer()


_PROGRAMS: dict[str, Program] = {
    "tumbling": _tumbling,
    "sliding": _sliding,
    "union": _union,
    "process": _process,
}


def _grouped(
    rows: list[Input], key: Callable[[Input], object], width: int, every: int
) -> dict[tuple[object, int], list[int]]:
    size, slide = width * SECOND_US, every * SECOND_US
    groups: dict[tuple[object, int], list[int]] = {}
    for row in rows:
        start = row[1] // slide * slide
        while start > row[1] - size:
            groups.setdefault((key(row), start), []).append(row[2])
            start -= slide
    return groups


def _window_answer(rows: list[Input], width: int, every: int) -> Iterator[Row]:
    for (key, start), values in _grouped(rows, lambda row: row[0], width, every).items():
        yield key, start, start + width * SECOND_US, len(values), sum(values)


# ---------------------------------------------------------------- chance


def _draw_source(rng: random.Random, name: str) -> SourceInput:
    keys = rng.choice((1, 3, 12))
    return SourceInput(name, tuple(_draw_split(rng, keys) for _ in range(rng.randint(1, 4))), SCHEMA)


def _draw_split(rng: random.Random, keys: int) -> SplitInput:
    rows = rng.choice((1, 20, 50, 100))
    first = WALL_START_US - WALL_START_US % SECOND_US
    times = sorted(first + rng.randrange(SPAN_US) for _ in range(rows))
    shaken = sorted(times, key=lambda time: time + rng.randrange(MAX_DELAY_US))
    drawn = [(rng.randrange(keys), time, rng.randrange(-20, 100), f"name-{rng.randrange(keys)}") for time in shaken]
    return SplitInput(
        rows=pl.DataFrame(drawn, schema=SCHEMA, orient="row"),
        batch_rows=rng.choice((1, 3, 10, 50)),
        row_us=rng.choice((100_000, 1_000_000, 2_500_000)) // rows,
    )


def _draw_settings(rng: random.Random) -> JobSettings:
    return JobSettings(
        checkpoint=CheckpointSettings(
            interval_us=rng.choice((50_000, 150_000, 400_000)),
            timeout_us=rng.choice((150_000, 600_000, 2_000_000)),
            alignment_timeout_us=rng.choice((None, 0, 5_000, 50_000)),
            min_pause_us=rng.choice((0, 20_000)),
            retained=rng.choice((1, 2, 3)),
            tolerated_failures=rng.choice((0, 2, 1000)),
        ),
        restart=RestartSettings(
            first_delay_us=rng.choice((10_000, 100_000)),
            max_delay_us=500_000,
            budget=10_000,
            slot_wait_us=rng.choice((200_000, 2_000_000)),
        ),
        exchange=ExchangeSettings(
            batch_rows=rng.choice((1, 4, 20, 50)),
            batch_timeout_us=rng.choice((500, 5_000)),
            channel_bytes=rng.choice((64, 400, 4_000, 100_000)),
        ),
        source=SourceSettings(batch_rows=rng.choice((2, 1000))),
    )
