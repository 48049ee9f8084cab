"""Rows whose function fails: only they are put aside or dropped, whatever the batches are."""

import json
from collections.abc import Iterator
from typing import Any

import polars as pl
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from penstock.model import schemas, specs
from penstock.model.errors import UserError
from penstock.operators.contexts import KeyedContext
from penstock.operators.failures import DEAD_LETTER_SCHEMA, DEAD_LETTERS
from penstock.operators.functions import MapBatchesOperator, MapOperator
from penstock.operators.process import ProcessOperator
from penstock.operators.user_errors import FunctionFailed
from penstock.operators.user_functions import KeyedProcessFunction, ValueState

ONE = schemas.fields({"n": pl.Int64()})
POLICIES = st.sampled_from(["dead_letter", "drop"])
BATCHES = st.lists(st.lists(st.integers(-4, 4), min_size=1, max_size=20), max_size=5)


def called(name: str = "f") -> specs.Function:
    return specs.Function(name=name, pickled=b"")


def frame_of(batch: list[int]) -> pl.DataFrame:
    return pl.DataFrame({"n": batch, "other": [f"row {n}" for n in batch]})


def inverse(n: int) -> int:
    return 100 // n if n > -3 else "no number"  # type: ignore[return-value]


def fails(n: int) -> bool:
    return n == 0 or n <= -3


def several(n: int) -> Iterator[int]:
    yield n
    yield inverse(n)


def whole_batch(frame: pl.DataFrame) -> pl.DataFrame:
    if any(map(fails, frame["n"])):
        raise ValueError("a bad row")
    return pl.DataFrame({"n": [100 // n for n in frame["n"]]})


class Sums(KeyedProcessFunction):
    total = ValueState(int, default=0)

    def process(self, ctx: KeyedContext, n: int) -> int:
        if fails(n):
            raise ValueError("a bad row")
        self.total.value += n
        ctx.set_timer(n)
        return self.total.value

    def on_timer(self, ctx: KeyedContext, time: int) -> int:
        if time == 2:
            raise KeyError("two")
        return 1000 + time


def letters(collected: Any) -> list[dict[str, Any]]:
    assert all(frame.schema == DEAD_LETTER_SCHEMA for frame in collected.sides.get(DEAD_LETTERS, []))
    return [row for frame in collected.sides.get(DEAD_LETTERS, []) for row in frame.iter_rows(named=True)]


def made(collected: Any) -> list[int]:
    return [n for frame in collected.frames for n in frame["n"]]


@settings(deadline=None)
@given(BATCHES, POLICIES, st.sampled_from(["map", "flat_map", "map_batches", "process"]))
def test_all_rows_but_the_failing_ones_come_through(
    start: Any, batches: list[list[int]], policy: str, verb: str
) -> None:
    good = [n for batch in batches for n in batch if not fails(n)]
    bad = [n for batch in batches for n in batch if fails(n)]
    operator: Any
    match verb:
        case "map":
            operator = MapOperator(specs.Map(function=called(), output=ONE, on_error=policy), inverse)
            expected = [100 // n for n in good]
        case "flat_map":
            operator = MapOperator(specs.Map(function=called(), flat=True, output=ONE, on_error=policy), several)
            expected = [each for n in good for each in (n, 100 // n)]
        case "map_batches":
            spec = specs.MapBatches(function=called(), output=ONE, on_error=policy)
            operator, expected = MapBatchesOperator(spec, whole_batch), [100 // n for n in good]
        case _:
            process = specs.Process(keys=("n",), function=called(), output=ONE, on_error=policy)
            operator = ProcessOperator(process, Sums())
            seen: dict[int, int] = {}
            expected = []
            for n in good:
                seen[n] = seen.get(n, 0) + n
                expected.append(seen[n])
    collected = start(operator)
    for batch in batches:
        operator.on_batch(frame_of(batch))
    assert made(collected) == expected
    assert operator.context.counters.bad_rows == len(bad)
    wanted = [{"n": n, "other": f"row {n}"} for n in bad] if policy == "dead_letter" else []
    by_number = sorted(wanted, key=lambda row: row["n"])
    assert sorted((json.loads(letter["row"]) for letter in letters(collected)), key=lambda row: row["n"]) == by_number


def test_a_dead_letter_says_what_failed_where_and_when(start: Any, clock: Any) -> None:
    clock.now = 1_500_000
    operator = MapOperator(specs.Map(function=called("inverse"), output=ONE, on_error="dead_letter"), inverse)
    collected = start(operator, clock=clock)
    operator.on_batch(frame_of([1, 0, 5]))
    [letter] = letters(collected)
    assert letter["time"].timestamp() == 1.5
    assert (letter["operator"], letter["function"], letter["error"]) == (
        "the-operator",
        "inverse",
        "ZeroDivisionError",
    )
    assert "by zero" in letter["message"]


def test_a_timer_that_fails_is_put_aside_with_its_key(start: Any) -> None:
    spec = specs.Process(keys=("n",), function=called("Sums"), output=ONE, on_error="dead_letter")
    operator = ProcessOperator(spec, Sums())
    collected = start(operator)
    operator.on_batch(frame_of([1, 2, 3]))
    operator.on_watermark(9)
    assert made(collected)[3:] == [1001, 1003]
    [letter] = letters(collected)
    assert (letter["function"], json.loads(letter["row"])) == ("Sums.on_timer", {"key": 2, "time": 2})


def test_stop_is_the_default_and_stops(start: Any) -> None:
    operator = MapOperator(specs.Map(function=called(), output=ONE), inverse)
    start(operator)
    with pytest.raises(FunctionFailed):
        operator.on_batch(frame_of([1, 0]))


class TwoSides(KeyedProcessFunction):
    def process(self, ctx: KeyedContext, n: int) -> int | None:
        if n < 0:
            ctx.output("negative", (n, "below"))
            return None
        if n == 0:
            ctx.output("zeros", [{"n": 0}, {"n": 0}])
        return n

    def on_timer(self, ctx: KeyedContext, time: int) -> None: ...


SIDES = (
    specs.SideOutput(name="negative", schema=schemas.fields({"n": pl.Int64(), "why": pl.String()})),
    specs.SideOutput(name="zeros", schema=ONE),
)


def test_a_function_may_have_several_side_outputs(start: Any) -> None:
    spec = specs.Process(keys=("n",), function=called("TwoSides"), output=ONE, tags=("negative", "zeros"))
    operator = ProcessOperator(spec, TwoSides(), SIDES)
    collected = start(operator)
    operator.on_batch(frame_of([1, -1, 0, -2]))
    assert made(collected) == [1, 0]
    assert collected.sides["negative"][0].rows() == [(-1, "below"), (-2, "below")]
    assert collected.sides["zeros"][0].rows() == [(0,), (0,)]


def test_an_output_that_nobody_reads_is_forgotten_and_one_that_is_unknown_refused(start: Any) -> None:
    spec = specs.Process(keys=("n",), function=called("TwoSides"), output=ONE, tags=("negative",))
    operator = ProcessOperator(spec, TwoSides())
    collected = start(operator)
    operator.on_batch(frame_of([-1]))
    assert not collected.sides
    with pytest.raises(UserError, match=r'P016 .*no side output "zeros"; it has negative'):
        operator.on_batch(frame_of([0]))
