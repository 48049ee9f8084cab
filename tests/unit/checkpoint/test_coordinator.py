"""The coordinator: each decision, then random events against what a coordinator may never do."""

from collections.abc import Iterable

import msgspec
import pytest
from hypothesis import settings as hypothesis_settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from penstock.checkpoint import journal
from penstock.checkpoint.coordinator import HISTORY, Answer, Coordinator, Phase, from_journal
from penstock.model.counters import OperatorMetrics
from penstock.model.elements import BarrierKind
from penstock.model.handles import Manifest, StateHandle
from penstock.model.ids import Attempt, CheckpointId, SlotId, SubtaskId, TaskManagerId, VertexId
from penstock.model.settings import CheckpointSettings

SUBTASKS = [SubtaskId(VertexId("count"), index) for index in range(2)]
SLOTS = [SlotId(TaskManagerId("tm"), index) for index in range(2)]
CHECKPOINT, STOP, FINAL = BarrierKind.CHECKPOINT, BarrierKind.STOP, BarrierKind.FINAL


def handle(checkpoint: int, subtask: SubtaskId, *, stateless: bool = False) -> StateHandle:
    path = "" if stateless else f"checkpoints/{checkpoint}/1-{subtask.vertex}-{subtask.index}.state"
    return StateHandle(subtask=subtask, path=path, size=10, sha256="0", sections=())


def started(settings: CheckpointSettings | None = None, *, kind: BarrierKind = CHECKPOINT) -> Coordinator:
    coordinator = Coordinator(settings or CheckpointSettings())
    trigger(coordinator, kind)
    return coordinator


def trigger(coordinator: Coordinator, kind: BarrierKind = CHECKPOINT, at: float = 0.0) -> CheckpointId:
    return coordinator.trigger(kind, SUBTASKS, now_us=int(at * 1e6), monotonic=at).checkpoint


def acknowledge(coordinator: Coordinator, subtasks: Iterable[SubtaskId] = SUBTASKS) -> None:
    assert coordinator.pending is not None
    number = coordinator.pending.barrier.checkpoint
    for subtask in subtasks:
        assert coordinator.acknowledge(number, subtask, handle(number, subtask)) is Answer.ACCEPTED


def collect(coordinator: Coordinator) -> Manifest | None:
    return coordinator.collected(parallelism={"count": 2}, max_parallelism=16, now_us=5)


def entry(manifest: Manifest, sequence: int = 1) -> journal.CheckpointCompleted:
    return journal.CheckpointCompleted(sequence=sequence, parent="", writer="w", time_us=0, manifest=manifest)


def complete(coordinator: Coordinator, sequence: int = 1, commit_by: list[SlotId] | None = None) -> tuple[str, ...]:
    acknowledge(coordinator)
    manifest = collect(coordinator)
    assert manifest is not None
    return coordinator.journaled(entry(manifest, sequence), commit_by=commit_by or [], monotonic=0.0)


def test_the_manifest_is_given_out_once_when_all_have_acknowledged() -> None:
    coordinator = started()
    acknowledge(coordinator, SUBTASKS[:1])
    assert collect(coordinator) is None
    acknowledge(coordinator, SUBTASKS[1:])
    manifest = collect(coordinator)
    assert manifest is not None
    assert [found.subtask for found in manifest.handles] == SUBTASKS
    assert collect(coordinator) is None


def test_barriers_overtake_after_the_alignment_has_had_its_time() -> None:
    coordinator = started(CheckpointSettings(alignment_timeout_us=2_000_000))
    assert coordinator.overtaking_due() == 2.0
    coordinator.overtake()
    assert coordinator.overtaking_due() is None
    acknowledge(coordinator)
    manifest = collect(coordinator)
    assert manifest is not None
    assert manifest.unaligned
    assert coordinator.views()[-1].unaligned


@pytest.mark.parametrize(
    ("timeout_us", "kind"), [(None, CHECKPOINT), (1_000_000, STOP), (1_000_000, FINAL), (0, STOP)]
)
def test_some_barriers_never_overtake(timeout_us: int | None, kind: BarrierKind) -> None:
    coordinator = started(CheckpointSettings(alignment_timeout_us=timeout_us), kind=kind)
    assert coordinator.overtaking_due() is None
    assert coordinator.pending is not None
    assert not coordinator.pending.barrier.overtakes


def test_without_patience_barriers_overtake_from_the_start() -> None:
    coordinator = started(CheckpointSettings(alignment_timeout_us=0))
    assert coordinator.overtaking_due() is None
    assert coordinator.pending is not None
    assert coordinator.pending.barrier.overtakes


def test_subtasks_without_state_leave_no_trace_in_the_manifest() -> None:
    coordinator = started()
    for subtask in SUBTASKS:
        coordinator.acknowledge(CheckpointId(1), subtask, handle(1, subtask, stateless=True))
    manifest = collect(coordinator)
    assert manifest is not None
    assert manifest.handles == ()


def test_a_manifest_counts_rows_of_all_subtasks_and_of_the_runs_before() -> None:
    coordinator = started()
    for rows, subtask in enumerate(SUBTASKS, start=1):
        counted = (OperatorMetrics(uid="source", rows_out=rows),)
        acknowledged = msgspec.structs.replace(handle(1, subtask, stateless=True), counters=counted)
        coordinator.acknowledge(CheckpointId(1), subtask, acknowledged)
    before = [OperatorMetrics(uid="source", rows_out=100), OperatorMetrics(uid="gone", rows_in=7)]
    manifest = coordinator.collected(parallelism={}, max_parallelism=16, now_us=5, counted_before=before)
    assert manifest is not None
    rows = sum(range(1, len(SUBTASKS) + 1))
    assert manifest.counters == (OperatorMetrics(uid="source", rows_out=100 + rows), before[1])


@pytest.mark.parametrize(
    ("checkpoint", "subtask", "answer"),
    [
        (1, SUBTASKS[0], Answer.DUPLICATE),
        (1, SUBTASKS[1], Answer.ACCEPTED),
        (1, SubtaskId(VertexId("other"), 0), Answer.STALE),
        (2, SUBTASKS[1], Answer.STALE),
    ],
)
def test_an_acknowledgement_is_accepted_duplicate_or_stale(
    checkpoint: int, subtask: SubtaskId, answer: Answer
) -> None:
    coordinator = started()
    acknowledge(coordinator, SUBTASKS[:1])
    assert coordinator.acknowledge(CheckpointId(checkpoint), subtask, handle(checkpoint, subtask)) is answer


@pytest.mark.parametrize(
    ("settings", "ended_at", "due"),
    [
        (CheckpointSettings(interval_us=10_000_000), 3.0, 10.0),
        (CheckpointSettings(interval_us=10_000_000, min_pause_us=9_000_000), 3.0, 12.0),
        (CheckpointSettings(interval_us=10_000_000), 15.0, 15.0),
        (CheckpointSettings(interval_us=0), 3.0, None),
    ],
)
def test_the_next_checkpoint_is_due(settings: CheckpointSettings, ended_at: float, due: float | None) -> None:
    coordinator = Coordinator(settings)
    assert coordinator.next_trigger() is None
    coordinator.arm(0.0)
    trigger(coordinator)
    assert coordinator.next_trigger() is None, "one at a time"
    coordinator.fail(CheckpointId(1), "declined", monotonic=ended_at)
    assert coordinator.next_trigger() == due
    coordinator.disarm()
    assert coordinator.next_trigger() is None


def test_the_interval_counts_from_the_moment_when_everything_runs() -> None:
    coordinator = Coordinator(CheckpointSettings(interval_us=10_000_000))
    coordinator.arm(100.0)
    assert coordinator.next_trigger() == 110.0


def test_only_a_checkpoint_that_is_being_collected_has_a_deadline() -> None:
    coordinator = started(CheckpointSettings(timeout_us=5_000_000))
    assert coordinator.deadline() == 5.0
    acknowledge(coordinator)
    collect(coordinator)
    assert coordinator.deadline() is None


def test_failures_in_a_row_beyond_the_tolerated_ones_ask_for_a_restart() -> None:
    coordinator = Coordinator(CheckpointSettings(tolerated_failures=2))
    restarts = []
    for _ in range(6):
        given_up = coordinator.fail(trigger(coordinator), "declined", monotonic=0.0)
        assert given_up is not None
        restarts.append(bool(given_up.restart))
    assert restarts == [False, False, True, False, False, True]


def test_a_completed_checkpoint_forgets_the_failures_before_it() -> None:
    coordinator = Coordinator(CheckpointSettings(tolerated_failures=1))
    for sequence in range(3):
        given_up = coordinator.fail(trigger(coordinator), "declined", monotonic=0.0)
        assert given_up is not None
        assert not given_up.restart
        trigger(coordinator)
        complete(coordinator, sequence)


def test_a_failed_checkpoint_leaves_its_objects_as_garbage() -> None:
    coordinator = started()
    acknowledge(coordinator, SUBTASKS[:1])
    given_up = coordinator.fail(CheckpointId(1), "too late", monotonic=1.0)
    assert given_up is not None
    assert given_up.garbage == ("checkpoints/1/1-count-0.state",)
    assert coordinator.fail(CheckpointId(1), "again", monotonic=1.0) is None


def test_an_interruption_is_no_failure_of_the_checkpoint() -> None:
    coordinator = Coordinator(CheckpointSettings(tolerated_failures=0))
    for _ in range(3):
        trigger(coordinator)
        given_up = coordinator.interrupt("a region failed", monotonic=0.0)
        assert given_up is not None
        assert not given_up.restart


def test_a_manifest_on_its_way_into_the_journal_cannot_be_interrupted() -> None:
    coordinator = started()
    acknowledge(coordinator)
    manifest = collect(coordinator)
    assert manifest is not None
    assert coordinator.interrupt("a region failed", monotonic=0.0) is None
    coordinator.journaled(entry(manifest), commit_by=(), monotonic=0.0)
    assert coordinator.latest == manifest


@pytest.mark.parametrize("kind", [STOP, FINAL])
def test_the_last_checkpoint_is_over_when_every_slot_has_committed(kind: BarrierKind) -> None:
    coordinator = started(kind=kind)
    complete(coordinator, commit_by=SLOTS)
    assert coordinator.committed(CheckpointId(9), SLOTS[0]) is None
    assert coordinator.committed(CheckpointId(1), SLOTS[0]) is None
    assert coordinator.committed(CheckpointId(1), SLOTS[0]) is None
    assert coordinator.committed(CheckpointId(1), SLOTS[1]) is kind
    assert coordinator.committed(CheckpointId(1), SLOTS[1]) is None


def test_an_ordinary_checkpoint_waits_for_no_commit() -> None:
    coordinator = started()
    complete(coordinator, commit_by=SLOTS)
    assert coordinator.pending is None


def test_an_interrupted_commit_leaves_the_checkpoint_complete() -> None:
    coordinator = started(kind=FINAL)
    complete(coordinator, commit_by=SLOTS)
    assert coordinator.interrupt("a region failed", monotonic=0.0) is None
    assert coordinator.pending is None
    assert coordinator.latest is not None
    assert [view.status for view in coordinator.views()] == ["completed"]


def test_the_oldest_checkpoints_are_dropped_entry_first() -> None:
    coordinator = Coordinator(CheckpointSettings(retained=2))
    garbage = []
    for sequence in range(5, 8):
        trigger(coordinator)
        garbage.append(complete(coordinator, sequence))
    assert garbage[:2] == [(), ()]
    assert garbage[2] == (
        journal.path(5),
        "checkpoints/1/1-count-0.state",
        "checkpoints/1/1-count-1.state",
    )


def test_a_late_object_is_useless_only_when_nothing_refers_to_it() -> None:
    coordinator = started()
    complete(coordinator)
    assert not coordinator.useless(handle(1, SUBTASKS[0]))
    assert coordinator.useless(handle(7, SUBTASKS[0]))
    assert not coordinator.useless(handle(7, SUBTASKS[0], stateless=True))


def test_the_history_is_limited() -> None:
    coordinator = Coordinator(CheckpointSettings(tolerated_failures=1000))
    for _ in range(HISTORY + 10):
        coordinator.fail(trigger(coordinator), "declined", monotonic=0.0)
    assert [view.id for view in coordinator.views()] == list(range(11, HISTORY + 11))
    assert coordinator.failed_count == HISTORY + 10


def test_ids_go_on_above_everything_in_the_journal() -> None:
    manifest = Manifest(
        checkpoint=CheckpointId(4),
        kind="checkpoint",
        parallelism={"count": 2},
        max_parallelism=16,
        triggered_us=0,
        completed_us=1,
        handles=(),
    )
    head = {"parent": "", "writer": "w", "time_us": 0}
    entries: list[journal.JournalEntry] = [
        journal.Submitted(sequence=0, name="job", graph_sha256="", initial=manifest, **head),  # type: ignore[arg-type]
        journal.AttemptStarted(sequence=1, attempt=Attempt(1), region=0, restored=CheckpointId(9), **head),  # type: ignore[arg-type]
    ]
    coordinator = from_journal(CheckpointSettings(), entries)
    assert coordinator.latest == manifest
    assert trigger(coordinator) == 10


class AnyOrder(RuleBasedStateMachine):
    """Events in any order, and now and then a new JobManager that knows only the journal."""

    def __init__(self) -> None:
        super().__init__()
        self.settings = CheckpointSettings(retained=2, tolerated_failures=1)
        self.coordinator = Coordinator(self.settings)
        self.entries: list[journal.JournalEntry] = []
        self.objects: set[str] = set()
        self.writing: Manifest | None = None
        self.sequence = 0
        self.highest_journaled = 0

    @rule(kind=st.sampled_from(list(BarrierKind)))
    @precondition(lambda self: self.coordinator.pending is None)
    def trigger(self, kind: BarrierKind) -> None:
        assert trigger(self.coordinator, kind) > self.highest_journaled

    @rule(subtask=st.sampled_from(SUBTASKS), back=st.integers(0, 2))
    def acknowledge(self, subtask: SubtaskId, back: int) -> None:
        pending = self.coordinator.pending
        number = CheckpointId((pending.barrier.checkpoint if pending else self.highest_journaled) - back)
        found = handle(number, subtask)
        answer = self.coordinator.acknowledge(number, subtask, found)
        if answer is Answer.ACCEPTED:
            self.objects.add(found.path)
        elif answer is Answer.STALE and self.coordinator.useless(found):
            self.objects.discard(found.path)

    @rule()
    @precondition(lambda self: self.writing is None)
    def collect(self) -> None:
        self.writing = collect(self.coordinator)

    @rule(slots=st.sampled_from([SLOTS, []]))
    @precondition(lambda self: self.writing is not None)
    def write(self, slots: list[SlotId]) -> None:
        assert self.writing is not None
        assert self.writing.checkpoint > self.highest_journaled, "an id was used again"
        written, self.writing = entry(self.writing, self.sequence), None
        self.sequence += 1
        self.highest_journaled = written.manifest.checkpoint
        self.entries.append(written)
        garbage = set(self.coordinator.journaled(written, commit_by=slots, monotonic=0.0))
        self.objects -= garbage
        self.entries = [kept for kept in self.entries if journal.path(kept.sequence) not in garbage]

    @rule()
    @precondition(lambda self: self.coordinator.pending is not None)
    def fail(self) -> None:
        assert self.coordinator.pending is not None
        given_up = self.coordinator.fail(self.coordinator.pending.barrier.checkpoint, "failed", monotonic=0.0)
        if given_up is not None:
            self.writing = None
            self.objects -= set(given_up.garbage)

    @rule()
    def interrupt(self) -> None:
        given_up = self.coordinator.interrupt("a region failed", monotonic=0.0)
        if given_up is not None:
            assert self.writing is None, "a manifest that may be in the journal was given up"
            self.objects -= set(given_up.garbage)

    @rule(slot=st.sampled_from(SLOTS))
    def commit(self, slot: SlotId) -> None:
        pending = self.coordinator.pending
        kind = self.coordinator.committed(CheckpointId(self.highest_journaled), slot)
        if kind is not None:
            assert pending is not None
            assert pending.barrier.kind is kind
            assert self.coordinator.pending is None

    @rule()
    def replace_jobmanager(self) -> None:
        self.writing = None
        self.coordinator = from_journal(self.settings, self.entries)

    @invariant()
    def the_coordinator_is_consistent(self) -> None:
        self.coordinator.check_invariants()
        pending = self.coordinator.pending
        journaling = pending is not None and pending.phase is Phase.JOURNALING
        assert journaling == (self.writing is not None)

    @invariant()
    def every_object_of_a_retained_checkpoint_is_there(self) -> None:
        manifests = [kept.manifest for kept in self.entries if isinstance(kept, journal.CheckpointCompleted)]
        assert len(manifests) <= self.settings.retained
        assert {found.path for manifest in manifests for found in manifest.handles} <= self.objects
        assert self.coordinator.latest == (manifests[-1] if manifests else None)


TestAnyOrder = AnyOrder.TestCase
TestAnyOrder.settings = hypothesis_settings(max_examples=80, stateful_step_count=40, deadline=None)


def test_a_savepoint_is_a_checkpoint_once_its_tables_are_complete() -> None:
    coordinator = Coordinator(CheckpointSettings())
    kind, uri = BarrierKind.SAVEPOINT, "memory://savepoint"
    barrier = coordinator.trigger(kind, SUBTASKS, now_us=0, monotonic=0.0, savepoint=uri)
    assert (barrier.savepoint, barrier.overtakes, coordinator.overtaking_due()) == (uri, False, None)
    assert coordinator.tables() is None
    acknowledge(coordinator)
    pending = coordinator.tables()
    assert pending is coordinator.pending
    assert coordinator.tables() is None, "given out once"
    assert collect(coordinator) is None, "not before its tables are complete"
    coordinator.tables_written(CheckpointId(99))
    assert collect(coordinator) is None
    coordinator.tables_written(barrier.checkpoint)
    manifest = collect(coordinator)
    assert manifest is not None
    assert (manifest.kind, manifest.savepoint) == ("savepoint", uri)
    coordinator.journaled(entry(manifest), commit_by=SLOTS, monotonic=0.0)
    assert coordinator.pending is None, "the job goes on at once"
    assert coordinator.latest == manifest


def test_a_savepoint_that_fails_is_no_reason_to_restart() -> None:
    coordinator = Coordinator(CheckpointSettings(tolerated_failures=0))
    barrier = coordinator.trigger(BarrierKind.SAVEPOINT, SUBTASKS, now_us=0, monotonic=0.0, savepoint="memory://x")
    given_up = coordinator.fail(barrier.checkpoint, "no space", monotonic=1.0)
    assert given_up is not None
    assert given_up.restart == ""
    trigger(coordinator)
    assert complete(coordinator) == ()
