"""Another size for a job that runs on: the plan that it has, with other numbers of subtasks. Pure.

A plan made anew may cut chains elsewhere, and what runs cannot be cut. So the plan stays and only the parallelism of
its vertices changes; where that is not possible, `NotLive` says why, and the job has to start again.
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass

import msgspec

from penstock.graph._data import JobGraph, Region, Vertex
from penstock.graph.resizing import Size, resized
from penstock.model import specs
from penstock.model.ids import ChannelId, SubtaskId, VertexId
from penstock.state.key_groups import group_range

ChannelPlace = tuple[SubtaskId, SubtaskId, int, str, int]
"""Sender, receiver, index of the producer in its chain, its output, port of the receiver."""

_WITHOUT_STATE = (
    specs.Select | specs.WithColumns | specs.Filter | specs.Explode | specs.Fused | specs.Union
    | specs.Map | specs.MapBatches | specs.Combine | specs.Lookup | specs.ApplyResults | specs.Sink
)  # fmt: skip
_BY_KEY = (
    specs.Process | specs.CoProcess | specs.WindowAggregate | specs.SessionAggregate | specs.BufferedWindow
    | specs.RunningAggregate | specs.Retract | specs.Join | specs.CoGroup | specs.Deduplicate | specs.TopN
)  # fmt: skip


@dataclass(frozen=True, slots=True)
class NotLive:
    """The job has to start again to get that size."""

    reason: str


@dataclass(frozen=True, slots=True)
class Handover:
    """Key groups of a vertex that get another owner."""

    sender: int
    receiver: int
    groups: range


def resized_live(running: JobGraph, submitted: JobGraph, size: Size) -> JobGraph | NotLive:
    """The plan that runs, at another size. UserError when the job cannot have that at all."""
    sizes = {
        link.operator.uid: vertex.parallelism for vertex in resized(submitted, size).vertices for link in vertex.chain
    }
    vertices = []
    for vertex in running.vertices:
        wanted = {sizes[link.operator.uid] for link in vertex.chain if link.operator.uid in sizes}
        if len(wanted) != 1:
            return NotLive(f"operators that run as one task would have different sizes: {_names(vertex)}")
        vertices.append(msgspec.structs.replace(vertex, parallelism=wanted.pop()))
    after = msgspec.structs.replace(running, vertices=tuple(vertices))
    reason = _obstacle(running, after)
    return NotLive(reason) if reason else after


def changed_vertices(before: JobGraph, after: JobGraph) -> dict[VertexId, tuple[int, int]]:
    """Those with another number of subtasks: from and to."""
    pairs = zip(before.vertices, after.vertices, strict=True)
    return {old.id: (old.parallelism, new.parallelism) for old, new in pairs if old.parallelism != new.parallelism}


def handovers(before: int, after: int, max_parallelism: int) -> Iterator[Handover]:
    """Ranges of key groups that get another owner when a vertex goes from one parallelism to another."""
    for sender in range(before):
        for receiver in range(after):
            groups = common(
                group_range(sender, before, max_parallelism), group_range(receiver, after, max_parallelism)
            )
            if sender != receiver and groups:
                yield Handover(sender, receiver, groups)


def common(one: range, other: range) -> range:
    """Key groups of both."""
    start = max(one.start, other.start)
    return range(start, max(start, min(one.stop, other.stop)))


def channels_of(region: Region) -> dict[ChannelPlace, ChannelId]:
    """All channels of a region, so that those that stay keep their numbers."""
    return {
        (task.subtask, channel.receiver, edge.producer, edge.output, edge.port): channel.channel
        for task in region.tasks
        for edge in task.outputs
        for channel in edge.channels
    }


def _obstacle(before: JobGraph, after: JobGraph) -> str:
    if any(edge.loop is not None or edge.is_feedback for edge in after.edges):
        return "rows go round a loop"
    sizes: Mapping[VertexId, int] = {vertex.id: vertex.parallelism for vertex in after.vertices}
    changed = changed_vertices(before, after)
    for edge in after.edges:
        if isinstance(edge.partitioning, specs.Forward) and sizes[edge.source] != sizes[edge.target]:
            return f'rows go straight from "{edge.source}" to "{edge.target}", and their sizes would differ'
        if isinstance(edge.partitioning, specs.Broadcast) and edge.target in changed:
            return f'every subtask of "{edge.target}" holds all rows of an input'
    by_key: dict[VertexId, bool] = {}
    for edge in after.edges:
        by_key[edge.target] = by_key.get(edge.target, True) and isinstance(edge.partitioning, specs.Hash)
    for vertex in after.vertices:
        head = vertex.chain[0].operator.spec
        if vertex.id in changed and isinstance(head, specs.Source) and head.alignment is not None:
            return f'the splits of "{vertex.id}" keep step with others'
        if vertex.id in changed and (reason := _immovable(vertex, by_key=by_key.get(vertex.id, False))):
            return reason
    return ""


def _immovable(vertex: Vertex, *, by_key: bool) -> str:
    head, *others = (link.operator for link in vertex.chain)
    movable = isinstance(head.spec, specs.Source | _WITHOUT_STATE) or (by_key and isinstance(head.spec, _BY_KEY))
    if not movable:
        return f'state of "{head.uid}" does not belong to key groups of its input'
    behind = next((each.uid for each in others if not isinstance(each.spec, _WITHOUT_STATE)), None)
    return f'it runs as planned for one subtask, "{behind}" in the task of "{head.uid}"' if behind is not None else ""


def is_keyed(spec: specs.OperatorSpec) -> bool:
    """Whether its state is by key group, when it heads a chain."""
    return isinstance(spec, _BY_KEY)


def _names(vertex: Vertex) -> str:
    return ", ".join(f'"{link.operator.uid}"' for link in vertex.chain)
