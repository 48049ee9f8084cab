"""Asynchronous functions, driven by hand: which rows are called, what may leave, what a snapshot holds."""

import asyncio
from collections.abc import Sequence
from typing import Any

import polars as pl
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from penstock.model import schemas, specs
from penstock.model.ids import Attempt, CheckpointId, JobId, SubtaskId, Uid, VertexId
from penstock.model.settings import JobSettings
from penstock.operators.async_calls import UNTIL_WOKEN_US, AsyncOperator
from penstock.operators.base import Call, OperatorContext
from penstock.operators.failures import DEAD_LETTERS
from penstock.operators.user_errors import FunctionFailed
from penstock.taskmanager.coroutines import outcome


class Clock:
    def now_us(self) -> int:
        return 0

    def monotonic(self) -> float:
        return 0.0


class ByHand:
    """`Coroutines`: calls wait until they are told to run."""

    def __init__(self) -> None:
        self.waiting: list[Call] = []
        self.most = 0

    def start(self, calls: Sequence[Call]) -> None:
        self.waiting += calls
        self.most = max(self.most, len(self.waiting))

    def finish(self, index: int) -> None:
        call, done = self.waiting.pop(index % len(self.waiting))
        done(asyncio.run(outcome(call)))


class Collected:
    def __init__(self) -> None:
        self.events: list[Any] = []
        self.sides: list[pl.DataFrame] = []

    def emit(self, frame: pl.DataFrame) -> None:
        self.events += [n for (n,) in frame.rows()]

    def emit_side(self, name: str, frame: pl.DataFrame) -> None:
        assert name == DEAD_LETTERS
        self.sides.append(frame)

    def pass_watermark(self, time: int) -> None:
        self.events.append(("watermark", time))


class Running:
    def __init__(self, function: Any, **options: Any) -> None:
        self.coroutines, self.collected = ByHand(), Collected()
        spec = specs.MapAsync(
            function=specs.Function(name="f", pickled=b""),
            output=schemas.fields({"n": pl.Int64()}),
            **{"capacity": 3, "timeout_us": 1_000_000, "ordered": True, **options},
        )
        self.operator = AsyncOperator(spec, function)
        context = OperatorContext(
            job=JobId("job"),
            attempt=Attempt(1),
            uid=Uid("lookup"),
            subtask=SubtaskId(VertexId("lookup"), 0),
            parallelism=1,
            max_parallelism=8,
            clock=Clock(),
            settings=JobSettings(),
            coroutines=self.coroutines,
        )
        self.operator.open(context, self.collected)

    def feed(self, rows: list[int]) -> None:
        self.operator.on_batch(pl.DataFrame({"n": rows}))

    def watermark(self, time: int) -> None:
        passed = self.operator.on_watermark(time)
        if passed is not None:
            self.collected.pass_watermark(passed)

    def finish(self, index: int = 0) -> None:
        if self.coroutines.waiting:
            self.coroutines.finish(index)
            assert self.operator.next_processing_time() == 0
        self.turn()

    def turn(self) -> None:
        if self.operator.next_processing_time() is not None:
            self.operator.on_processing_time(0)

    def drain(self) -> None:
        while self.coroutines.waiting:
            self.finish()

    def snapshot(self) -> list[pl.DataFrame]:
        return [section.frame for section in self.operator.snapshot(CheckpointId(1))()]


async def times_ten(n: int) -> int | list[int] | None:
    if n % 5 == 4:
        return None
    return [n * 10, n * 10 + 1] if n % 5 == 3 else n * 10


def answer(n: int) -> list[int]:
    return {4: [], 3: [n * 10, n * 10 + 1]}.get(n % 5, [n * 10])


STEPS = st.lists(
    st.lists(st.integers(0, 99), min_size=1, max_size=8)
    | st.tuples(st.just("watermark"), st.integers(0, 99))
    | st.tuples(st.just("finish"), st.integers(0, 9)),
    max_size=25,
)


@settings(deadline=None)
@given(STEPS, st.booleans(), st.integers(1, 6), st.integers(1, 3))
def test_rows_and_watermarks_leave_as_they_must_and_a_restore_calls_again(
    steps: list[Any], ordered: bool, capacity: int, parallelism: int
) -> None:
    running = Running(times_ten, ordered=ordered, capacity=capacity)
    came: list[Any] = []
    for step in steps:
        match step:
            case ("watermark", time):
                running.watermark(time)
                came.append(step)
            case ("finish", index):
                running.finish(index)
            case rows:
                running.feed(rows)
                came += rows
        assert running.coroutines.most <= capacity
    left = list(running.collected.events)
    held = running.snapshot()
    # What has left and what is held is all that came.
    kept = [n for frame in held for n in frame["n"]]
    seen = [n for n in came if not isinstance(n, tuple)]
    assert sorted([e for e in left if isinstance(e, int)] + [v for n in kept for v in answer(n)]) == sorted(
        v for n in seen for v in answer(n)
    )
    restored = [Running(times_ten, ordered=ordered, capacity=capacity) for _ in range(parallelism)]
    for index, part in enumerate(restored):
        part.operator.restore({"in flight": [frame[index::parallelism] for frame in held]})
        part.drain()
    again = [event for part in restored for event in part.collected.events]
    assert sorted(again) == sorted(v for n in kept for v in answer(n))
    running.drain()
    check_order(came, running.collected.events, ordered)
    assert not running.operator.in_flight
    assert running.operator.ready_in_us() == 0


def check_order(came: list[Any], left: list[Any], ordered: bool) -> None:
    """In order all is as it came; else each watermark has all rows before it in front. Late ones may merge."""
    rows = [v for n in came if not isinstance(n, tuple) for v in answer(n)]
    made = [event for event in left if isinstance(event, int)]
    assert made == rows if ordered else sorted(made) == sorted(rows)
    for position, event in enumerate(left):
        if isinstance(event, tuple):
            before = [v for n in came[: came.index(event)] if not isinstance(n, tuple) for v in answer(n)]
            in_front = [each for each in left[:position] if isinstance(each, int)]
            for value in set(before):
                assert in_front.count(value) >= before.count(value)


def test_no_more_rows_are_taken_while_some_wait_to_be_called() -> None:
    running = Running(times_ten, capacity=2)
    running.feed([1, 2, 5])
    assert running.operator.ready_in_us() == UNTIL_WOKEN_US
    running.finish(0)
    assert running.operator.ready_in_us() == 0
    assert running.collected.events == [10]


def test_a_slow_first_row_holds_back_what_is_behind_it_only_in_order() -> None:
    for ordered, expected in ((True, []), (False, [20, 50])):
        running = Running(times_ten, ordered=ordered)
        running.feed([1, 2, 5])
        running.finish(1)
        running.finish(1)
        assert running.collected.events == expected


def test_retries_then_the_policy() -> None:
    tries: list[int] = []

    async def flaky(n: int) -> int:
        tries.append(n)
        if n == 7 or tries.count(n) < 2:
            raise ConnectionError("not now")
        return n

    running = Running(flaky, retries=2, backoff_us=1, on_error="dead_letter")
    running.feed([1, 7])
    running.drain()
    assert running.collected.events == [1]
    assert (tries.count(1), tries.count(7)) == (2, 3)
    [letter] = running.collected.sides
    assert letter["error"].to_list() == ["ConnectionError"]
    assert letter["row"].to_list() == ['{"n": 7}']
    assert running.operator.context.counters.bad_rows == 1


def test_a_call_that_takes_too_long_fails_by_the_policy_stop() -> None:
    async def never(n: int) -> int:
        await asyncio.Event().wait()
        return n

    running = Running(never, timeout_us=1_000)
    running.feed([1])
    with pytest.raises(FunctionFailed, match=r"(?s)P007 lookup\[0\]: f raised TimeoutError.*no result within 0.001 s"):
        running.drain()


class Client:
    def __init__(self, broken: bool = False) -> None:
        self.calls: list[str] = []
        self.broken = broken

    async def open(self, ctx: Any) -> None:
        self.calls.append(f"open {ctx.subtask}")
        if self.broken:
            raise OSError("no such host")

    async def __call__(self, n: int) -> int:
        self.calls.append(f"call {n}")
        return n

    async def close(self) -> None:
        self.calls.append("close")


def test_an_object_is_opened_before_the_first_call_and_closed() -> None:
    client = Client()
    running = Running(client)
    running.feed([1, 2])
    assert len(running.coroutines.waiting) == 1
    running.drain()
    running.operator.close()
    running.coroutines.finish(0)
    assert client.calls == ["open 0", "call 1", "call 2", "close"]


def test_a_client_that_cannot_be_opened_fails_the_job() -> None:
    running = Running(Client(broken=True))
    with pytest.raises(FunctionFailed, match=r"(?s)f.open raised OSError.*no such host"):
        running.drain()
