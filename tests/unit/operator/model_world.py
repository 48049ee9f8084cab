"""A cluster and an engine in a hundred lines: what the controller's decisions act upon in tests.

Output is modelled by what matters: each job of the engine knows which rows it has committed, and starting one from a
place sets its position there. A job that commits rows twice, or leaves some out, shows in `committed`.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta

from penstock_operator.deciding.decide import decide
from penstock_operator.deciding.facts import (
    Desired,
    Engine,
    EngineJob,
    EngineRescale,
    EngineSavepoint,
    Pod,
    Problem,
    Run,
    Seen,
)
from penstock_operator.deciding.steps import (
    AddFinalizer,
    CancelJob,
    CheckRestore,
    Decision,
    DeletePods,
    DeleteRun,
    DeleteSelf,
    RemoveFinalizer,
    RemoveSavepoint,
    Rescale,
    Step,
    StopJob,
    Submit,
    TakeSavepoint,
    Workload,
)
from penstock_operator.spec.status import Memory

NAME, UID = "orders", "abcde-1"


@dataclass
class ModelJob:
    id: str
    revision: str
    parallelism: int
    position: int
    """Rows read."""
    committed: int
    """Position of the last completed checkpoint."""
    state: str = "deploying"
    checkpoints: int = 0
    age: int = 0
    stop_savepoint: str = ""


@dataclass
class World:
    """Time passes by `tick`; what the controller wants done comes by `carry_out`."""

    desired: Desired
    memory: Memory = field(default_factory=Memory)
    now: datetime = datetime(2026, 1, 1, tzinfo=UTC)
    slots: dict[str, int] = field(default_factory=lambda: {"r1": 1, "r2": 2, "bad": 1, "crash": 1})
    pods: dict[str, Pod] = field(default_factory=dict)
    workload: Workload | None = None
    jobs: dict[str, ModelJob] = field(default_factory=dict)
    savepoints: dict[str, tuple[str, int]] = field(default_factory=dict)
    """Name -> status, position."""
    runs: dict[str, Run] = field(default_factory=dict)
    rescales: list[EngineRescale] = field(default_factory=list)
    can_rescale: bool = True
    store_works: bool = True
    room: int = 100
    output: list[int] = field(default_factory=list)
    """Every row that was committed, in order: a job commits each position once, and in order."""
    deleted: bool = False

    def seen(self) -> Seen:
        leader = self.pods.get("orders-jobmanager-0")
        engine = None
        if leader is not None and leader.ready:
            ready = [pod for pod in self.pods.values() if pod.component == "taskmanager" and pod.ready]
            current = self.memory.job
            engine = Engine(
                jobs=tuple(self._view(job) for job in self.jobs.values()),
                savepoints=tuple(
                    EngineSavepoint(name=name, uri=f"s3://b/{name}", status=status)
                    for name, (status, _) in self.savepoints.items()
                )
                if current
                else (),
                rescales=tuple(self.rescales) if self.can_rescale else None,
                slots=sum(self.slots[pod.revision] for pod in ready),
            )
        return Seen(
            now=self.now,
            pods=tuple(self.pods.values()),
            runs=dict(self.runs),
            engine=engine,
            slots_per_pod=self.slots,
            jobmanagers={},
        )

    def decide(self) -> Decision:
        return decide(self.desired, self.memory, self.seen())

    def step(self, *, die_after: int | None = None) -> Decision:
        """One look of a controller that may die after some of what it does; `die_after` 0: before the memory."""
        decision = self.decide()
        if die_after == 0:
            return decision
        self.memory = Memory.model_validate(decision.memory.model_dump())
        if die_after == 1:
            return decision
        if decision.workload is not None:
            self.workload = decision.workload
        for number, step in enumerate(decision.steps):
            if die_after is not None and number + 2 >= die_after:
                break
            self.carry_out(step)
        return decision

    def carry_out(self, step: Step) -> None:
        match step:
            case AddFinalizer():
                self.desired = _replaced(self.desired, finalizer=True)
            case RemoveFinalizer():
                self.desired = _replaced(self.desired, finalizer=False)
                self.deleted = True
            case DeletePods(names):
                for name in names:
                    self.pods.pop(name, None)
            case Submit():
                self._submit(step)
            case CheckRestore():
                ok = step.revision != "bad"
                self.runs[step.run] = Run(name=step.run, state="succeeded" if ok else "failed", message="S004 no")
            case DeleteRun(run):
                self.runs.pop(run, None)
            case TakeSavepoint():
                self._take(step)
            case StopJob(job_id):
                self.jobs[job_id].state = "stopping"
            case CancelJob(job_id):
                if self.jobs[job_id].state != "failed":
                    self.jobs[job_id].state = "cancelled"
            case Rescale(job_id, parallelism):
                begun = int(self.now.timestamp() * 1e6)
                self.rescales.append(EngineRescale(status="pending", started_us=begun, parallelism_after=parallelism))
            case RemoveSavepoint(run):
                self.runs[run] = Run(name=run, state="succeeded")
            case DeleteSelf():
                pass

    def tick(self) -> None:
        """Two seconds pass."""
        self.now += timedelta(seconds=2)
        self._pods()
        ready = sum(
            self.slots[pod.revision] for pod in self.pods.values() if pod.component == "taskmanager" and pod.ready
        )
        leader = self.pods.get("orders-jobmanager-0")
        if leader is None or not leader.ready:
            return
        live = [job for job in self.jobs.values() if not self._view(job).ended]
        assert len(live) <= 1, f"two jobs live at once: {live}"
        for job in live:
            self._job(job, ready)

    def _job(self, job: ModelJob, slots: int) -> None:
        job.age += 1
        if slots < job.parallelism:
            job.state = "waiting-for-slots" if job.state != "stopping" else job.state
            return
        if job.revision == "crash" and job.age > 2:
            job.state = "failed"
            return
        for index, rescale in enumerate(self.rescales):
            if rescale.status == "pending":
                enough = slots >= rescale.parallelism_after
                self.rescales[index] = EngineRescale(
                    status="completed" if enough else "failed",
                    started_us=rescale.started_us,
                    parallelism_after=rescale.parallelism_after,
                    pause_us=900_000,
                )
                job.parallelism = rescale.parallelism_after if enough else job.parallelism
        job.position += 10
        if job.state == "stopping":
            self._commit(job)
            if job.stop_savepoint:
                self.savepoints[job.stop_savepoint] = ("completed", job.position)
            job.state = "stopped"
            return
        job.state = "running"
        for name, (status, _) in list(self.savepoints.items()):
            if status == "pending":
                self._commit(job)
                self.savepoints[name] = ("completed", job.position)
        if job.age % 3 == 0:
            self._commit(job)

    def _commit(self, job: ModelJob) -> None:
        self.output.extend(range(job.committed, job.position))
        job.committed = job.position
        job.checkpoints += 1

    def _take(self, step: TakeSavepoint) -> None:
        job = self.jobs[step.job_id]
        if step.name in self.savepoints or job.state != "running":
            return
        if not self.store_works:
            self.savepoints[step.name] = ("failed", 0)
            return
        self.savepoints[step.name] = ("pending", 0)
        if step.stop:
            job.state, job.stop_savepoint = "stopping", step.name

    def _submit(self, step: Submit) -> None:
        if step.revision == "bad":
            self.runs[step.run] = Run(name=step.run, state="failed", message="P001 no such file")
            return
        self.runs[step.run] = Run(name=step.run, state="succeeded")
        if step.job_id in self.jobs:
            return
        assert all(self._view(job).ended for job in self.jobs.values()), "submitted beside a live job"
        position = 0
        if step.origin.startswith("s3://"):
            status, position = self.savepoints[step.origin.rpartition("/")[2]]
            assert status == "completed", "started from a savepoint that is not whole"
        elif step.origin:
            assert self.jobs[step.origin].checkpoints, "started from a job without a checkpoint"
            position = self.jobs[step.origin].committed
        self.jobs[step.job_id] = ModelJob(step.job_id, step.revision, step.parallelism, position, position)

    def _pods(self) -> None:
        if self.workload is None:
            return
        counts: Mapping[str, int] = {
            "jobmanager": self.workload.jobmanagers,
            "taskmanager": self.workload.taskmanagers,
        }
        for component, count in counts.items():
            have = [pod for pod in self.pods.values() if pod.component == component]
            for pod in have:
                if int(pod.name.rpartition("-")[2]) >= count:
                    del self.pods[pod.name]
            for ordinal in range(count):
                name = f"orders-{component}-{ordinal}"
                pod = self.pods.get(name)
                if pod is None and len(self.pods) < self.room:
                    self.pods[name] = Pod(name=name, component=component, revision=self.workload.revision)
                elif pod is not None and not pod.ready:
                    broken = pod.revision == "noimage"
                    problem = Problem(reason="ImagePullBackOff", message="no such image") if broken else None
                    self.pods[name] = Pod(
                        name=name,
                        component=component,
                        revision=pod.revision,
                        ready=not broken,
                        problem=problem,
                    )

    @staticmethod
    def _view(job: ModelJob) -> EngineJob:
        running = None if job.state in {"deploying", "waiting-for-slots"} else 1
        return EngineJob(
            id=job.id,
            state=job.state,
            parallelism=job.parallelism,
            checkpoints=job.checkpoints,
            running_us=running and int(datetime(2026, 1, 1, tzinfo=UTC).timestamp() * 1e6) + job.age * 2_000_000,
        )


def _replaced(desired: Desired, **changes: object) -> Desired:
    import dataclasses

    return dataclasses.replace(desired, **changes)


def wanted(**changes: object) -> Desired:
    base = Desired(
        namespace="ns", name=NAME, uid=UID, generation=1, revision="r1", parallelism=1, storage="s3://b/state"
    )
    return _replaced(base, **changes)


def settle(world: World, *, looks: int = 400) -> Decision:
    """Until the controller has nothing left to do, within bounds."""
    for _ in range(looks):
        decision = world.step()
        world.tick()
        if world.deleted:
            return decision
        if world.memory.change is None and not decision.steps and decision.seconds >= 10:
            return decision
    raise AssertionError(f"not settled: {decision.phase}, {decision.waiting}, {world.memory.change}")


def check_output(world: World) -> None:
    """Each row once, none left out."""
    assert world.output == list(range(len(world.output)))
