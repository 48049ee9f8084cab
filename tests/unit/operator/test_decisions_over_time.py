"""The controller's decisions, carried out on a model of cluster and engine, with a controller that dies anywhere."""

import dataclasses

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from .model_world import World, check_output, settle, wanted


def edit(world: World, **changes: object) -> None:
    world.desired = dataclasses.replace(world.desired, generation=world.desired.generation + 1, **changes)


def started(**changes: object) -> World:
    world = World(desired=wanted(finalizer=False, **changes))
    assert settle(world).phase == "Running"
    return world


def test_a_job_is_created_and_runs():
    world = started(parallelism=3)
    assert world.memory.job is not None
    assert world.memory.job.id == "orders-abcde-1"
    assert sorted(world.pods) == ["orders-jobmanager-0", *(f"orders-taskmanager-{n}" for n in range(3))]
    for _ in range(5):
        world.step()
        world.tick()
    assert world.memory.stable is not None
    assert world.memory.stable.revision == "r1"


def test_a_rescale_moves_the_job_without_stopping_it():
    world = started()
    edit(world, parallelism=4)
    settle(world)
    [job] = world.jobs.values()
    assert (job.parallelism, len(world.pods)) == (4, 5)
    change = world.memory.last_change
    assert change is not None
    assert (change.change_class, change.from_, change.to, change.pause_seconds) == ("rescale", "1", "4", 0.9)
    edit(world, parallelism=1)
    settle(world)
    assert (job.parallelism, len(world.pods), len(world.jobs)) == (1, 2, 1)


def test_a_rescale_without_room_leaves_the_job_at_its_size_and_says_so():
    world = started()
    world.room = 3
    edit(world, parallelism=4)
    for _ in range(30):
        decision = world.step()
        world.tick()
    assert decision.phase == "Rescaling"
    assert "taskmanager pods: 2 of 4 are ready" in decision.waiting
    assert [job.parallelism for job in world.jobs.values()] == [1]
    world.room = 100
    settle(world)
    assert [job.parallelism for job in world.jobs.values()] == [4]


def test_an_engine_that_cannot_rescale_live_is_stopped_with_a_savepoint():
    world = started()
    world.can_rescale = False
    edit(world, parallelism=4)
    settle(world)
    assert [job.state for job in world.jobs.values()] == ["stopped", "running"]
    assert world.memory.last_change is not None
    assert world.memory.last_change.change_class == "restart"
    check_output(world)


def test_a_new_revision_goes_on_from_a_savepoint_of_the_old_one():
    world = started()
    edit(world, revision="r2", parallelism=2)
    settle(world)
    old, new = world.jobs.values()
    assert (old.state, new.state, new.revision) == ("stopped", "running", "r2")
    assert world.memory.last_savepoint is not None
    check_output(world)


def test_a_revision_that_fails_its_check_never_stops_the_old_job():
    world = started()
    edit(world, revision="bad")
    decision = settle(world)
    assert [job.state for job in world.jobs.values()] == ["running"]
    assert decision.stalled is not None
    assert decision.stalled.reason == "RestoreRefused"
    edit(world, revision="r1")
    assert settle(world).stalled is None


def test_a_revision_that_crashes_is_rolled_back_with_the_same_savepoint():
    world = started()
    edit(world, revision="crash")
    decision = settle(world)
    states = [(job.revision, job.state) for job in world.jobs.values()]
    assert states == [("r1", "stopped"), ("crash", "failed"), ("r1", "running")]
    assert world.memory.last_change is not None
    assert world.memory.last_change.outcome == "RolledBack"
    assert decision.stalled is not None
    check_output(world)


def test_a_revision_whose_image_does_not_exist_is_rolled_back():
    world = started(restore_check=False)
    world.slots["noimage"] = 1
    edit(world, revision="noimage")
    settle(world)
    assert [job.revision for job in world.jobs.values()] == ["r1", "r1"]
    check_output(world)


def test_suspending_removes_all_pods_and_resuming_goes_on():
    world = started()
    edit(world, suspended=True)
    assert settle(world).phase == "Suspended"
    assert not world.pods
    edit(world, suspended=False, revision="r2")
    assert settle(world).phase == "Running"
    assert [job.revision for job in world.jobs.values()] == ["r1", "r2"]
    check_output(world)


def test_a_store_that_is_away_for_a_while_does_not_fail_an_upgrade():
    world = started(restore_check=False)
    world.store_works = False
    edit(world, revision="r2")
    for _ in range(3):
        world.step()
        world.tick()
    world.store_works = True
    settle(world)
    assert [job.revision for job in world.jobs.values()] == ["r1", "r2"]
    check_output(world)


def test_a_store_that_stays_away_leaves_the_old_job_running():
    world = started(restore_check=False)
    world.store_works = False
    edit(world, revision="r2")
    decision = settle(world)
    assert [job.state for job in world.jobs.values()] == ["running"]
    assert decision.stalled is not None
    assert decision.stalled.reason == "SavepointFailed"


@pytest.mark.parametrize("take", [True, False])
def test_a_deletion_ends_the_job_in_order(take):
    world = started(savepoint_on_delete=take)
    world.desired = dataclasses.replace(world.desired, deleted_at="2026-01-01T00:10:00Z")
    settle(world)
    [job] = world.jobs.values()
    assert job.state == "stopped"
    assert [status for status, _ in world.savepoints.values()] == (["completed"] if take else [])
    check_output(world)


def test_a_deletion_does_not_wait_for_ever():
    world = started()
    world.pods.clear()
    world.workload = None
    world.desired = dataclasses.replace(world.desired, deleted_at="2026-01-01T00:00:00Z", delete_seconds=300)
    for _ in range(200):
        world.step()
        world.tick()
        if world.deleted:
            break
    assert world.deleted


def test_a_job_that_somebody_stopped_by_hand_goes_on():
    world = started()
    [job] = world.jobs.values()
    job.state = "stopping"
    world.tick()
    settle(world)
    assert [job.state for job in world.jobs.values()] == ["stopped", "running"]
    check_output(world)


def test_a_job_of_somebody_else_in_the_same_storage_is_left_alone():
    world = World(desired=wanted())
    world.jobs["theirs-1"] = _theirs()
    for _ in range(20):
        decision = world.step()
        world.tick()
    assert decision.stalled is not None
    assert decision.stalled.reason == "StorageInUse"
    assert list(world.jobs) == ["theirs-1"]


def _theirs():
    from .model_world import ModelJob

    return ModelJob("theirs-1", "r1", 1, 0, 0, state="running")


EDITS = st.fixed_dictionaries(
    {},
    optional={
        "revision": st.sampled_from(["r1", "r2", "bad", "crash"]),
        "parallelism": st.integers(1, 5),
        "suspended": st.booleans(),
        "upgrade_mode": st.sampled_from(["savepoint", "last-state"]),
        "restore_check": st.booleans(),
    },
)
EVENTS = st.one_of(
    EDITS.map(lambda changes: ("edit", changes)),
    st.integers(0, 4).map(lambda cut: ("die", cut)),
    st.integers(0, 5).map(lambda ordinal: ("kill taskmanager", ordinal)),
    st.just(("kill jobmanager", 0)),
    st.just(("store", False)),
    st.just(("store", True)),
    st.integers(1, 15).map(lambda count: ("time", count)),
)


@settings(max_examples=300, deadline=None)
@given(st.lists(EVENTS, max_size=25), st.booleans())
def test_whatever_happens_the_wanted_state_is_reached_and_no_row_is_lost_or_repeated(events, can_rescale):
    world = World(desired=wanted(finalizer=False), can_rescale=can_rescale)
    for what, how in events:
        if what == "edit":
            edit(world, **how)
        elif what == "die":
            world.step(die_after=how)
        elif what == "kill taskmanager":
            world.pods.pop(f"orders-taskmanager-{how}", None)
        elif what == "kill jobmanager":
            world.pods.pop("orders-jobmanager-0", None)
        elif what == "store":
            world.store_works = how
        for _ in range(how if what == "time" else 1):
            world.step()
            world.tick()
    world.store_works = True
    edit(world, revision="r1", parallelism=2, suspended=False)
    settle(world)
    check_output(world)
    live = [job for job in world.jobs.values() if job.state == "running"]
    refused = world.memory.rejected is not None
    assert [(job.revision, job.parallelism) for job in live] == [("r1", 2)] or refused, world.memory
