"""Another parallelism by a restart: slots, barrier, journal, restart, and every way back.

The source keeps step with itself, so the job cannot be rescaled while it runs: `test_live_rescaling` has that.
"""

import hashlib
import sys
from pathlib import Path

import msgspec
import pytest

sys.path.insert(0, str(Path(__file__).parent))
from test_core import JOB, TM1, TM2, TM3, VERSIONS, Cluster

from penstock.checkpoint import journal
from penstock.graph import JobGraph, LogicalEdge, LogicalGraph, LogicalNode, Size, plan
from penstock.jobmanager.core import Core
from penstock.jobmanager.events import JobRecovered, RescaleRequested, StopRequested
from penstock.model import messages
from penstock.model.elements import BarrierKind
from penstock.model.errors import UserError
from penstock.model.ids import Uid
from penstock.model.settings import CheckpointSettings, JobSettings, RescaleSettings
from penstock.model.specs import Connector, Hash, Operator, Sink, Source
from penstock.model.views import RescaleView
from penstock.model.watermark_specs import Alignment

IN_STEP = Source(connector=Connector(kind="generate"), alignment=Alignment(within_us=1_000_000))


def program(parallelism: int, *, slot_wait_us: int = 60_000_000, live: bool = False) -> JobGraph:
    source = Operator(
        uid=Uid("source"), name="source", spec=Source(connector=Connector(kind="generate")) if live else IN_STEP
    )
    sink = Operator(uid=Uid("sink"), name="sink", spec=Sink(connector=Connector(kind="discard")))
    logical = LogicalGraph(
        name="hot items",
        nodes=(LogicalNode(operator=source), LogicalNode(operator=sink)),
        edges=(LogicalEdge(source=Uid("source"), target=Uid("sink"), partitioning=Hash(keys=("key",))),),
    )
    return plan(
        logical,
        parallelism=parallelism,
        max_parallelism=16,
        settings=JobSettings(
            checkpoint=CheckpointSettings(interval_us=0, retained=2),
            rescale=RescaleSettings(slot_wait_us=slot_wait_us),
        ),
        bounded=True,
        versions=VERSIONS,
    )


def running(parallelism: int = 2, **settings: int) -> Cluster:
    cluster = Cluster()
    for name in (TM1, TM2):
        cluster.start(name, 2)
    cluster.submit(program(parallelism, **settings))
    cluster.run()
    assert cluster.view.state == "running"
    cluster.sent.clear()
    return cluster


def ask(cluster: Cluster, parallelism: int) -> None:
    size = cluster.core.plan_rescale(JOB, parallelism, {})
    cluster.feed(RescaleRequested(job=JOB, size=size))


def last(cluster: Cluster) -> RescaleView:
    return cluster.core.rescales(JOB)[-1]


def of_size(cluster: Cluster) -> int:
    """Subtasks of the source that are deployed now."""
    tasks = [task for slot in cluster.deployed() for task in cluster.slot(slot).deployment.tasks]  # type: ignore[union-attr]
    return sum(task.subtask.vertex == "source" for task in tasks)


@pytest.mark.parametrize(("before", "after"), [(2, 4), (4, 2), (3, 1), (1, 3)])
def test_a_job_starts_again_at_the_new_size_from_a_checkpoint_taken_for_it(before: int, after: int) -> None:
    cluster = running(before)
    ask(cluster, after)
    cluster.run()
    [trigger, *_] = cluster.sent_of(messages.Trigger)
    assert isinstance(trigger.message, messages.Trigger)
    assert trigger.message.kind is BarrierKind.RESTART
    kinds = [type(entry).__name__ for entry in cluster.entries]
    assert kinds == ["Submitted", "AttemptStarted", "CheckpointCompleted", "Resized", "AttemptStarted"]
    started = cluster.entries[-1]
    assert isinstance(started, journal.AttemptStarted)
    assert (started.restored, started.cause) == (1, "")
    view = cluster.view
    assert (view.state, view.parallelism, view.restarts, view.failures, view.rescale) == (
        "running",
        after,
        0,
        (),
        None,
    )
    assert of_size(cluster) == after
    assert cluster.core.view_cluster().slots_free == 4 - after
    done = last(cluster)
    assert (done.status, done.kind, done.before["sink"], done.after["sink"]) == ("completed", "restart", before, after)
    assert done.groups_moved
    assert done.reason == 'started again: the splits of "source" keep step with others'


def test_missing_slots_are_waited_for_while_the_job_runs_on() -> None:
    cluster = running(2)
    ask(cluster, 6)
    cluster.run()
    assert last(cluster).reason == "needs 6 slots, has 2, 2 free; waits for more"
    assert (cluster.view.state, of_size(cluster), cluster.sent_of(messages.Trigger)) == ("running", 2, [])
    cluster.start(TM3, 2)
    cluster.run()
    assert (last(cluster).status, of_size(cluster)) == ("completed", 6)


def test_slots_that_do_not_come_in_time_are_given_up() -> None:
    cluster = running(2, slot_wait_us=5_000_000)
    ask(cluster, 6)
    cluster.wait(6.0)
    assert last(cluster).status == "failed"
    assert "needs 6 slots, has 2, 2 free" in last(cluster).reason
    assert (cluster.view.state, cluster.view.rescale, of_size(cluster)) == ("running", None, 2)


def test_slots_that_are_kept_for_it_are_given_to_nobody_else_and_come_back() -> None:
    cluster = running(2)
    ask(cluster, 4)
    assert cluster.core.view_cluster().slots_free == 0
    cluster.feed(StopRequested(job=JOB))
    assert last(cluster).reason == "the job is to stop"
    assert cluster.core.view_cluster().slots_free == 2
    cluster.run()
    assert cluster.view.state == "stopped"


def test_a_size_that_does_not_come_up_is_left_for_the_one_before() -> None:
    cluster = running(2)
    ask(cluster, 4)
    cluster.run(until=lambda: len(cluster.deployed()) == 4)
    cluster.fail(cluster.deployed()[0])
    cluster.run()
    cluster.wait(2.0)
    cluster.run()
    sizes = [(e.parallelism, bool(e.cause)) for e in cluster.written(journal.Resized)]  # type: ignore[union-attr]
    assert sizes == [(4, False), (2, True)]
    assert (cluster.view.state, of_size(cluster), cluster.view.parallelism) == ("running", 2, 2)
    assert last(cluster).status == "failed"
    assert "went back to the size before" in last(cluster).reason


def test_a_region_that_fails_while_the_barrier_is_under_way_only_delays_it() -> None:
    cluster = running(2)
    ask(cluster, 4)
    cluster.fail(cluster.deployed()[0])
    name = cluster.deployed()[0].task_manager
    cluster.deliver(name)
    assert last(cluster).status == "pending"
    cluster.run()
    cluster.wait(2.0)
    cluster.run()
    assert (last(cluster).status, of_size(cluster), cluster.view.restarts) == ("completed", 4, 1)


def test_sources_go_on_when_the_new_size_cannot_be_written() -> None:
    cluster = running(2)
    ask(cluster, 4)
    cluster.run(until=lambda: isinstance(cluster.append, journal.Resized))
    cluster.sent.clear()
    cluster.refuse()
    aborted = [directed.message.checkpoint for directed in cluster.sent_of(messages.Abort)]  # type: ignore[union-attr]
    assert aborted == [1, 1]
    assert (last(cluster).status, cluster.view.state, of_size(cluster)) == ("failed", "running", 2)


def test_a_new_jobmanager_goes_on_at_the_size_that_the_journal_says_and_may_still_go_back() -> None:
    cluster = running(2)
    ask(cluster, 4)
    cluster.run(until=lambda: bool(cluster.written(journal.Resized)))
    cluster.core = Core(writer="jm-2")
    cluster.append, cluster.wake_at = None, None
    for name, count in ((TM1, 2), (TM2, 2)):
        cluster.start(name, count)
    recorded = journal.encode(cluster.entries[-1])
    cluster.feed(
        JobRecovered(
            job=JOB,
            graph=program(2),
            store="memory://",
            entries=tuple(cluster.entries),
            last_sha256=hashlib.sha256(recorded).hexdigest(),
        )
    )
    cluster.run(until=lambda: len(cluster.deployed()) == 4)
    assert (cluster.view.parallelism, last(cluster).status) == (4, "pending")
    cluster.fail(cluster.deployed()[0])
    cluster.run()
    cluster.wait(3.0)
    cluster.run()
    assert (cluster.view.parallelism, of_size(cluster), last(cluster).status) == (2, 2, "failed")


def test_the_size_it_has_is_had_at_once() -> None:
    cluster = running(2)
    ask(cluster, 2)
    assert (last(cluster).status, last(cluster).reason) == ("completed", "it has that size")
    assert cluster.sent == []


def test_what_cannot_be_is_refused_by_name() -> None:
    cluster = running(2)
    with pytest.raises(UserError, match="P013"):
        cluster.core.plan_rescale(JOB, 17, {})
    with pytest.raises(UserError, match='S061 there is no operator "nobody"'):
        cluster.core.plan_rescale(JOB, None, {"nobody": 2})
    bare = Cluster()
    bare.submit(msgspec.structs.replace(program(2), program=None))
    with pytest.raises(UserError, match="S060"):
        bare.core.plan_rescale(JOB, 3, {})


def test_one_operator_alone_has_another_parallelism() -> None:
    cluster = running(2)
    size = cluster.core.plan_rescale(JOB, None, {"sink": 4})
    assert size == Size(2, {"sink": 4})
    cluster.feed(RescaleRequested(job=JOB, size=size))
    cluster.run()
    assert (last(cluster).after, of_size(cluster), cluster.view.parallelism) == ({"source": 2, "sink": 4}, 2, 2)
