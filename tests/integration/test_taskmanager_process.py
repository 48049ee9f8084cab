"""A TaskManager with real slot processes, and a JobManager that only listens."""

import asyncio
import contextlib
import os
import signal
import sys
from collections.abc import AsyncIterator, Callable
from pathlib import Path

import msgspec
import pytest

from penstock.config import LinkSettings, TaskManagerSettings
from penstock.model.clocks import SystemClock
from penstock.model.elements import BarrierKind
from penstock.model.ids import Attempt, CheckpointId, JobId, SlotId, TaskManagerId
from penstock.model.messages import (
    Cancel,
    Commit,
    Committed,
    Deploy,
    Directed,
    Failed,
    Heartbeat,
    InputEnded,
    Leaving,
    Register,
    Running,
    Runs,
    SlotReady,
    ToJobManager,
    ToTaskManager,
    Trigger,
)
from penstock.model.settings import JobSettings
from penstock.model.tasks import Deployment
from penstock.rpc import Reply, Server, ToldJobManager, ToldTaskManager, serve_jobmanager, taskmanager_channel
from penstock.taskmanager.server import TaskManager

sys.path.insert(0, str(Path(__file__).parent))  # slot processes import the entry point by name

TM = TaskManagerId("tm-1")
SLOT = SlotId(TM, 0)
LINK = LinkSettings(heartbeat_seconds=0.05, lost_after_seconds=0.5, call_seconds=0.5)


class ListeningJobManager:
    """Answers everything, remembers what it was told, and can be told to forget the TaskManager."""

    def __init__(self, port: int = 0, epoch: int = 1) -> None:
        self.epoch = epoch
        self.told: list[ToJobManager] = []
        self.known = False
        self._arrived = asyncio.Condition()
        self._server = Server("127.0.0.1", port)
        self.address, self.port = self._server.address, self._server.port
        serve_jobmanager(self._server, self._tell)

    async def start(self) -> None:
        await self._server.start()

    async def stop(self) -> None:
        await self._server.stop(grace_seconds=0)

    async def _tell(self, told: ToldJobManager) -> Reply:
        if isinstance(told.message, Register):
            self.known = True
        elif not self.known or told.epoch != self.epoch:
            return Reply(accepted=False, epoch=self.epoch)
        async with self._arrived:
            self.told.append(told.message)
            self._arrived.notify_all()
        return Reply(accepted=True, epoch=self.epoch)

    async def first(self, kind: type, where: Callable[[ToJobManager], bool] = lambda _: True) -> ToJobManager:
        """Waits for it, takes it and what came before it."""

        def found() -> bool:
            return any(isinstance(message, kind) and where(message) for message in self.told)

        async with asyncio.timeout(200), self._arrived:
            await self._arrived.wait_for(found)
            while True:
                message = self.told.pop(0)
                if isinstance(message, kind) and where(message):
                    return message

    async def registered(self, slots: int = 1) -> Register:
        """A registration, with the slots that were ready then or soon after."""
        register = await self.first(Register)
        while len(register.slots) < slots:
            ready = await self.first(SlotReady)
            register = msgspec.structs.replace(register, slots=(*register.slots, ready.info))
        return register

    async def send(self, register: Register, message: ToTaskManager, epoch: int | None = None) -> Reply:
        channel = taskmanager_channel(register.address)
        try:
            told = ToldTaskManager(epoch=epoch or self.epoch, directed=Directed(slot=SLOT, message=message))
            return await channel.call(told, seconds=2)
        finally:
            await channel.close()


@contextlib.asynccontextmanager
async def running(
    jobmanager: ListeningJobManager, slots: int = 1, entry: str = "taskmanager_slot:entry"
) -> AsyncIterator[TaskManager]:
    settings = TaskManagerSettings(id=TM, jobmanager=jobmanager.address, slots=slots, link=LINK)
    manager = TaskManager(settings, entry=entry, clock=SystemClock())
    async with asyncio.TaskGroup() as tasks:
        tasks.create_task(manager.run())
        try:
            yield manager
        finally:
            manager.stop()


@pytest.fixture
async def jobmanager() -> AsyncIterator[ListeningJobManager]:
    listening = ListeningJobManager()
    await listening.start()
    yield listening
    await listening.stop()


def deploy(job: str, attempt: int = 1) -> Deploy:
    return Deploy(
        deployment=Deployment(
            job=JobId(job), attempt=Attempt(attempt), slot=SLOT, tasks=(), settings=JobSettings(), store=""
        )
    )


def gone(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return True
    return False


async def test_messages_travel_both_ways_in_order(jobmanager):
    async with running(jobmanager):
        register = await jobmanager.registered()
        assert [info.slot for info in register.slots] == [SLOT]
        await jobmanager.send(register, deploy("calm"))
        await jobmanager.first(Running)
        for number in range(5):
            await jobmanager.send(
                register, Trigger(job=JobId("calm"), attempt=Attempt(1), checkpoint=CheckpointId(number))
            )
        order = [(await jobmanager.first(InputEnded)).subtask.index for _ in range(5)]
        assert order == [0, 1, 2, 3, 4]
        await jobmanager.send(register, Commit(job=JobId("calm"), attempt=Attempt(1), checkpoint=CheckpointId(9)))
        assert (await jobmanager.first(Committed)).checkpoint == 9


async def test_messages_of_another_attempt_are_dropped(jobmanager):
    async with running(jobmanager):
        register = await jobmanager.registered()
        await jobmanager.send(register, deploy("calm", attempt=2))
        await jobmanager.first(Running)
        await jobmanager.send(register, Trigger(job=JobId("calm"), attempt=Attempt(1), checkpoint=CheckpointId(1)))
        await jobmanager.send(register, Trigger(job=JobId("calm"), attempt=Attempt(2), checkpoint=CheckpointId(2)))
        assert (await jobmanager.first(InputEnded)).attempt == 2


async def test_a_killed_slot_fails_its_deployment_and_is_replaced(jobmanager):
    async with running(jobmanager):
        register = await jobmanager.registered()
        pid = register.slots[0].pid
        await jobmanager.send(register, deploy("calm"))
        await jobmanager.first(Running)
        os.kill(pid, signal.SIGKILL)
        failed = await jobmanager.first(Failed)
        assert (failed.job, failed.attempt, failed.code) == ("calm", 1, "P009")
        assert "killed by signal 9 (SIGKILL); if nobody killed it, it was out of memory" in failed.reason
        ready = await jobmanager.first(SlotReady)
        assert ready.info.pid != pid


async def test_an_exit_of_the_program_is_named(jobmanager):
    async with running(jobmanager):
        register = await jobmanager.registered()
        await jobmanager.send(register, deploy("exits"))
        assert "exited with code 7" in (await jobmanager.first(Failed)).reason


async def test_a_stuck_slot_is_ended_with_its_stack_as_the_reason(jobmanager):
    async with running(jobmanager):
        register = await jobmanager.registered()
        await jobmanager.send(register, deploy("stuck"))
        failed = await jobmanager.first(Failed)
        assert failed.code == "P008"
        assert 'has not yielded for 31 s, in operator "spin"' in failed.reason
        assert (await jobmanager.first(SlotReady)).info.pid != register.slots[0].pid


async def test_cancel_ends_the_process_without_a_failure(jobmanager):
    async with running(jobmanager):
        register = await jobmanager.registered()
        pid = register.slots[0].pid
        await jobmanager.send(register, deploy("calm"))
        await jobmanager.first(Running)
        await jobmanager.send(register, Cancel(slot=SLOT, job=JobId("calm"), attempt=Attempt(1)))
        ready = await jobmanager.first(SlotReady)
        assert gone(pid)
        assert ready.info.pid != pid
        await jobmanager.send(register, deploy("calm", attempt=2))
        await jobmanager.first(Running, lambda message: message.attempt == 2)
        assert not [message for message in jobmanager.told if isinstance(message, Failed)]


async def test_a_slot_that_crashes_again_and_again_keeps_nobody_waiting(jobmanager):
    async with running(jobmanager, slots=2, entry="taskmanager_slot:entry_of_one_good_slot"):
        register = await jobmanager.registered()
        assert [info.slot for info in register.slots] == [SLOT]
        await jobmanager.send(register, deploy("calm"))
        await jobmanager.first(Running)
        jobmanager.known = False
        again = await jobmanager.registered()
        assert [info.slot for info in again.slots] == [SLOT]


async def test_a_taskmanager_that_leaves_says_so_and_takes_its_slots_with_it(jobmanager):
    async with running(jobmanager, slots=2) as manager:
        register = await jobmanager.registered(slots=2)
        manager.stop()
        await jobmanager.first(Leaving)
    assert all(gone(info.pid) for info in register.slots)


async def test_another_leader_is_told_what_runs_and_may_end_it(jobmanager):
    async with running(jobmanager):
        register = await jobmanager.registered()
        await jobmanager.send(register, deploy("calm"))
        await jobmanager.first(Running)
        jobmanager.known, jobmanager.epoch = False, 2
        again = await jobmanager.registered()
        assert again.slots[0].pid == register.slots[0].pid
        assert again.slots[0].runs == Runs(job=JobId("calm"), attempt=Attempt(1), subtasks=(), running=True)
        await jobmanager.send(again, Cancel(slot=SLOT, job=JobId("calm"), attempt=Attempt(1)))
        ready = await jobmanager.first(SlotReady)
        assert gone(register.slots[0].pid)
        assert ready.info.pid != register.slots[0].pid


async def test_a_slot_that_has_failed_is_no_offer(jobmanager):
    async with running(jobmanager):
        register = await jobmanager.registered()
        await jobmanager.send(register, deploy("calm"))
        await jobmanager.first(Running)
        trigger = Trigger(job=JobId("calm"), attempt=Attempt(1), checkpoint=CheckpointId(7), kind=BarrierKind.STOP)
        await jobmanager.send(register, trigger)
        jobmanager.known, jobmanager.epoch = False, 2
        runs = (await jobmanager.registered()).slots[0].runs
        assert (runs.newest, runs.failed) == (7, True)


async def test_a_lost_jobmanager_ends_the_work_and_is_found_when_it_is_back(jobmanager):
    async with running(jobmanager):
        register = await jobmanager.registered()
        await jobmanager.send(register, deploy("calm"))
        await jobmanager.first(Running)
        await jobmanager.stop()
        async with asyncio.timeout(200):
            while not gone(register.slots[0].pid):  # noqa: ASYNC110
                await asyncio.sleep(0.02)
        replacement = ListeningJobManager(jobmanager.port, epoch=2)
        await replacement.start()
        try:
            again = await replacement.registered()
            assert again.slots[0].pid != register.slots[0].pid
            await replacement.first(Heartbeat)
        finally:
            await replacement.stop()


async def test_orders_of_a_jobmanager_that_we_do_not_follow_are_refused(jobmanager):
    async with running(jobmanager):
        register = await jobmanager.registered()
        await jobmanager.first(Heartbeat)
        reply = await jobmanager.send(register, deploy("calm"), epoch=7)
        assert not reply.accepted
        assert (await jobmanager.send(register, deploy("calm"))).accepted
