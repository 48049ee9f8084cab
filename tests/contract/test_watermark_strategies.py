"""Every way to tell event time from rows, whatever crashes: which rows are late is what the interpreter says.

A batch of one row is a promise about the rows after it, so with such batches a strategy means the same as a script
with a watermark behind each row that makes one.
"""

import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import polars as pl
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import penstock as ps
from penstock import col, testing

sys.path.insert(0, str(Path(__file__).parent))
from interpreter import Mark, Output, Row, Script, windows
from test_operators_under_faults import SETTINGS

SCHEMA = {"id": int, "key": int, "ts": int, "reached": int, "is_mark": bool}
EXAMPLES = 5


class HalfWay(ps.WatermarkGenerator):
    """Four seconds behind the latest row but for its own mistakes: what it has seen is lost in a crash."""

    columns = ("ts",)

    def open(self, watermark: int | None) -> None:
        assert watermark is None or isinstance(watermark, int)
        self.latest = -1_000 if watermark is None else watermark + 4

    def on_batch(self, frame: pl.DataFrame) -> int | None:
        if frame.columns != ["ts"] and "key" not in frame.columns:
            raise AssertionError(frame.columns)
        before, self.latest = self.latest, max(self.latest, int(frame["ts"].max()))  # type: ignore[arg-type]
        return self.latest - 4 if self.latest > before else None


@dataclass(frozen=True, slots=True)
class Case:
    """A strategy, and the watermark that a row makes behind it (seconds; None: none)."""

    name: str
    strategy: Any
    says: Callable[[Row], float | None]


CASES = [
    Case("bounded", ps.bounded("3s"), lambda row: row["ts"] - 3 - 1e-6),
    Case(
        "true for rows whose time is one",
        ps.punctuated(col("is_mark")),
        lambda row: row["ts"] if row["is_mark"] else None,
    ),
    Case("a value, or null", ps.punctuated("reached"), lambda row: row["reached"]),
    Case("custom", HalfWay(), lambda row: row["ts"] - 4),
]


def counts(rows: ps.DataStream) -> dict[str, ps.DataStream]:
    windowed = rows.key_by("key").window(ps.tumbling("5s"), late_to="late")
    made = windowed.agg(n=ps.count(), ids=ps.collect_list("id"), uid="counts")
    return {"counts": made.select("key", "window_start", "n"), "late": made.side_output("late").select("id")}


def meaning(rows: list[Row], says: Callable[[Row], float | None]) -> dict[str, list[Output]]:
    script: Script = []
    for row in rows:
        script.append(row)
        if (time := says(row)) is not None:
            script.append(Mark(time))
    groups, late = windows(script, lambda row: row["key"], 5, 5)
    return {
        "counts": [(key, start, len(group)) for (key, start), group in groups.items()],
        "late": [(row["id"],) for row in late],
    }


@st.composite
def drawn_rows(draw: st.DrawFn) -> list[Row]:
    rows, now = [], 20
    for number in range(draw(st.integers(1, 14))):
        ts = now + draw(st.integers(-12, 6))
        reached = draw(st.none() | st.integers(now - 12, now + 3))
        rows.append({"id": number, "key": draw(st.integers(0, 2)), "ts": ts, "reached": reached})
        rows[-1]["is_mark"] = draw(st.sampled_from([True, False, None]))
        now += draw(st.integers(0, 8))
    return rows


@pytest.mark.parametrize("state", SETTINGS)
@pytest.mark.parametrize("parallelism", [1, 3])
@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
def test_late_is_what_came_behind_a_watermark_whatever_crashes(case: Case, parallelism: int, state: str) -> None:
    @settings(max_examples=EXAMPLES, database=None)
    @given(
        drawn_rows(),
        st.lists(st.integers(1, 10), max_size=2),
        st.lists(st.sampled_from([1, 2, 3]), max_size=2),
        st.integers(0, 3),
        st.integers(0, 1000),
    )
    def hold(
        rows: list[Row], crash_after: list[int], restore_parallelism: list[int], checkpoint_every: int, seed: int
    ) -> None:
        source = testing.source(rows, schema=SCHEMA, event_time="ts", unit="s", watermark=case.strategy, batch_rows=1)
        result = testing.run_stream(
            counts,
            {"rows": source},
            parallelism=parallelism,
            settings=SETTINGS[state],
            crash_after=crash_after,
            restore_parallelism=restore_parallelism,
            checkpoint_every=checkpoint_every,
            seed=seed,
        )
        for name, expected in meaning(rows, case.says).items():
            testing.assert_rows(result[name], expected)

    hold()
