"""A whole cluster in one world: JobManagers, TaskManagers, slots, network and store, and what can befall them.

Owns: which processes there are. Processes that end are started again after a while, as a supervisor would do it.
The leader is the JobManager that was started last; an earlier one may still live, paused, and not know.
"""

import random
from dataclasses import dataclass

from penstock.config import LinkSettings, installed_versions
from penstock.model.ids import Epoch, JobId, SlotId
from penstock.model.views import JobView
from penstock.storage import MemoryStore
from penstock.taskmanager.chain import MakeOperator
from penstock.testing.calls import Calls
from penstock.testing.jobmanagers import JobManager, SimulatedStateDir
from penstock.testing.network import Conditions, Network
from penstock.testing.processes import Process, VirtualLoop
from penstock.testing.slots import SlotProcess
from penstock.testing.stores import FaultyStore
from penstock.testing.taskmanagers import TaskManager
from penstock.testing.watching import Watcher
from penstock.testing.world import VirtualClock, World

LINK = LinkSettings(call_seconds=1.0, heartbeat_seconds=0.5, lost_after_seconds=3.0)
"""As in a real cluster, with less patience: an episode lasts seconds."""

TAKEN_OVER = "C025"


@dataclass(frozen=True, slots=True)
class ClusterShape:
    """How large and how fast."""

    task_managers: int
    slots_each: int
    turn_us: tuple[int, ...]
    """Longest turn of the slots of each TaskManager: some are slow."""
    start_us: int = 150_000
    """What it takes to start a slot process."""


class Cluster:
    """Runs one job after the other."""

    def __init__(
        self,
        world: World,
        watcher: Watcher,
        shape: ClusterShape,
        conditions: Conditions,
        *,
        make_operator: MakeOperator,
    ) -> None:
        self.world, self.watcher, self.shape = world, watcher, shape
        self.random: random.Random = world.stream("cluster")
        self.network = Network(world, conditions)
        self.network.on_send = watcher.on_send
        self.calls = Calls(world)
        self.store = FaultyStore(world, MemoryStore(clock=VirtualClock(world)), observe=watcher.on_written)
        self.task_managers: dict[str, TaskManager] = {}
        self.job_managers: list[JobManager] = []
        self.state_dir = SimulatedStateDir(self.store)
        self._make_operator = make_operator
        self._versions = installed_versions()
        self._pid = 100
        self.start_job_manager()
        for number in range(shape.task_managers):
            self._start_task_manager(f"tm-{number}")

    # ------------------------------------------------------------ what there is

    @property
    def leader(self) -> JobManager:
        """The JobManager that was started last."""
        return self.job_managers[-1]

    @property
    def job(self) -> JobId | None:
        """The job that was submitted last, once it is in its journal."""
        return next(reversed(self.watcher.journals), None)

    def view(self) -> JobView | None:
        """The job as the leader sees it."""
        return self.leader.view(self.job) if self.job is not None and self.leader.process.alive else None

    def slot_processes(self) -> list[SlotProcess]:
        """All that live."""
        return [
            slot
            for manager in self.task_managers.values()
            for slot in manager.slot_processes.values()
            if slot.process.alive
        ]

    # ------------------------------------------------------------ starting

    def start_job_manager(self) -> None:
        """A new leader; whoever led before is not asked."""
        process = self._process("jm", skew_us=self.random.randrange(-2_000_000, 2_000_000))
        manager = JobManager(
            process,
            state_dir=self.state_dir,
            thread_delay_us=self.store.delay_us,
            calls=self.calls,
            link=LINK,
            epoch=Epoch(len(self.job_managers) + 1),
            rng=self.world.stream(process.name),
            watcher=self.watcher,
            leads=lambda: self.leader.process is process,
            on_error=self._on_error,
        )
        self.job_managers.append(manager)
        process.at_end(lambda: self._restart_job_manager(manager))

    def _restart_job_manager(self, manager: JobManager) -> None:
        delay = self.random.randrange(200_000, 2_000_000)
        self.world.after(delay, "", lambda: self.start_job_manager() if manager is self.leader else None)

    def replace_if_fenced(self) -> None:
        """A leader that found somebody else's entry in the journal starts again, as the holder of a lease would."""
        view = self.view()
        if view is not None and view.state == "failed" and view.reason.startswith(TAKEN_OVER):
            self.leader.process.kill("fenced by the journal")

    def _start_task_manager(self, name: str) -> None:
        process = self._process(name, skew_us=self.random.randrange(-2_000_000, 2_000_000))
        self.task_managers[name] = TaskManager(
            process,
            name,
            slots=self.shape.slots_each,
            calls=self.calls,
            link=LINK,
            versions=self._versions,
            make_slot_process=self._make_slot_process,
            on_error=self._on_error,
        )
        delay = self.random.randrange(100_000, 4_000_000)
        process.at_end(lambda: self.world.after(delay, "", lambda: self._start_task_manager(name)))

    def _make_slot_process(self, slot: SlotId, parent: Process, loop: VirtualLoop) -> SlotProcess:
        number = int(slot.task_manager.rpartition("-")[2])
        return SlotProcess(
            slot,
            self._process(str(slot), skew_us=0),
            parent,
            loop,
            network=self.network,
            open_store=self.state_dir.open,
            store_delay_us=self.store.delay_us,
            make_operator=self._make_operator,
            watcher=self.watcher,
            start_us=self.random.randrange(self.shape.start_us // 2, self.shape.start_us),
            turn_us=self.shape.turn_us[number % len(self.shape.turn_us)],
        )

    def _process(self, name: str, *, skew_us: int) -> Process:
        self._pid += 1
        return Process(self.world, f"{name}:{self._pid}", pid=self._pid, skew_us=skew_us)

    def _on_error(self, error: BaseException) -> None:
        self.watcher.violation("crash", f"{type(error).__name__}: {error}")
        self.watcher.error = self.watcher.error or error
