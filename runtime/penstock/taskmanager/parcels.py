"""State of key groups on its way from the subtask that owned them to the one that will: a parcel per range.

A parcel holds the tables of its groups, or says where in the store they are; it is read like a state object of a
checkpoint. Pure but for what sections do when they are made.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial

import msgspec

from penstock.checkpoint import state_objects
from penstock.graph.live import common, handovers, is_keyed
from penstock.model import specs, tasks
from penstock.model.handles import Redistribution, SectionHandle, StateHandle
from penstock.model.ids import SubtaskId, Uid
from penstock.operators.base import AnySection, ChunkSection, FilesSection, Operator, OperatorContext, Section
from penstock.operators.divided import Divided
from penstock.state.key_groups import group_range, slice_groups
from penstock.taskmanager.chain import MakeOperator, Node


class Parcel(msgspec.Struct, frozen=True, kw_only=True):
    """Key groups on their way to another subtask."""

    number: int
    """Of the rescale."""
    sender: SubtaskId
    receiver: SubtaskId
    uid: Uid
    first: int
    end: int
    stopped_us: int
    """When the barrier came to the old owner."""
    size: int
    handle: StateHandle
    """Holds the state itself, or says where it is in the store."""

    @property
    def groups(self) -> range:
        """Those that are in it."""
        return range(self.first, self.end)


@dataclass(frozen=True, slots=True)
class Leaving:
    """What a task has to hand over of its state, and what it needs no more afterwards."""

    uid: Uid
    ranges: tuple[tuple[SubtaskId, range], ...]
    useless: tuple[Operator, ...]
    stopped_us: int


def joining_operator(make_operator: MakeOperator, reshape: tasks.Reshape, task: tasks.Task) -> MakeOperator:
    """For a task that begins behind the barrier: its keyed head waits for groups."""
    head = task.chain[0].operator
    if task.subtask.vertex not in reshape.after or not is_keyed(head.spec):
        return make_operator

    def make(description: specs.Operator, context: OperatorContext) -> Operator:
        if description.uid != head.uid:
            return make_operator(description, context)
        return Divided(lambda: make_operator(description, context), description.spec, keys_by_port(task))

    return make


def keys_by_port(task: tasks.Task) -> dict[int, tuple[str, ...]]:
    """By which columns the rows of each input come."""
    return {channel.port: channel.keys for channel in task.inputs}


def expected(reshape: tasks.Reshape, subtask: SubtaskId, max_parallelism: int) -> list[range]:
    """Ranges that a subtask is handed by others."""
    before, after = reshape.before[subtask.vertex], reshape.after[subtask.vertex]
    return [each.groups for each in handovers(before, after, max_parallelism) if each.receiver == subtask.index]


def given_away(reshape: tasks.Reshape, subtask: SubtaskId, max_parallelism: int) -> list[tuple[SubtaskId, range]]:
    """Ranges that a subtask hands to others."""
    before, after = reshape.before[subtask.vertex], reshape.after[subtask.vertex]
    return [
        (SubtaskId(subtask.vertex, each.receiver), each.groups)
        for each in handovers(before, after, max_parallelism)
        if each.sender == subtask.index
    ]


def divide(
    node: Node,
    task: tasks.Task,
    reshape: tasks.Reshape,
    make_operator: MakeOperator,
    *,
    watermark: int,
    stopped_us: int,
) -> Leaving:
    """The barrier has passed a task whose key groups change: keep what stays, await what comes."""
    subtask, groups = task.subtask, task.max_parallelism
    if not isinstance(node.operator, Divided):
        make = partial(make_operator, node.description, node.context)
        node.divide(Divided(make, node.description.spec, keys_by_port(task)), watermark=watermark)
    divided = node.operator
    assert isinstance(divided, Divided)
    before, after = reshape.before[subtask.vertex], reshape.after[subtask.vertex]
    own = range(0)
    if subtask.index < after:
        own = common(group_range(subtask.index, before, groups), group_range(subtask.index, after, groups))
    anew, useless = divided.keep(own)
    away = given_away(reshape, subtask, groups)
    if subtask.index < after:
        for each in (*anew, *expected(reshape, subtask, groups)):
            divided.expect(each)
    return Leaving(node.description.uid, (*away, *((subtask, each) for each in anew)), tuple(useless), stopped_us)


def parcels(
    leaving: Leaving, number: int, subtask: SubtaskId, sections: Sequence[tuple[Uid, AnySection]]
) -> list[Parcel] | None:
    """The state of each range by itself; None: it is in files, which have to be in the store first."""
    own = [section for uid, section in sections if uid == leaving.uid]
    if any(isinstance(section, FilesSection) for section in own):
        return None
    return [parcel_of(leaving, number, subtask, receiver, groups, own) for receiver, groups in leaving.ranges]


def parcels_in_store(leaving: Leaving, number: int, handle: StateHandle) -> list[Parcel]:
    """The same, of state that was uploaded."""
    sections = tuple(section for section in handle.sections if section.uid == leaving.uid)
    found = msgspec.structs.replace(handle, sections=sections, counters=(), tables=())
    size = sum(section.length for section in sections)
    width = max(1, sum(len(groups) for _, groups in leaving.ranges))
    return [
        Parcel(
            number=number,
            sender=handle.subtask,
            receiver=receiver,
            uid=leaving.uid,
            first=groups.start,
            end=groups.stop,
            stopped_us=leaving.stopped_us,
            size=size * len(groups) // width,
            handle=found,
        )
        for receiver, groups in leaving.ranges
    ]


def parcel_of(
    leaving: Leaving,
    number: int,
    subtask: SubtaskId,
    receiver: SubtaskId,
    groups: range,
    own: Sequence[AnySection],
) -> Parcel:
    """The tables of some groups, and where in the store those are that were written before."""
    tables: list[tuple[Uid, Section]] = []
    stored: list[tuple[int, SectionHandle]] = []
    for section in own:
        if isinstance(section, Section):
            keyed = section.redistribution is Redistribution.KEYED
            rows = slice_groups(section.frame, groups) if keyed else section.frame
            tables.append((leaving.uid, Section(section.state, section.redistribution, rows)))
        elif isinstance(section, ChunkSection):
            frame = section.frame() if callable(section.frame) else section.frame
            if frame is not None:
                rows = slice_groups(frame, groups)
                tables.append((leaving.uid, Section(section.state, Redistribution.KEYED, rows)))
            elif section.chunk.handle is not None:
                stored.append((len(tables) + len(stored), section.chunk.handle))
    data, handle = state_objects.encode(subtask, tables, "")
    handles = list(handle.sections)
    for place, each in stored:
        handles.insert(place, each)
    return Parcel(
        number=number,
        sender=subtask,
        receiver=receiver,
        uid=leaving.uid,
        first=groups.start,
        end=groups.stop,
        stopped_us=leaving.stopped_us,
        size=len(data) + sum(each.length for _, each in stored),
        handle=msgspec.structs.replace(handle, data=data, sections=tuple(handles)),
    )
