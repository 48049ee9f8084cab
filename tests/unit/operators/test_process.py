"""Keyed process functions on frames, against the same logic in plain Python."""

import datetime
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import polars as pl
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from penstock.model import schemas, specs
from penstock.model.clocks import MAX_WATERMARK, SystemClock
from penstock.model.errors import UserError
from penstock.model.handles import Redistribution
from penstock.model.ids import Attempt, CheckpointId, JobId, SubtaskId, Uid, VertexId
from penstock.model.settings import JobSettings
from penstock.operators.base import OperatorContext
from penstock.operators.contexts import KeyedContext
from penstock.operators.process import ProcessOperator
from penstock.operators.user_errors import FunctionFailed
from penstock.operators.user_functions import KeyedProcessFunction, describe
from penstock.operators.user_states import ValueState
from penstock.state.key_groups import group_range, key_groups, owner, slice_groups

M = 8
INPUT = {"user": pl.String(), "amount": pl.Int64(), "at": pl.Int64()}
OUTPUT = {"user": pl.String(), "total": pl.Int64()}


class Collected:
    def __init__(self) -> None:
        self.frames: list[pl.DataFrame] = []

    def emit(self, frame: pl.DataFrame) -> None:
        if frame.height:
            self.frames.append(frame)

    def rows(self) -> list[tuple[Any, ...]]:
        return [row for frame in self.frames for row in frame.iter_rows()]


def start(
    function: KeyedProcessFunction,
    *,
    keys: tuple[str, ...] = ("user",),
    output: dict[str, Any] = OUTPUT,
    subtask: int = 0,
    parallelism: int = 1,
) -> tuple[ProcessOperator, Collected]:
    description = describe(function)
    spec = specs.Process(
        keys=keys,
        function=specs.Function(name=type(function).__name__, pickled=b"", columns=description.columns),
        per_batch=description.per_batch,
        states=description.states,
        event_time=specs.EventTime(column="at"),
        output=schemas.fields(output),
    )
    operator, collected = ProcessOperator(spec, function), Collected()
    context = OperatorContext(
        job=JobId("job"),
        attempt=Attempt(1),
        uid=Uid("totals"),
        subtask=SubtaskId(VertexId("totals"), subtask),
        parallelism=parallelism,
        max_parallelism=M,
        clock=SystemClock(),
        settings=JobSettings(),
    )
    operator.open(context, collected)
    operator.on_restored()
    return operator, collected


def rows(*values: tuple[str | None, int | None, int]) -> pl.DataFrame:
    return pl.DataFrame(values, schema=INPUT, orient="row")


class RunningTotal(KeyedProcessFunction):
    total = ValueState(int, default=0)

    def process(self, ctx: KeyedContext, amount: int) -> tuple[str, int]:
        self.total.value += amount
        return ctx.key, self.total.value


class Sessions(KeyedProcessFunction):
    """Two states and timers: the sum and number of a user's rows, 10 after the last one."""

    amounts = ValueState(list[int], default=[])
    ends = ValueState(int)

    def process(self, ctx: KeyedContext, at: int, amount: int) -> Iterator[tuple[str, int]]:
        self.amounts.value.append(amount)
        if self.ends.value is not None:
            ctx.delete_timer(self.ends.value)
        self.ends.value = at + 10
        ctx.set_timer(at + 10)
        if amount == 3:
            yield ctx.key, -1
            yield ctx.key, -2

    def on_timer(self, ctx: KeyedContext, time: int) -> list[tuple[str, int]]:
        assert ctx.timestamp == time == self.ends.value
        result = [(ctx.key, 100 * sum(self.amounts.value) + len(self.amounts.value))]
        self.amounts.clear()
        self.ends.clear()
        return result


def sessions_in_plain_python(events: Sequence[Any]) -> list[tuple[str, int]]:
    amounts: dict[str, list[int]] = {}
    ends: dict[str, int] = {}
    out: list[tuple[str, int]] = []
    for event in events:
        if isinstance(event, int):
            for user, _end in sorted(ends.items(), key=lambda item: item[1]):
                if ends[user] <= event:
                    out.append((user, 100 * sum(amounts[user]) + len(amounts[user])))
                    del ends[user], amounts[user]
        else:
            for user, amount, at in event:
                amounts.setdefault(user, []).append(amount)
                ends[user] = at + 10
                if amount == 3:
                    out += [(user, -1), (user, -2)]
    return out


ROWS = st.lists(st.tuples(st.sampled_from("abcdefg"), st.integers(0, 4), st.integers(0, 60)), min_size=1, max_size=8)
EVENTS = st.lists(ROWS | st.integers(0, 80), max_size=12)


def drive(operator: ProcessOperator, event: Any) -> None:
    if isinstance(event, int):
        operator.on_watermark(event)
    else:
        operator.on_batch(rows(*event))


@settings(deadline=None)
@given(EVENTS)
def test_state_and_timers_give_what_plain_python_gives(events: list[Any]) -> None:
    operator, collected = start(Sessions())
    for event in events:
        drive(operator, event)
    assert sorted(collected.rows()) == sorted(sessions_in_plain_python(events))


def rising(events: list[Any], *, beyond: int) -> list[Any]:
    kept = []
    for event in events:
        if not isinstance(event, int):
            kept.append(event)
        elif event > beyond:
            kept.append(beyond := event)
    return kept


@settings(deadline=None, max_examples=60)
@given(EVENTS, EVENTS, st.integers(1, 4), st.integers(1, 4))
def test_a_snapshot_restored_at_another_parallelism_goes_on_as_if_nothing_had_happened(
    before: list[Any], after: list[Any], old: int, new: int
) -> None:
    """Time that has been reached is not told again, but by those who have forgotten: see the timers of the past."""
    after = rising(after, beyond=max((event for event in before if isinstance(event, int)), default=-1))
    old_parts = [start(Sessions(), subtask=index, parallelism=old) for index in range(old)]
    for event in before:
        feed(old_parts, event)
    taken = [operator.snapshot(CheckpointId(1)) for operator, _ in old_parts]
    output = [row for _, part in old_parts for row in part.rows()]
    for event in after:  # what happens after the barrier is not in the snapshot, however late it is encoded
        feed(old_parts, event)
    sections = [section for snapshot in taken for section in snapshot()]
    new_parts = [start(Sessions(), subtask=index, parallelism=new) for index in range(new)]
    for index, (operator, _) in enumerate(new_parts):
        restored: dict[str, list[pl.DataFrame]] = {}
        for section in sections:
            keyed = section.redistribution is Redistribution.KEYED
            part = slice_groups(section.frame, group_range(index, new, M)) if keyed else section.frame
            restored.setdefault(section.state, []).append(part)
        operator.restore(restored)
    for event in after:
        feed(new_parts, event)
    output += [row for _, part in new_parts for row in part.rows()]
    assert sorted(output) == sorted(sessions_in_plain_python([*before, *after]))


def feed(parts: list[tuple[ProcessOperator, Collected]], event: Any) -> None:
    """Give each subtask its rows; a watermark goes to all."""
    if isinstance(event, int):
        for operator, _ in parts:
            operator.on_watermark(event)
        return
    frame = rows(*event)
    owners = [owner(group, len(parts), M) for group in key_groups(frame, ["user"], M).tolist()]
    for index, (operator, _) in enumerate(parts):
        part = frame.filter(pl.Series([each == index for each in owners]))
        if part.height:
            operator.on_batch(part)


def test_one_row_per_row_with_one_state() -> None:
    operator, collected = start(RunningTotal())
    operator.on_batch(rows(("a", 1, 0), ("b", 2, 0), ("a", 3, 0)))
    operator.on_batch(rows(("b", 4, 0)))
    assert collected.rows() == [("a", 1), ("b", 2), ("a", 4), ("b", 6)]
    assert collected.frames[0].schema == OUTPUT
    assert operator.context.counters.state_rows == 2


def test_two_instances_do_not_share_state() -> None:
    (first, one), (second, two) = start(RunningTotal()), start(RunningTotal())
    first.on_batch(rows(("a", 1, 0)))
    second.on_batch(rows(("a", 2, 0)))
    assert (one.rows(), two.rows()) == ([("a", 1)], [("a", 2)])


class Looks(KeyedProcessFunction):
    seen = ValueState(int, default=0)
    last = ValueState(int, default=0)

    def process(self, ctx: KeyedContext, row: dict[str, Any], amount: int | None) -> dict[str, Any] | None:
        assert row["amount"] == amount
        assert ctx.timestamp == row["at"]
        if amount is None:
            self.last.clear()
            return None
        self.last.value = amount
        return {"user": row["user"], "total": ctx.timestamp}


def test_rows_as_dicts_null_values_and_states_that_are_only_looked_at() -> None:
    operator, collected = start(Looks())
    operator.on_batch(rows(("a", 5, 11), ("b", None, 12), (None, 7, 13), ("a", None, 14)))
    assert collected.rows() == [("a", 11), (None, 13)]
    sections = {section.state: section.frame for section in operator.snapshot(CheckpointId(1))()}
    assert set(sections) == {"last"}
    assert sections["last"].select("user", "last").rows() == [(None, 7)]


class PerBatch(KeyedProcessFunction):
    total = ValueState(int, default=0)

    def process_batch(self, ctx: KeyedContext, batch: pl.DataFrame) -> pl.DataFrame | None:
        assert batch["user"].is_sorted()
        sums = batch.group_by("user", maintain_order=True).agg(pl.col("amount").sum(), pl.col("at").max())
        totals = self.total.get_many(sums) + sums["amount"]
        self.total.set_many(sums, totals)
        ctx.set_timers(sums, sums["at"] + 10)
        return sums.select("user", total=totals)

    def on_timer(self, ctx: KeyedContext, time: int) -> tuple[str, int]:
        total = self.total.value
        self.total.clear()
        return ctx.key, -total


def test_a_batch_at_once_with_vectorised_state() -> None:
    operator, collected = start(PerBatch())
    operator.on_batch(rows(("b", 1, 0), ("a", 2, 5), ("b", 3, 1)))
    operator.on_batch(rows(("b", 5, 1)))
    operator.on_watermark(12)
    assert collected.rows() == [("a", 2), ("b", 4), ("b", 9), ("b", -9)]
    operator.on_watermark(MAX_WATERMARK)
    assert collected.rows()[-1] == ("a", -2)


class BatchTimerWithoutKey(KeyedProcessFunction):
    def process_batch(self, ctx: KeyedContext, batch: pl.DataFrame) -> None:
        ctx.set_timer(5)


def test_a_timer_without_a_key_is_refused() -> None:
    operator, _ = start(BatchTimerWithoutKey())
    with pytest.raises(UserError, match=r"P016 totals\[0\].*set_timer"):
        operator.on_batch(rows(("a", 1, 0)))


class Chain(KeyedProcessFunction):
    def process(self, ctx: KeyedContext, at: int) -> None:
        ctx.set_timer(datetime.datetime(1970, 1, 1, 0, 0, 0, at, tzinfo=datetime.UTC))

    def on_timer(self, ctx: KeyedContext, time: int) -> Iterator[tuple[str, int]]:
        yield ctx.key, time
        if time < 50:
            ctx.set_timer(time + 10)


def test_timers_set_while_firing_fire_too_in_the_order_of_time() -> None:
    operator, collected = start(Chain())
    operator.on_batch(rows(("a", 1, 10), ("b", 1, 15)))
    assert operator.on_watermark(9) == 9
    assert collected.rows() == []
    operator.on_watermark(40)
    assert collected.rows() == [("a", 10), ("b", 15), ("a", 20), ("b", 25), ("a", 30), ("b", 35), ("a", 40)]


def test_several_key_columns_are_a_tuple() -> None:
    class Keys(KeyedProcessFunction):
        def process(self, ctx: KeyedContext) -> tuple[str, int]:
            user, amount = ctx.key
            return user, amount

    operator, collected = start(Keys(), keys=("user", "amount"))
    operator.on_batch(rows(("a", 1, 0)))
    assert collected.rows() == [("a", 1)]


# ---------------------------------------------------------------- shapes of rows


@dataclass
class AsDataclass:
    user: str
    total: int


class AsNamedTuple(NamedTuple):
    user: str
    total: int


class Returns(KeyedProcessFunction):
    def __init__(self, *values: Any) -> None:
        self.values = iter(values)

    def process(self, ctx: KeyedContext) -> Any:
        return next(self.values)


def test_rows_of_any_shape_in_one_batch() -> None:
    operator, collected = start(
        Returns(("a", 1), {"total": 2, "user": "b"}, AsDataclass("c", 3), AsNamedTuple("d", 4), [], None, [("e", 5)])
    )
    operator.on_batch(rows(*[("k", 0, 0)] * 7))
    assert collected.rows() == [("a", 1), ("b", 2), ("c", 3), ("d", 4), ("e", 5)]


def test_bare_values_are_rows_of_one_column() -> None:
    operator, collected = start(Returns(1, None, [2, 3], (None,)), output={"n": pl.Int64()})
    operator.on_batch(rows(*[("k", 0, 0)] * 4))
    assert collected.rows() == [(1,), (2,), (3,), (None,)]


@pytest.mark.parametrize(
    ("value", "message"),
    [
        (("a", 1, 2), "returned a row of 3 values for 2 columns: \\('a', 1, 2\\)"),
        ({"user": "a"}, "returned a row without total"),
        ({"user": "a", "total": 1, "x": 2}, "columns that are not declared, x"),
        (5, "returned a bare value for 2 columns: 5"),
        (("a", "one"), "column \"total\" is wrong, 'one' \\(str\\) is not a value of type Int64"),
        (("a", 1.5), 'column "total" is wrong, 1.5'),
    ],
)
def test_a_row_of_the_wrong_shape_is_told_with_operator_and_value(value: Any, message: str) -> None:
    operator, _ = start(Returns(("fine", 1), value))
    with pytest.raises(UserError, match=f"(?s)P014 totals\\[0\\]: Returns .*{message}.*user String, total Int64"):
        operator.on_batch(rows(("k", 0, 0), ("k", 0, 0)))


def test_an_iterator_that_would_run_too_late_is_refused() -> None:
    operator, _ = start(Returns(value for value in ()))
    with pytest.raises(UserError, match=r"P014 totals\[0\]: .*returned an iterator"):
        operator.on_batch(rows(("k", 0, 0)))


# ---------------------------------------------------------------- failures


class Fails(KeyedProcessFunction):
    def process(self, ctx: KeyedContext, amount: int) -> None:
        if amount == 2:
            raise ValueError("two is too much")
        if amount == 3:
            raise SystemExit(4)
        ctx.set_timer(amount)

    def on_timer(self, ctx: KeyedContext, time: int) -> None:
        raise KeyError("gone")


def test_a_users_exception_is_told_with_row_and_stack() -> None:
    operator, _ = start(Fails())
    with pytest.raises(FunctionFailed) as failure:
        operator.on_batch(rows(("a", 1, 0), ("b", 2, 0), ("c", 1, 0)))
    message = str(failure.value)
    assert message.startswith("P007 totals[0]: Fails.process raised ValueError\n")
    assert "user='b', amount=2" in message
    assert 'raise ValueError("two is too much")' in message
    assert "penstock/operators" not in message


def test_system_exit_is_an_error_like_any_other() -> None:
    operator, _ = start(Fails())
    with pytest.raises(FunctionFailed, match="raised SystemExit"):
        operator.on_batch(rows(("a", 3, 0)))


def test_an_exception_in_a_timer_names_key_and_time() -> None:
    operator, _ = start(Fails())
    operator.on_batch(rows(("a", 7, 0)))
    with pytest.raises(FunctionFailed, match=r"(?s)on_timer raised KeyError.*key='a', time=7"):
        operator.on_watermark(9)


def test_state_that_is_not_declared_any_more_is_refused() -> None:
    operator, _ = start(RunningTotal())
    operator.on_batch(rows(("a", 1, 0)))
    sections = {section.state: [section.frame] for section in operator.snapshot(CheckpointId(1))()}
    other, _ = start(Fails())
    with pytest.raises(UserError, match=r'S004 .*"total"'):
        other.restore(sections)


class OpensAndCloses(KeyedProcessFunction):
    def __init__(self, *, fails: bool = False) -> None:
        self.fails = fails
        self.calls: list[str] = []

    def open(self, ctx: KeyedContext) -> None:
        self.calls.append(f"open {ctx.subtask} of {ctx.parallelism}")
        if self.fails:
            raise OSError("no model file")

    def process(self, ctx: KeyedContext) -> None: ...

    def close(self) -> None:
        self.calls.append("close")


def test_open_and_close_are_called_once_each_also_when_open_fails() -> None:
    function = OpensAndCloses()
    operator, _ = start(function, subtask=1, parallelism=2)
    operator.close()
    operator.close()
    assert function.calls == ["open 1 of 2", "close"]
    with pytest.raises(
        FunctionFailed, match=r"(?s)P007 totals\[0\]: OpensAndCloses.open raised OSError.*no model file"
    ):
        start(OpensAndCloses(fails=True))


def test_closing_what_was_never_opened_does_nothing() -> None:
    function = OpensAndCloses()
    spec = specs.Process(keys=("user",), function=specs.Function(name="f", pickled=b""), output=schemas.fields(OUTPUT))
    ProcessOperator(spec, function).close()
    assert function.calls == []
