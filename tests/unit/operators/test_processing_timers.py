"""Timers by the wall clock, beside those of event time, against the same logic in plain Python."""

from typing import Any

import polars as pl
from hypothesis import given, settings
from hypothesis import strategies as st

from penstock.model import schemas, specs
from penstock.model.handles import Redistribution
from penstock.model.ids import Attempt, CheckpointId, JobId, SubtaskId, Uid, VertexId
from penstock.model.settings import JobSettings
from penstock.operators.base import OperatorContext
from penstock.operators.contexts import KeyedContext
from penstock.operators.process import ProcessOperator
from penstock.operators.user_functions import KeyedProcessFunction
from penstock.operators.user_states import ValueState
from penstock.state.key_groups import group_range, key_groups, owner, slice_groups

M = 8
INPUT = {"user": pl.String(), "wait": pl.Int64()}
OUTPUT = {"user": pl.String(), "what": pl.String(), "count": pl.Int64()}


class Clock:
    now = 0

    def now_us(self) -> int:
        return self.now

    def monotonic(self) -> float:
        return self.now / 1e6


class Collected:
    def __init__(self) -> None:
        self.rows: list[tuple[Any, ...]] = []

    def emit(self, frame: pl.DataFrame) -> None:
        self.rows += frame.rows()


class Waits(KeyedProcessFunction):
    """Counts rows until the clock has gone on by `wait`; an event-time timer at 5 tells the count so far."""

    count = ValueState(int, default=0)

    def process(self, ctx: KeyedContext, wait: int) -> None:
        self.count.value += 1
        ctx.counter("rows").inc()
        ctx.set_timer(5)
        if wait == 0:
            ctx.delete_processing_timer(ctx.processing_time + 3)
        else:
            ctx.set_processing_timer(ctx.processing_time + wait)

    def on_timer(self, ctx: KeyedContext, time: int) -> tuple[str, str, int]:
        return ctx.key, "event", self.count.value

    def on_processing_timer(self, ctx: KeyedContext, time: int) -> tuple[str, str, int]:
        made = ctx.key, f"processing {ctx.timestamp}", self.count.value
        self.count.clear()
        return made


class Plain:
    """What `Waits` means."""

    def __init__(self) -> None:
        self.now = 0
        self.counts: dict[str, int] = {}
        self.event: set[str] = set()
        self.processing: set[tuple[int, str]] = set()
        self.out: list[tuple[str, str, int]] = []

    def drive(self, event: Any) -> None:
        match event:
            case ("clock", by):
                self.now += by
                for time, user in sorted(self.processing):
                    if time <= self.now:
                        self.processing.discard((time, user))
                        self.out.append((user, f"processing {time}", self.counts.pop(user, 0)))
            case ("watermark", time):
                if time >= 5:
                    self.out += [(user, "event", self.counts.get(user, 0)) for user in self.event]
                    self.event.clear()
            case rows:
                for user, wait in rows:
                    self.counts[user] = self.counts.get(user, 0) + 1
                    self.event.add(user)
                    if wait == 0:
                        self.processing.discard((self.now + 3, user))
                    else:
                        self.processing.add((self.now + wait, user))


class Parts:
    """The subtasks of one operator."""

    def __init__(self, parallelism: int, clock: Clock) -> None:
        self.clock, self.collected = clock, Collected()
        self.operators = [self._start(index, parallelism) for index in range(parallelism)]

    def _start(self, index: int, parallelism: int) -> ProcessOperator:
        function = specs.Function(name="Waits", pickled=b"")
        operator = ProcessOperator(
            specs.Process(keys=("user",), function=function, output=schemas.fields(OUTPUT)), Waits()
        )
        context = OperatorContext(
            job=JobId("job"),
            attempt=Attempt(1),
            uid=Uid("waits"),
            subtask=SubtaskId(VertexId("waits"), index),
            parallelism=parallelism,
            max_parallelism=M,
            clock=self.clock,
            settings=JobSettings(),
        )
        operator.open(context, self.collected)
        return operator

    def drive(self, event: Any) -> None:
        match event:
            case ("clock", by):
                self.clock.now += by
            case ("watermark", time):
                for operator in self.operators:
                    operator.on_watermark(time)
            case rows:
                frame = pl.DataFrame(rows, schema=INPUT, orient="row")
                owners = [owner(group, len(self.operators), M) for group in key_groups(frame, ["user"], M).tolist()]
                for index, operator in enumerate(self.operators):
                    part = frame.filter(pl.Series([each == index for each in owners]))
                    if part.height:
                        operator.on_batch(part)
        for operator in self.operators:
            due = operator.next_processing_time()
            if due is not None and due <= self.clock.now:
                operator.on_processing_time(self.clock.now)


ROWS = st.lists(st.tuples(st.sampled_from("abcdef"), st.integers(0, 6)), min_size=1, max_size=6)
EVENTS = st.lists(
    ROWS | st.tuples(st.just("clock"), st.integers(0, 4)) | st.tuples(st.just("watermark"), st.integers(0, 9)),
    max_size=14,
)


@settings(deadline=None)
@given(EVENTS, EVENTS, st.integers(1, 3), st.integers(1, 3))
def test_both_kinds_of_timers_survive_a_change_of_parallelism(
    before: list[Any], after: list[Any], old: int, new: int
) -> None:
    """Time that has been reached is not told again, but by those who have forgotten: see the timers of the past."""
    reached = max((event[1] for event in before if event[:1] == ("watermark",)), default=-1)
    after = [event for event in after if event[:1] != ("watermark",) or event[1] > reached]
    plain, clock = Plain(), Clock()
    parts = Parts(old, clock)
    for event in before:
        plain.drive(event)
        parts.drive(event)
    made = parts.collected.rows
    sections = [section for part in parts.operators for section in part.snapshot(CheckpointId(1))()]
    parts = Parts(new, clock)
    for index, operator in enumerate(parts.operators):
        restored: dict[str, list[pl.DataFrame]] = {}
        for section in sections:
            keyed = section.redistribution is Redistribution.KEYED
            frame = slice_groups(section.frame, group_range(index, new, M)) if keyed else section.frame
            restored.setdefault(section.state, []).append(frame)
        operator.restore(restored)
    for event in after:
        plain.drive(event)
        parts.drive(event)
    assert sorted(made + parts.collected.rows) == sorted(plain.out)


def test_after_the_end_of_input_no_timer_is_waited_for() -> None:
    parts = Parts(1, Clock())
    parts.drive([("a", 4)])
    [operator] = parts.operators
    assert operator.next_processing_time() == 4
    operator.on_end()
    assert operator.next_processing_time() is None


def test_a_functions_own_metrics_are_kept_with_the_operators() -> None:
    parts = Parts(1, Clock())
    parts.drive([("a", 1), ("b", 1)])
    parts.drive([("a", 1)])
    [metric] = parts.operators[0].context.counters.user.read()
    assert (metric.name, metric.kind, metric.value) == ("rows", "counter", 3)
