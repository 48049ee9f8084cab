"""Rows in flight are written once, and find the subtask that has to work on them, at any parallelism."""

import itertools

import polars as pl
import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.checkpoint import state_objects
from penstock.checkpoint.selection import handles_for
from penstock.exchange.channels import ReceiveChannel, SendChannel
from penstock.exchange.gates import Destination, Gate
from penstock.exchange.partitioners import make_partitioner
from penstock.graph.execution import NO_SLOT
from penstock.model import schemas, specs
from penstock.model.elements import Barrier, Batch
from penstock.model.errors import FatalJobError
from penstock.model.handles import Manifest, StateHandle
from penstock.model.ids import Attempt, ChannelId, CheckpointId, SubtaskId, Uid, VertexId
from penstock.model.settings import ExchangeSettings
from penstock.model.tasks import ChainLink, InputChannel, Task
from penstock.state.key_groups import group_range, key_groups, owner
from penstock.storage import MemoryStore
from penstock.taskmanager import in_flight
from penstock.taskmanager.in_flight import Cut, Waiting

ONE = CheckpointId(1)
GROUPS = 16
TARGET = Uid("count")
SCHEMA = schemas.fields({"key": pl.Int64(), "n": pl.Int64()})
SETTINGS = ExchangeSettings(batch_rows=2, channel_bytes=1)


def frame(numbers: list[int]) -> pl.DataFrame:
    return pl.DataFrame(
        {"key": [number % 7 for number in numbers], "n": numbers}, schema=schemas.polars_schema(SCHEMA)
    )


def task(index: int, parallelism: int, *, keys: tuple[str, ...], chained: bool = False) -> Task:
    count = specs.Operator(uid=TARGET, name="count", spec=specs.Union(columns=()), output=SCHEMA)
    source = specs.Operator(uid=Uid("source"), name="source", spec=specs.Union(columns=()), output=SCHEMA)
    chain = (
        (ChainLink(operator=source, parent=None), ChainLink(operator=count, parent=0))
        if chained
        else (ChainLink(operator=count, parent=None),)
    )
    channel = InputChannel(
        channel=ChannelId(0),
        sender=SubtaskId(VertexId("source"), 0),
        slot=NO_SLOT,
        port=0,
        schema=SCHEMA,
        keys=keys,
    )
    return Task(
        subtask=SubtaskId(VertexId(chain[0].operator.uid), index),
        parallelism=parallelism,
        max_parallelism=GROUPS,
        chain=chain,
        inputs=() if chained else (channel,),
    )


def restored(store: MemoryStore, handles: list[StateHandle], new: Task) -> list[int]:
    manifest = Manifest(
        checkpoint=ONE,
        kind="checkpoint",
        parallelism={},
        max_parallelism=GROUPS,
        triggered_us=0,
        completed_us=0,
        handles=tuple(handles),
    )
    uids = {link.operator.uid for link in new.chain}
    index, parallelism = new.subtask.index, new.parallelism
    chosen = handles_for(manifest, index=index, parallelism=parallelism, max_parallelism=GROUPS, uids=uids)
    groups = group_range(index, parallelism, GROUPS)
    read = state_objects.read(store, chosen, groups=groups, index=index, parallelism=parallelism, uids=uids)
    states, rows = in_flight.split_off(read)
    assert not states
    return [n for waiting in in_flight.waiting_rows(new, rows) for n in waiting.frame["n"].to_list()]


@pytest.mark.parametrize(("before", "after"), [(1, 1), (1, 3), (3, 1), (3, 3), (2, 5)])
@pytest.mark.parametrize("keys", [("key",), ()])
@given(data=st.data())
def test_rows_are_found_again_at_another_parallelism(
    before: int, after: int, keys: tuple[str, ...], data: st.DataObject
) -> None:
    """Rows in receivers' queues and in senders', of `before` senders and receivers."""
    store = MemoryStore()
    handles: list[StateHandle] = []
    expected: list[int] = []
    received: set[int] = set()
    counter = itertools.count()

    def drawn() -> pl.DataFrame:
        return frame([next(counter) for _ in range(data.draw(st.integers(1, 9)))])

    routing = tuple(owner(group, before, GROUPS) for group in range(GROUPS))
    partitioning = specs.Hash(keys=keys) if keys else specs.Rebalance()
    for index in range(before):
        channel = ReceiveChannel(ChannelId(index), 0, SETTINGS, keys=keys if before > 1 else ())
        partitioner = make_partitioner(partitioning, channels=before, routing=routing, sender_index=index)
        senders = [
            SendChannel(ChannelId(100 + index * before + n), SETTINGS, deliver=lambda *_: 0, writable=lambda: True)
            for n in range(before)
        ]
        gate = Gate(partitioner, senders, lambda: 0.0, Destination(operator=TARGET, keys=keys if before > 1 else ()))
        own = drawn()
        if keys:
            own = own.filter([owner(int(group), before, GROUPS) == index for group in key_groups(own, keys, GROUPS)])
        expected += own["n"].to_list()
        received.update(own["n"].to_list())
        if own.height:
            channel.put(0, Batch(own), 1)
        channel.capture(ONE)
        channel.put(1 if own.height else 0, Barrier(ONE), 0)
        sent = drawn()
        expected += sent["n"].to_list()
        gate.emit(sent)
        gate.control(Barrier(ONE))
        cut = Cut(Barrier(ONE), [], (), [(channel, channel.keys)])
        cut.overtake([gate])
        subtask = SubtaskId(VertexId("source"), index)
        snapshots = cut.release(subtask, TARGET, GROUPS)
        sections = [(uid, section) for uid, snapshot in snapshots for section in snapshot()]
        handles.append(state_objects.write(store, ONE, Attempt(1), subtask, sections))
    found = {
        index: restored(store, handles, task(index, after, keys=keys, chained=after == 1)) for index in range(after)
    }
    assert sorted(n for numbers in found.values() for n in numbers) == sorted(expected), "each row once"
    if keys and after > 1:
        for index, numbers in found.items():
            groups = key_groups(frame(numbers), keys, GROUPS).tolist()
            assert all(owner(group, after, GROUPS) == index for group in groups)
    for numbers in found.values():
        arrived = [n in received for n in numbers]
        assert arrived == sorted(arrived, reverse=True), "what had arrived was sent before what had not"


def test_rows_that_were_restored_and_not_worked_on_are_written_again() -> None:
    store = MemoryStore()
    cut = Cut(Barrier(ONE), [], (), restored=[Waiting(TARGET, 0, frame([1, 2]))])
    subtask = SubtaskId(VertexId("count"), 1)
    sections = [(uid, each) for uid, snapshot in cut.release(subtask, TARGET, GROUPS) for each in snapshot()]
    handle = state_objects.write(store, ONE, Attempt(1), subtask, sections)
    assert restored(store, [handle], task(1, 2, keys=())) == [1, 2]
    assert restored(store, [handle], task(0, 2, keys=())) == []


def test_rows_that_lack_columns_of_the_new_plan_are_refused() -> None:
    new = task(0, 1, keys=())
    rows = {TARGET: {"in-flight-received-0": [frame([1]).drop("n").with_columns(__for_subtask=pl.lit(0, pl.Int64))]}}
    with pytest.raises(FatalJobError, match="lack the columns n") as caught:
        in_flight.waiting_rows(new, rows)
    assert caught.value.code == "S014"
