"""Subtasks, channels and slots: what holds for every graph."""

from collections import Counter
from itertools import chain

import msgspec
from hypothesis import given
from hypothesis import strategies as st

from penstock.graph import Edge, JobGraph, Region, Vertex, execution, place, slots_wanted
from penstock.model import specs
from penstock.model.ids import SlotId, TaskManagerId, Uid, VertexId
from penstock.model.messages import SlotInfo
from penstock.model.tasks import ChainLink
from penstock.state.key_groups import group_range


def vertex(name: str, parallelism: int) -> Vertex:
    operator = specs.Operator(
        uid=Uid(name), name=name, spec=specs.Union(columns=("a",)), output=(specs.Field("a", "Int64"),)
    )
    return Vertex(id=VertexId(name), chain=(ChainLink(operator=operator, parent=None),), parallelism=parallelism)


@st.composite
def job_graphs(draw) -> JobGraph:
    count = draw(st.integers(1, 5))
    vertices = [vertex(f"v{index}", draw(st.integers(1, 6))) for index in range(count)]
    edges = []
    for target in range(1, count):
        for port, source in enumerate(draw(st.lists(st.integers(0, target - 1), max_size=3))):
            same = vertices[source].parallelism == vertices[target].parallelism
            choices = [specs.Rebalance(), specs.Hash(keys=("a",)), specs.Broadcast(), *([specs.Forward()] * same)]
            edges.append(
                Edge(
                    source=vertices[source].id,
                    producer=0,
                    target=vertices[target].id,
                    port=port,
                    partitioning=draw(st.sampled_from(choices)),
                )
            )
    return JobGraph(
        name="g",
        vertices=tuple(vertices),
        edges=tuple(edges),
        bounded=True,
        max_parallelism=draw(st.sampled_from([6, 7, 128, 1000])),
    )


def slots(count: int) -> list[SlotInfo]:
    return [
        SlotInfo(slot=SlotId(TaskManagerId(f"tm{index // 2}"), index % 2), address=f"host:{index}", pid=index)
        for index in range(count)
    ]


@given(job_graphs())
def test_every_subtask_is_in_one_region(graph):
    regions = execution(graph)
    found = Counter(chain.from_iterable(region.subtasks for region in regions))
    assert found == {task: 1 for vertex in graph.vertices for task in found if task.vertex == vertex.id}
    assert len(found) == sum(vertex.parallelism for vertex in graph.vertices)


@given(job_graphs())
def test_each_receivers_inputs_match_each_senders_outputs(graph):
    for region in execution(graph):
        sent = {
            channel.channel: (task.subtask, channel.receiver, edge.schema)
            for task in region.tasks
            for edge in task.outputs
            for channel in edge.channels
        }
        received = {
            channel.channel: (channel.sender, task.subtask, channel.schema)
            for task in region.tasks
            for channel in task.inputs
        }
        assert sent == received


@given(job_graphs())
def test_channel_ids_are_unique_in_the_job(graph):
    ids = [
        channel.channel
        for region in execution(graph)
        for task in region.tasks
        for edge in task.outputs
        for channel in edge.channels
    ]
    assert len(ids) == len(set(ids))


@given(job_graphs())
def test_every_key_group_is_routed_to_the_owner_of_its_range(graph):
    parallelism = {vertex.id: vertex.parallelism for vertex in graph.vertices}
    for region in execution(graph):
        for edge in chain.from_iterable(task.outputs for task in region.tasks):
            if not isinstance(edge.partitioning, specs.Hash):
                assert edge.routing == ()
                continue
            assert len(edge.routing) == graph.max_parallelism
            for group, index in enumerate(edge.routing):
                receiver = edge.channels[index].receiver
                assert group in group_range(receiver.index, parallelism[receiver.vertex], graph.max_parallelism)


@given(job_graphs())
def test_forward_edges_join_equal_indices_and_others_reach_everyone(graph):
    parallelism = {vertex.id: vertex.parallelism for vertex in graph.vertices}
    for region in execution(graph):
        for task in region.tasks:
            for edge in task.outputs:
                reached = [channel.receiver.index for channel in edge.channels]
                if isinstance(edge.partitioning, specs.Forward):
                    assert reached == [task.subtask.index]
                else:
                    assert reached == list(range(parallelism[edge.channels[0].receiver.vertex]))


@given(job_graphs(), st.integers(1, 8))
def test_placing_gives_every_task_a_slot_and_every_channel_its_address(graph, count):
    for region in execution(graph):
        placed = place(region, slots(count))
        home = {task.subtask: slot for slot, tasks in placed.items() for task in tasks}
        address = {info.slot: info.address for info in slots(count)}
        assert sorted(home) == sorted(region.subtasks)
        for task in chain.from_iterable(placed.values()):
            assert all(channel.slot == home[channel.sender] for channel in task.inputs)
            for channel in chain.from_iterable(edge.channels for edge in task.outputs):
                assert channel.slot == home[channel.receiver]
                assert channel.address == address[channel.slot]
        assert len(placed) == min(count, slots_wanted(region))


@given(job_graphs())
def test_the_same_graph_gives_the_same_execution_and_survives_json(graph):
    regions = execution(graph)
    assert regions == execution(graph)
    assert msgspec.json.decode(msgspec.json.encode(graph), type=JobGraph) == graph
    for region in regions:
        assert msgspec.json.decode(msgspec.json.encode(region), type=Region) == region


def one_exchange(parallelism: int) -> JobGraph:
    edge = Edge(source=VertexId("a"), producer=0, target=VertexId("b"), partitioning=specs.Hash(keys=("a",)))
    return JobGraph(
        name="g", vertices=(vertex("a", parallelism), vertex("b", parallelism)), edges=(edge,), bounded=True
    )


def test_subtask_i_of_every_vertex_shares_slot_i():
    (region,) = execution(one_exchange(4))
    placed = place(region, slots(6))
    assert [[str(task.subtask) for task in tasks] for tasks in placed.values()] == [
        ["a/0", "b/0"], ["a/1", "b/1"], ["a/2", "b/2"], ["a/3", "b/3"],
    ]  # fmt: skip


def test_on_fewer_slots_neighbours_are_packed_evenly():
    (region,) = execution(one_exchange(4))
    placed = place(region, slots(2))
    assert [[str(task.subtask) for task in tasks] for tasks in placed.values()] == [
        ["a/0", "a/1", "b/0", "b/1"], ["a/2", "a/3", "b/2", "b/3"],
    ]  # fmt: skip


def test_forward_edges_alone_leave_each_index_a_region_of_its_own():
    edge = Edge(source=VertexId("a"), producer=0, target=VertexId("b"), partitioning=specs.Forward())
    graph = JobGraph(name="g", vertices=(vertex("a", 3), vertex("b", 3)), edges=(edge,), bounded=True)
    regions = execution(graph)
    assert [[str(subtask) for subtask in region.subtasks] for region in regions] == [
        ["a/0", "b/0"], ["a/1", "b/1"], ["a/2", "b/2"],
    ]  # fmt: skip
    assert [slots_wanted(region) for region in regions] == [1, 1, 1]
