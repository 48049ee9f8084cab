"""The JobManager's decisions, one by one and under random faults, against a small model of a cluster."""

import hashlib
import random
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field

import msgspec
from hypothesis import settings as hypothesis_settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from penstock.checkpoint import journal
from penstock.graph import Edge, JobGraph, Vertex
from penstock.jobmanager.core import Core
from penstock.jobmanager.events import (
    AppendJournal,
    CancelRequested,
    CheckpointRequested,
    Command,
    DeleteObjects,
    Event,
    Forget,
    JobRecovered,
    JobSubmitted,
    JournalConflict,
    JournalFailed,
    JournalWritten,
    MessageReceived,
    Note,
    SavepointFailed,
    SavepointRequested,
    SavepointWritten,
    Send,
    StopRequested,
    TaskManagerLost,
    Tick,
    WakeAt,
    WriteSavepoint,
)
from penstock.jobmanager.timing import Timing
from penstock.model import messages
from penstock.model.counters import OperatorMetrics
from penstock.model.elements import BarrierKind
from penstock.model.handles import Manifest, Redistribution, SectionHandle, StateHandle
from penstock.model.ids import Attempt, CheckpointId, JobId, SlotId, SubtaskId, TaskManagerId, Uid, VertexId
from penstock.model.settings import CheckpointSettings, JobSettings, RestartSettings
from penstock.model.specs import Connector, Forward, Hash, Operator, Sink, Source
from penstock.model.tasks import ChainLink, Deployment
from penstock.model.views import JobView

JOB = JobId("job-1")
TM1, TM2, TM3 = TaskManagerId("tm-1"), TaskManagerId("tm-2"), TaskManagerId("tm-3")
VERSIONS = {"python": "3.11.4", "penstock": "0.1.0", "polars": "2.1.0"}


def job_graph(
    *,
    parallelism: int = 2,
    regions: int = 1,
    checkpoint: CheckpointSettings | None = None,
    restart: RestartSettings | None = None,
) -> JobGraph:
    """Source and sink: joined by a hash exchange (one region), or by forward edges (a region per index)."""
    source = Operator(uid=Uid("source"), name="source", spec=Source(connector=Connector(kind="generate")))
    sink = Operator(uid=Uid("sink"), name="sink", spec=Sink(connector=Connector(kind="discard")))
    assert regions in (1, parallelism)
    return JobGraph(
        name="hot items",
        vertices=tuple(
            Vertex(
                id=VertexId(operator.uid),
                chain=(ChainLink(operator=operator, parent=None),),
                parallelism=parallelism,
            )
            for operator in (source, sink)
        ),
        edges=(
            Edge(
                source=VertexId("source"),
                producer=0,
                target=VertexId("sink"),
                partitioning=Hash(keys=("key",)) if regions == 1 else Forward(),
            ),
        ),
        max_parallelism=16,
        bounded=True,
        settings=JobSettings(
            checkpoint=checkpoint or CheckpointSettings(interval_us=1_000_000, timeout_us=30_000_000, retained=2),
            restart=restart or RestartSettings(),
        ),
        versions=VERSIONS,
    )


@dataclass
class SlotModel:
    """A slot of a TaskManager that follows the protocol."""

    pid: int
    deployment: Deployment | None = None
    ended: bool = False


@dataclass
class TaskManagerModel:
    pid: int
    slots: list[SlotModel]
    inbox: deque[messages.Directed] = field(default_factory=deque)
    outbox: deque[messages.ToJobManager] = field(default_factory=deque)


class Cluster:
    """Carries commands out in memory, and checks each of them against what the journal allows."""

    def __init__(self, *, timing: Timing | None = None) -> None:
        self.core = Core(writer="jm-1", rng=random.Random(1), timing=timing or Timing())
        self.now = 0.0
        self.entries: list[journal.JournalEntry] = []
        self.append: journal.JournalEntry | None = None
        self.task_managers: dict[TaskManagerId, TaskManagerModel] = {}
        self.sent: list[messages.Directed] = []
        self.deleted: list[str] = []
        self.saving: list[WriteSavepoint] = []
        self.notes: list[Note] = []
        self.wake_at: float | None = None
        self.triggered: list[CheckpointId] = []
        self.barriers: dict[tuple[Attempt, CheckpointId], set[SlotId]] = {}
        self.used_pids: set[int] = set()
        self.next_pid = 100
        self.input_ends = False

    # ------------------------------------------------------------ events in

    def feed(self, event: Event) -> None:
        commands = self.core.handle(event, now_us=int(self.now * 1e6), monotonic=self.now)
        self.core.check_invariants()
        for command in commands:
            self._carry_out(command)

    def submit(self, graph: JobGraph, initial: Manifest | None = None) -> None:
        self.feed(JobSubmitted(job=JOB, graph=graph, graph_sha256="00", store="memory://", initial=initial))

    def wait(self, seconds: float, *, beat: bool = True) -> None:
        """Let time pass, with the wake-ups that were asked for and the heartbeats that come anyway."""
        end = self.now + seconds
        while self.now < end:
            steps = [end, self.now + 1.0]
            if self.wake_at is not None:
                steps.append(max(self.wake_at, self.now + 1e-6))
            self.now = min(steps)
            if self.wake_at is not None and self.wake_at <= self.now:
                self.wake_at = None
            if beat:
                for name in list(self.task_managers):
                    self.tell(name, self.heartbeat(name))
            self.feed(Tick())

    def tell(self, task_manager: TaskManagerId, message: messages.ToJobManager) -> None:
        self.feed(MessageReceived(task_manager=task_manager, message=message))

    # ------------------------------------------------------------ the journal

    def write(self) -> None:
        """The outstanding entry is written."""
        entry, self.append = self.append, None
        assert entry is not None
        assert entry.sequence == (self.entries[-1].sequence + 1 if self.entries else 0)
        self.entries.append(entry)
        self.feed(JournalWritten(job=JOB, entry=entry, sha256=_hash(entry)))

    def refuse(self) -> None:
        entry, self.append = self.append, None
        assert entry is not None
        self.feed(JournalFailed(job=JOB, entry=entry, reason="disk full"))

    def written(self, kind: type[journal.Entry]) -> list[journal.JournalEntry]:
        return [entry for entry in self.entries if isinstance(entry, kind)]

    # ------------------------------------------------------------ TaskManagers

    def start(self, name: TaskManagerId, slots: int = 2) -> None:
        """A TaskManager comes up, or comes back, with fresh slots."""
        self.task_managers[name] = TaskManagerModel(self._pid(), [SlotModel(self._pid()) for _ in range(slots)])
        self.tell(name, self.register(name))

    def register(self, name: TaskManagerId) -> messages.Register:
        infos = tuple(self.info(SlotId(name, index)) for index in range(len(self.task_managers[name].slots)))
        return messages.Register(
            task_manager=name,
            address=f"{name}:1",
            host="h",
            pid=self.task_managers[name].pid,
            slots=infos,
            versions=VERSIONS,
        )

    def kill(self, name: TaskManagerId, *, noticed: bool = True) -> None:
        del self.task_managers[name]
        if noticed:
            self.feed(TaskManagerLost(task_manager=name, reason="connection reset"))

    def heartbeat(self, name: TaskManagerId) -> messages.Heartbeat:
        slots = [slot for slot in self.deployed() if slot.task_manager == name]
        return messages.Heartbeat(task_manager=name, reports=tuple(self._report(slot) for slot in slots))

    def slot(self, slot: SlotId) -> SlotModel:
        return self.task_managers[slot.task_manager].slots[slot.index]

    def info(self, slot: SlotId) -> messages.SlotInfo:
        pid = self.slot(slot).pid
        return messages.SlotInfo(slot=slot, address=f"{slot}:{pid}", pid=pid)

    def fail(self, slot: SlotId, code: str = "P100", reason: str = "here", **fields: bool) -> None:
        deployment = self.slot(slot).deployment
        assert deployment is not None
        subtask = deployment.tasks[0].subtask
        message = messages.Failed(
            job=JOB,
            attempt=deployment.attempt,
            slot=slot,
            subtask=subtask,
            code=code,
            reason=f"{code} {reason}",
            **fields,
        )
        self.task_managers[slot.task_manager].outbox.append(message)

    def receive(self, name: TaskManagerId) -> None:
        """The TaskManager takes its next message."""
        directed = self.task_managers[name].inbox.popleft()
        slot_id, message = directed.slot, directed.message
        slot = self.slot(slot_id)
        out = self.task_managers[name].outbox
        match message:
            case messages.Deploy(deployment=deployment):
                assert slot.pid not in self.used_pids, "a process takes one deployment in its life"
                self.used_pids.add(slot.pid)
                slot.deployment = deployment
                out.append(messages.Running(job=JOB, attempt=deployment.attempt, slot=slot_id))
                self._end_input(slot_id)
            case messages.Cancel(attempt=attempt):
                if slot.deployment is not None and slot.deployment.attempt <= attempt:
                    self.task_managers[name].slots[slot_id.index] = SlotModel(self._pid())
                    out.append(messages.SlotReady(info=self.info(slot_id)))
            case messages.Probe():
                pass
            case _ if slot.deployment is None or slot.deployment.attempt != message.attempt:
                pass
            case messages.Trigger(attempt=attempt, checkpoint=checkpoint):
                self._pass_barrier(slot_id, attempt, checkpoint)
            case messages.Commit(attempt=attempt, checkpoint=checkpoint):
                out.append(messages.Committed(job=JOB, attempt=attempt, checkpoint=checkpoint, slot=slot_id))

    def deliver(self, name: TaskManagerId) -> None:
        """The JobManager takes the TaskManager's next message."""
        self.tell(name, self.task_managers[name].outbox.popleft())

    def run(self, *, write: bool = True, until: Callable[[], bool] = lambda: False) -> None:
        """Deliver everything that is on its way, in order, without letting time pass."""
        for _ in range(10_000):
            if until():
                return
            if self.append is not None and write:
                self.write()
            elif ready := [name for name, tm in self.task_managers.items() if tm.inbox]:
                self.receive(ready[0])
            elif ready := [name for name, tm in self.task_managers.items() if tm.outbox]:
                self.deliver(ready[0])
            else:
                return
        raise AssertionError("messages go round in circles")

    def end_input(self) -> None:
        """Every source has come to its end, now and after every restart."""
        self.input_ends = True
        for slot_id in self.deployed():
            self._end_input(slot_id)

    def deployed(self) -> list[SlotId]:
        return [
            SlotId(name, index)
            for name, task_manager in self.task_managers.items()
            for index, slot in enumerate(task_manager.slots)
            if slot.deployment is not None
        ]

    # ------------------------------------------------------------ questions

    @property
    def view(self) -> JobView:
        return self.core.view_job(JOB)

    def sent_of(self, kind: type[messages.Message]) -> list[messages.Directed]:
        return [directed for directed in self.sent if isinstance(directed.message, kind)]

    def take_sent(self, kind: type[messages.Message]) -> list[messages.Directed]:
        found = self.sent_of(kind)
        self.sent.clear()
        return found

    # ------------------------------------------------------------ inside

    def _carry_out(self, command: Command) -> None:
        match command:
            case Send(task_manager=name, directed=directed):
                self._check(directed.message)
                self.sent.append(directed)
                if name in self.task_managers:
                    self.task_managers[name].inbox.append(directed)
            case AppendJournal(entry=entry):
                assert self.append is None, "one append at a time"
                self.append = entry
                assert entry.parent == (_hash(self.entries[-1]) if self.entries else "")
                self._check_entry(entry)
            case WriteSavepoint():
                self.saving.append(command)
            case DeleteObjects(paths=paths):
                # The last checkpoint is needed, and so is one that may be in the journal by now.
                entries = [*self.written(journal.CheckpointCompleted)[-1:], self.append]
                needed = [e.manifest for e in entries if isinstance(e, journal.CheckpointCompleted)]
                assert not {handle.path for manifest in needed for handle in manifest.handles} & set(paths)
                self.deleted += paths
            case WakeAt(at=at):
                assert at > self.now
                self.wake_at = at if self.wake_at is None else min(at, self.wake_at)
            case Forget(task_manager=name):
                self.task_managers.pop(name, None)
            case Note():
                self.notes.append(command)

    def _check(self, message: messages.ToTaskManager) -> None:
        match message:
            case messages.Deploy(deployment=deployment):
                attempts = [entry.attempt for entry in self.written(journal.AttemptStarted)]  # type: ignore[union-attr]
                assert deployment.attempt in attempts, "deployed before its attempt was written"
            case messages.Commit(checkpoint=checkpoint):
                done = [e.manifest.checkpoint for e in self.written(journal.CheckpointCompleted)]  # type: ignore[union-attr]
                assert checkpoint in done, "committed before its checkpoint was written"
            case messages.Trigger(checkpoint=checkpoint):
                assert not self.triggered or checkpoint >= self.triggered[-1]
                self.triggered.append(checkpoint)

    def _check_entry(self, entry: journal.JournalEntry) -> None:
        match entry:
            case journal.AttemptStarted(attempt=attempt):
                assert all(attempt > e.attempt for e in self.written(journal.AttemptStarted))  # type: ignore[union-attr]
            case journal.CheckpointCompleted(manifest=manifest):
                for before in self.written(journal.CheckpointCompleted):
                    assert manifest.checkpoint > before.manifest.checkpoint  # type: ignore[union-attr]
        assert not self.written(journal.Ended), "nothing follows the end"

    def _report(self, slot_id: SlotId) -> messages.SlotReport:
        slot = self.slot(slot_id)
        assert slot.deployment is not None
        tasks = tuple(
            messages.TaskMetrics(
                subtask=task.subtask, operators=(), watermark=0, busy=0.0, backpressured=0.0, ended=slot.ended
            )
            for task in slot.deployment.tasks
        )
        return messages.SlotReport(job=JOB, attempt=slot.deployment.attempt, slot=slot_id, tasks=tasks)

    def _end_input(self, slot_id: SlotId) -> None:
        deployment = self.slot(slot_id).deployment
        if self.input_ends and deployment is not None and not self.slot(slot_id).ended:
            self.slot(slot_id).ended = True
            self.task_managers[slot_id.task_manager].outbox += [
                messages.InputEnded(job=JOB, attempt=deployment.attempt, subtask=task.subtask)
                for task in deployment.tasks
            ]

    def _pass_barrier(self, slot_id: SlotId, attempt: Attempt, checkpoint: CheckpointId) -> None:
        """Once every source of the attempt has emitted the barrier, all its subtasks have snapshotted."""
        seen = self.barriers.setdefault((attempt, checkpoint), set())
        seen.add(slot_id)
        mine = [s for s in self.deployed() if (d := self.slot(s).deployment) and d.attempt == attempt]
        if {s for s in mine if any(not t.inputs for t in self.slot(s).deployment.tasks)} != seen:  # type: ignore[union-attr]
            return
        for other in mine:
            for task in self.slot(other).deployment.tasks:  # type: ignore[union-attr]
                self.task_managers[other.task_manager].outbox.append(
                    messages.Acknowledged(
                        job=JOB,
                        attempt=attempt,
                        checkpoint=checkpoint,
                        subtask=task.subtask,
                        handle=_handle(attempt, checkpoint, task.subtask),
                    )
                )

    def _pid(self) -> int:
        self.next_pid += 1
        return self.next_pid


def _hash(entry: journal.JournalEntry) -> str:
    return hashlib.sha256(journal.encode(entry)).hexdigest()


def _handle(attempt: int, checkpoint: int, subtask: SubtaskId) -> StateHandle:
    section = SectionHandle(
        uid=Uid(subtask.vertex), state="at", redistribution=Redistribution.UNION, offset=0, length=9, rows=1
    )
    path = f"checkpoints/{checkpoint}/{attempt}-{subtask.vertex}-{subtask.index}.state"
    return StateHandle(subtask=subtask, path=path, size=9, sha256="0", sections=(section,))


def manifest(number: int) -> Manifest:
    return Manifest(
        checkpoint=CheckpointId(number),
        kind="checkpoint",
        parallelism={"source": 1, "sink": 1},
        max_parallelism=16,
        triggered_us=0,
        completed_us=1,
        handles=(_handle(1, number, SubtaskId(VertexId("source"), 0)),),
    )


def running(graph: JobGraph | None = None, *, task_managers: int = 2, slots: int = 1) -> Cluster:
    cluster = Cluster()
    for name in (TM1, TM2, TM3)[:task_managers]:
        cluster.start(name, slots)
    cluster.submit(graph or job_graph())
    cluster.run()
    assert cluster.view.state == "running"
    cluster.sent.clear()
    return cluster


# ---------------------------------------------------------------- from submission to the end


def test_a_job_is_journaled_then_its_attempt_then_it_is_deployed() -> None:
    cluster = Cluster()
    cluster.start(TM1)
    cluster.submit(job_graph())
    assert isinstance(cluster.append, journal.Submitted)
    assert cluster.view.state == "created"
    cluster.write()
    assert isinstance(cluster.append, journal.AttemptStarted)
    assert cluster.append.attempt == 1
    assert cluster.sent == []
    cluster.write()
    assert len(cluster.sent_of(messages.Deploy)) == 2
    assert cluster.view.state == "deploying"
    cluster.run()
    assert cluster.view.state == "running"


def test_a_job_without_slots_says_what_it_needs() -> None:
    cluster = Cluster()
    cluster.submit(job_graph())
    cluster.run()
    assert cluster.view.state == "waiting-for-slots"
    assert cluster.view.reason == "needs 2 slots, 0 free; start a TaskManager: penstock taskmanager"
    cluster.start(TM1)
    cluster.run()
    assert cluster.view.state == "running"


def test_a_bounded_job_finishes_with_a_final_checkpoint_that_all_slots_committed() -> None:
    cluster = running()
    cluster.end_input()
    cluster.run()
    assert cluster.view.state == "finished"
    kinds = [type(entry).__name__ for entry in cluster.entries]
    assert kinds == ["Submitted", "AttemptStarted", "CheckpointCompleted", "Ended"]
    assert cluster.written(journal.CheckpointCompleted)[0].manifest.kind == "final"  # type: ignore[union-attr]
    assert cluster.core.view_cluster().slots_free == 2


def test_without_an_interval_only_the_final_checkpoint_is_taken() -> None:
    cluster = running(job_graph(checkpoint=CheckpointSettings(interval_us=0)))
    cluster.wait(100)
    assert cluster.triggered == []
    cluster.end_input()
    cluster.run()
    assert cluster.view.state == "finished"


def test_the_end_is_not_written_before_the_last_slot_has_committed() -> None:
    cluster = running()
    cluster.end_input()
    cluster.run(until=lambda: bool(cluster.sent_of(messages.Commit)))
    cluster.receive(TM1)
    cluster.deliver(TM1)
    assert cluster.append is None
    assert cluster.view.state == "running"
    cluster.run()
    assert cluster.view.state == "finished"


def test_the_commit_of_the_final_checkpoint_is_repeated_until_it_is_answered() -> None:
    cluster = running()
    cluster.end_input()
    cluster.run(until=lambda: bool(cluster.sent_of(messages.Commit)))
    cluster.task_managers[TM1].inbox.clear()
    cluster.run()
    assert cluster.view.state == "running"
    cluster.wait(5.0)
    cluster.run()
    assert cluster.view.state == "finished"


def test_a_stopped_job_ends_with_a_stop_checkpoint() -> None:
    cluster = running()
    cluster.feed(StopRequested(job=JOB))
    assert cluster.view.state == "stopping"
    assert {directed.message.kind for directed in cluster.sent_of(messages.Trigger)} == {BarrierKind.STOP}  # type: ignore[union-attr]
    cluster.run()
    assert cluster.view.state == "stopped"
    assert cluster.written(journal.CheckpointCompleted)[0].manifest.kind == "stop"  # type: ignore[union-attr]


def test_a_savepoint_is_written_before_its_checkpoint_is_journaled() -> None:
    cluster = running()
    cluster.feed(SavepointRequested(job=JOB, uri="memory://one"))
    triggers = [directed.message for directed in cluster.sent_of(messages.Trigger)]
    assert {(each.kind, each.savepoint) for each in triggers} == {(BarrierKind.SAVEPOINT, "memory://one")}  # type: ignore[union-attr]
    cluster.run()
    (save,) = cluster.saving
    assert cluster.written(journal.CheckpointCompleted) == []
    (view,) = cluster.core.savepoints(JOB)
    assert (view.status, view.acknowledged, view.subtasks) == ("pending", 4, 4)
    cluster.feed(SavepointWritten(job=JOB, checkpoint=save.taken.checkpoint, size=7))
    cluster.run()
    (entry,) = cluster.written(journal.CheckpointCompleted)
    assert (entry.manifest.kind, entry.manifest.savepoint) == ("savepoint", "memory://one")  # type: ignore[union-attr]
    assert cluster.core.savepoints(JOB)[0].status == "completed"
    assert cluster.view.state == "running"


def test_a_job_that_was_to_stop_with_a_savepoint_that_fails_goes_on() -> None:
    cluster = running()
    cluster.feed(StopRequested(job=JOB, savepoint="memory://one"))
    assert cluster.view.state == "stopping"
    cluster.run()
    (save,) = cluster.saving
    cluster.feed(SavepointFailed(job=JOB, checkpoint=save.taken.checkpoint, reason="no space"))
    assert len(cluster.sent_of(messages.Abort)) == 2
    cluster.run()
    assert cluster.view.state == "running"
    assert cluster.view.restarts == 0
    (view,) = cluster.core.savepoints(JOB)
    assert (view.status, view.reason) == ("failed", "no space")
    cluster.feed(StopRequested(job=JOB))
    cluster.run()
    assert cluster.view.state == "stopped"


def test_a_savepoint_that_a_failure_interrupts_is_taken_afterwards() -> None:
    cluster = running()
    cluster.feed(StopRequested(job=JOB, savepoint="memory://one"))
    cluster.fail(next(iter(cluster.deployed())))
    cluster.run(until=lambda: bool(cluster.saving))
    for _ in range(20):
        if cluster.saving:
            break
        cluster.wait(1.0)
        cluster.run(until=lambda: bool(cluster.saving))
    cluster.feed(SavepointWritten(job=JOB, checkpoint=cluster.saving[-1].taken.checkpoint, size=7))
    cluster.run()
    assert cluster.view.state == "stopped"
    assert cluster.core.savepoints(JOB)[0].status == "completed"


def test_a_stop_does_not_wait_for_an_ordinary_checkpoint() -> None:
    cluster = running()
    cluster.wait(1.0)
    assert cluster.triggered
    cluster.feed(StopRequested(job=JOB))
    assert len(cluster.sent_of(messages.Abort)) == 2
    cluster.run()
    assert cluster.view.state == "stopped"


def test_a_job_that_does_not_run_stops_at_its_last_checkpoint() -> None:
    cluster = running()
    cluster.wait(1.0)
    cluster.run()
    cluster.kill(TM1)
    cluster.feed(StopRequested(job=JOB))
    cluster.run()
    assert cluster.view.state == "stopped"
    assert cluster.view.reason == "was restarting when it was stopped: started again, it goes on from checkpoint 1"
    assert cluster.core.view_cluster().slots_free == 1


def test_a_cancelled_job_frees_its_slots() -> None:
    cluster = running()
    cluster.feed(CancelRequested(job=JOB))
    assert len(cluster.sent_of(messages.Cancel)) == 2
    cluster.run()
    assert cluster.view.state == "cancelled"
    assert cluster.core.view_cluster().slots_free == 2


def test_a_job_can_be_cancelled_before_its_submission_is_written() -> None:
    cluster = Cluster()
    cluster.submit(job_graph())
    cluster.feed(CancelRequested(job=JOB))
    cluster.run()
    assert [type(entry) for entry in cluster.entries] == [journal.Submitted, journal.Ended]
    assert cluster.view.state == "cancelled"


def test_a_job_built_for_other_software_is_refused() -> None:
    cluster = Cluster()
    cluster.start(TM1)
    cluster.submit(msgspec.structs.replace(job_graph(), versions={**VERSIONS, "python": "3.12.1"}))
    cluster.run()
    assert cluster.view.state == "failed"
    assert "P006 the job was built with python 3.12, TaskManager tm-1 has 3.11" in cluster.view.reason


def test_a_python_patch_version_does_not_matter() -> None:
    cluster = Cluster()
    cluster.start(TM1)
    cluster.submit(msgspec.structs.replace(job_graph(), versions={**VERSIONS, "python": "3.11.9"}))
    cluster.run()
    assert cluster.view.state == "running"


# ---------------------------------------------------------------- checkpoints


def test_checkpoints_are_taken_at_the_interval_and_old_ones_deleted() -> None:
    cluster = running()
    for _ in range(4):
        cluster.wait(1.0)
        cluster.run()
    views = cluster.core.checkpoints(JOB)
    assert [(view.id, view.status, view.retained) for view in views] == [
        (1, "completed", False),
        (2, "completed", False),
        (3, "completed", True),
        (4, "completed", True),
    ]
    assert journal.path(2) in cluster.deleted
    assert "checkpoints/1/1-source-0.state" in cluster.deleted
    assert not any(path.startswith("checkpoints/3/") for path in cluster.deleted)
    assert cluster.view.last_checkpoint == views[-1]


def test_triggers_go_to_sources_and_commits_to_all_slots_after_the_manifest_is_written() -> None:
    cluster = running()
    cluster.feed(CheckpointRequested(job=JOB))
    assert len(cluster.sent_of(messages.Trigger)) == 2
    cluster.run(write=False)
    assert isinstance(cluster.append, journal.CheckpointCompleted)
    assert cluster.sent_of(messages.Commit) == []
    cluster.write()
    assert len(cluster.sent_of(messages.Commit)) == 2


def test_a_checkpoint_that_takes_too_long_is_aborted_and_the_job_goes_on() -> None:
    cluster = running()
    cluster.wait(31.5)
    assert cluster.view.state == "running"
    assert cluster.core.checkpoints(JOB)[0].reason == (
        "not complete after 30 s, waits for source/0, source/1, sink/0, sink/1"
    )
    assert len(cluster.sent_of(messages.Abort)) == 2


def test_all_slots_hear_when_barriers_may_overtake() -> None:
    settings = CheckpointSettings(interval_us=1_000_000, timeout_us=30_000_000, alignment_timeout_us=2_000_000)
    cluster = running(job_graph(checkpoint=settings))
    cluster.wait(2.5)
    assert not cluster.sent_of(messages.Overtake)
    cluster.wait(1.0)
    assert [directed.message for directed in cluster.sent_of(messages.Overtake)] == [
        messages.Overtake(job=JOB, attempt=Attempt(1), checkpoint=CheckpointId(1))
    ] * 2
    assert cluster.core.checkpoints(JOB)[0].unaligned
    cluster.wait(5.0)
    assert len(cluster.sent_of(messages.Overtake)) == 2, "once is enough"


def test_too_many_failed_checkpoints_restart_the_job() -> None:
    graph = job_graph(checkpoint=CheckpointSettings(interval_us=1_000_000, tolerated_failures=1))
    cluster = running(graph)
    for _ in range(2):
        cluster.wait(1.0)
        decline(cluster)
    assert cluster.view.state == "restarting"
    assert cluster.view.failures[-1].code == "C023"
    cluster.wait(1.0)
    cluster.run()
    assert cluster.view.state == "running"


def decline(cluster: Cluster) -> None:
    message = messages.Declined(
        job=JOB,
        attempt=Attempt(1),
        checkpoint=cluster.triggered[-1],
        subtask=SubtaskId(VertexId("sink"), 0),
        reason="upload failed",
    )
    cluster.tell(TM1, message)


def test_a_manifest_that_cannot_be_written_is_a_failed_checkpoint() -> None:
    cluster = running()
    cluster.feed(CheckpointRequested(job=JOB))
    cluster.run(write=False)
    cluster.refuse()
    assert cluster.view.state == "running"
    assert cluster.core.checkpoints(JOB)[0].status == "failed"


# ---------------------------------------------------------------- failures


def test_a_failed_region_restarts_from_the_last_checkpoint_on_fresh_processes() -> None:
    cluster = running()
    cluster.wait(1.0)
    cluster.run()
    cluster.sent.clear()
    cluster.fail(SlotId(TM1, 0))
    cluster.run()
    assert cluster.view.state == "restarting"
    assert len(cluster.take_sent(messages.Cancel)) == 2
    cluster.wait(0.2)
    cluster.run()
    assert cluster.view.state == "running"
    deployment = cluster.slot(SlotId(TM1, 0)).deployment
    assert deployment is not None
    assert deployment.attempt == 2
    assert [handle.path for handle in deployment.tasks[0].restore] == [
        "checkpoints/1/1-source-0.state",
        "checkpoints/1/1-source-1.state",
    ]
    started = cluster.written(journal.AttemptStarted)[-1]
    assert (started.restored, started.cause) == (1, "P100 source/0: here")  # type: ignore[union-attr]


def test_only_the_failed_region_restarts() -> None:
    cluster = running(job_graph(regions=2))
    cluster.fail(SlotId(TM2, 0))
    cluster.run()
    assert {directed.slot for directed in cluster.sent_of(messages.Cancel)} == {SlotId(TM2, 0)}
    cluster.wait(0.2)
    cluster.run()
    attempts = [cluster.slot(SlotId(name, 0)).deployment.attempt for name in (TM1, TM2)]  # type: ignore[union-attr]
    assert attempts == [1, 3]
    assert cluster.view.state == "running"


def test_a_pending_checkpoint_is_aborted_in_regions_that_still_run() -> None:
    cluster = running(job_graph(regions=2))
    cluster.wait(1.0)
    cluster.sent.clear()
    cluster.fail(SlotId(TM2, 0))
    cluster.deliver(TM2)
    assert [directed.slot for directed in cluster.sent_of(messages.Abort)] == [SlotId(TM1, 0)]
    assert cluster.core.checkpoints(JOB)[-1].status == "aborted"


def test_no_checkpoint_is_taken_while_a_region_is_down() -> None:
    cluster = running(job_graph(regions=2))
    cluster.kill(TM2)
    cluster.wait(5.0)
    assert cluster.triggered == []


def test_a_checkpoint_on_its_way_into_the_journal_counts_even_if_a_region_fails() -> None:
    cluster = running()
    cluster.feed(CheckpointRequested(job=JOB))
    cluster.run(write=False)
    cluster.fail(SlotId(TM1, 0))
    cluster.deliver(TM1)
    cluster.run()
    cluster.wait(0.2)
    cluster.run()
    assert cluster.written(journal.AttemptStarted)[-1].restored == 1  # type: ignore[union-attr]


def test_objects_of_a_checkpoint_on_its_way_into_the_journal_are_kept() -> None:
    cluster = running()
    cluster.feed(CheckpointRequested(job=JOB))
    cluster.run(write=False)
    assert isinstance(cluster.append, journal.CheckpointCompleted)
    kept = cluster.append.manifest.handles[0]
    cluster.fail(SlotId(TM1, 0))
    cluster.deliver(TM1)
    again = messages.Acknowledged(
        job=JOB, attempt=Attempt(1), checkpoint=CheckpointId(1), subtask=kept.subtask, handle=kept
    )
    cluster.tell(TM1, again)
    assert cluster.deleted == []


def test_the_cause_wins_over_connections_that_broke_before_it_was_told() -> None:
    cluster = running()
    cluster.fail(SlotId(TM2, 0), "C012", secondary=True)
    cluster.deliver(TM2)
    assert cluster.sent_of(messages.Cancel) == []
    cluster.wait(0.1)
    cluster.fail(SlotId(TM1, 0), "P100")
    cluster.deliver(TM1)
    assert [failure.code for failure in cluster.view.failures] == ["P100"]
    assert len(cluster.sent_of(messages.Cancel)) == 2


def test_a_lost_connection_alone_is_a_failure_after_a_moment() -> None:
    cluster = running()
    cluster.fail(SlotId(TM2, 0), "C012", secondary=True)
    cluster.deliver(TM2)
    cluster.wait(0.25)
    assert [failure.code for failure in cluster.view.failures] == ["C012"]


def test_a_cause_that_comes_late_still_reaches_people() -> None:
    cluster = running()
    cluster.fail(SlotId(TM2, 0), "C012", secondary=True)
    cluster.deliver(TM2)
    cluster.fail(SlotId(TM1, 0), "P100")
    cluster.wait(0.25)
    cluster.deliver(TM1)
    assert [failure.code for failure in cluster.view.failures] == ["P100"]


def test_when_a_connection_breaks_the_taskmanagers_of_the_region_are_asked_whether_they_live() -> None:
    cluster = running()
    cluster.fail(SlotId(TM2, 0), "C012", secondary=True)
    cluster.deliver(TM2)
    assert [directed.slot for directed in cluster.sent_of(messages.Probe)] == [SlotId(TM1, 0), SlotId(TM2, 0)]


def test_a_taskmanager_that_is_lost_just_after_its_connections_is_the_cause() -> None:
    cluster = running()
    cluster.kill(TM1, noticed=False)
    cluster.fail(SlotId(TM2, 0), "C012", secondary=True)
    cluster.deliver(TM2)
    cluster.feed(TaskManagerLost(task_manager=TM1, reason="connection refused"))
    reason = "TaskManager tm-1 is lost: connection refused"
    assert [(each.code, each.reason) for each in cluster.view.failures] == [("C020", reason)]
    assert cluster.view.reason == f"C020 tm-1#0: {reason}"
    assert cluster.view.restarts == 1


def test_a_taskmanager_whose_loss_is_learned_after_the_region_was_ended_is_still_the_cause() -> None:
    cluster = running(task_managers=3)
    cluster.kill(TM1, noticed=False)
    cluster.fail(SlotId(TM2, 0), "C012", secondary=True)
    cluster.deliver(TM2)
    cluster.wait(0.21)
    assert [failure.code for failure in cluster.view.failures] == ["C012"]
    cluster.feed(TaskManagerLost(task_manager=TM1, reason="no answer"))
    assert [failure.code for failure in cluster.view.failures] == ["C020"]
    assert cluster.view.reason == "C020 tm-1#0: TaskManager tm-1 is lost: no answer"
    cluster.wait(0.2)
    cluster.run()
    assert cluster.view.state == "running"
    assert cluster.written(journal.AttemptStarted)[-1].cause.startswith("C020 ")  # type: ignore[union-attr]
    assert cluster.view.restarts == 1


def test_a_taskmanager_that_was_started_again_at_once_is_the_cause() -> None:
    cluster = running()
    cluster.fail(SlotId(TM2, 0), "C012", secondary=True)
    cluster.deliver(TM2)
    cluster.wait(0.21)
    cluster.start(TM1, 1)
    assert [failure.code for failure in cluster.view.failures] == ["C020"]
    assert cluster.view.failures[0].reason.startswith("TaskManager tm-1 is lost: its process ")


def test_every_region_that_a_lost_taskmanager_broke_names_it() -> None:
    cluster = running(job_graph(parallelism=2, regions=2), task_managers=1, slots=2)
    for index in (0, 1):
        cluster.fail(SlotId(TM1, index), "C012", secondary=True)
        cluster.deliver(TM1)
    cluster.wait(0.21)
    assert [failure.code for failure in cluster.view.failures] == ["C012", "C012"]
    cluster.kill(TM1)
    assert [failure.code for failure in cluster.view.failures] == ["C020", "C020"]


def test_a_fatal_failure_ends_the_job() -> None:
    cluster = running()
    cluster.fail(SlotId(TM1, 0), "P100", fatal=True)
    cluster.run()
    assert cluster.view.state == "failed"
    assert cluster.view.reason == "P100 source/0: here"


def test_the_budget_of_restarts_is_limited_and_the_reason_says_what_to_do() -> None:
    cluster = running(job_graph(restart=RestartSettings(budget=2)))
    for _ in range(3):
        cluster.fail(SlotId(TM1, 0))
        cluster.run()
        cluster.wait(2.0)
        cluster.run()
    assert cluster.view.state == "failed"
    assert "failed 3 times in a row, at last with P100 source/0: here\n  fix: " in cluster.view.reason
    assert cluster.view.restarts == 2


def fail_in_a_function(cluster: Cluster, n: int) -> None:
    cluster.fail(SlotId(TM1, 0), "P007", reason=f"halve raised ZeroDivisionError with n={n}")
    cluster.run()
    cluster.wait(2.0)
    cluster.run()


def test_a_program_that_fails_on_the_same_row_at_each_start_has_failed() -> None:
    cluster = running()
    for _ in range(2):
        fail_in_a_function(cluster, n=5)
        assert cluster.view.state == "running"
    fail_in_a_function(cluster, n=5)
    assert cluster.view.state == "failed"
    assert "halve raised ZeroDivisionError with n=5\n  the same at each of 3 starts\n  fix: " in cluster.view.reason


def test_other_rows_or_a_checkpoint_in_between_are_reasons_to_try_again() -> None:
    cluster = running(job_graph(restart=RestartSettings(max_delay_us=1_000_000)))
    for number in range(8):
        fail_in_a_function(cluster, n=number)
    assert cluster.view.state == "running"
    cluster = running(job_graph(restart=RestartSettings(max_delay_us=1_000_000)))
    cluster.feed(CheckpointRequested(job=JOB))
    cluster.run()
    assert cluster.view.checkpoints_completed == 1
    for _ in range(8):
        fail_in_a_function(cluster, n=5)
    assert cluster.view.state == "running", "it has worked before: the cause may be another service"


def test_a_long_run_gives_the_budget_back() -> None:
    cluster = running(job_graph(restart=RestartSettings(budget=1)))
    for _ in range(3):
        cluster.fail(SlotId(TM1, 0))
        cluster.run()
        cluster.wait(2.0)
        cluster.run()
        assert cluster.view.state == "running"
        for _ in range(70):
            cluster.wait(1.0)
            cluster.run()


def test_messages_of_old_attempts_are_ignored() -> None:
    cluster = running()
    cluster.fail(SlotId(TM1, 0))
    cluster.run()
    cluster.wait(0.2)
    cluster.run()
    before = cluster.view
    cluster.tell(TM1, messages.Running(job=JOB, attempt=Attempt(1), slot=SlotId(TM1, 0)))
    cluster.tell(
        TM1,
        messages.Failed(job=JOB, attempt=Attempt(1), slot=SlotId(TM1, 0), subtask=None, code="P1", reason="old"),
    )
    assert cluster.view == before


def test_a_deployment_that_never_gets_ready_is_tried_again() -> None:
    cluster = Cluster(timing=Timing(deploy_timeout=3.0))
    cluster.start(TM1)
    cluster.submit(job_graph())
    cluster.write()
    cluster.write()
    cluster.wait(3.0)
    assert cluster.view.failures[-1].code == "C022"
    assert "tm-1#0, tm-1#1" in cluster.view.failures[-1].place


# ---------------------------------------------------------------- TaskManagers


def test_a_silent_taskmanager_is_lost_and_told_to_register_again() -> None:
    cluster = running()
    for _ in range(6):
        cluster.now += 1.0
        cluster.tell(TM2, cluster.heartbeat(TM2))
    assert cluster.view.failures[-1].code == "C020"
    assert cluster.view.failures[-1].reason == "TaskManager tm-1 is lost: not heard for 5 s"
    assert TM1 not in cluster.task_managers, "it was forgotten"


def test_one_lost_taskmanager_is_one_failure_however_many_regions_it_ran() -> None:
    cluster = running(job_graph(parallelism=2, regions=2), task_managers=1, slots=2)
    cluster.kill(TM1)
    assert cluster.view.restarts == 1


def test_lost_slots_are_waited_for_and_then_done_without() -> None:
    cluster = running()
    cluster.kill(TM2)
    cluster.run()
    cluster.wait(5.0)
    assert cluster.view.state == "waiting-for-slots"
    cluster.wait(6.0)
    cluster.run()
    assert cluster.view.state == "running"
    deployment = cluster.slot(SlotId(TM1, 0)).deployment
    assert deployment is not None
    assert len(deployment.tasks) == 4


def test_a_taskmanager_that_comes_back_is_used_at_once() -> None:
    cluster = running()
    cluster.kill(TM2)
    cluster.run()
    cluster.wait(1.0)
    cluster.start(TM2, 1)
    cluster.run()
    assert cluster.view.state == "running"
    assert len(cluster.deployed()) == 2


def test_more_regions_than_slots_share_what_there_is() -> None:
    cluster = Cluster()
    cluster.start(TM1, 2)
    cluster.submit(job_graph(parallelism=4, regions=4))
    cluster.run()
    cluster.wait(11.0)
    cluster.run()
    assert cluster.view.state == "running"
    assert sorted(len(cluster.slot(slot).deployment.tasks) for slot in cluster.deployed()) == [4, 4]  # type: ignore[union-attr]


def test_regions_that_run_make_room_when_others_would_never_get_a_slot() -> None:
    cluster = running(job_graph(parallelism=4, regions=4), task_managers=2, slots=2)
    cluster.kill(TM2)
    cluster.wait(11.0)
    cluster.run()
    cluster.wait(1.0)
    cluster.run()
    assert cluster.view.state == "running"
    assert [slot.task_manager for slot in cluster.deployed()] == [TM1, TM1]


def test_a_replaced_process_breaks_its_region() -> None:
    cluster = running()
    cluster.task_managers[TM1].slots[0] = SlotModel(999)
    cluster.tell(TM1, messages.SlotReady(info=cluster.info(SlotId(TM1, 0))))
    cluster.wait(0.5)
    assert cluster.view.failures[-1].code == "C021"
    cluster.run()
    assert cluster.view.state == "running"


def test_registering_again_means_that_the_processes_have_no_deployment_even_when_they_are_the_same() -> None:
    cluster = running()
    cluster.tell(TM1, cluster.register(TM1))
    assert cluster.view.state == "restarting"
    cluster.wait(0.5)
    assert cluster.view.failures[-1].code == "C021"


def test_a_leaving_taskmanager_is_lost() -> None:
    cluster = running()
    cluster.tell(TM1, messages.Leaving(task_manager=TM1))
    assert cluster.view.failures[-1].reason == "TaskManager tm-1 is lost: it has left"


def test_slots_reserved_but_lost_before_deployment_count_no_failure() -> None:
    cluster = Cluster()
    cluster.start(TM1)
    cluster.submit(job_graph())
    cluster.write()
    assert isinstance(cluster.append, journal.AttemptStarted)
    cluster.kill(TM1)
    cluster.write()
    assert cluster.sent_of(messages.Deploy) == []
    cluster.start(TM2)
    cluster.run()
    assert cluster.view.state == "running"
    assert cluster.view.restarts == 0


def test_the_cluster_view_lists_every_process_with_its_work() -> None:
    view = running().core.view_cluster()
    assert [(process.role, process.id, process.attempt) for process in view.processes] == [
        ("taskmanager", "tm-1", None),
        ("slot", "tm-1#0", 1),
        ("taskmanager", "tm-2", None),
        ("slot", "tm-2#0", 1),
    ]
    assert view.processes[1].subtasks == ("source/0", "sink/0")
    assert (view.slots_total, view.slots_free) == (2, 0)


def test_metrics_are_summed_over_the_subtasks_of_present_attempts() -> None:
    cluster = running()
    for attempt, name, index, rows in ((1, TM1, 0, 5), (1, TM2, 1, 7), (9, TM2, 1, 1000)):
        task = messages.TaskMetrics(
            subtask=SubtaskId(VertexId("source"), index),
            operators=(OperatorMetrics(uid="source", rows_out=rows),),
            watermark=100 + index,
            busy=0.1 * index,
            backpressured=0.0,
        )
        report = messages.SlotReport(job=JOB, attempt=Attempt(attempt), slot=SlotId(name, 0), tasks=(task,))
        cluster.tell(name, messages.Heartbeat(task_manager=name, reports=(report,)))
    vertex = cluster.view.vertices[0]
    assert vertex.operators[0].rows_out == 12
    assert (vertex.watermark_us, vertex.busy) == (100, 0.1)


# ---------------------------------------------------------------- journals


def test_a_job_whose_submission_cannot_be_written_has_failed() -> None:
    cluster = Cluster()
    cluster.submit(job_graph())
    cluster.refuse()
    assert cluster.view.state == "failed"
    assert "disk full" in cluster.view.reason


def test_an_end_that_cannot_be_written_is_written_later() -> None:
    cluster = running()
    cluster.feed(CancelRequested(job=JOB))
    cluster.refuse()
    assert cluster.view.state != "cancelled"
    cluster.wait(1.0)
    cluster.run()
    assert cluster.view.state == "cancelled"


def test_an_attempt_that_cannot_be_written_is_a_failure() -> None:
    cluster = Cluster()
    cluster.start(TM1)
    cluster.submit(job_graph())
    cluster.write()
    cluster.refuse()
    assert cluster.view.failures[-1].code == "C024"
    cluster.wait(2.0)
    cluster.run()
    assert cluster.view.state == "running"


def test_a_jobmanager_that_was_replaced_does_nothing_more_for_the_job() -> None:
    cluster = running()
    cluster.wait(1.0)
    cluster.run(write=False)
    entry, cluster.append = cluster.append, None
    assert entry is not None
    cluster.sent.clear()
    cluster.feed(JournalConflict(job=JOB, entry=entry))
    assert cluster.view.state == "failed"
    assert "taken over by another JobManager" in cluster.view.reason
    cluster.kill(TM1)
    cluster.wait(60.0)
    cluster.feed(CancelRequested(job=JOB))
    assert cluster.sent == []
    assert cluster.append is None


def recover(before: Cluster) -> Cluster:
    after = Cluster()
    after.entries, after.next_pid = list(before.entries), before.next_pid
    after.feed(
        JobRecovered(
            job=JOB,
            graph=job_graph(),
            store="memory://",
            entries=tuple(before.entries),
            last_sha256=_hash(before.entries[-1]),
        )
    )
    return after


def test_a_new_jobmanager_takes_the_job_up_from_its_last_checkpoint() -> None:
    before = running()
    for _ in range(2):
        before.wait(1.0)
        before.run()
    before.wait(1.0)
    after = recover(before)
    assert after.view.state == "deploying"  # what it started may still run: its TaskManagers are waited for
    after.start(TM1)
    after.run()
    assert after.view.state == "running"
    started = after.written(journal.AttemptStarted)[-1]
    assert (started.attempt, started.restored) == (2, 2)  # type: ignore[union-attr]
    after.wait(1.0)
    after.run()
    assert after.written(journal.CheckpointCompleted)[-1].manifest.checkpoint == 3  # type: ignore[union-attr]


def test_a_checkpoint_under_an_earlier_jobmanager_shows_that_a_program_works() -> None:
    before = running()
    before.feed(CheckpointRequested(job=JOB))
    before.run()
    after = recover(before)
    after.start(TM1)
    after.run()
    for _ in range(4):
        fail_in_a_function(after, n=5)
    assert after.view.state == "running", after.view.reason


def test_a_job_that_has_ended_is_only_shown_by_a_new_jobmanager() -> None:
    before = running()
    before.end_input()
    before.run()
    after = recover(before)
    after.start(TM1)
    after.wait(10.0)
    assert after.view.state == "finished"
    assert after.append is None
    assert after.sent == []


def test_a_job_starts_from_the_checkpoint_that_it_is_given() -> None:
    cluster = Cluster()
    cluster.start(TM1)
    cluster.submit(job_graph(), manifest(7))
    cluster.run()
    assert cluster.written(journal.AttemptStarted)[0].restored == 7  # type: ignore[union-attr]
    cluster.wait(1.0)
    assert cluster.triggered[-1] == 8


def test_a_checkpoint_that_does_not_fit_the_job_is_refused() -> None:
    cluster = Cluster()
    cluster.submit(job_graph(), msgspec.structs.replace(manifest(7), max_parallelism=128))
    cluster.run()
    assert cluster.view.state == "failed"
    assert "S009 checkpoint 7 has 128 key groups, the job 16" in cluster.view.reason


def test_the_same_events_give_the_same_commands() -> None:
    first, second = running(), running()
    for cluster in (first, second):
        cluster.kill(TM2)
        cluster.wait(20.0)
        cluster.run()
    assert first.notes == second.notes
    assert first.sent == second.sent


# ---------------------------------------------------------------- random faults


class FaultyCluster(RuleBasedStateMachine):
    """Messages are late, lost, doubled and out of order, TaskManagers and the JobManager die; then calm returns."""

    @initialize(regions=st.booleans())
    def start(self, regions: bool) -> None:
        self.cluster = Cluster(timing=Timing(deploy_timeout=20.0, repeat=2.0))
        self.graph = job_graph(
            regions=2 if regions else 1,
            checkpoint=CheckpointSettings(interval_us=1_000_000, timeout_us=10_000_000, retained=2),
            restart=RestartSettings(budget=1000, max_delay_us=1_000_000, slot_wait_us=3_000_000),
        )
        self.cluster.start(TM1, 1)
        self.cluster.start(TM2, 1)
        self.cluster.submit(self.graph)

    @rule(steps=st.integers(1, 30), data=st.data())
    def exchange(self, steps: int, data: st.DataObject) -> None:
        """Deliver some of what is on its way; each TaskManager on its own."""
        cluster = self.cluster
        for _ in range(steps):
            moves: list[Callable[[], None]] = []
            if cluster.append is not None:
                moves.append(cluster.write)
            for name, model in cluster.task_managers.items():
                if model.inbox:
                    moves.append(lambda name=name: cluster.receive(name))  # type: ignore[misc]
                if model.outbox:
                    moves.append(lambda name=name: cluster.deliver(name))  # type: ignore[misc]
            if not moves:
                return
            data.draw(st.sampled_from(moves))()

    @rule(seconds=st.sampled_from([0.05, 0.3, 1.0, 4.0]))
    def time_passes(self, seconds: float) -> None:
        self.cluster.wait(seconds)

    @rule(data=st.data(), fault=st.sampled_from(["lose", "double", "reorder"]))
    def disturb_messages(self, data: st.DataObject, fault: str) -> None:
        models = [m for m in self.cluster.task_managers.values() if m.outbox]
        if not models:
            return
        outbox = data.draw(st.sampled_from(models)).outbox
        position = data.draw(st.integers(0, len(outbox) - 1))
        # The end of a process is never lost while its TaskManager lives: the link that carries it is ordered.
        if isinstance(outbox[position], messages.SlotReady):
            return
        match fault:
            case "lose":
                del outbox[position]
            case "double":
                outbox.append(outbox[position])
            case "reorder":
                outbox.rotate(1)

    @rule(name=st.sampled_from([TM1, TM2]), noticed=st.booleans())
    def kill_taskmanager(self, name: TaskManagerId, noticed: bool) -> None:
        if name in self.cluster.task_managers:
            self.cluster.kill(name, noticed=noticed)

    @rule(name=st.sampled_from([TM1, TM2]))
    def start_taskmanager(self, name: TaskManagerId) -> None:
        if name not in self.cluster.task_managers:
            self.cluster.start(name, 1)

    @rule(data=st.data(), secondary=st.booleans())
    def fail_slot(self, data: st.DataObject, secondary: bool) -> None:
        if slots := self.cluster.deployed():
            self.cluster.fail(data.draw(st.sampled_from(slots)), secondary=secondary)

    @rule()
    @precondition(lambda self: self.cluster.append is not None and len(self.cluster.entries) > 0)
    def refuse_append(self) -> None:
        self.cluster.refuse()

    @rule(arrived=st.booleans())
    @precondition(lambda self: len(self.cluster.entries) > 0)
    def restart_jobmanager(self, arrived: bool) -> None:
        """The new one reads what the old one wrote; TaskManagers come to it with fresh slots."""
        before = self.cluster
        if before.append is not None and arrived:
            before.entries.append(before.append)
        after = Cluster(timing=Timing(deploy_timeout=20.0, repeat=2.0))
        after.entries, after.next_pid, after.input_ends = before.entries, before.next_pid, before.input_ends
        after.now = before.now
        event = JobRecovered(
            job=JOB,
            graph=self.graph,
            store="memory://",
            entries=tuple(before.entries),
            last_sha256=_hash(before.entries[-1]),
        )
        after.feed(event)
        for name in before.task_managers:
            after.start(name, 1)
        self.cluster = after

    @rule()
    def end_input(self) -> None:
        self.cluster.end_input()

    @rule()
    def ask_for_checkpoint(self) -> None:
        self.cluster.feed(CheckpointRequested(job=JOB))

    @invariant()
    def the_job_lives_or_has_finished(self) -> None:
        if hasattr(self, "cluster"):
            assert self.cluster.view.state not in ("failed", "cancelled", "stopped"), self.cluster.view.reason

    def teardown(self) -> None:
        if not hasattr(self, "cluster"):
            return
        for name in (TM1, TM2):
            self.start_taskmanager(name)
        self.cluster.end_input()
        for _ in range(100):
            self.cluster.run()
            if self.cluster.view.state == "finished":
                break
            self.cluster.wait(1.0)
            for name in (TM1, TM2):
                self.start_taskmanager(name)
        assert self.cluster.view.state == "finished", self.cluster.view
        final = [e.manifest.kind for e in self.cluster.written(journal.CheckpointCompleted)]  # type: ignore[union-attr]
        assert final[-1] == "final"


TestFaultyCluster = FaultyCluster.TestCase
TestFaultyCluster.settings = hypothesis_settings(max_examples=60, stateful_step_count=30, deadline=None)
