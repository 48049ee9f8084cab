"""From the job graph to subtasks and channels, and from there to slots. What the JobManager schedules.

Invariants: channel ids are unique in a job and the same for the same graph; the receiver's view of a channel
matches the sender's; each key group is routed to the one subtask that owns it.
"""

import itertools
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence

import msgspec

from penstock.graph._data import Edge, JobGraph, Region, Vertex
from penstock.graph.live import ChannelPlace
from penstock.model.ids import ChannelId, SlotId, SubtaskId, TaskManagerId, VertexId
from penstock.model.messages import SlotInfo
from penstock.model.specs import Broadcast, Forward, Hash
from penstock.model.tasks import InputChannel, OutputChannel, OutputEdge, Task
from penstock.state.key_groups import owners

NO_SLOT = SlotId(TaskManagerId(""), -1)
"""Stands in a task's channels until it is placed."""


def execution(
    graph: JobGraph, known: Mapping[ChannelPlace, ChannelId] | None = None, next_channel: int = 0
) -> tuple[Region, ...]:
    """All subtasks with their channels, by region. Which slots they run in is not known yet.

    Channels that are known keep their numbers; others get numbers from `next_channel` on.
    """
    known = known or {}
    vertices = {vertex.id: vertex for vertex in graph.vertices}
    inputs: dict[SubtaskId, list[InputChannel]] = defaultdict(list)
    outputs: dict[SubtaskId, list[OutputEdge]] = defaultdict(list)
    channel_ids = map(ChannelId, itertools.count(next_channel))
    for edge in graph.edges:
        source, target = vertices[edge.source], vertices[edge.target]
        schema = source.chain[edge.producer].operator.schema_of(edge.output)
        routing = _routing(edge, target, graph.max_parallelism)
        for sender in _subtasks(source):
            channels = []
            for receiver in _receivers(edge, sender, target):
                place = (sender, receiver, edge.producer, edge.output, edge.port)
                channel = known[place] if place in known else next(channel_ids)
                channels.append(OutputChannel(channel=channel, receiver=receiver, slot=NO_SLOT, address=""))
                inputs[receiver].append(
                    InputChannel(
                        channel=channel,
                        sender=sender,
                        slot=NO_SLOT,
                        port=edge.port,
                        schema=schema,
                        keys=edge.partitioning.keys if isinstance(edge.partitioning, Hash) else (),
                        in_order=isinstance(edge.partitioning, Broadcast),
                        loop=edge.loop,
                        feedback=edge.is_feedback,
                    )
                )
            outputs[sender].append(
                OutputEdge(
                    producer=edge.producer,
                    output=edge.output,
                    partitioning=edge.partitioning,
                    channels=tuple(channels),
                    routing=routing,
                    schema=schema,
                    target=target.chain[0].operator.uid,
                    port=edge.port,
                    loop=edge.loop,
                )
            )
    tasks = [
        Task(
            subtask=subtask,
            parallelism=vertex.parallelism,
            max_parallelism=graph.max_parallelism,
            chain=vertex.chain,
            inputs=tuple(sorted(inputs[subtask], key=lambda channel: (channel.port, channel.channel))),
            outputs=tuple(outputs[subtask]),
        )
        for vertex in graph.vertices
        for subtask in _subtasks(vertex)
    ]
    return tuple(
        Region(index=index, tasks=tuple(connected), subtasks=tuple(task.subtask for task in connected))
        for index, connected in enumerate(_connected(tasks))
    )


def slots_wanted(region: Region) -> int:
    """How many slots the region can use: subtasks of the same index share one."""
    return len({subtask.index for subtask in region.subtasks})


def place(region: Region, slots: Sequence[SlotInfo]) -> dict[SlotId, tuple[Task, ...]]:
    """Give every task a slot, and every channel the address of its other end.

    Subtask i of every vertex goes to slot i, so that forward edges stay in a process. With fewer slots than
    subtasks, neighbours are packed together evenly.
    """
    if not slots:
        raise ValueError(f"region {region.index} cannot be placed on no slots")
    indices = sorted({subtask.index for subtask in region.subtasks})
    used = min(len(slots), len(indices))
    return place_by_index(
        region, {index: slots[position * used // len(indices)] for position, index in enumerate(indices)}
    )


def place_by_index(region: Region, slot_of_index: dict[int, SlotInfo]) -> dict[SlotId, tuple[Task, ...]]:
    """Give every task the slot of its index."""
    placed: dict[SlotId, list[Task]] = defaultdict(list)
    for task in region.tasks:
        placed[slot_of_index[task.subtask.index].slot].append(
            msgspec.structs.replace(
                task,
                inputs=tuple(
                    msgspec.structs.replace(channel, slot=slot_of_index[channel.sender.index].slot)
                    for channel in task.inputs
                ),
                outputs=tuple(_addressed(edge, slot_of_index) for edge in task.outputs),
            )
        )
    return {slot: tuple(tasks) for slot, tasks in placed.items()}


def _addressed(edge: OutputEdge, slot_of_index: dict[int, SlotInfo]) -> OutputEdge:
    return msgspec.structs.replace(
        edge,
        channels=tuple(
            msgspec.structs.replace(
                channel,
                slot=slot_of_index[channel.receiver.index].slot,
                address=slot_of_index[channel.receiver.index].address,
            )
            for channel in edge.channels
        ),
    )


def _subtasks(vertex: Vertex) -> list[SubtaskId]:
    return [SubtaskId(vertex.id, index) for index in range(vertex.parallelism)]


def _receivers(edge: Edge, sender: SubtaskId, target: Vertex) -> list[SubtaskId]:
    if isinstance(edge.partitioning, Forward):
        return [SubtaskId(target.id, sender.index)]
    return _subtasks(target)


def _routing(edge: Edge, target: Vertex, max_parallelism: int) -> tuple[int, ...]:
    """Key group -> subtask; channels of an edge are in the order of their receivers."""
    if not isinstance(edge.partitioning, Hash):
        return ()
    return owners(target.parallelism, max_parallelism)


def _connected(tasks: list[Task]) -> Iterator[list[Task]]:
    """Connected components, in the order of their first tasks."""
    leader: dict[SubtaskId, SubtaskId] = {task.subtask: task.subtask for task in tasks}

    def find(subtask: SubtaskId) -> SubtaskId:
        while leader[subtask] != subtask:
            leader[subtask] = subtask = leader[leader[subtask]]
        return subtask

    for task in tasks:
        for channel in task.inputs:
            leader[find(channel.sender)] = find(task.subtask)
    components: dict[SubtaskId, list[Task]] = defaultdict(list)
    for task in tasks:
        components[find(task.subtask)].append(task)
    yield from components.values()


def vertex_parallelism(graph: JobGraph) -> dict[VertexId, int]:
    """How many subtasks each vertex has; what a checkpoint's manifest records."""
    return {vertex.id: vertex.parallelism for vertex in graph.vertices}
