"""Every kind of state, per record and per batch, with and without a time to live, against plain dictionaries."""

import json
from collections.abc import Callable, Iterator
from typing import Any

import polars as pl
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from penstock.model import schemas, specs
from penstock.model.errors import UserError
from penstock.model.handles import Redistribution
from penstock.model.ids import Attempt, CheckpointId, JobId, SubtaskId, Uid, VertexId
from penstock.model.settings import JobSettings
from penstock.operators.base import OperatorContext, Section
from penstock.operators.contexts import KeyedContext
from penstock.operators.process import ProcessOperator
from penstock.operators.user_functions import KeyedProcessFunction, describe
from penstock.operators.user_states import AggregatingState, ListState, MapState, ReducingState, State, ValueState
from penstock.state.key_groups import group_range, key_groups, slice_groups
from penstock.state.ttl import ttl

M = 8


class JsonCodec:
    """For what has no column type."""

    def encode(self, value: Any) -> bytes:
        return json.dumps(sorted(value) if isinstance(value, set) else value).encode()

    def decode(self, data: bytes) -> Any:
        value = json.loads(data)
        return set(value) if isinstance(value, list) else value


class Mean:
    def create(self) -> list[float]:
        return [0.0, 0.0]

    def add(self, accumulator: list[float], value: float) -> list[float]:
        accumulator[0] += value
        accumulator[1] += 1
        return accumulator

    def result(self, accumulator: list[float]) -> float:
        return accumulator[0] / accumulator[1]


class Everything(KeyedProcessFunction):
    """Each row is added to each kind of state, and what they hold is told."""

    last = ValueState(int, default=-1)
    items = ListState(int)
    counts = MapState(int, int)
    top = ReducingState(max, int)
    mean = AggregatingState(Mean(), list[float])
    odd = ValueState(codec=JsonCodec())

    def process(self, ctx: KeyedContext, amount: int) -> Any:
        before = self.last.value
        self.last.value = amount
        self.items.add(amount)
        self.counts[amount] = self.counts.get(amount, 0) + 1
        self.top.add(amount)
        self.mean.add(float(amount))
        self.odd.value = {*(self.odd.value or set()), amount}
        if amount == 9:
            for state in (self.items, self.counts, self.top, self.mean):
                state.clear()
        seen = json.dumps([before, self.items.get(), self.counts.items(), self.top.get(), self.mean.get()])
        return ctx.key, seen + json.dumps(sorted(self.odd.value))


def expected(rows: list[tuple[str, int]]) -> Iterator[tuple[str, str]]:
    lasts: dict[str, int] = {}
    held: dict[str, list[int]] = {}
    odd: dict[str, set[int]] = {}
    for user, amount in rows:
        before, lasts[user] = lasts.get(user, -1), amount
        items = held.setdefault(user, [])
        items.append(amount)
        odd.setdefault(user, set()).add(amount)
        if amount == 9:
            items.clear()
        counts = {item: items.count(item) for item in items}
        mean = sum(items) / len(items) if items else None
        seen = json.dumps([before, items, list(counts.items()), max(items, default=None), mean])
        yield user, seen + json.dumps(sorted(odd[user]))


class ManualClock:
    now = 0

    def now_us(self) -> int:
        return self.now

    def monotonic(self) -> float:
        return self.now / 1e6


class Collected:
    def __init__(self) -> None:
        self.rows: list[tuple[Any, ...]] = []

    def emit(self, frame: pl.DataFrame) -> None:
        self.rows += frame.iter_rows()


class Runs:
    """A function at some parallelism; rows go where their key group is."""

    def __init__(
        self, make: Callable[[], KeyedProcessFunction], output: Any, clock: ManualClock | None = None
    ) -> None:
        self.make, self.output, self.clock = make, schemas.fields(output), clock or ManualClock()
        self.collected = Collected()
        self.watermark: int | None = None
        self.operators: list[ProcessOperator] = []
        self.start(1, [])

    def start(self, parallelism: int, sections: list[Section]) -> None:
        self.operators = []
        for index in range(parallelism):
            function = self.make()
            description = describe(function)
            spec = specs.Process(
                keys=("user",),
                function=specs.Function(name="F", pickled=b"", columns=description.columns),
                per_batch=description.per_batch,
                states=description.states,
                event_time=specs.EventTime(column="at"),
                output=self.output,
            )
            operator = ProcessOperator(spec, function)
            context = OperatorContext(
                job=JobId("job"),
                attempt=Attempt(1),
                uid=Uid("f"),
                subtask=SubtaskId(VertexId("v"), index),
                parallelism=parallelism,
                max_parallelism=M,
                clock=self.clock,
                settings=JobSettings(),
            )
            operator.open(context, self.collected)
            groups = group_range(index, parallelism, M)
            restored: dict[str, list[pl.DataFrame]] = {}
            for section in sections:
                keyed = section.redistribution is Redistribution.KEYED
                frame = slice_groups(section.frame, groups) if keyed else section.frame
                restored.setdefault(section.state, []).append(frame)
            if restored:
                operator.restore(restored)
            if self.watermark is not None:
                operator.on_watermark(self.watermark)
            self.operators.append(operator)

    def rescale(self, parallelism: int) -> list[Section]:
        snapshots = [operator.snapshot(CheckpointId(1)) for operator in self.operators]
        sections = [section for snapshot in snapshots for section in snapshot()]
        self.start(parallelism, sections)
        return sections

    def send(self, rows: list[tuple[Any, ...]]) -> None:
        schema = {"user": pl.String(), "amount": pl.Int64(), "at": pl.Int64()}
        for row in rows:
            frame = pl.DataFrame([(*row, 0)[:3]], schema=schema, orient="row")
            for index, operator in enumerate(self.operators):
                group = int(key_groups(frame, ["user"], M)[0])
                if group in group_range(index, len(self.operators), M):
                    operator.on_batch(frame)

    def advance(self, watermark: int) -> None:
        self.watermark = watermark
        for operator in self.operators:
            operator.on_watermark(watermark)


ROWS = st.lists(st.tuples(st.sampled_from("abcd"), st.integers(0, 9)), max_size=12)


@settings(max_examples=40, deadline=None)
@given(before=ROWS, between=ROWS, after=ROWS)
def test_all_kinds_hold_what_was_put_into_them_across_snapshots_and_rescaling(
    before: list[tuple[str, int]], between: list[tuple[str, int]], after: list[tuple[str, int]]
) -> None:
    run = Runs(Everything, {"user": pl.String(), "seen": pl.String()})
    run.send(before)
    run.rescale(3)
    run.send(between)
    run.rescale(1)
    run.send(after)
    assert run.collected.rows == list(expected([*before, *between, *after]))


def test_a_snapshot_that_is_read_late_has_the_state_of_its_barrier() -> None:
    run = Runs(Everything, {"user": pl.String(), "seen": pl.String()})
    run.send([("a", 1), ("b", 2)])
    snapshot = run.operators[0].snapshot(CheckpointId(1))
    run.send([("a", 3), ("b", 9), ("a", 4)])
    run.start(1, list(snapshot()))
    run.collected.rows.clear()
    run.send([("a", 5)])
    assert run.collected.rows == list(expected([("a", 1), ("a", 5)]))[1:]


class BatchKinds(KeyedProcessFunction):
    items = ListState(int)
    counts = MapState(int, int)
    top = ReducingState(max, int)
    mean = AggregatingState(Mean(), list[float])

    def process_batch(self, ctx: KeyedContext, batch: pl.DataFrame) -> pl.DataFrame:
        amounts = batch["amount"]
        self.items.add_many(batch, amounts)
        self.counts.put_many(batch, amounts, [1] * batch.height)
        self.top.add_many(batch, amounts)
        self.mean.add_many(batch, amounts)
        names = self.counts.get_many(batch).list.len().cast(pl.Int64)
        return pl.DataFrame(
            [
                batch["user"],
                self.items.get_many(batch).alias("items"),
                names.alias("names"),
                self.top.get_many(batch).alias("top"),
                pl.Series("mean", self.mean.results(batch), pl.Float64),
            ]
        )


def test_batch_functions_use_all_kinds() -> None:
    output = {
        "user": pl.String(),
        "items": pl.List(pl.Int64()),
        "names": pl.Int64(),
        "top": pl.Int64(),
        "mean": pl.Float64(),
    }
    run = Runs(BatchKinds, output)
    run.send([("a", 3), ("b", 1), ("a", 5)])
    run.rescale(3)
    run.send([("a", 3)])
    assert run.collected.rows[-1] == ("a", [3, 5, 3], 2, 5, 11 / 3)


# ---------------------------------------------------------------- time to live


def keeping(state: Callable[[], State[Any]]) -> Callable[[], KeyedProcessFunction]:
    class Keeps(KeyedProcessFunction):
        held = state()

        def process(self, ctx: KeyedContext, amount: int) -> Any:
            held: Any = self.held
            if isinstance(held, ValueState):
                seen = held.value
                if amount:
                    held.value = amount
            elif isinstance(held, MapState):
                seen = held.get(0)
                if amount:
                    held.put(0, amount)
            elif isinstance(held, ListState):
                seen = held.get()[-1] if len(held) else None
                if amount:
                    held.add(amount)
            else:
                seen = held.get()
                if amount:
                    held.add(amount)
            return None if seen is None else int(seen)

    return Keeps


class Last:
    def create(self) -> int:
        return 0

    def add(self, accumulator: int, value: int) -> int:
        return value

    def result(self, accumulator: int) -> int:
        return accumulator


KINDS: dict[str, Callable[[Any], State[Any]]] = {
    "value": lambda live: ValueState(int, ttl=live),
    "list": lambda live: ListState(int, ttl=live),
    "map": lambda live: MapState(int, int, ttl=live),
    "reducing": lambda live: ReducingState(lambda _, new: new, int, ttl=live),
    "aggregating": lambda live: AggregatingState(Last(), int, ttl=live),
}

STEPS = st.lists(
    st.one_of(
        st.tuples(st.just("row"), st.sampled_from("ab"), st.integers(0, 3), st.integers(0, 30)),
        st.tuples(st.just("time"), st.integers(0, 40)),
        st.tuples(st.just("rescale"), st.sampled_from([1, 3])),
    ),
    max_size=25,
)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("update", ["write", "read"])
@pytest.mark.parametrize("time", ["event", "processing"])
@settings(max_examples=25, deadline=None)
@given(steps=STEPS)
def test_what_has_expired_is_never_seen(time: Any, update: Any, kind: str, steps: list[Any]) -> None:
    live = ttl(10e-6, time=time, update=update)
    run = Runs(keeping(lambda: KINDS[kind](live)), {"seen": pl.Int64()})
    model: dict[str, tuple[int, int]] = {}
    watermark, wanted = -(10**9), []
    for step in steps:
        match step:
            case ("time", at):
                if time == "event":
                    watermark = max(watermark, at)
                    run.advance(watermark)
                else:
                    run.clock.now = max(run.clock.now, at)
            case ("rescale", parallelism):
                sections = run.rescale(parallelism)
                now = watermark if time == "event" else run.clock.now
                alive = {key for key, (_, expires) in model.items() if expires > now}
                keyed = [section.frame for section in sections if section.redistribution is Redistribution.KEYED]
                found = {key for frame in keyed for key in frame["user"]}
                assert found <= alive, "expired rows are left out of snapshots"
            case (_, user, amount, at):
                now = max(watermark, at) if time == "event" else run.clock.now
                value, expires = model.get(user, (0, -(10**12)))
                seen = value if expires > now else None
                if seen is not None and update == "read":
                    expires = max(expires, now + 10)
                    model[user] = (value, expires)
                if amount:
                    model[user] = (amount, max(expires, now + 10))
                wanted.append(seen)
                run.send([(user, amount, at)])
    assert [row[0] for row in run.collected.rows] == [seen for seen in wanted if seen is not None]


def test_expired_state_is_swept_from_memory() -> None:
    run = Runs(keeping(lambda: KINDS["value"]("1s")), {"seen": pl.Int64()})
    run.send([(str(number), 1) for number in range(50)])
    run.clock.now = 2_000_000
    for _ in range(3):
        run.send([("x", 0)])
    (table,) = run.operators[0].calls.states.tables
    assert len(table.values.front) == 0


def test_a_ttl_may_be_added_to_state_that_has_none() -> None:
    run = Runs(keeping(lambda: ValueState(int)), {"seen": pl.Int64()})
    run.send([("a", 5)])
    run.make = keeping(lambda: ValueState(int, ttl="1s"))
    run.rescale(1)
    run.send([("a", 0)])
    run.clock.now = 1_000_000
    run.send([("a", 0)])
    assert run.collected.rows == [(5,)]


@pytest.mark.parametrize("arguments", [{"duration": "0s"}, {"duration": "1s", "time": "row"}, {"duration": "soon"}])
def test_a_ttl_that_cannot_be_is_refused(arguments: dict[str, Any]) -> None:
    with pytest.raises(UserError):
        ttl(**arguments)


def test_state_without_a_column_type_asks_for_a_codec() -> None:
    with pytest.raises(UserError, match="codec="):
        ValueState(set).value_type("here")
