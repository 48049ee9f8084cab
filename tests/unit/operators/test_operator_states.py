"""State that belongs to no key: lists that are dealt out, lists that all see, and what every subtask knows."""

import copy
import dataclasses
import json
from collections import Counter
from collections.abc import Iterator
from typing import Any

import polars as pl
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import penstock as ps
from penstock import testing
from penstock.checkpoint import state_objects
from penstock.model import schemas, specs
from penstock.model.clocks import MAX_WATERMARK
from penstock.model.errors import PenstockError, UserError
from penstock.model.handles import Redistribution, StateHandle
from penstock.model.ids import Attempt, CheckpointId, JobId, SubtaskId, Uid, VertexId
from penstock.model.settings import JobSettings
from penstock.operators.base import OperatorContext
from penstock.operators.process import ProcessOperator
from penstock.operators.user_functions import ProcessFunction, describe
from penstock.state.key_groups import group_range
from penstock.storage import open_store

OUTPUT = {"n": pl.Int64()}
UID = Uid("f")


@dataclasses.dataclass
class Rule:
    name: str
    above: int


class SetCodec:
    def encode(self, value: set[int]) -> bytes:
        return json.dumps(sorted(value)).encode()

    def decode(self, data: bytes) -> set[int]:
        return set(json.loads(data))


class Holds(ProcessFunction):
    """One of each."""

    dealt = ps.OperatorListState(int)
    shared = ps.UnionListState(int)
    rules = ps.BroadcastState(str, Rule)
    sets = ps.OperatorListState(codec=SetCodec(), kind=None)

    opened_with: tuple[int, int] = (-1, -1)

    def open(self, ctx: ps.ProcessContext) -> None:
        self.opened_with = (len(self.dealt), len(self.shared))

    def process(self, ctx: ps.ProcessContext, n: int) -> tuple[int]:
        return (n,)


class NoClock:
    def now_us(self) -> int:
        return 0

    def monotonic(self) -> float:
        return 0.0


class Job:
    """Subtasks of one function, with a store."""

    def __init__(self, function: type[ProcessFunction] = Holds) -> None:
        self.function = function
        self.store = open_store("memory://")
        self.handles: list[StateHandle] = []
        self.emitted: list[tuple[Any, ...]] = []
        self.checkpoints = 0

    def emit(self, frame: pl.DataFrame) -> None:
        self.emitted += frame.rows()

    def emit_side(self, name: str, frame: pl.DataFrame) -> None:
        raise AssertionError(name)

    def pass_watermark(self, time: int) -> None:
        raise AssertionError(time)

    def start(self, parallelism: int) -> None:
        self.functions = [self.function() for _ in range(parallelism)]
        self.operators = []
        for index, function in enumerate(self.functions):
            described = describe(function)
            spec = specs.Process(
                keys=(),
                function=specs.Function(name="F", pickled=b"", columns=described.columns),
                per_batch=described.per_batch,
                states=described.states,
                output=schemas.fields(OUTPUT),
                broadcast=True,
            )
            operator = ProcessOperator(spec, function)
            context = OperatorContext(
                job=JobId("job"),
                attempt=Attempt(1),
                uid=UID,
                subtask=SubtaskId(VertexId("v"), index),
                parallelism=parallelism,
                max_parallelism=8,
                clock=NoClock(),
                settings=JobSettings(),
            )
            operator.open(context, self)
            groups = group_range(index, parallelism, 8)
            read = state_objects.read(
                self.store, self.handles, groups=groups, index=index, parallelism=parallelism, uids={UID}
            )
            if UID in read:
                operator.restore(read[UID])
            operator.on_restored()
            self.operators.append(operator)

    def checkpoint(self) -> None:
        self.checkpoints += 1
        number = CheckpointId(self.checkpoints)
        frozen = [operator.snapshot(number) for operator in self.operators]
        for function in self.functions:  # what happens behind the barrier is not in the checkpoint
            for rule in function.rules.values() if isinstance(function, Holds) else ():
                rule.above = -1
        self.handles = [
            state_objects.write(
                self.store,
                number,
                Attempt(1),
                SubtaskId(VertexId("v"), index),
                [(UID, section) for section in make()],
            )
            for index, make in enumerate(frozen)
        ]


def numbers(job: Job, state: str) -> list[list[int]]:
    return [list(getattr(function, state)) for function in job.functions]


@settings(max_examples=60, database=None)
@given(
    st.lists(
        st.tuples(st.integers(1, 4), st.lists(st.tuples(st.integers(0, 3), st.integers(0, 99)), max_size=8)),
        min_size=1,
        max_size=5,
    )
)
def test_lists_come_back_whole_at_any_parallelism(phases: list[tuple[int, list[tuple[int, int]]]]) -> None:
    job, added = Job(), []
    for parallelism, items in phases:
        job.start(parallelism)
        dealt, shared = numbers(job, "dealt"), numbers(job, "shared")
        assert Counter(item for part in dealt for item in part) == Counter(added)
        assert max(map(len, dealt)) - min(map(len, dealt)) <= 1
        assert all(Counter(part) == Counter(added) for part in shared)
        assert [function.opened_with for function in job.functions] == [(len(part), len(added)) for part in dealt], (
            "open finds what was restored"
        )
        for subtask, item in items:
            function = job.functions[subtask % parallelism]
            function.dealt.add(item)
            function.shared.add(item)
            added.append(item)
        job.checkpoint()
    stored = sum(section.rows for handle in job.handles for section in handle.sections)
    assert stored == 2 * len(added), "each item is in the checkpoint once, however often it was restored"


def test_a_union_list_that_is_replaced_has_only_what_was_put_there() -> None:
    job = Job()
    job.start(3)
    for index, function in enumerate(job.functions):
        function.shared.extend([index, 10 + index])
    job.checkpoint()
    job.start(2)
    for function in job.functions:
        function.shared.update([max(function.shared.get())])
    job.checkpoint()
    job.start(3)
    assert numbers(job, "shared") == [[12, 12]] * 3


def test_broadcast_state_is_written_once_and_comes_back_everywhere() -> None:
    job = Job()
    job.start(3)
    for operator in job.operators:
        operator.calls.operator_states.let_broadcast(True)
    for function in job.functions:
        function.rules["a"] = Rule("a", 3)
        function.rules.update({"b": Rule("b", 4), "c": Rule("c", 5)})
        function.rules.remove("c")
        function.rules.remove("c")
        assert "b" in function.rules
        assert list(function.rules) == function.rules.keys() == ["a", "b"]
        with pytest.raises(KeyError):
            del function.rules["z"]
    job.checkpoint()
    sections = [(section.state, section.rows) for handle in job.handles for section in handle.sections]
    assert sections == [("rules", 2)]
    for parallelism in (1, 2, 5):
        job.start(parallelism)
        for function in job.functions:
            assert function.rules.items() == [("a", Rule("a", 3)), ("b", Rule("b", 4))]
            assert function.rules.get("z") is None
            with pytest.raises(UserError, match="read only"):
                function.rules["a"] = Rule("a", 9)


def test_a_codec_stores_what_has_no_column_type() -> None:
    job = Job()
    job.start(1)
    job.functions[0].sets.extend([{1, 2}, {3}])
    job.checkpoint()
    job.start(1)
    assert job.functions[0].sets.get() == [{1, 2}, {3}]


def test_state_of_a_wrong_type_is_refused_with_its_name() -> None:
    job = Job()
    job.start(1)
    job.functions[0].dealt.add("text")
    with pytest.raises(UserError, match=r'P014.*state "dealt"'):
        job.checkpoint()


def test_a_state_that_has_become_another_kind_is_refused() -> None:
    class Other(ProcessFunction):
        dealt = ps.BroadcastState(str, int)

        def process(self, ctx: ps.ProcessContext, n: int) -> None: ...

    job = Job()
    job.start(1)
    job.functions[0].dealt.add(1)
    job.checkpoint()
    job.function = Other
    with pytest.raises(UserError, match="S005"):
        job.start(1)


def test_state_that_is_not_declared_any_more_is_refused() -> None:
    class Without(ProcessFunction):
        def process(self, ctx: ps.ProcessContext, n: int) -> None: ...

    job = Job()
    job.start(1)
    job.functions[0].dealt.add(1)
    job.checkpoint()
    job.function = Without
    with pytest.raises(UserError, match=r'S004.*state "dealt"'):
        job.start(1)


def test_sections_say_how_they_are_spread() -> None:
    job = Job()
    job.start(1)
    job.functions[0].dealt.add(1)
    job.functions[0].shared.add(1)
    job.checkpoint()
    spread = {section.state: section.redistribution for handle in job.handles for section in handle.sections}
    assert spread == {"dealt": Redistribution.LIST, "shared": Redistribution.UNION}


class Timed(ProcessFunction):
    def process(self, ctx: ps.ProcessContext, n: int) -> None:
        ctx.set_timer(n)
        ctx.set_timer(1000 + n)
        ctx.delete_timer(1000 + n)

    def on_timer(self, ctx: ps.ProcessContext, time: int) -> tuple[int]:
        return (100 * ctx.subtask + time,)


def test_timers_without_keys_come_back_in_every_subtask() -> None:
    job = Job(Timed)
    job.start(2)
    job.operators[0].on_batch(pl.DataFrame({"n": [5, 7]}))
    job.operators[1].on_batch(pl.DataFrame({"n": [5, 6]}))
    job.operators[1].on_watermark(5)
    assert job.emitted == [(105,)]
    for parallelism in (3, 3):
        job.checkpoint()
        job.start(parallelism)
    job.emitted.clear()
    for operator in job.operators:
        operator.on_watermark(MAX_WATERMARK)
    assert job.emitted == [(100 * subtask + time,) for subtask in range(3) for time in (5, 6, 7)]


# ---------------------------------------------------------------- whole programs without keys


class Delayed(ProcessFunction):
    """Holds each row for ten seconds of event time."""

    waiting = ps.OperatorListState(list[int])

    def process(self, ctx: ps.ProcessContext, n: int, ts: int) -> None:
        self.waiting.add([n, ts])
        ctx.set_timer((ts + 10) * 1_000_000)

    def on_timer(self, ctx: ps.ProcessContext, time: int) -> Iterator[tuple[int]]:
        due = [row for row in self.waiting if (row[1] + 10) * 1_000_000 <= time]
        self.waiting.update(row for row in self.waiting if (row[1] + 10) * 1_000_000 > time)
        for n, _ in due:
            yield (n,)


class DelayedInBatches(Delayed):
    process = None  # type: ignore[assignment]

    def process_batch(self, ctx: ps.ProcessContext, batch: pl.DataFrame) -> pl.DataFrame:
        for n, ts in batch.select("n", "ts").rows():
            self.waiting.add([n, ts])
            ctx.set_timer((ts + 10) * 1_000_000)
        return batch.select(n=-pl.col("n"))


@pytest.mark.parametrize("parallelism", [1, 3])
@pytest.mark.parametrize(("function", "also"), [(Delayed, []), (DelayedInBatches, [(-n,) for n in range(20)])])
def test_rows_in_operator_state_leave_once_whatever_crashes(
    parallelism: int, function: type[ProcessFunction], also: list[tuple[int]]
) -> None:
    def build(rows: ps.DataStream) -> ps.DataStream:
        return rows.rebalance().process(function(), output={"n": int}, uid="delayed")

    script: list[Any] = []
    for n in range(20):
        script += [{"n": n, "ts": n}, testing.watermark(n)]
    for seed in range(5):
        result = testing.run_stream(
            build,
            {"rows": testing.source(copy.copy(script), event_time="ts", unit="s", batch_rows=1)},
            parallelism=parallelism,
            crash_after=(6, 9, 4),
            restore_parallelism=(2, 3, 1),
            checkpoint_every=1,
            seed=seed,
        )
        testing.assert_rows(result, [(n,) for n in range(20)] + also)


def test_a_function_without_keys_may_be_called_by_the_clock() -> None:
    class Flushed(ProcessFunction):
        waiting = ps.OperatorListState(int)

        def process(self, ctx: ps.ProcessContext, n: int) -> None:
            self.waiting.add(n)
            ctx.set_processing_timer(ctx.processing_time + 1_000_000)

        def on_processing_timer(self, ctx: ps.ProcessContext, time: int) -> tuple[int] | None:
            total = sum(self.waiting)
            self.waiting.clear()
            return (total,) if total else None

    def build(rows: ps.DataStream) -> ps.DataStream:
        return rows.process(Flushed(), output={"n": int}, uid="flushed")

    rows = [{"n": 1}, {"n": 2}, testing.pause("5s"), {"n": 3}, testing.pause("5s")]
    assert testing.run_stream(build, {"rows": rows}).rows() == [(3,), (3,)]


def test_broadcast_state_on_a_broadcast_stream_alone() -> None:
    class Known(ProcessFunction):
        known = ps.BroadcastState(int, int)

        def process(self, ctx: ps.ProcessContext, n: int) -> tuple[int, int] | None:
            self.known[n] = n
            return (ctx.subtask, len(self.known)) if len(self.known) == 5 else None

    def build(rows: ps.DataStream) -> ps.DataStream:
        return rows.broadcast().process(Known(), output={"subtask": int, "known": int}, uid="known")

    rows = testing.source([{"n": n} for n in range(5)], batch_rows=1)
    result = testing.run_stream(build, {"rows": rows}, parallelism=3, crash_after=3, checkpoint_every=1)
    testing.assert_rows(result, [(subtask, 5) for subtask in range(3)])


def test_failing_rows_metrics_and_side_outputs_without_keys() -> None:
    class Checked(ProcessFunction):
        def open(self, ctx: ps.ProcessContext) -> None:
            self.seen = ctx.counter("seen")

        def process(self, ctx: ps.ProcessContext, n: int, ts: int) -> tuple[int]:
            self.seen.inc()
            assert ctx.timestamp == ts * 1_000_000
            if n == 2:
                raise ValueError("two")
            if n == 3:
                ctx.output("threes", (n, ctx.subtask))
            return (n,)

    def build(rows: ps.DataStream) -> dict[str, ps.DataStream]:
        made = rows.process(
            Checked(),
            output={"n": int},
            side_outputs={"threes": {"n": int, "subtask": int}},
            on_error="dead_letter",
            uid="checked",
        )
        return {"made": made, "threes": made.side_output("threes"), "letters": made.dead_letters()}

    rows = testing.source([{"n": n, "ts": n} for n in range(5)], event_time="ts", unit="s")
    result = testing.run_stream(build, {"rows": rows})
    assert result.rows("made") == [(0,), (1,), (3,), (4,)]
    assert result.rows("threes") == [(3, 0)]
    assert json.loads(result["letters"].item(0, "row"))["n"] == 2
    (metric,) = result.counters["checked"].user
    assert (metric.name, metric.value) == ("seen", 5)


def test_a_function_without_keys_cannot_be_asked_for_one() -> None:
    class Asks(ProcessFunction):
        def process(self, ctx: Any, n: int) -> None:
            ctx.set_timers(pl.DataFrame({"n": [1]}), [1])

    with pytest.raises(PenstockError, match="set_timers"):
        testing.run_stream(lambda rows: rows.process(Asks(), output={"n": int}, uid="asks"), {"rows": [{"n": 1}]})
