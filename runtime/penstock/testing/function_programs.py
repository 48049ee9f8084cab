"""Simulated programs whose functions take two streams, rows for every subtask, or rows without keys.

Each gives the same rows in whatever order its inputs meet.
"""

from collections.abc import Iterator

import narwhals as nw
import polars as pl

from penstock.api.streams import DataStream
from penstock.operators.contexts import KeyedContext, ProcessContext
from penstock.operators.operator_states import BroadcastState, OperatorListState
from penstock.operators.user_functions import BroadcastProcessFunction, CoProcessFunction, ProcessFunction
from penstock.operators.user_states import ListState, ValueState
from penstock.testing.answers import Answer, ExactRows, Row
from penstock.testing.endpoints import SinkOutput
from penstock.testing.program_inputs import SCHEMA, SECOND_US, Input, grouped

RULES_FROM = 95
"""Rows of the second stream with such values are rules: one in twenty."""


class Meeting(CoProcessFunction):
    """Numbers the rows of both sides together; a timer at the end of a bucket gives the sum of each side."""

    left = ValueState(int, default=0)
    right = ValueState(int, default=0)
    rows = ValueState(int, default=0)

    def process_left(self, ctx: KeyedContext, value: int, end: int) -> tuple[int, int, int, int]:
        """One more on the left."""
        self.left.value += value
        return self._number(ctx, end)

    def process_right(self, ctx: KeyedContext, value: int, end: int) -> tuple[int, int, int, int]:
        """One more on the right."""
        self.right.value += value
        return self._number(ctx, end)

    def _number(self, ctx: KeyedContext, end: int) -> tuple[int, int, int, int]:
        self.rows.value += 1
        ctx.set_timer(end - 1)
        return (*ctx.key, self.rows.value, 0)

    def on_timer(self, ctx: KeyedContext, time: int) -> tuple[int, int, int, int]:
        """The end of the bucket: no row of either side follows."""
        sums = self.left.value, self.right.value
        self.left.clear()
        self.right.clear()
        self.rows.clear()
        return (*ctx.key, *sums)


class Judge(BroadcastProcessFunction):
    """Every row against every rule, whichever comes first."""

    rules: BroadcastState[str, int] = BroadcastState(str, int)
    values: ListState[int] = ListState(int)

    def process(self, ctx: KeyedContext, value: int) -> list[tuple[int, str, int]]:
        """A row: all rules that there are."""
        self.values.add(value)
        return [(ctx.key, rule, value + added) for rule, added in self.rules.items()]

    def process_broadcast(self, ctx: KeyedContext, rule: str, value: int) -> None:
        """A rule: all rows that there are."""
        if rule in self.rules:
            return
        self.rules[rule] = value

        def judge(ctx: KeyedContext) -> Iterator[tuple[int, str, int]]:
            for each in self.values:
                yield ctx.key, rule, each + value

        ctx.for_each_key(self.values, judge)


class Waiting(ProcessFunction):
    """Keeps rows in a list of the operator until a timer lets all of them go."""

    kept: OperatorListState[int] = OperatorListState(int)

    def process(self, ctx: ProcessContext, ts: int, end: int) -> None:
        """One to wait."""
        self.kept.add(ts)
        ctx.set_timer(end - 1)

    def on_timer(self, ctx: ProcessContext, time: int) -> list[tuple[int]]:
        """Also for rows that other subtasks had before a restore."""
        kept = [(ts,) for ts in self.kept]
        self.kept.clear()
        return kept


def connected(streams: list[DataStream], inputs: list[list[Input]], width: int) -> Answer:
    """Two keyed streams with state and timers in common."""
    size = width * SECOND_US
    left, right = (each.with_columns(end=(nw.col("ts") // size + 1) * size) for each in streams)
    output = pl.Schema({"key": pl.Int64(), "end": pl.Int64(), "a": pl.Int64(), "b": pl.Int64()})
    both = left.key_by("key", "end").connect(right.key_by("key", "end"))
    both.process(Meeting(), output=output, uid="meeting").write(SinkOutput(), uid="sink")
    sides = [grouped(rows, lambda row: row[0], width, width) for rows in inputs]

    def answer() -> Iterator[Row]:
        for key, start in sides[0].keys() | sides[1].keys():
            values = [side.get((key, start), []) for side in sides]
            yield key, start + size, *map(sum, values)
            for number in range(sum(map(len, values))):
                yield key, start + size, number + 1, 0

    return ExactRows(answer())


def judged(streams: list[DataStream], inputs: list[list[Input]], width: int) -> Answer:
    """A keyed stream, and rules that every subtask gets."""
    rule = nw.concat_str("name", nw.col("ts").cast(nw.String), separator=" at ")
    rules = streams[1].filter(nw.col("value") >= RULES_FROM).with_columns(rule=rule)
    output = pl.Schema({"key": pl.Int64(), "rule": pl.String(), "sum": pl.Int64()})
    rows = streams[0].key_by("key").connect(rules.broadcast())
    rows.process(Judge(), output=output, uid="judge").write(SinkOutput(), uid="sink")
    names = {f"{name} at {ts}": value for _, ts, value, name in inputs[1] if value >= RULES_FROM}
    return ExactRows((key, rule, value + added) for key, _, value, _ in inputs[0] for rule, added in names.items())


def waiting(streams: list[DataStream], inputs: list[list[Input]], width: int) -> Answer:
    """No keys: a list and timers of the subtask, behind an exchange."""
    size = width * SECOND_US
    rows = streams[0].rebalance().with_columns(end=(nw.col("ts") // size + 1) * size)
    output = pl.Schema({"ts": SCHEMA["ts"]})
    rows.process(Waiting(), output=output, uid="waiting").write(SinkOutput(), uid="sink")
    return ExactRows((ts,) for _, ts, _, _ in inputs[0])
