"""Pre-aggregation: what it holds back, and when it does not group."""

from collections.abc import Callable
from typing import Any

import numpy as np
import polars as pl
import pytest

from penstock.model import specs
from penstock.operators.aggregates import PANE
from penstock.operators.combine import Combine, Usefulness

COUNT = specs.Aggregate(name="rows", function="count", output_type="Int64")


def counting(*keys: str) -> Combine:
    return Combine(
        specs.Combine(
            keys=keys,
            assigner=specs.Sliding(size_us=20, slide_us=10, offset_us=3),
            aggregates=(COUNT,),
            event_time=specs.EventTime(column="at"),
        )
    )


def batch(*rows: tuple[str, int]) -> pl.DataFrame:
    return pl.DataFrame(rows, schema={"key": pl.String, "at": pl.Int64}, orient="row")


def distinct(rows: int) -> pl.DataFrame:
    return pl.DataFrame({"key": np.arange(rows), "at": np.arange(rows)})


def test_a_pane_leaves_whole_before_the_watermark_that_ends_it(start: Callable[..., Any]) -> None:
    combine = counting("key")
    collected = start(combine)
    combine.on_batch(batch(("a", 5), ("a", 12), ("a", 13)))
    combine.on_batch(batch(("a", 2), ("b", 6)))
    assert collected.frames == []
    assert combine.on_watermark(12) == 12
    (partials,) = collected.frames
    assert partials.columns == ["key", PANE, "__rows.count"]
    assert sorted(partials.rows()) == [("a", -7, 1), ("a", 3, 2), ("b", 3, 1)]
    assert combine.on_watermark(21) == 21
    assert len(collected.frames) == 1
    assert combine.on_watermark(22) == 22
    assert collected.frames[-1].rows() == [("a", 13, 1)]


def test_a_long_pane_leaves_when_much_of_it_is_held(
    start: Callable[..., Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("penstock.operators.combine._HOLD_ROWS", 3)
    combine = counting("key")
    collected = start(combine)
    combine.on_batch(batch(("a", 5), ("b", 5)))
    assert collected.frames == []
    combine.on_batch(batch(("a", 5), ("b", 15)))
    assert sorted(collected.frame.rows()) == [("a", 3, 2), ("b", 3, 1), ("b", 13, 1)]


def test_rows_that_pass_ungrouped_do_not_overtake_those_that_are_held(start: Callable[..., Any]) -> None:
    combine = counting("key")
    collected = start(combine)
    for number in range(Usefulness.MEMORY):
        combine.on_batch(batch(("held", 10**6)).with_columns(pl.lit(-1, pl.Int64).alias("key")))
        combine.on_batch(distinct(100))
        combine.on_watermark(200 + number)
    combine.on_batch(batch(("late", 10**6)).with_columns(pl.lit(-2, pl.Int64).alias("key")))
    keys = pl.concat(collected.frames).get_column("key").to_list()
    assert keys.index(-1) < keys.index(-2)


def test_nothing_is_held_over_a_barrier_or_the_end(start: Callable[..., Any]) -> None:
    for leave in (Combine.on_barrier, Combine.on_end):
        combine = counting("key")
        collected = start(combine)
        combine.on_batch(batch(("a", 5)))
        leave(combine)
        assert collected.frame.rows() == [("a", 3, 1)]
        leave(combine)
        assert len(collected.frames) == 1


def test_rows_pass_ungrouped_where_keys_hardly_repeat(start: Callable[..., Any]) -> None:
    combine = counting("key")
    collected = start(combine)
    for _ in range(Usefulness.MEMORY):
        combine.on_batch(distinct(100))
        combine.on_watermark(200)
    collected.frames.clear()
    combine.on_batch(batch(("a", 5), ("a", 5)).with_columns(pl.lit(1).alias("key")))
    assert collected.frame.rows() == [(1, 3, 1), (1, 3, 1)]


def test_without_keys_rows_are_always_grouped(start: Callable[..., Any]) -> None:
    combine = counting()
    collected = start(combine)
    for _ in range(3 * Usefulness.MEMORY):
        combine.on_batch(distinct(1))
        combine.on_watermark(2)
    combine.on_batch(batch(("a", 5), ("b", 5)))
    combine.on_end()
    assert collected.frames[-1].rows() == [(3, 2)]


def test_grouping_is_tried_again_after_a_pause_and_kept_when_it_helps() -> None:
    usefulness = Usefulness()
    for _ in range(Usefulness.MEMORY):
        assert usefulness.worth_grouping()
        usefulness.learn(100, 90)
    for _ in range(Usefulness.PAUSE):
        assert not usefulness.worth_grouping()
    assert usefulness.worth_grouping()
    usefulness.learn(100, 95)
    assert [usefulness.worth_grouping() for _ in range(Usefulness.PAUSE + 1)] == [False] * Usefulness.PAUSE + [True]
    for _ in range(2 * Usefulness.MEMORY):
        usefulness.learn(100, 5)
        assert usefulness.worth_grouping()
