"""Another parallelism while the job runs: who is told what and when, and what every failure on the way comes to."""

import hashlib
import sys
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parent))
from test_core import JOB, TM1, TM2, Cluster
from test_rescaling import ask, last, program

from penstock.checkpoint import journal
from penstock.jobmanager.core import Core
from penstock.jobmanager.events import JobRecovered, StopRequested
from penstock.model import messages
from penstock.model.elements import BarrierKind
from penstock.model.ids import Attempt, CheckpointId, SlotId, VertexId
from penstock.model.messages import Moved
from penstock.model.tasks import Reshape, Task


class LiveCluster(Cluster):
    """Slots that do what they are told before and behind the barrier of a rescale."""

    def __init__(self) -> None:
        super().__init__()
        self.prepared: dict[SlotId, tuple[Reshape, tuple[Task, ...]]] = {}
        self.silent: set[SlotId] = set()
        """Slots that never settle."""

    def receive(self, name: "messages.TaskManagerId") -> None:
        directed = self.task_managers[name].inbox[0]
        slot_id, message = directed.slot, directed.message
        slot = self.slot(slot_id)
        super().receive(name)
        if isinstance(message, messages.Deploy) and message.deployment.joins is not None:
            self.prepared[slot_id] = message.deployment.joins, message.deployment.tasks
        elif isinstance(message, messages.Prepare) and slot.deployment is not None:
            self.prepared[slot_id] = message.reshape, message.tasks
            self._say(slot_id, messages.Prepared, number=message.reshape.number)
        elif isinstance(message, messages.Forgo):
            self.prepared.pop(slot_id, None)

    def _pass_barrier(self, slot_id: SlotId, attempt: Attempt, checkpoint: CheckpointId) -> None:
        joined = {slot for slot, (reshape, _) in self.prepared.items() if self._joins(slot, reshape)}
        if slot_id in joined:
            return
        hidden = {slot: self.slot(slot).deployment for slot in joined}
        for slot in joined:
            self.slot(slot).deployment = None
        super()._pass_barrier(slot_id, attempt, checkpoint)
        for slot, deployment in hidden.items():
            self.slot(slot).deployment = deployment
        if self.triggered_kind is BarrierKind.RESCALE:
            for slot, (reshape, tasks) in list(self.prepared.items()):
                if slot not in self.silent:
                    moved = (Moved(vertex=VertexId("sink"), first=0, end=2, size=100, pause_us=7_000),)
                    self._say(slot, messages.Settled, number=reshape.number, moved=moved if tasks else ())

    @property
    def triggered_kind(self) -> BarrierKind:
        trigger = self.sent_of(messages.Trigger)[-1].message
        assert isinstance(trigger, messages.Trigger)
        return trigger.kind

    def _joins(self, slot: SlotId, reshape: Reshape) -> bool:
        deployment = self.slot(slot).deployment
        return deployment is not None and deployment.joins is not None

    def _say(self, slot: SlotId, kind: type, **fields: object) -> None:
        deployment = self.slot(slot).deployment
        assert deployment is not None
        message = kind(job=JOB, attempt=deployment.attempt, slot=slot, **fields)
        self.task_managers[slot.task_manager].outbox.append(message)


def running(parallelism: int = 2) -> LiveCluster:
    cluster = LiveCluster()
    for name in (TM1, TM2):
        cluster.start(name, 2)
    cluster.submit(program(parallelism, live=True))
    cluster.run()
    assert cluster.view.state == "running"
    cluster.sent.clear()
    return cluster


def until_moving(cluster: LiveCluster) -> None:
    cluster.run(until=lambda: bool(cluster.sent_of(messages.Trigger)))


@pytest.mark.parametrize(("before", "after"), [(2, 4), (4, 2), (3, 1)])
def test_a_job_goes_on_at_another_size_without_another_attempt(before: int, after: int) -> None:
    cluster = running(before)
    pids = {slot: cluster.slot(slot).pid for slot in cluster.deployed()}
    stay = [slot for slot in pids if cluster.slot(slot).deployment.tasks[0].subtask.index < after]  # type: ignore[union-attr]
    ask(cluster, after)
    cluster.run()
    kinds = [type(entry).__name__ for entry in cluster.entries]
    assert kinds == ["Submitted", "AttemptStarted", "CheckpointCompleted", "Resized"]
    [resized] = cluster.written(journal.Resized)
    assert isinstance(resized, journal.Resized)
    assert (resized.live, resized.parallelism, resized.checkpoint) == (True, after, 1)
    done = last(cluster)
    assert (done.kind, done.status, done.reason) == ("live", "completed", "")
    assert (done.groups_moved, done.pause_us_max) == (2 * after, 7_000)
    view = cluster.view
    assert (view.state, view.parallelism, view.restarts, view.failures) == ("running", after, 0, ())
    assert cluster.core.view_cluster().slots_free == 4 - after
    assert [cluster.slot(slot).pid for slot in stay] == [pids[slot] for slot in stay]


def test_what_is_one_chain_at_one_subtask_starts_again() -> None:
    cluster = running(1)
    ask(cluster, 3)
    cluster.run()
    assert (last(cluster).kind, last(cluster).status) == ("restart", "completed")
    assert last(cluster).reason.startswith("started again: ")


def test_nothing_is_triggered_before_all_slots_are_ready_and_no_checkpoint_before_all_is_settled() -> None:
    cluster = running(2)
    ask(cluster, 3)
    [deploy] = cluster.sent_of(messages.Deploy)
    assert len(cluster.sent_of(messages.Prepare)) == 2
    assert cluster.sent_of(messages.Trigger) == []
    cluster.silent.add(deploy.slot)
    cluster.run()
    assert cluster.triggered_kind is BarrierKind.RESCALE
    assert len(cluster.written(journal.CheckpointCompleted)) == 1
    assert cluster.written(journal.Resized) == []
    cluster.silent.clear()
    reshape, _ = cluster.prepared[deploy.slot]
    cluster._say(deploy.slot, messages.Settled, number=reshape.number, moved=())
    cluster.run()
    assert last(cluster).status == "completed"


def test_a_failure_behind_the_barrier_goes_back_to_the_size_before_and_says_so() -> None:
    cluster = running(2)
    ask(cluster, 4)
    cluster.silent.update(cluster.deployed())
    until_moving(cluster)
    cluster.run()
    cluster.fail(cluster.deployed()[0])
    cluster.run()
    cluster.wait(3.0)
    cluster.silent.clear()
    cluster.prepared.clear()
    cluster.run()
    assert (last(cluster).status, last(cluster).kind) == ("failed", "live")
    assert "went back to the size before" in last(cluster).reason
    assert (cluster.view.state, cluster.view.parallelism, cluster.view.restarts) == ("running", 2, 1)
    assert cluster.written(journal.Resized) == []
    started = cluster.written(journal.AttemptStarted)[-1]
    assert isinstance(started, journal.AttemptStarted)
    assert started.restored == 1, "the checkpoint of the barrier"


def test_a_joining_slot_that_fails_costs_the_rescale_and_not_a_restart() -> None:
    cluster = running(2)
    before = set(cluster.deployed())
    ask(cluster, 4)
    cluster.run(until=lambda: len(cluster.deployed()) == 4)
    [joined, *_] = [slot for slot in cluster.deployed() if slot not in before]
    assert cluster.sent_of(messages.Trigger) == []
    cluster.fail(joined)
    cluster.run(until=lambda: last(cluster).status != "pending")
    cluster.run()
    assert last(cluster).status == "failed"
    assert (cluster.view.state, cluster.view.restarts, cluster.view.failures) == ("running", 0, ())
    assert {forgo.slot for forgo in cluster.sent_of(messages.Forgo)} == before
    assert cluster.core.view_cluster().slots_free == 2


def test_a_stop_before_the_barrier_gives_it_up_and_behind_it_waits() -> None:
    cluster = running(2)
    ask(cluster, 4)
    cluster.feed(StopRequested(job=JOB))
    assert last(cluster).reason == "the job is to stop"
    cluster.prepared.clear()
    cluster.run()
    assert cluster.view.state == "stopped"
    cluster = running(2)
    ask(cluster, 4)
    until_moving(cluster)
    cluster.feed(StopRequested(job=JOB))
    cluster.run(until=lambda: bool(cluster.written(journal.Resized)))
    assert last(cluster).status == "completed"


def test_a_size_that_cannot_be_written_is_not_had() -> None:
    cluster = running(2)
    ask(cluster, 4)
    cluster.run(until=lambda: isinstance(cluster.append, journal.Resized))
    cluster.refuse()
    cluster.prepared.clear()
    cluster.run()
    cluster.wait(3.0)
    cluster.run()
    assert (last(cluster).status, cluster.view.state, cluster.view.parallelism) == ("failed", "running", 2)
    assert "disk full" in last(cluster).reason


def test_a_new_jobmanager_finds_the_size_and_the_plan_in_the_journal() -> None:
    cluster = running(4)
    ask(cluster, 1)
    cluster.run()
    assert last(cluster).kind == "live"
    plan = cluster.core.plan(JOB)
    cluster.core = Core(writer="jm-2")
    cluster.append, cluster.wake_at = None, None
    for name in (TM1, TM2):
        cluster.start(name, 2)
    recorded = journal.encode(cluster.entries[-1])
    cluster.feed(
        JobRecovered(
            job=JOB,
            graph=program(4, live=True),
            store="memory://",
            entries=tuple(cluster.entries),
            last_sha256=hashlib.sha256(recorded).hexdigest(),
        )
    )
    cluster.run()
    assert (cluster.view.state, cluster.view.parallelism) == ("running", 1)
    assert cluster.core.plan(JOB) == plan
    assert (last(cluster).kind, last(cluster).parallelism_after) == ("live", 1)
