"""Programs over streams that update earlier rows, each with its meaning in plain Python."""

from collections import defaultdict
from typing import Any

import narwhals as nw
from interpreter import Output, Script, by_key, rows_of
from operator_cases import WHOLE_ROWS, Case

import penstock as ps
from penstock import col


def _totals(left: Script) -> list[tuple[int, int, int, int]]:
    """Key, number of rows, sum and largest value of each key."""
    return [
        (key, len(rows), sum(row["value"] for row in rows), max(row["value"] for row in rows))
        for key, rows in by_key(rows_of(left)).items()
    ]


def totals(left: ps.DataStream) -> ps.DataStream:
    """Results that are updated with each row of a key."""
    return left.key_by("key").agg(n=ps.count(), total=ps.sum("value"), high=ps.max("value"), uid="totals")


def aggregates(left: ps.DataStream) -> dict[str, ps.DataStream]:
    made = totals(left)
    by_n = made.key_by("n")
    return {
        "subtracted": by_n.agg(keys=ps.count(), total=ps.sum("total"), uid="subtracted"),
        "extremes": by_n.agg(low=ps.min("total"), high=ps.max("high"), keys=ps.count(), uid="extremes"),
        "anew": by_n.agg(
            totals=ps.count_distinct("total"),
            best=ps.max_by("key", by="total"),
            half=ps.quantile("total", 0.5),
            some=ps.any(col("high") > 10),
            uid="anew",
        ),
        "all": made.agg(keys=ps.count(), most=ps.max("n"), uid="all"),
    }


def aggregates_mean(left: Script) -> dict[str, list[Output]]:
    groups: dict[int, list[tuple[int, int, int, int]]] = defaultdict(list)
    for row in _totals(left):
        groups[row[1]].append(row)
    subtracted, extremes, anew = [], [], []
    for n, rows in groups.items():
        sums = sorted(total for _, _, total, _ in rows)
        subtracted.append((n, len(rows), sum(sums)))
        extremes.append((n, sums[0], max(high for *_, high in rows), len(rows)))
        middle = 0.5 * (len(sums) - 1)
        low, high = sums[int(middle)], sums[int(middle + 0.5)]
        best = min(key for key, _, total, _ in rows if total == sums[-1])
        some = any(high > 10 for *_, high in rows)
        anew.append((n, len(set(sums)), best, low + (high - low) * (middle % 1), some))
    every = [(len(_totals(left)), max(n for _, n, _, _ in _totals(left)))] if _totals(left) else []
    return {"subtracted": subtracted, "extremes": extremes, "anew": anew, "all": every}


def filtered(left: ps.DataStream) -> dict[str, ps.DataStream]:
    """Rows leave when they do not pass any more: a key may have none left."""
    small = totals(left).filter(col("n") < 3)
    return {"result": small.key_by("n").agg(keys=ps.count(), high=ps.max("high"), uid="small")}


def filtered_mean(left: Script) -> dict[str, list[Output]]:
    groups: dict[int, list[int]] = defaultdict(list)
    for _, n, _, high in _totals(left):
        if n < 3:
            groups[n].append(high)
    return {"result": [(n, len(highs), max(highs)) for n, highs in groups.items()]}


def first_rows(left: ps.DataStream) -> dict[str, ps.DataStream]:
    made = totals(left)
    order: dict[str, Any] = {"by": ["total", "key"], "descending": [True, False]}
    return {
        "all": made.top_n(2, **order, uid="first"),
        "ranked": made.key_by("n").top_n(2, **order, rank="rank", uid="ranked"),
    }


def first_rows_mean(left: Script) -> dict[str, list[Output]]:
    def best(rows: list[tuple[int, int, int, int]]) -> list[tuple[int, int, int, int]]:
        return sorted(rows, key=lambda row: (-row[2], row[0]))[:2]

    groups: dict[int, list[tuple[int, int, int, int]]] = defaultdict(list)
    for row in _totals(left):
        groups[row[1]].append(row)
    ranked = [(*row, rank) for rows in groups.values() for rank, row in enumerate(best(rows), 1)]
    return {"all": [*best(_totals(left))], "ranked": [*ranked]}


def joined(left: ps.DataStream, right: ps.DataStream) -> dict[str, ps.DataStream]:
    """A join that takes answers back, and an aggregate over them."""
    pairs = left.select("key", "value").join(right.select("key", other=col("value")), on="key", how="left")
    made = pairs.with_columns(alone=col("other").is_null().cast(nw.Int64)).key_by("key")
    return {"result": made.agg(rows=ps.count(), alone=ps.sum("alone"), low=ps.min("other"), uid="pairs")}


def joined_mean(left: Script, right: Script) -> dict[str, list[Output]]:
    others = {key: [row["value"] for row in rows] for key, rows in by_key(rows_of(right)).items()}
    result: list[Output] = []
    for key, rows in by_key(rows_of(left)).items():
        values = others.get(key, [])
        low = min(values, default=None)
        result.append((key, len(rows) * max(1, len(values)), 0 if values else len(rows), low))
    return {"result": result}


CASES = [
    Case(
        "aggregates of aggregates",
        aggregates,
        aggregates_mean,
        keys={"subtracted": ("n",), "extremes": ("n",), "anew": ("n",), "all": ()},
    ),
    Case("aggregates of what passes", filtered, filtered_mean, keys={"result": ("n",)}),
    Case("the first of aggregates", first_rows, first_rows_mean, keys={"all": WHOLE_ROWS, "ranked": ("n", "rank")}),
    Case("aggregates of a left join", joined, joined_mean, inputs=("left", "right"), keys={"result": ("key",)}),
]
