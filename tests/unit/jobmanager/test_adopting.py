"""A job that another JobManager has started: what still runs of it goes on, or starts again."""

import sys
from pathlib import Path

import msgspec
import pytest

sys.path.insert(0, str(Path(__file__).parent))
from test_core import JOB, TM3, Cluster, _hash, job_graph, running

from penstock.checkpoint import journal
from penstock.jobmanager.events import CancelRequested, JobRecovered
from penstock.model import messages
from penstock.model.ids import CheckpointId, SlotId, SubtaskId


def take_over(before: Cluster) -> Cluster:
    """Another JobManager reads the journal; the TaskManagers are those that there were, and know nothing of it yet."""
    after = Cluster()
    after.entries, after.next_pid, after.used_pids = list(before.entries), before.next_pid, before.used_pids
    last = journal.Recorded(after.entries[-1], _hash(after.entries[-1]))
    after.entries.append(journal.taken_over(last, writer="jm-2", epoch=2, now_us=0))  # type: ignore[arg-type]
    after.now = before.now
    after.task_managers = before.task_managers
    after.barriers = before.barriers
    for model in after.task_managers.values():
        model.inbox.clear()
        model.outbox.clear()
    after.feed(
        JobRecovered(
            job=JOB,
            graph=job_graph(),
            store="memory://",
            entries=tuple(after.entries),
            last_sha256=_hash(after.entries[-1]),
        )
    )
    return after


def register(cluster: Cluster, **changes: object) -> None:
    """All TaskManagers, saying what their slots run."""
    for name in list(cluster.task_managers):
        plain = cluster.register(name)
        slots = tuple(with_runs(cluster, info, **changes) for info in plain.slots)
        cluster.tell(name, msgspec.structs.replace(plain, slots=slots))


def with_runs(cluster: Cluster, info: messages.SlotInfo, **changes: object) -> messages.SlotInfo:
    deployment = cluster.slot(info.slot).deployment
    if deployment is None:
        return info
    runs = messages.Runs(
        job=JOB,
        attempt=deployment.attempt,
        subtasks=tuple(task.subtask for task in deployment.tasks),
        running=True,
        newest=cluster.triggered[-1] if cluster.triggered else CheckpointId(0),
    )
    return msgspec.structs.replace(info, runs=msgspec.structs.replace(runs, **changes))


def some_checkpoints(count: int = 2) -> Cluster:
    cluster = running()
    for _ in range(count):
        cluster.wait(1.0)
        cluster.run()
    return cluster


def test_what_still_runs_goes_on_and_is_told_what_it_may_have_missed() -> None:
    before = some_checkpoints()
    after = take_over(before)
    register(after, newest=CheckpointId(3))
    assert after.view.state == "running"
    assert len(after.written(journal.AttemptStarted)) == 1
    assert {directed.message.checkpoint for directed in after.sent_of(messages.Commit)} == {2}
    assert {directed.message.checkpoint for directed in after.sent_of(messages.Abort)} == {3}
    assert after.view.attempt == 1
    after.wait(1.0)
    after.run()
    # An id that a slot has heard of is not used again in the same attempt.
    assert after.written(journal.CheckpointCompleted)[-1].manifest.checkpoint == 4  # type: ignore[union-attr]


def test_a_region_that_lost_a_slot_starts_again_at_once() -> None:
    after = take_over(some_checkpoints())
    slot = after.deployed()[0]
    after.task_managers[slot.task_manager].slots[slot.index].deployment = None
    after.task_managers[slot.task_manager].slots[slot.index].pid = after._pid()
    register(after)
    assert after.sent_of(messages.Cancel)
    after.run()
    after.wait(1.0)
    after.run()
    assert after.view.state == "running"
    assert [entry.cause[:4] for entry in after.written(journal.AttemptStarted)] == ["", "C026"]  # type: ignore[union-attr]


@pytest.mark.parametrize(
    "changes",
    [{"failed": True}, {"subtasks": (SubtaskId("nobody", 0),)}, {"attempt": 7}],
    ids=lambda each: next(iter(each)),  # type: ignore[arg-type]
)
def test_a_slot_that_runs_something_else_is_ended(changes: dict[str, object]) -> None:
    after = take_over(some_checkpoints())
    register(after, **changes)
    assert after.sent_of(messages.Cancel)
    after.run()
    after.wait(1.0)
    after.run()
    assert after.view.state == "running"
    assert after.written(journal.AttemptStarted)[-1].attempt == 2  # type: ignore[union-attr]


def test_a_region_whose_taskmanager_never_comes_starts_elsewhere_when_it_was_waited_for() -> None:
    before = some_checkpoints()
    after = take_over(before)
    after.task_managers = {}
    after.start(TM3, slots=0)
    after.wait(4.0)
    assert after.view.state == "deploying"
    after.wait(1.5)
    assert after.view.state == "waiting-for-slots"


def test_a_slot_that_has_yet_to_open_its_tasks_is_waited_for() -> None:
    after = take_over(some_checkpoints())
    register(after, running=False)
    assert after.view.state == "deploying"
    for slot in after.deployed():
        attempt = after.written(journal.AttemptStarted)[0].attempt  # type: ignore[union-attr]
        after.tell(slot.task_manager, messages.Running(job=JOB, attempt=attempt, slot=slot))
    assert after.view.state == "running"


def test_who_cancels_meanwhile_ends_what_runs() -> None:
    after = take_over(some_checkpoints())
    after.feed(CancelRequested(job=JOB))
    register(after)
    assert {directed.slot for directed in after.sent_of(messages.Cancel)} == set(after.deployed())
    after.run()
    assert after.view.state == "cancelled"


def test_a_job_that_this_jobmanager_does_not_know_is_ended() -> None:
    before = running()
    after = Cluster()
    after.task_managers, after.next_pid = before.task_managers, before.next_pid
    register(after)
    cancelled = {directed.slot for directed in after.sent_of(messages.Cancel)}
    assert cancelled == set(before.deployed())
    assert all(isinstance(slot, SlotId) for slot in cancelled)


def test_a_taskmanager_that_registers_again_with_the_same_jobmanager_goes_on() -> None:
    cluster = some_checkpoints()
    register(cluster)
    assert cluster.view.state == "running"
    assert cluster.view.restarts == 0
    assert not cluster.sent_of(messages.Cancel)
    cluster.wait(1.0)
    cluster.run()
    assert cluster.view.attempt == 1
