"""The small parts of the core: slots, packing, restarts, states, versions."""

import random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from penstock.graph import Region
from penstock.jobmanager import lifecycle, packing, versions
from penstock.jobmanager.lifecycle import IllegalMove, JobState
from penstock.jobmanager.restarts import Restarts
from penstock.jobmanager.slots import SlotPool, Usage
from penstock.model.ids import Attempt, JobId, SlotId, SubtaskId, TaskManagerId, VertexId
from penstock.model.messages import Register, SlotInfo
from penstock.model.settings import RestartSettings

JOB = JobId("job")
TM, OTHER = TaskManagerId("tm-1"), TaskManagerId("tm-2")
USAGE = Usage(JOB, Attempt(1))


def info(index: int, pid: int, task_manager: TaskManagerId = TM) -> SlotInfo:
    return SlotInfo(slot=SlotId(task_manager, index), address=f"host:{pid}", pid=pid)


def register(pool: SlotPool, *slots: SlotInfo, at: float = 0.0) -> list[SlotId]:
    name = slots[0].slot.task_manager
    message = Register(task_manager=name, address="a", host="h", pid=1, slots=slots, versions={})
    return [lost.slot for lost in pool.register(message, at)]


@pytest.fixture
def pool() -> SlotPool:
    return SlotPool(heartbeat_timeout=5.0, cancel_repeat=2.0)


def use(pool: SlotPool, slot: SlotId) -> None:
    pool.reserve([slot], USAGE)
    pool.deployed(slot)


def test_free_slots_are_spread_over_taskmanagers(pool: SlotPool) -> None:
    register(pool, info(0, 1), info(1, 2))
    register(pool, info(0, 3, OTHER), info(1, 4, OTHER))
    assert [found.pid for found in pool.free()] == [1, 3, 2, 4]


def test_a_released_process_is_cancelled_until_a_fresh_one_is_announced(pool: SlotPool) -> None:
    register(pool, info(0, 1))
    use(pool, SlotId(TM, 0))
    pool.release([SlotId(TM, 0)], USAGE, 10.0)
    assert [cancel.attempt for cancel in pool.due_cancels(10.0)] == [1]
    assert pool.due_cancels(11.0) == []
    assert len(pool.due_cancels(12.0)) == 1
    assert pool.free() == []
    assert pool.slot_ready(info(0, 1)) == [], "the old process announces itself late"
    assert pool.free() == []
    assert pool.slot_ready(info(0, 2)) == []
    assert [found.pid for found in pool.free()] == [2]


def test_a_reserved_slot_is_free_again_without_a_cancel(pool: SlotPool) -> None:
    register(pool, info(0, 1))
    pool.reserve([SlotId(TM, 0)], USAGE)
    pool.release([SlotId(TM, 0)], USAGE, 1.0)
    assert len(pool.free()) == 1
    assert pool.due_cancels(1.0) == []


def test_of_a_job_that_was_taken_over_only_slots_that_run_it_stay_in_use(pool: SlotPool) -> None:
    register(pool, info(0, 1), info(1, 2))
    use(pool, SlotId(TM, 0))
    pool.reserve([SlotId(TM, 1)], USAGE)
    pool.abandon(JOB)
    assert [found.pid for found in pool.free()] == [2]
    assert pool.due_cancels(10.0) == []


def test_releasing_for_an_old_attempt_changes_nothing(pool: SlotPool) -> None:
    register(pool, info(0, 1))
    use(pool, SlotId(TM, 0))
    pool.release([SlotId(TM, 0)], Usage(JOB, Attempt(9)), 1.0)
    assert pool.holds(SlotId(TM, 0), USAGE)


@pytest.mark.parametrize(
    ("after", "lost"),
    [
        ((info(0, 1), info(1, 2)), [SlotId(TM, 0)]),
        ((info(0, 9), info(1, 2)), [SlotId(TM, 0)]),
        ((info(1, 2),), [SlotId(TM, 0)]),
    ],
)
def test_registering_again_says_that_no_process_has_its_deployment_any_more(
    pool: SlotPool, after: tuple[SlotInfo, ...], lost: list[SlotId]
) -> None:
    register(pool, info(0, 1), info(1, 2))
    use(pool, SlotId(TM, 0))
    assert register(pool, *after) == lost


def test_registering_again_keeps_a_slot_that_is_only_reserved(pool: SlotPool) -> None:
    register(pool, info(0, 1))
    pool.reserve([SlotId(TM, 0)], USAGE)
    assert register(pool, info(0, 1)) == []
    assert pool.holds(SlotId(TM, 0), USAGE)


def test_a_report_without_memory_does_not_forget_what_was_measured(pool: SlotPool) -> None:
    register(pool, info(0, pid=10))
    [slot] = [each.info.slot for each in pool.slots()]
    pool.note_memory(slot, 150_000_000)
    pool.note_memory(slot, 0)
    assert [each.rss_bytes for each in pool.slots()] == [150_000_000]


def test_a_taskmanager_is_silent_after_its_time(pool: SlotPool) -> None:
    register(pool, info(0, 1))
    assert pool.silent(4.9) == []
    assert pool.heard(TM, 4.9)
    assert pool.silent(9.8) == []
    assert pool.silent(9.9) == [TM]
    assert not pool.heard(OTHER, 1.0)


@settings(deadline=None)
@given(wanted=st.lists(st.integers(1, 5), min_size=1, max_size=5), extra=st.integers(0, 30))
def test_slots_are_shared_fairly(wanted: list[int], extra: int) -> None:
    slots = len(wanted) + extra
    given_out = packing.share(wanted, slots)
    assert sum(given_out) == min(slots, sum(wanted))
    assert all(1 <= got <= most for got, most in zip(given_out, wanted, strict=True))
    short = [got for got, most in zip(given_out, wanted, strict=True) if got < most]
    assert not short or max(given_out) - min(short) <= 1


@settings(deadline=None)
@given(count=st.integers(1, 8), regions=st.integers(1, 8))
def test_merged_regions_have_all_subtasks_once(count: int, regions: int) -> None:
    subtasks = [SubtaskId(VertexId("map"), index) for index in range(regions)]
    parts = [Region(index=i, tasks=(), subtasks=(subtask,)) for i, subtask in enumerate(subtasks)]
    merged = packing.merge(parts, count)
    assert len(merged) == min(count, regions)
    assert sorted(subtask for region in merged for subtask in region.subtasks) == subtasks


@pytest.mark.parametrize(
    ("at", "free", "returning", "held", "choice"),
    [
        (0.0, 4, 0, 0, packing.Share),
        (0.0, 3, 0, 0, packing.Wait),
        (10.0, 3, 0, 0, packing.Share),
        (10.0, 3, 1, 0, packing.Wait),
        (20.0, 3, 1, 0, packing.Share),
        (10.0, 1, 0, 0, packing.Merge),
        (10.0, 0, 0, 2, packing.Merge),
        (99.0, 0, 0, 0, packing.Wait),
    ],
)
def test_patience_with_missing_slots(at: float, free: int, returning: int, held: int, choice: type) -> None:
    patience = packing.Packing(10.0)
    slots = [info(index, index) for index in range(free)]
    patience.choose([2, 2], slots[:0], returning=0, held=0, monotonic=0.0)
    chosen = patience.choose([2, 2], slots, returning=returning, held=held, monotonic=at)
    assert isinstance(chosen, choice)


def restarts(**chosen: int) -> Restarts:
    return Restarts(RestartSettings(**chosen), random.Random(3))  # type: ignore[arg-type]


def test_the_delay_doubles_up_to_its_limit() -> None:
    found = restarts(first_delay_us=1_000_000, max_delay_us=4_000_000)
    delays, now = [], 0.0
    for _ in range(5):
        found.on_failure(now)
        delays.append(found.resume_at - now)
        now = found.resume_at
    for delay, most in zip(delays, [1.0, 2.0, 4.0, 4.0, 4.0], strict=True):
        assert 0.75 * most <= delay <= most


def test_failures_during_the_delay_belong_to_the_one_before() -> None:
    found = restarts(first_delay_us=1_000_000, budget=1)
    assert found.on_failure(0.0)
    assert found.on_failure(0.5)
    assert found.count == 1
    assert not found.on_failure(1.0)


def test_only_a_long_run_gives_the_budget_back() -> None:
    found = restarts(budget=1, reset_after_us=60_000_000)
    assert found.on_failure(0.0)
    found.on_running(10.0)
    assert found.on_failure(70.0)
    assert not found.on_failure(500.0), "it has not run since"


def test_the_table_of_states_is_total_and_ends_are_final() -> None:
    assert lifecycle.MOVES.keys() == set(JobState)
    assert all(not lifecycle.MOVES[state] for state in lifecycle.TERMINAL)


def test_an_illegal_move_names_the_job_and_what_is_legal() -> None:
    with pytest.raises(IllegalMove, match="job job: finished -> running; legal: none, it has ended"):
        lifecycle.move(JOB, JobState.FINISHED, JobState.RUNNING)


@pytest.mark.parametrize(
    ("built", "there", "differs"),
    [
        ({"python": "3.11.4"}, {"python": "3.11.9"}, False),
        ({"python": "3.11.4"}, {"python": "3.12.0"}, True),
        ({"polars": "2.1.0"}, {"polars": "2.1.1"}, True),
        ({}, {"penstock": "0.1.0"}, False),
    ],
)
def test_versions_that_matter_are_compared(built: dict[str, str], there: dict[str, str], differs: bool) -> None:
    assert (versions.mismatch(built, {TM: there}) is not None) == differs
