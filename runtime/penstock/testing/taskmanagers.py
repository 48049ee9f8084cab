"""A TaskManager in virtual time: the engine's own relay and link, over simulated calls and slot processes.

The wiring is that of `taskmanager.server.TaskManager`; what stands in for gRPC, the fork server and sockets is here.
"""

import asyncio
from collections.abc import Callable

from penstock.config import LinkSettings
from penstock.model.ids import SlotId, TaskManagerId
from penstock.model.messages import Heartbeat, Register
from penstock.rpc import Reply, ToldTaskManager
from penstock.taskmanager.jobmanager_link import JobManagerLink
from penstock.taskmanager.jobmanagers import JobManagers
from penstock.taskmanager.relay import SlotRelay
from penstock.testing.calls import Calls, Channel, Server
from penstock.testing.processes import Process, VirtualLoop
from penstock.testing.slots import SlotProcess

JOBMANAGER = "jobmanager"
STUCK_SECONDS = 30.0

MakeSlotProcess = Callable[[SlotId, Process, VirtualLoop], SlotProcess]


class TaskManager:
    """One process with its slots, from its start to its end. A restart is another one with the same name."""

    def __init__(
        self,
        process: Process,
        name: str,
        *,
        slots: int,
        calls: Calls,
        link: LinkSettings,
        versions: dict[str, str],
        make_slot_process: MakeSlotProcess,
        on_error: Callable[[BaseException], None],
    ) -> None:
        self.name, self.process = TaskManagerId(name), process
        self.slot_processes: dict[int, SlotProcess] = {}
        """The latest of each slot."""
        self._versions, self._make_slot_process = versions, make_slot_process
        self._address = f"tm://{name}"
        loop = self._loop = VirtualLoop(process, thread_delay_us=lambda: 100, on_error=on_error)  # type: ignore[abstract]
        self._link = JobManagerLink(
            self.name,
            JobManagers([JOBMANAGER], lambda address: Channel(calls, process, loop, address)),  # type: ignore[arg-type,return-value]
            settings=link,
            clock=process.clock,
            reset=self._reset,
            register=self._register,
            heartbeat=lambda: Heartbeat(
                task_manager=self.name, reports=tuple(each.report for each in self._relays if each.report is not None)
            ),
        )
        self._relays = tuple(
            SlotRelay(
                SlotId(self.name, index),
                self,  # type: ignore[arg-type]
                self._link.tell,
                process.clock,
                stuck_after_seconds=STUCK_SECONDS,
            )
            for index in range(slots)
        )
        calls.serve(self._address, Server(process, loop, self._tell))
        process.at_end(self._on_end)
        self._work = loop.create_task(self._run())
        self._work.add_done_callback(lambda work: on_error(work.exception() or RuntimeError("TaskManager ended")))

    async def launch(self, slot: SlotId) -> SlotProcess:
        """What a relay knows as its launcher."""
        made = self._make_slot_process(slot, self.process, self._loop)
        self.slot_processes[slot.index] = made
        return made

    async def _run(self) -> None:
        async with asyncio.TaskGroup() as tasks:
            for relay in self._relays:
                tasks.create_task(relay.run())
            tasks.create_task(self._link.run())

    async def _tell(self, told: ToldTaskManager) -> Reply:
        epoch = await self._link.epoch()
        if told.epoch != epoch:
            self.process.world.sometimes("message of another JobManager refused")
            return Reply(accepted=False, epoch=epoch)
        self._relays[told.directed.slot.index].deliver(told.directed.message)
        return Reply(accepted=True, epoch=epoch)

    async def _reset(self) -> None:
        await asyncio.gather(*(relay.reset() for relay in self._relays))

    def _register(self) -> Register:
        self.process.world.trace(f"{self.process.name}: registers")
        return Register(
            task_manager=self.name,
            address=self._address,
            host="simulated",
            pid=self.process.pid,
            slots=tuple(offer for relay in self._relays if (offer := relay.offer) is not None),
            versions=self._versions,
        )

    def _on_end(self) -> None:
        """The control sockets close: each slot ends as soon as it looks, which a paused one does late."""
        for child in self.slot_processes.values():
            self.process.world.after(
                50,
                "",
                lambda child=child: child.process.after(  # type: ignore[misc]
                    0, "", lambda: child.process.kill("its TaskManager is gone")
                ),
            )
