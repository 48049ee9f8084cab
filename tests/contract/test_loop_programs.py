"""Loops in whole programs: whatever crashes, every row leaves once, and the loop ends when it is empty."""

import asyncio
from typing import Any

import polars as pl
from hypothesis import given, settings
from hypothesis import strategies as st

import penstock as ps
from penstock import col, testing

SCHEMA = {"n": int, "left": int}


async def turned_later(n: int, left: int) -> tuple[int, int]:
    await asyncio.sleep(n % 5 / 10)
    return n, left - 1


class TurnsLater(ps.KeyedProcessFunction):
    """A row goes on when a timer of the clock says so."""

    waiting = ps.ListState(int)

    def process(self, ctx: ps.KeyedContext, left: int) -> None:
        self.waiting.add(left)
        ctx.set_processing_timer(ctx.processing_time + 1_000 + ctx.key * 40_000)

    def on_processing_timer(self, ctx: ps.KeyedContext, time: int) -> list[tuple[int, int]]:
        waiting = self.waiting.get()
        self.waiting.clear()
        return [(ctx.key, left - 1) for left in waiting]


def by_expression(inside: ps.DataStream) -> ps.DataStream:
    return inside.with_columns(left=col("left") - 1)


def by_exchange(inside: ps.DataStream) -> ps.DataStream:
    return inside.key_by(other=col("n") + col("left")).with_columns(left=col("left") - 1).select("n", "left")


def by_call(inside: ps.DataStream) -> ps.DataStream:
    return inside.map_async(turned_later, output=SCHEMA, capacity=3, uid="later")


def by_timer(inside: ps.DataStream) -> ps.DataStream:
    return inside.key_by("n").process(TurnsLater(), output=SCHEMA, uid="timers")


WAYS = {"expression": by_expression, "exchange": by_exchange, "call": by_call, "timer": by_timer}


def looping(way: str) -> Any:
    def program(numbers: ps.DataStream) -> ps.DataStream:
        def body(inside: ps.DataStream) -> tuple[ps.DataStream, ps.DataStream]:
            return WAYS[way](inside.filter(col("left") > 0)), inside.filter(col("left") <= 0)

        return numbers.iterate(body, uid="loop")

    return program


@settings(deadline=None, max_examples=30)
@given(
    way=st.sampled_from(list(WAYS)),
    rows=st.lists(st.tuples(st.integers(0, 9), st.integers(0, 6)), max_size=20),
    batch_rows=st.integers(1, 7),
    crashes=st.lists(st.integers(1, 15), max_size=2),
    parallelisms=st.lists(st.sampled_from([1, 3]), max_size=2),
    parallelism=st.sampled_from([1, 2, 3]),
    seed=st.integers(0, 1000),
)
def test_every_row_leaves_once_whatever_crashes(
    way: str,
    rows: list[tuple[int, int]],
    batch_rows: int,
    crashes: list[int],
    parallelisms: list[int],
    parallelism: int,
    seed: int,
) -> None:
    given_ = [{"n": n, "left": left} for n, left in rows]
    result = testing.run_stream(
        looping(way),
        {"numbers": testing.source(given_, schema=SCHEMA, batch_rows=batch_rows)},
        parallelism=parallelism,
        checkpoint_every=2,
        crash_after=crashes,
        restore_parallelism=parallelisms,
        seed=seed,
    )
    assert sorted(result.rows()) == sorted((n, 0) for n, _ in rows)


def test_a_stream_from_outside_may_join_the_loop() -> None:
    """Rows that never passed the head keep the loop alive until their own input has ended."""

    def program(numbers: ps.DataStream, more: ps.DataStream) -> ps.DataStream:
        def body(inside: ps.DataStream) -> tuple[ps.DataStream, ps.DataStream]:
            both = inside.union(more, uid="both").rebalance().with_columns(left=col("left") - 1)
            return both.filter(col("left") > 0), both.filter(col("left") <= 0)

        return numbers.iterate(body, uid="loop")

    slow = testing.source(
        [{"n": 100, "left": 3}, testing.pause("2s"), {"n": 101, "left": 40}], schema=SCHEMA, batch_rows=1
    )
    quick = testing.source([{"n": n, "left": n % 3 + 1} for n in range(10)], schema=SCHEMA)
    for crashes in ((), (3,), (11,)):
        result = testing.run_stream(program, {"numbers": quick, "more": slow}, parallelism=2, crash_after=crashes)
        assert sorted(result.frame.get_column("n").to_list()) == [*range(10), 100, 101]
        assert result.frame.get_column("left").unique().to_list() == [0]


class CountedAtTheEnd(ps.KeyedProcessFunction):
    """How many rows came, said when no more can come."""

    rows = ps.ValueState(int, default=0)

    def process(self, ctx: ps.KeyedContext) -> None:
        self.rows.value += 1
        ctx.set_timer(0)

    def on_timer(self, ctx: ps.KeyedContext, time: int) -> tuple[int, int]:
        return ctx.key, self.rows.value


def test_time_ends_behind_a_loop_when_the_loop_is_over() -> None:
    def body(inside: ps.DataStream) -> tuple[ps.DataStream, ps.DataStream]:
        return by_exchange(inside.filter(col("left") > 0)), inside

    def program(numbers: ps.DataStream) -> ps.DataStream:
        every_round = numbers.iterate(body, uid="loop").key_by("n")
        return every_round.process(CountedAtTheEnd(), output={"n": int, "rows": int}, uid="counted")

    given_ = testing.source([{"n": n, "left": n} for n in range(5)], schema=SCHEMA)
    for parallelism in (1, 3):
        result = testing.run_stream(program, {"numbers": given_}, parallelism=parallelism)
        testing.assert_rows(result, [(n, n + 1) for n in range(5)])


def test_a_loop_behind_a_loop() -> None:
    def program(numbers: ps.DataStream) -> ps.DataStream:
        first = numbers.iterate(once_less, uid="first").with_columns(left=col("n") % 4)
        return first.iterate(once_less, uid="second")

    def once_less(inside: ps.DataStream) -> tuple[ps.DataStream, ps.DataStream]:
        return by_exchange(inside.filter(col("left") > 0)), inside.filter(col("left") <= 0)

    given_ = testing.source([{"n": n, "left": n % 5} for n in range(30)], schema=SCHEMA, batch_rows=4)
    result = testing.run_stream(
        program, {"numbers": given_}, parallelism=2, crash_after=[9, 20], restore_parallelism=[3, 1]
    )
    assert result.frame.sort("n").equals(pl.DataFrame({"n": range(30), "left": [0] * 30}))
