"""A JobManager in virtual time: the engine's own core, shell and recovery, over simulated calls and storage."""

import asyncio
import random
from collections.abc import Callable, Mapping

import msgspec

from penstock.config import LinkSettings
from penstock.graph import JobGraph, Size
from penstock.jobmanager.core import Core
from penstock.jobmanager.events import Command, Event
from penstock.jobmanager.leading import LeadershipLostError
from penstock.jobmanager.leases import Claim
from penstock.jobmanager.server import JobManager as Service
from penstock.jobmanager.shell import Shell
from penstock.jobmanager.state_dir import GRAPH, StateDir
from penstock.model.errors import RetryableError
from penstock.model.ids import Epoch, JobId
from penstock.model.views import CheckpointView, ClusterView, JobView, PlanView, RescaleView, SavepointView
from penstock.savepoints.manifest import ABANDONED, MANIFEST
from penstock.storage import ObjectStore, Prefixed
from penstock.testing.calls import Calls, Channel, Server
from penstock.testing.processes import Process, VirtualLoop
from penstock.testing.stores import FaultyStore
from penstock.testing.taskmanagers import JOBMANAGER
from penstock.testing.watching import Watcher

SAVEPOINTS = "savepoints"


class SimulatedStateDir(StateDir):
    """The state of all jobs, in folders of a store instead of a disk; it outlives the JobManagers that use it."""

    def __init__(self, store: FaultyStore) -> None:
        super().__init__("simulated")
        self._faulty = store

    def store(self, job: JobId) -> ObjectStore:
        """The folder of the job."""
        return Prefixed(self._faulty, job)

    @property
    def savepoints(self) -> str:
        """A folder beside those of jobs."""
        return Prefixed(self._faulty, SAVEPOINTS).uri

    def open(self, uri: str) -> ObjectStore:
        """What a slot does with the address that it is given: of a job, or of a savepoint."""
        return Prefixed(self._faulty, uri.removeprefix(f"{self._faulty.uri}/"))

    def open_savepoint(self, uri: str) -> ObjectStore:
        """There is no folder to look for."""
        return self.open(uri)

    def look(self, folder: str) -> ObjectStore:
        """A job or a savepoint, without faults: for whoever judges."""
        return Prefixed(self._faulty.inner, folder)

    def finished_savepoints(self) -> list[str]:
        """Folders with a manifest."""
        found = (info.path for info in self._faulty.inner.list(f"{SAVEPOINTS}/"))
        folders = [path.removesuffix(f"/{MANIFEST}") for path in found if path.endswith(f"/{MANIFEST}")]
        return [folder for folder in folders if self.look(folder).get(MANIFEST) != ABANDONED]

    def job_ids(self) -> list[JobId]:
        """Whatever has a graph."""
        found = (info.path for info in self._faulty.inner.list(""))
        return [JobId(path.removesuffix(f"/{GRAPH}")) for path in found if path.endswith(f"/{GRAPH}")]


class WatchedCore:
    """A core whose every step is looked at."""

    def __init__(self, core: Core, watcher: Watcher, leads: Callable[[], bool]) -> None:
        self._core, self._watcher, self._leads = core, watcher, leads

    def handle(self, event: Event, *, now_us: int, monotonic: float) -> list[Command]:
        """As the core does; then its invariants are checked."""
        self._watcher.on_event(event, leads=self._leads())
        commands = self._core.handle(event, now_us=now_us, monotonic=monotonic)
        self._core.check_invariants()
        self._watcher.on_commands(commands)
        return commands

    def view_job(self, job: JobId) -> JobView:
        """As the core sees it."""
        return self._core.view_job(job)

    def view_cluster(self) -> ClusterView:
        """As the core sees it."""
        return self._core.view_cluster()

    def plan(self, job: JobId) -> PlanView:
        """Of the core."""
        return self._core.plan(job)

    def checkpoints(self, job: JobId) -> tuple[CheckpointView, ...]:
        """As the core sees them."""
        return tuple(self._core.checkpoints(job))

    def savepoints(self, job: JobId) -> tuple[SavepointView, ...]:
        """As the core sees them."""
        return self._core.savepoints(job)

    def rescales(self, job: JobId) -> tuple[RescaleView, ...]:
        """As the core sees them."""
        return self._core.rescales(job)

    def plan_rescale(self, job: JobId, parallelism: int | None, operators: Mapping[str, int]) -> Size:
        """As the core does."""
        return self._core.plan_rescale(job, parallelism, operators)


class JobManager:
    """One process, from its start to its end."""

    def __init__(
        self,
        process: Process,
        *,
        state_dir: SimulatedStateDir,
        thread_delay_us: Callable[[], int],
        calls: Calls,
        link: LinkSettings,
        epoch: Epoch,
        rng: random.Random,
        watcher: Watcher,
        leads: Callable[[], bool],
        on_error: Callable[[BaseException], None],
    ) -> None:
        self.process, self._on_error = process, on_error
        self.answers = False
        """It has read all journals; clients are told to come back until then."""
        self._loop = VirtualLoop(process, thread_delay_us=thread_delay_us, on_error=on_error)  # type: ignore[abstract]
        self._core = WatchedCore(Core(writer=process.name, epoch=epoch), watcher, leads)
        self._shell = Shell(
            self._core,
            epoch=epoch,
            clock=process.clock,
            link=link,
            connect=lambda address: Channel(calls, process, self._loop, address),  # type: ignore[arg-type,return-value]
            open_store=state_dir.open,
        )
        claim = Claim(
            epoch=epoch, holder=process.name, host="simulated", pid=process.pid, grpc=JOBMANAGER, rest="simulated"
        )
        self._service = Service(
            state_dir, self._shell, self._core, claim=claim, host="simulated", clock=process.clock, rng=rng
        )
        self._calls = calls
        work = self._loop.create_task(self._shell.run())
        work.add_done_callback(lambda done: on_error(done.exception() or RuntimeError("the shell ended")))
        self._loop.create_task(self._start())

    def view(self, job: JobId) -> JobView | None:
        """The job as this JobManager sees it; None: it does not know it yet."""
        return self._service.job(job) if job in self._service.job_ids() else None

    def submit(self, graph: JobGraph, *, origin: str | None = None) -> None:
        """What a client does; the journal shows whether it went well."""
        work = self._loop.create_task(self._service.submit(msgspec.json.encode(graph), name=None, origin=origin))
        work.add_done_callback(self._on_submitted)

    def _on_submitted(self, work: "asyncio.Task[JobId]") -> None:
        if not work.cancelled() and (error := work.exception()) is not None:
            self._on_error(error)

    def end(self, job: JobId, how: str) -> None:
        """Somebody wants the job to stop or to be cancelled."""
        self._loop.call_soon(self._service.stop if how == "stop" else self._service.cancel, job)

    def savepoint(self, job: JobId, name: str) -> SavepointView | None:
        """What this JobManager knows of it."""
        return next((each for each in self._service.savepoints(job) if each.uri.endswith(f"/{name}")), None)

    def takes_savepoint(self, job: JobId) -> bool:
        """Whether one is under way, so that REST would ask for patience."""
        return any(each.status == "pending" for each in self._service.savepoints(job))

    def take_savepoint(self, job: JobId, name: str, *, stop: bool) -> None:
        """Somebody wants one, and perhaps the job to stop with it."""
        self._loop.create_task(self._service.take_savepoint(job, folder=None, stop=stop, name=name))

    def rescale(self, job: JobId, parallelism: int) -> None:
        """Somebody wants another parallelism, as over REST; a job that cannot have it now stays as it is."""

        def ask() -> None:
            view = self._service.job(job)
            if view.state == "running" and view.rescale is None:
                self._service.rescale(job, parallelism, {})

        self._loop.call_soon(ask)

    async def _start(self) -> None:
        await self._shell.running.wait()
        try:
            await self._service.recover()
        except LeadershipLostError:
            self.process.world.sometimes("JobManager that came too late saw a later epoch")
            self.process.kill("another one leads")
            return
        except RetryableError as error:
            self.process.kill(f"it cannot lead: {error.code}")
            return
        self.answers = True
        self._calls.serve(JOBMANAGER, Server(self.process, self._loop, self._shell.tell))
