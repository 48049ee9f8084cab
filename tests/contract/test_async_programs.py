"""`map_async` in whole programs: crashes, other parallelisms and batch cuts change nothing but the number of calls."""

import asyncio
from collections.abc import Iterator
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import penstock as ps
from penstock import testing

SCHEMA = {"n": int, "ts": int}


async def slow_square(n: int, ts: int) -> tuple[int, int]:
    await asyncio.sleep((n * 7919 % 13) / 100)
    return n * n, ts


def squares(ordered: bool, capacity: int) -> Any:
    def program(numbers: ps.DataStream) -> ps.DataStream:
        return numbers.map_async(
            slow_square, output={"n": int, "ts": int}, ordered=ordered, capacity=capacity, uid="squares"
        )

    return program


def script(rows: list[int], *, watermark_every: int = 3) -> Iterator[Any]:
    for index, n in enumerate(rows):
        yield {"n": n, "ts": index}
        if index % watermark_every == watermark_every - 1:
            yield testing.watermark(index)


@settings(deadline=None, max_examples=40)
@given(
    st.lists(st.integers(0, 50), max_size=40),
    st.integers(1, 7),
    st.booleans(),
    st.integers(1, 9),
    st.lists(st.integers(1, 25), max_size=2),
    st.lists(st.sampled_from([1, 3]), max_size=2),
    st.sampled_from([1, 3]),
)
def test_every_row_comes_once_whatever_crashes(
    rows: list[int],
    batch_rows: int,
    ordered: bool,
    capacity: int,
    crashes: list[int],
    parallelisms: list[int],
    parallelism: int,
) -> None:
    elements = list(script(rows))
    source = testing.source(elements, event_time="ts", unit="s", batch_rows=batch_rows, schema=SCHEMA)
    result = testing.run_stream(
        squares(ordered, capacity),
        {"numbers": source},
        parallelism=parallelism,
        checkpoint_every=2,
        crash_after=crashes,
        restore_parallelism=parallelisms,
    )
    assert sorted(result.rows()) == sorted((n * n, index) for index, n in enumerate(rows))


@pytest.mark.parametrize("ordered", [True, False])
def test_no_row_is_late_behind_the_calls(ordered: bool) -> None:
    def windows(numbers: ps.DataStream) -> ps.DataStream:
        squared = squares(ordered, 5)(numbers)
        return squared.key_by("n").window(ps.tumbling("10s")).agg(rows=ps.count(), uid="windows")

    rows = [index % 7 for index in range(60)]
    source = testing.source(list(script(rows)), event_time="ts", unit="s", batch_rows=4)
    result = testing.run_stream(windows, {"numbers": source}, parallelism=2, crash_after=[30])
    testing.assert_late(result, 0)
    assert sum(row[-1] for row in result.rows()) == 60


def test_rows_leave_in_order_when_asked() -> None:
    rows = list(range(30))
    source = testing.source(list(script(rows)), event_time="ts", unit="s", batch_rows=30)
    result = testing.run_stream(squares(True, 10), {"numbers": source})
    assert [row[0] for row in result.rows()] == [n * n for n in rows]


def test_failed_calls_become_dead_letters() -> None:
    async def picky(n: int) -> int:
        if n % 3 == 0:
            raise ValueError(f"not {n}")
        return n

    def program(numbers: ps.DataStream) -> dict[str, ps.DataStream]:
        good = numbers.map_async(picky, output={"n": int}, on_error="dead_letter", uid="picky")
        return {"good": good, "bad": good.dead_letters()}

    result = testing.run_stream(program, {"numbers": [{"n": n} for n in range(7)]})
    assert result.rows("good") == [(1,), (2,), (4,), (5,)]
    assert [row[4] for row in result.rows("bad")] == ["not 0", "not 3", "not 6"]


def test_what_is_not_asynchronous_is_refused(tmp_path: Any) -> None:
    with pytest.raises(ps.UserError, match=r"(?s)P016 .*is not asynchronous.*async def"):
        testing.run_stream(lambda numbers: numbers.map_async(lambda n: n, output={"n": int}), {"numbers": [{"n": 1}]})
    with pytest.raises(ps.UserError, match=r"(?s)P016 .*capacity=0"):
        testing.run_stream(squares(True, 0), {"numbers": [{"n": 1, "ts": 1}]})
