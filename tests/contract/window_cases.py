"""Windows beyond tumbling and sliding ones, and functions with more than one output, each with its meaning."""

import math
from collections import defaultdict

import polars as pl
from interpreter import Mark, Output, Row, Script, is_over, rows_of, timed, windows
from operator_cases import Case

import penstock as ps
from penstock import col

GAP = 6


# ---------------------------------------------------------------- late rows


def late(left: ps.DataStream) -> dict[str, ps.DataStream]:
    counts = left.key_by("key").window(ps.tumbling("10s"), late_to="late").agg(n=ps.count(), total=ps.sum("value"))
    return {"result": counts, "late": counts.side_output("late").select("id")}


def late_mean(left: Script) -> dict[str, list[Output]]:
    groups, too_late = windows(left, lambda row: row["key"], 10, 10)
    return {
        "result": [
            (key, start, start + 10, len(rows), sum(row["value"] for row in rows))
            for (key, start), rows in groups.items()
        ],
        "late": [(row["id"],) for row in too_late],
    }


def allowed(left: ps.DataStream) -> dict[str, ps.DataStream]:
    window = left.key_by("key").window(ps.sliding("10s", every="5s"), allowed_lateness="7s", late_to="late")
    counts = window.agg(n=ps.count(), high=ps.max("value"))
    return {"result": counts, "late": counts.side_output("late").select("id")}


def allowed_mean(left: Script) -> dict[str, list[Output]]:
    groups, too_late = windows(left, lambda row: row["key"], 10, 5, lateness=7)
    return {
        "result": [
            (key, start, start + 10, len(rows), max(row["value"] for row in rows))
            for (key, start), rows in groups.items()
        ],
        "late": [(row["id"],) for row in too_late],
    }


# ---------------------------------------------------------------- sessions


def sessions(left: ps.DataStream) -> dict[str, ps.DataStream]:
    counts = left.key_by("key").window(ps.session(f"{GAP}s"), late_to="late").agg(n=ps.count(), total=ps.sum("value"))
    return {"result": counts, "late": counts.side_output("late").select("id")}


def sessions_mean(left: Script) -> dict[str, list[Output]]:
    """Row by row: a row joins the sessions of its key that it touches; it is late if the session it makes is over."""
    held: dict[int, list[list[Row]]] = defaultdict(list)
    result: list[Output] = []
    too_late: list[Output] = []

    def end(rows: list[Row]) -> int:
        return max(row["ts"] for row in rows) + GAP

    def fire(watermark: float) -> None:
        for key, groups in held.items():
            for rows in [each for each in groups if is_over(end(each), watermark)]:
                groups.remove(rows)
                start = min(row["ts"] for row in rows)
                result.append((key, start, end(rows), len(rows), sum(row["value"] for row in rows)))

    reached = -math.inf
    for each in left:
        if isinstance(each, Mark):
            reached = max(reached, each.time)
            fire(reached)
            continue
        groups = held[each["key"]]
        touched = [
            rows for rows in groups if each["ts"] <= end(rows) and each["ts"] + GAP >= min(row["ts"] for row in rows)
        ]
        whole = [row for rows in touched for row in rows] + [each]
        if is_over(end(whole), reached):
            too_late.append((each["id"],))
            continue
        for rows in touched:
            groups.remove(rows)
        groups.append(whole)
    fire(math.inf)
    return {"result": result, "late": too_late}


# ---------------------------------------------------------------- outputs of functions


class Sorted(ps.KeyedProcessFunction):
    """Small values to one side, every third row of a key to the other."""

    seen = ps.ValueState(int, default=0)

    def process(self, ctx: ps.KeyedContext, id: int, value: int) -> tuple[int, int]:  # noqa: A002 - a column
        self.seen.value += 1
        if value < 0:
            ctx.output("small", (id, value))
        if self.seen.value % 3 == 0:
            ctx.output("third", (id,))
        return id, self.seen.value


def sides(left: ps.DataStream) -> dict[str, ps.DataStream]:
    made = left.key_by("key").process(
        Sorted(),
        output={"id": pl.Int64, "seen": pl.Int64},
        side_outputs={"small": {"id": pl.Int64, "value": pl.Int64}, "third": {"id": pl.Int64}},
        uid="sorted",
    )
    return {"result": made, "small": made.side_output("small"), "third": made.side_output("third")}


def sides_mean(left: Script) -> dict[str, list[Output]]:
    seen: dict[int, int] = defaultdict(int)
    result: list[Output] = []
    for row in rows_of(left):
        seen[row["key"]] += 1
        result.append((row["id"], seen[row["key"]]))
    return {
        "result": result,
        "small": [(row["id"], row["value"]) for row in rows_of(left) if row["value"] < 0],
        "third": [(id_,) for id_, number in result if number % 3 == 0],
    }


def fragile(id: int, value: int) -> tuple[int, int]:  # noqa: A002 - a column
    if value % 4 == 1:
        raise ValueError(f"{value} is not liked")
    return id, 100 // (value + 1)


def failing(left: ps.DataStream) -> dict[str, ps.DataStream]:
    output = {"id": pl.Int64, "share": pl.Int64}
    made = left.map(fragile, output=output, on_error="dead_letter")
    return {
        "result": made,
        "failed": made.dead_letters().select("error", row=col("row").str.slice(0, 9)),
        "kept": left.map(fragile, output=output, on_error="drop"),
    }


def failing_mean(left: Script) -> dict[str, list[Output]]:
    bad = [row for row in rows_of(left) if row["value"] % 4 == 1 or row["value"] == -1]
    good = [(row["id"], 100 // (row["value"] + 1)) for row in rows_of(left) if row not in bad]
    failed = [(_error(row["value"]), f'{{"id": {row["id"]}, "key"'[:9]) for row in bad]
    return {"result": good, "failed": failed, "kept": good}


def _error(value: int) -> str:
    return "ValueError" if value % 4 == 1 else "ZeroDivisionError"


class Fresh(ps.KeyedProcessFunction):
    """Counts the rows of a key, and starts anew when none came for eight seconds of event time."""

    seen = ps.ValueState(int, default=0, ttl=ps.ttl("8s", time="event"))

    def process(self, ctx: ps.KeyedContext, id: int) -> tuple[int, int]:  # noqa: A002 - a column
        self.seen.value += 1
        return id, self.seen.value


def expiring(left: ps.DataStream) -> dict[str, ps.DataStream]:
    output = {"id": pl.Int64, "seen": pl.Int64}
    return {"result": left.key_by("key").process(Fresh(), output=output, uid="fresh")}


def expiring_mean(left: Script) -> dict[str, list[Output]]:
    """A value lives until eight seconds after the latest time at which it was written, of row or watermark."""
    held: dict[int, tuple[int, float]] = {}
    result: list[Output] = []
    for row, watermark in timed(left):
        now = max(row["ts"], watermark)
        seen, expiry = held.get(row["key"], (0, -math.inf))
        seen = seen + 1 if now < expiry else 1
        held[row["key"]] = (seen, max(now + 8, expiry))
        result.append((row["id"], seen))
    return {"result": result}


CASES = [
    Case("late rows to a side output", late, late_mean),
    Case("allowed lateness", allowed, allowed_mean, keys={"result": ("key", "window_start", "window_end")}),
    Case("sessions", sessions, sessions_mean),
    Case("side outputs of a function", sides, sides_mean),
    Case("dead letters and dropped rows", failing, failing_mean),
    Case("state that expires", expiring, expiring_mean),
]
