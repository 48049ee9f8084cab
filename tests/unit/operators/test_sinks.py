"""The sink operator: what waits for which checkpoint, and that nothing is committed twice or forgotten."""

from collections.abc import Sequence
from typing import Any

import polars as pl
import pytest
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule

from penstock.connectors.base import SinkContext, Stage
from penstock.model.clocks import SystemClock
from penstock.model.ids import Attempt, CheckpointId, JobId, SubtaskId, Uid, VertexId
from penstock.model.settings import JobSettings
from penstock.operators.base import OperatorContext, Section
from penstock.operators.sinks import COMMITTABLES, SinkOperator


class Target:
    """What readers see: committed parts by name. It outlives attempts."""

    def __init__(self) -> None:
        self.visible: dict[str, list[int]] = {}
        self.commits: list[str] = []
        self.staged: list[str] = []
        self.full = False


class PartSink:
    """Stages rows as parts named after attempt and number."""

    def __init__(self, target: Target, context: SinkContext) -> None:
        self.target, self.context = target, context
        self.written: list[int] = []
        self.recovered: list[list[dict[str, Any]]] = []
        self.closed = False

    def write(self, frame: pl.DataFrame) -> None:
        assert self.recovered, "recover comes before the first write"
        self.written += frame["n"].to_list()

    def prepare(self, checkpoint: CheckpointId) -> Stage | None:
        if not self.written:
            return None
        part = {"name": f"{self.context.attempt}-{checkpoint}", "rows": self.written}
        self.written = []
        return lambda: self.stage(part)

    def stage(self, part: dict[str, Any]) -> list[dict[str, Any]]:
        if self.target.full:
            raise OSError("no space left")
        self.target.staged.append(part["name"])
        return [part]

    def commit(self, committables: list[dict[str, Any]]) -> None:
        for part in committables:
            self.target.commits.append(part["name"])
            self.target.visible[part["name"]] = part["rows"]

    def recover(self, committables: list[dict[str, Any]]) -> None:
        self.recovered.append(committables)
        self.commit(committables)

    def close(self) -> None:
        self.closed = True


class NoOutput:
    def emit(self, frame: pl.DataFrame) -> None:
        raise AssertionError("a sink emits nothing")


def start(target: Target, attempt: int = 1) -> tuple[SinkOperator, PartSink]:
    made: list[PartSink] = []

    def make(context: SinkContext) -> PartSink:
        made.append(PartSink(target, context))
        return made[0]

    operator = SinkOperator(make)
    operator.open(
        OperatorContext(
            job=JobId("job"),
            attempt=Attempt(attempt),
            uid=Uid("out"),
            subtask=SubtaskId(VertexId("out"), 0),
            parallelism=1,
            max_parallelism=8,
            clock=SystemClock(),
            settings=JobSettings(),
        ),
        NoOutput(),
    )
    return operator, made[0]


def rows(*numbers: int) -> pl.DataFrame:
    return pl.DataFrame({"n": numbers}, schema={"n": pl.Int64})


def test_rows_are_visible_when_their_checkpoint_is_committed_and_not_before() -> None:
    target = Target()
    operator, sink = start(target)
    operator.on_batch(rows(1, 2))
    operator.snapshot(CheckpointId(1))
    operator.on_batch(rows(3))
    assert target.visible == {}
    operator.on_committed(CheckpointId(1))
    assert target.visible == {"1-1": [1, 2]}
    assert sink.written == [3]


def test_a_commit_that_comes_twice_is_done_once_and_one_that_was_missed_is_made_up_for() -> None:
    target = Target()
    operator, _ = start(target)
    for checkpoint in (1, 2, 3):
        operator.on_batch(rows(checkpoint))
        operator.snapshot(CheckpointId(checkpoint))
    operator.on_committed(CheckpointId(2))
    operator.on_committed(CheckpointId(2))
    operator.on_committed(CheckpointId(1))
    assert target.commits == ["1-1", "1-2"]
    operator.on_committed(CheckpointId(3))
    assert target.commits == ["1-1", "1-2", "1-3"]


def test_a_snapshot_holds_everything_that_is_not_known_to_be_committed() -> None:
    operator, _ = start(Target())
    operator.on_batch(rows(1))
    first = operator.snapshot(CheckpointId(1))
    operator.on_batch(rows(2))
    second = operator.snapshot(CheckpointId(2))
    operator.on_committed(CheckpointId(2))
    assert names(first()) == ["1-1"]
    assert names(second()) == ["1-1", "1-2"]
    assert operator.snapshot(CheckpointId(3))() == ()


def test_rows_are_staged_once_and_not_before_the_barrier_has_gone_on() -> None:
    target = Target()
    operator, _ = start(target)
    operator.on_batch(rows(1))
    first = operator.snapshot(CheckpointId(1))
    assert target.staged == []
    first()
    operator.on_batch(rows(2))
    operator.snapshot(CheckpointId(2))()
    assert target.staged == ["1-1", "1-2"]


def test_what_could_not_be_staged_is_staged_with_the_next_checkpoint() -> None:
    target = Target()
    operator, _ = start(target)
    operator.on_batch(rows(1))
    target.full = True
    with pytest.raises(OSError, match="no space left"):
        operator.snapshot(CheckpointId(1))()
    target.full = False
    assert names(operator.snapshot(CheckpointId(2))()) == ["1-1"]
    operator.on_committed(CheckpointId(2))
    assert target.visible == {"1-1": [1]}


def names(sections: Sequence[Section]) -> list[str]:
    return [part["name"] for section in sections for part in section.frame["committable"].str.json_decode(PART)]


PART = pl.Struct({"name": pl.String, "rows": pl.List(pl.Int64)})


def test_the_sink_recovers_once_with_or_without_something_to_restore() -> None:
    operator, sink = start(Target())
    operator.on_batch(rows(1))
    operator.snapshot(CheckpointId(1))
    assert sink.recovered == [[]]
    restored, other = start(Target(), attempt=2)
    restored.restore({COMMITTABLES: [section.frame for section in operator.snapshot(CheckpointId(2))()]})
    restored.on_batch(rows(1))
    assert other.recovered == [[{"name": "1-1", "rows": [1]}]]
    restored.close()
    assert other.closed


def test_closing_what_was_never_opened_does_nothing() -> None:
    SinkOperator(lambda context: PartSink(Target(), context)).close()


class CrashingSink(RuleBasedStateMachine):
    """Rows, checkpoints, late and repeated commits, and crashes back to the last journaled checkpoint."""

    def __init__(self) -> None:
        super().__init__()
        self.target = Target()
        self.attempt, self.checkpoint, self.row = 1, 0, 0
        self.operator, _ = start(self.target)
        self.since: list[int] = []
        self.journaled: tuple[int, list[pl.DataFrame], list[int]] = (0, [], [])
        self.open_checkpoints: list[tuple[int, list[pl.DataFrame], list[int]]] = []
        self.durable: list[int] = []

    @rule()
    def write(self) -> None:
        self.row += 1
        self.operator.on_batch(rows(self.row))
        self.since.append(self.row)

    @rule()
    def snapshot(self) -> None:
        self.checkpoint += 1
        sections = self.operator.snapshot(CheckpointId(self.checkpoint))()
        frames = [section.frame for section in sections]
        self.open_checkpoints.append((self.checkpoint, frames, list(self.since)))

    @rule(index=st.integers(0, 2))
    def complete(self, index: int) -> None:
        """The checkpoint is in the journal; earlier ones that are still open are given up."""
        if index < len(self.open_checkpoints):
            self.journaled = self.open_checkpoints[index]
            del self.open_checkpoints[: index + 1]

    @rule()
    def commit(self) -> None:
        if self.journaled[0]:
            self.operator.on_committed(CheckpointId(self.journaled[0]))

    @rule()
    def crash(self) -> None:
        self.attempt += 1
        self.operator, _ = start(self.target, self.attempt)
        _, frames, kept = self.journaled
        self.operator.restore({COMMITTABLES: frames})
        self.since = list(kept)
        self.open_checkpoints.clear()

    @rule()
    def finish(self) -> None:
        self.snapshot()
        self.complete(len(self.open_checkpoints) - 1)
        self.commit()
        assert sorted(self.visible_rows()) == self.since

    def visible_rows(self) -> list[int]:
        return [row for part in self.target.visible.values() for row in part]

    @invariant()
    def readers_see_each_row_of_the_journal_at_most_once_and_no_other(self) -> None:
        visible = self.visible_rows()
        assert len(visible) == len(set(visible))
        assert set(visible) <= set(self.journaled[2])


TestSinkUnderCrashes = CrashingSink.TestCase
