"""Real gRPC on the loopback interface."""

import msgspec
import pytest

from penstock.model.errors import UserError
from penstock.model.ids import Attempt, CheckpointId, JobId, SlotId, TaskManagerId
from penstock.model.messages import Directed, Heartbeat, Leaving, Trigger
from penstock.rpc import (
    Reply,
    RpcError,
    Server,
    ToldJobManager,
    ToldTaskManager,
    jobmanager_channel,
    serve_jobmanager,
    serve_taskmanager,
    taskmanager_channel,
)

TM = TaskManagerId("tm-1")


async def test_a_message_to_the_jobmanager_arrives_as_it_was_sent_and_is_answered():
    told = []

    async def tell(message: ToldJobManager) -> Reply:
        told.append(message)
        return Reply(accepted=True, epoch=1)

    server = Server("127.0.0.1", 0)
    serve_jobmanager(server, tell)
    await server.start()
    channel = jobmanager_channel(server.address)
    try:
        sent = ToldJobManager(task_manager=TM, epoch=1, message=Heartbeat(task_manager=TM))
        assert await channel.call(sent, seconds=2) == Reply(accepted=True, epoch=1)
        assert told == [sent]
    finally:
        await channel.close()
        await server.stop()


async def test_a_message_to_a_taskmanager_may_be_large():
    told = []

    async def tell(message: ToldTaskManager) -> Reply:
        told.append(message)
        return Reply(accepted=False, epoch=2)

    server = Server("127.0.0.1", 0)
    serve_taskmanager(server, tell)
    await server.start()
    channel = taskmanager_channel(server.address)
    try:
        trigger = Trigger(job=JobId("j" * 8_000_000), attempt=Attempt(1), checkpoint=CheckpointId(1))
        sent = ToldTaskManager(epoch=1, directed=Directed(slot=SlotId(TM, 0), message=trigger))
        assert not (await channel.call(sent, seconds=5)).accepted
        assert told == [sent]
    finally:
        await channel.close()
        await server.stop()


async def test_a_peer_that_is_not_there_is_a_typed_error_that_names_it():
    server = Server("127.0.0.1", 0)
    await server.stop()
    channel = jobmanager_channel(server.address)
    try:
        with pytest.raises(RpcError, match="unavailable") as caught:
            await channel.call(ToldJobManager(task_manager=TM, epoch=0, message=Leaving(task_manager=TM)), seconds=1)
        assert caught.value.address == server.address
    finally:
        await channel.close()


async def test_a_peer_that_does_not_answer_in_time_is_an_error():
    import asyncio

    forever = asyncio.Event()

    async def tell(message: ToldJobManager) -> Reply:
        await forever.wait()
        return Reply(accepted=True, epoch=0)

    server = Server("127.0.0.1", 0)
    serve_jobmanager(server, tell)
    await server.start()
    channel = jobmanager_channel(server.address)
    try:
        with pytest.raises(RpcError, match="deadline exceeded"):
            await channel.call(
                ToldJobManager(task_manager=TM, epoch=0, message=Leaving(task_manager=TM)), seconds=0.05
            )
    finally:
        forever.set()
        await channel.close()
        await server.stop()


async def test_a_channel_finds_a_peer_that_was_started_again_on_the_same_port():
    async def tell(message: ToldJobManager) -> Reply:
        return Reply(accepted=True, epoch=1)

    told = ToldJobManager(task_manager=TM, epoch=0, message=Leaving(task_manager=TM))
    first = Server("127.0.0.1", 0)
    serve_jobmanager(first, tell)
    await first.start()
    channel = jobmanager_channel(first.address)
    try:
        await channel.call(told, seconds=2)
        await first.stop(grace_seconds=0)
        second = Server("127.0.0.1", first.port)
        serve_jobmanager(second, tell)
        await second.start()
        for _ in range(50):
            try:
                assert (await channel.call(told, seconds=1)).accepted
                break
            except RpcError:
                continue
        else:
            pytest.fail("never reconnected")
        await second.stop()
    finally:
        await channel.close()


async def test_a_taken_port_is_an_error_with_a_fix():
    server = Server("127.0.0.1", 0)
    await server.start()
    try:
        with pytest.raises(UserError, match="taken") as caught:
            Server("127.0.0.1", server.port)
        assert "--port" in (caught.value.fix or "")
    finally:
        await server.stop()


def test_envelopes_survive_json():
    told = ToldJobManager(task_manager=TM, epoch=1, message=Heartbeat(task_manager=TM))
    assert msgspec.json.decode(msgspec.json.encode(told), type=ToldJobManager) == told
