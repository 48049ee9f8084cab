"""Programs that nobody thought of: drawn verbs, one behind the other, with crashes, against plain Python.

Every step takes rows (key, ts, value) with event time and gives such rows, so any may follow any. No row is late, and
no step depends on the order in which rows come: what a program means is a bag of rows.
"""

import sys
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import polars as pl
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import penstock as ps
from penstock import col, testing

sys.path.insert(0, str(Path(__file__).parent))
from interpreter import Script, rows_of
from test_operators_under_faults import SETTINGS, scripted, scripts

EXAMPLES = 6
SECOND = 1_000_000
ROW = {"key": pl.Int64, "ts": pl.Int64, "value": pl.Int64}
NUMBER = {"key": pl.Int64, "number": pl.Int64}

Rows = list[tuple[int, int, int]]


@dataclass(frozen=True, slots=True)
class Built:
    """A program so far: as a stream, and what has left it on the way."""

    stream: ps.DataStream
    outputs: dict[str, ps.DataStream] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Meant:
    """What it means."""

    rows: Rows
    outputs: dict[str, list[tuple[int, ...]]] = field(default_factory=dict)
    behind: int = 0
    """Microseconds by which the time of a row is behind its `ts`: 1 for results of a window."""

    def by_window(self, seconds: int) -> dict[tuple[int, int], Rows]:
        """(key, end) -> rows."""
        groups: dict[tuple[int, int], Rows] = defaultdict(list)
        for row in self.rows:
            start = (row[1] * SECOND - self.behind) // (seconds * SECOND) * seconds
            groups[row[0], start + seconds].append(row)
        return groups

    def of_windows(self, rows: Iterable[tuple[int, int, int]]) -> "Meant":
        return Meant(list(rows), self.outputs, behind=1)


@dataclass(frozen=True, slots=True)
class Step:
    name: str
    build: Callable[[Built], Built]
    meaning: Callable[[Meant], Meant]

    def __repr__(self) -> str:
        return self.name


def ended(windows: ps.DataStream, value: str = "value") -> ps.DataStream:
    """Results of windows as rows like all others; their time goes by another name."""
    return windows.select("key", ts=col("window_end"), value=col(value))


# ---------------------------------------------------------------- steps


def filtered(least: int) -> Step:
    return Step(
        f"filter({least})",
        lambda built: replace(built, stream=built.stream.filter(col("value") >= least)),
        lambda meant: replace(meant, rows=[row for row in meant.rows if row[2] >= least]),
    )


def rekeyed(modulus: int) -> Step:
    return Step(
        f"with_columns({modulus})",
        lambda built: replace(
            built, stream=built.stream.with_columns(key=(col("key") + col("value").abs()) % modulus).rebalance()
        ),
        lambda meant: replace(
            meant, rows=[((key + abs(value)) % modulus, ts, value) for key, ts, value in meant.rows]
        ),
    )


def several(key: int, ts: int, value: int) -> Rows:
    return [(key, ts, value + number) for number in range(value % 3)]


FLAT_MAP = Step(
    "flat_map",
    lambda built: replace(built, stream=built.stream.flat_map(several, output=ROW)),
    lambda meant: replace(meant, rows=[each for row in meant.rows for each in several(*row)]),
)


def both_ways(built: Built) -> Built:
    doubled = built.stream.filter(col("key") > 0).with_columns(value=col("value") * 2)
    return replace(built, stream=built.stream.union(doubled))


UNION = Step(
    "union",
    both_ways,
    lambda meant: replace(
        meant, rows=[*meant.rows, *((key, ts, value * 2) for key, ts, value in meant.rows if key > 0)]
    ),
)

DISTINCT = Step(
    "distinct",
    lambda built: replace(built, stream=built.stream.distinct("key", "ts", "value")),
    lambda meant: replace(meant, rows=sorted(set(meant.rows))),
)


def summed(seconds: int) -> Step:
    return Step(
        f"sum({seconds})",
        lambda built: replace(
            built,
            stream=ended(
                built.stream.key_by("key").window(ps.tumbling(f"{seconds}s")).agg(value=ps.sum("value"), n=ps.count())
            ),
        ),
        lambda meant: meant.of_windows(
            (key, end, sum(row[2] for row in rows)) for (key, end), rows in meant.by_window(seconds).items()
        ),
    )


def best(seconds: int, n: int) -> Step:
    def build(built: Built) -> Built:
        ranked = built.stream.key_by("key").top_n(n, by=["value", "ts"], within=ps.tumbling(f"{seconds}s"))
        return replace(built, stream=ended(ranked))

    def meaning(meant: Meant) -> Meant:
        return meant.of_windows(
            (key, end, row[2])
            for (key, end), rows in meant.by_window(seconds).items()
            for row in sorted(rows, key=lambda row: (-row[2], -row[1]))[:n]
        )

    return Step(f"top_n({seconds}, {n})", build, meaning)


def joined(seconds: int) -> Step:
    def build(built: Built) -> Built:
        large = built.stream.filter(col("value") >= 5).select("key", "ts", other=col("value"))
        pairs = built.stream.join(large, on="key", within=ps.tumbling(f"{seconds}s"))
        return replace(built, stream=ended(pairs.with_columns(sum=col("value") + col("other")), "sum"))

    def meaning(meant: Meant) -> Meant:
        return meant.of_windows(
            (key, end, row[2] + other[2])
            for (key, end), rows in meant.by_window(seconds).items()
            for row in rows
            for other in rows
            if other[2] >= 5
        )

    return Step(f"join({seconds})", build, meaning)


class Numbered(ps.KeyedProcessFunction):
    """Passes rows on, and numbers those of each key in a side output."""

    seen = ps.ValueState(int, default=0)

    def process(self, ctx: ps.KeyedContext, ts: int, value: int) -> tuple[int, int, int]:
        self.seen.value += 1
        ctx.output("numbers", (ctx.key, self.seen.value))
        return ctx.key, ts, value


def numbered(built: Built) -> Built:
    made = built.stream.key_by("key").process(Numbered(), output=ROW, side_outputs={"numbers": NUMBER})
    return Built(made, {**built.outputs, f"numbers-{len(built.outputs)}": made.side_output("numbers")})


def numbered_mean(meant: Meant) -> Meant:
    numbers = [(key, number) for key, n in Counter(row[0] for row in meant.rows).items() for number in range(1, n + 1)]
    return replace(meant, outputs={**meant.outputs, f"numbers-{len(meant.outputs)}": numbers})


STEPS = st.one_of(
    st.integers(-2, 12).map(filtered),
    st.integers(1, 4).map(rekeyed),
    st.sampled_from([FLAT_MAP, UNION, DISTINCT, Step("process", numbered, numbered_mean)]),
    st.sampled_from([2, 5, 30]).map(summed),
    st.builds(best, st.sampled_from([5, 20]), st.integers(1, 2)),
    st.sampled_from([5, 20]).map(joined),
)


# ---------------------------------------------------------------- programs


def program(steps: list[Step]) -> Callable[..., dict[str, ps.DataStream]]:
    def build(left: ps.DataStream, right: ps.DataStream) -> dict[str, ps.DataStream]:
        built = Built(left.union(right).select(*ROW))
        for step in steps:
            built = step.build(built)
        return {"result": built.stream, **built.outputs}

    return build


def meaning(steps: list[Step], scripts_: Iterable[Script]) -> Meant:
    meant = Meant([(row["key"], row["ts"], row["value"]) for script in scripts_ for row in rows_of(script)])
    for step in steps:
        meant = step.meaning(meant)
    return meant


@st.composite
def runs(draw: st.DrawFn) -> tuple[list[Step], dict[str, Script], dict[str, Any]]:
    """Steps, two inputs, and where it crashes."""
    steps = draw(st.lists(STEPS, min_size=2, max_size=4))
    inputs = {"left": draw(scripts(in_time=True)), "right": draw(scripts(in_time=True, first_id=100))}
    rows = sum(len(rows_of(script)) for script in inputs.values())
    options = {
        "crash_after": draw(st.integers(1, max(1, rows))),
        "restore_parallelism": draw(st.sampled_from([1, 2, 3])),
        "checkpoint_every": draw(st.integers(1, 3)),
        "seed": draw(st.integers(0, 1000)),
    }
    return steps, inputs, options


@pytest.mark.parametrize("state", SETTINGS)
@pytest.mark.parametrize("parallelism", [1, 3])
def test_verbs_behind_verbs_mean_what_each_of_them_means(parallelism: int, state: str) -> None:
    @settings(max_examples=EXAMPLES)
    @given(runs(), st.sampled_from([1, 2, 100]))
    def hold(run: tuple[list[Step], dict[str, Script], dict[str, Any]], batch_rows: int) -> None:
        steps, scripts_, options = run
        inputs = {name: scripted(script, batch_rows=batch_rows, idle=False) for name, script in scripts_.items()}
        result = testing.run_stream(
            program(steps), inputs, parallelism=parallelism, settings=SETTINGS[state], **options
        )
        meant = meaning(steps, scripts_.values())
        testing.assert_rows(result, meant.rows, name="result")
        for name, rows in meant.outputs.items():
            testing.assert_rows(result, rows, name=name)

    hold()
