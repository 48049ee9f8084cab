"""Lookup joins ask once per key and keep the order; co-groups get both sides of a key in a window."""

import asyncio
import threading
from collections.abc import Callable
from typing import Any

import polars as pl
import pytest

from penstock.model import schemas, specs
from penstock.model.clocks import MAX_WATERMARK
from penstock.model.errors import PenstockError
from penstock.operators.co_group import CoGroupOperator
from penstock.operators.lookup_join import LookupJoin

NAMES = {1: "one", 2: "two", 3: "three"}
FUNCTION = specs.Function(name="ask", pickled=b"")


def lookup(how: str = "left", **options: Any) -> specs.Lookup:
    columns = (
        specs.JoinColumn(name="id", left="id"),
        specs.JoinColumn(name="n", left="n"),
        specs.JoinColumn(name="name", right="name"),
    )
    output = {"id": pl.Int64(), "n": pl.Int64(), "name": pl.String()}
    return specs.Lookup(
        on=("id",),
        how=how,
        columns=columns,
        function=FUNCTION,
        made=schemas.fields({"name": pl.String()}),
        output=schemas.fields(output),
        **({"capacity": 4, "cache_rows": 100} | options),
    )


def batch(*ids: int | None) -> pl.DataFrame:
    return pl.DataFrame({"id": pl.Series(ids, dtype=pl.Int64), "n": range(len(ids))})


class Asked:
    def __init__(self) -> None:
        self.keys: list[int] = []
        self._lock = threading.Lock()

    def __call__(self, key: int) -> dict[str, str] | None:
        with self._lock:
            self.keys.append(key)
        return {"name": NAMES[key]} if key in NAMES else None


@pytest.mark.parametrize("how", ["left", "inner"])
def test_each_key_is_asked_once_and_rows_stay_in_order(start: Callable[..., Any], how: str) -> None:
    asked = Asked()
    operator = LookupJoin(lookup(how), asked)
    collected = start(operator)
    operator.on_batch(batch(2, 9, None, 1, 2))
    operator.on_batch(batch(1, 3, 9))
    operator.close()
    expected = [(2, 0, "two"), (9, 1, None), (None, 2, None), (1, 3, "one"), (2, 4, "two")]
    expected += [(1, 0, "one"), (3, 1, "three"), (9, 2, None)]
    assert collected.frame.rows() == [row for row in expected if how == "left" or row[2] is not None]
    assert sorted(asked.keys) == [1, 2, 3, 9]


def test_answers_are_asked_for_again_when_they_are_old(start: Callable[..., Any], clock: Any) -> None:
    asked = Asked()
    operator = LookupJoin(lookup(cache_us=10), asked)
    start(operator, clock=clock)
    for clock.now in (0, 9, 10, 12):
        operator.on_batch(batch(1))
    operator.close()
    assert asked.keys == [1, 1]


def test_only_so_many_answers_are_kept(start: Callable[..., Any], clock: Any) -> None:
    asked = Asked()
    operator = LookupJoin(lookup(cache_rows=2), asked)
    start(operator, clock=clock)
    for clock.now, key in enumerate((1, 2, 3, 3, 1)):
        operator.on_batch(batch(key))
    operator.close()
    assert asked.keys == [1, 2, 3, 1]


def test_coroutines_are_asked_together(start: Callable[..., Any]) -> None:
    waiting, together = 0, 0

    async def ask(key: int) -> dict[str, str]:
        nonlocal waiting, together
        waiting += 1
        together = max(together, waiting)
        await asyncio.sleep(0)
        waiting -= 1
        return {"name": NAMES[key]}

    operator = LookupJoin(lookup(capacity=2), ask)
    collected = start(operator)
    operator.on_batch(batch(1, 2, 3))
    assert collected.frame["name"].to_list() == ["one", "two", "three"]
    assert together == 2


def test_a_frame_of_keys_can_be_asked_at_once(start: Callable[..., Any]) -> None:
    def ask(keys: pl.DataFrame) -> pl.DataFrame:
        assert keys.columns == ["id"]
        return keys.filter(pl.col("id") < 3).with_columns(name=pl.col("id").cast(pl.String))

    operator = LookupJoin(lookup(per_batch=True), ask)
    collected = start(operator)
    operator.on_batch(batch(3, 2, 1, 2))
    assert collected.frame["name"].to_list() == [None, "2", "1", "2"]


def test_a_lookup_that_fails_names_the_key(start: Callable[..., Any]) -> None:
    operator = LookupJoin(lookup(), lambda key: {}[key])
    start(operator)
    with pytest.raises(PenstockError, match=r"(?s)P007.*KeyError.*id=7"):
        operator.on_batch(batch(7))
    operator.close()


def test_a_co_group_gets_both_sides_of_each_key(start: Callable[..., Any]) -> None:
    sides = ({"k": pl.String(), "at": pl.Int64()}, {"k": pl.String(), "at": pl.Int64(), "x": pl.Int64()})
    made = {"k": pl.String(), "left": pl.Int64(), "right": pl.Int64()}
    output = schemas.fields(made | {"window_start": pl.Int64(), "window_end": pl.Int64()})
    time = specs.EventTime(column="at")
    join = specs.Join(
        left_on=("k",),
        right_on=("k",),
        how="full",
        match=specs.WindowMatch(assigner=specs.Tumbling(size_us=10)),
        columns=(),
        left_time=time,
        right_time=time,
        output=output,
    )
    spec = specs.CoGroup(
        join=join,
        left=schemas.fields(sides[0]),
        right=schemas.fields(sides[1]),
        function=FUNCTION,
        made=schemas.fields(made),
        output=output,
    )

    def count(left: pl.DataFrame, right: pl.DataFrame) -> pl.DataFrame:
        assert right.columns == ["k", "at", "x"]
        key = (left["k"] if left.height else right["k"])[0]
        return pl.DataFrame({"k": [key], "left": [left.height], "right": [right.height]})

    operator = CoGroupOperator(spec, count)
    collected = start(operator)
    operator.on_batch(pl.DataFrame([("a", 1), ("a", 2), ("b", 12)], schema=sides[0], orient="row"), 0)
    operator.on_batch(pl.DataFrame([("a", 3, 0), ("c", 4, 0)], schema=sides[1], orient="row"), 1)
    operator.on_watermark(MAX_WATERMARK)
    assert collected.frame.rows() == [("a", 2, 1, 0, 10), ("c", 0, 1, 0, 10), ("b", 1, 0, 10, 20)]
