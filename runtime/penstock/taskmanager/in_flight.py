"""Rows in flight as part of a checkpoint: what a barrier overtook in the queues of one subtask, and its way back.

Owns: what a subtask still waits for before its part of a checkpoint can be written (`Cut`), and how captured rows
become sections of state and are found again.

Rows are kept under the operator that takes them, as "received" (from the receiver's queue) and "sent" (from the
sender's, later in the order of a channel). Rows of an exchange by key are cut by key group like keyed state. All
others carry the index of the subtask they were for, and go to that one modulo the parallelism; an exchange that is by
key now takes them by key. They are worked on before anything new, so they come in front of all watermarks again.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field

import polars as pl

from penstock.checkpoint.state_objects import Restored
from penstock.exchange.channels import ReceiveChannel
from penstock.exchange.gates import Gate
from penstock.model.counters import OperatorMetrics
from penstock.model.elements import Barrier
from penstock.model.errors import FatalJobError
from penstock.model.handles import Redistribution
from penstock.model.ids import SubtaskId, Uid
from penstock.model.schemas import polars_schema
from penstock.model.specs import Schema
from penstock.model.tasks import Task
from penstock.operators.base import Section, Snapshot
from penstock.state.key_groups import KEY_GROUP, group_range, key_groups, sort_by_group

RECEIVED, SENT = "in-flight-received", "in-flight-sent"
"""States; the number of the operator's input follows."""

FOR_SUBTASK = "__for_subtask"

Snapshots = list[tuple[Uid, Snapshot]]


@dataclass(frozen=True, slots=True)
class Waiting:
    """Rows that were restored and not worked on yet."""

    operator: Uid
    port: int
    frame: pl.DataFrame


@dataclass(frozen=True, slots=True)
class _Captured:
    operator: Uid
    state: str
    port: int
    keys: tuple[str, ...]
    for_subtask: int
    frame: pl.DataFrame

    @property
    def place(self) -> tuple[Uid, str, tuple[str, ...]]:
        return self.operator, f"{self.state}-{self.port}", self.keys


@dataclass(slots=True)
class Cut:
    """A subtask's part of one checkpoint. Complete when the barrier has left, and has come wherever it was passed."""

    barrier: Barrier
    snapshots: Snapshots
    counters: tuple[OperatorMetrics, ...]
    recording: Sequence[tuple[ReceiveChannel, tuple[str, ...]]] = ()
    """Channels whose rows are captured, and the keys that rows come by."""
    restored: Sequence[Waiting] = ()
    _sent: list[_Captured] = field(default_factory=list)

    def overtake(self, gates: Sequence[Gate]) -> None:
        """The barrier passes by what waits at these gates."""
        for gate in gates:
            to = gate.destination
            self._sent += [
                _Captured(to.operator, SENT, to.port, to.keys, index, frame)
                for index, frame in gate.overtake(self.barrier.checkpoint)
            ]

    def complete(self, gates: Sequence[Gate]) -> bool:
        """Whether nothing is missing."""
        if any(channel.recording for channel, _ in self.recording):
            return False
        return not any(gate.holds(self.barrier.checkpoint) for gate in gates)

    def release(self, subtask: SubtaskId, head: Uid, max_parallelism: int) -> Snapshots:
        """Everything that the subtask has to write."""
        captured = [
            _Captured(each.operator, RECEIVED, each.port, (), subtask.index, each.frame) for each in self.restored
        ]
        for channel, keys in self.recording:
            captured += [
                _Captured(head, RECEIVED, channel.port, keys, subtask.index, frame) for frame in channel.release()
            ]
        by_place: dict[tuple[Uid, str, tuple[str, ...]], list[_Captured]] = {}
        for each in (*captured, *self._sent):
            by_place.setdefault(each.place, []).append(each)
        return [*self.snapshots, *(_snapshot(rows, max_parallelism) for rows in by_place.values())]

    def drop(self) -> None:
        """The checkpoint was given up."""
        for channel, _ in self.recording:
            channel.release()


def _snapshot(captured: Sequence[_Captured], max_parallelism: int) -> tuple[Uid, Snapshot]:
    operator, state, keys = captured[0].place

    def sections() -> Sequence[Section]:
        # A column of the user's with the name that state has for its own: then rows find their way when they are read.
        if keys and KEY_GROUP not in captured[0].frame.columns:
            rows = pl.concat([each.frame for each in captured], rechunk=True)
            return (Section(state, Redistribution.KEYED, sort_by_group(rows, keys, max_parallelism)),)
        marked = [each.frame.with_columns(pl.lit(each.for_subtask, pl.Int64).alias(FOR_SUBTASK)) for each in captured]
        return (Section(state, Redistribution.UNION, pl.concat(marked, rechunk=True)),)

    return operator, sections


# ---------------------------------------------------------------- the way back


def split_off(restored: Restored) -> tuple[Restored, Restored]:
    """State of operators, and rows in flight."""
    states, rows = Restored(), Restored()
    states.files = restored.files
    for uid, sections in restored.items():
        for name, frames in sections.items():
            target = rows if name.startswith((RECEIVED, SENT)) else states
            target.setdefault(uid, {})[name] = frames
    return states, rows


def waiting_rows(task: Task, rows: Restored) -> list[Waiting]:
    """The rows that this subtask has to work on before anything new, in the order of the chain, the last first.

    What an operator emits goes to those behind it, whose own rows were in front of that.
    """
    waiting: list[Waiting] = []
    for link in reversed(task.chain):
        uid = link.operator.uid
        for state in (RECEIVED, SENT):
            for name, frames in sorted(rows.get(uid, {}).items()):
                if name.startswith(state):
                    port = int(name.rpartition("-")[2])
                    waiting += [Waiting(uid, port, frame) for frame in _own(task, uid, port, frames)]
    return waiting


def _own(task: Task, uid: Uid, port: int, frames: Sequence[pl.DataFrame]) -> Iterator[pl.DataFrame]:
    expected = _input_schema(task, uid, port)
    keys = next((channel.keys for channel in task.inputs if channel.port == port), ())
    keys = keys if uid == task.chain[0].operator.uid else ()
    groups = group_range(task.subtask.index, task.parallelism, task.max_parallelism)
    for frame in frames:
        rows = frame
        if KEY_GROUP in rows.columns and KEY_GROUP not in expected:
            rows = rows.drop(KEY_GROUP)
        if FOR_SUBTASK in rows.columns:
            if keys:
                own = pl.Series(key_groups(rows, keys, task.max_parallelism)).is_between(groups.start, groups.stop - 1)
            else:
                own = rows.get_column(FOR_SUBTASK) % task.parallelism == task.subtask.index
            rows = rows.filter(own)
        if not rows.height:
            continue
        if not expected.keys() <= set(rows.columns):
            missing = ", ".join(name for name in expected if name not in rows.columns)
            raise FatalJobError(
                "S014",
                f'checkpoint has rows in flight for "{uid}" that lack the columns {missing} of the new plan',
                where=str(task.subtask),
                fix="start with the old parallelism, `penstock stop` it (which leaves nothing in flight), then change",
            )
        yield rows.select(expected.keys())


def _input_schema(task: Task, uid: Uid, port: int) -> Mapping[str, object]:
    """Columns that the operator takes now."""
    for index, link in enumerate(task.chain):
        if link.operator.uid == uid:
            schema: Schema
            if index == 0:
                schema = next((channel.schema for channel in task.inputs if channel.port == port), ())
            else:
                schema = task.chain[link.parent or 0].operator.schema_of(link.output)
            return polars_schema(schema)
    return {}
