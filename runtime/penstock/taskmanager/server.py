"""The TaskManager process: a gRPC server, a link to the JobManager, and one relay per slot.

It runs no user code and touches no rows: what it does must go on while slots are busy, stuck or dying.
"""

import asyncio
import logging
import os
import signal

from penstock.config import TaskManagerSettings, installed_versions
from penstock.model.clocks import Clock, SystemClock
from penstock.model.ids import SlotId, TaskManagerId
from penstock.model.messages import Heartbeat, Register, ToJobManager
from penstock.rpc import Reply, Server, ToldTaskManager, jobmanager_channel, serve_taskmanager
from penstock.taskmanager.jobmanager_link import JobManagerLink
from penstock.taskmanager.jobmanagers import JobManagers
from penstock.taskmanager.relay import SlotRelay
from penstock.taskmanager.slot_processes import SLOT_ENTRY, SlotLauncher
from penstock.taskmanager.work_folders import remove_abandoned_folders

logger = logging.getLogger(__name__)


class TaskManager:
    """Everything of the process but its signals. `run` ends when `stop` was called."""

    def __init__(
        self,
        settings: TaskManagerSettings,
        *,
        clock: Clock,
        entry: str = SLOT_ENTRY,
    ) -> None:
        self._settings = settings
        self._id = TaskManagerId(settings.id)
        self._server = Server(settings.host, 0)
        serve_taskmanager(self._server, self._tell)
        self._jobmanagers = JobManagers(settings.jobmanager.split(","), jobmanager_channel)
        self._link = JobManagerLink(
            self._id,
            self._jobmanagers,
            settings=settings.link,
            clock=clock,
            reset=self._reset,
            register=self._register,
            heartbeat=self._heartbeat,
        )
        self._launcher = SlotLauncher(entry, settings.host)
        self._relays = tuple(
            SlotRelay(
                SlotId(self._id, index),
                self._launcher,
                self._say,
                clock,
                stuck_after_seconds=settings.stuck_after_seconds,
            )
            for index in range(settings.slots)
        )
        self._stopping = asyncio.Event()

    def stop(self) -> None:
        """Leave: no more work, slots end, `run` returns."""
        self._stopping.set()

    async def run(self) -> None:
        """Serve until stopped. An error of any part ends the process: its supervisor starts a fresh one."""
        await self._server.start()
        await asyncio.to_thread(remove_abandoned_folders)
        logger.info("taskmanager started", extra={"id": self._id, "address": self._server.address, "pid": os.getpid()})
        try:
            async with asyncio.TaskGroup() as tasks:
                work = [tasks.create_task(relay.run()) for relay in self._relays]
                work.append(tasks.create_task(self._link.run()))
                await self._stopping.wait()
                await self._link.epoch()  # a registration that is under way ends first
                for task in work:
                    task.cancel()
            await self._link.leave()
        finally:
            await self._server.stop()
            await self._jobmanagers.close()
            self._launcher.close()
        logger.info("taskmanager left", extra={"id": self._id})

    async def _tell(self, told: ToldTaskManager) -> Reply:
        epoch = await self._link.epoch()
        if told.epoch != epoch:
            return Reply(accepted=False, epoch=epoch)
        self._relays[told.directed.slot.index].deliver(told.directed.message)
        return Reply(accepted=True, epoch=epoch)

    def _say(self, message: ToJobManager) -> None:
        self._link.tell(message)

    async def _reset(self) -> None:
        await asyncio.gather(*(relay.reset() for relay in self._relays))

    def _register(self) -> Register:
        return Register(
            task_manager=self._id,
            address=self._server.address,
            host=self._settings.host,
            pid=os.getpid(),
            slots=tuple(offer for relay in self._relays if (offer := relay.offer) is not None),
            versions=installed_versions(),
        )

    def _heartbeat(self) -> Heartbeat:
        reports = tuple(relay.report for relay in self._relays if relay.report is not None)
        return Heartbeat(task_manager=self._id, reports=reports)


async def serve(
    settings: TaskManagerSettings,
    *,
    clock: Clock | None = None,
) -> None:
    """Run a TaskManager until SIGTERM or SIGINT."""
    manager = TaskManager(settings, clock=clock or SystemClock())
    loop = asyncio.get_running_loop()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, manager.stop)
    await manager.run()
