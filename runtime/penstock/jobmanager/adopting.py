"""Regions that an earlier JobManager has started, and that may still run: taken over as they are, if they do. No I/O.

    ADOPTING -- all its slots say that they run it --> DEPLOYING or RUNNING, and nothing was interrupted
        +-- one of them does not, or is not heard of --> WAITING: it starts again from the last checkpoint

Owns: what the journal says of attempts that may still run, and the newest checkpoint that they were asked for.
Invariant: a region is adopted whole or not at all, and only when the journal says that nothing but ordinary
checkpoints happened to the job since its attempt began. Ids of checkpoints are never used twice in an attempt.
"""

from collections.abc import Iterable
from dataclasses import dataclass

import msgspec

from penstock.checkpoint import journal
from penstock.jobmanager.regions import RegionRun, Regions, RegionState
from penstock.jobmanager.timing import Moment
from penstock.model.elements import BarrierKind
from penstock.model.handles import Manifest
from penstock.model.ids import Attempt, CheckpointId, SlotId, TaskManagerId
from penstock.model.messages import Runs

_ORDINARY = frozenset({BarrierKind.CHECKPOINT.value, BarrierKind.SAVEPOINT.value})


@dataclass(frozen=True, slots=True)
class _Expected:
    slots: frozenset[SlotId]
    restored: Manifest | None
    """Where its counters began: what was counted before this attempt."""
    latest: CheckpointId | None
    """The last checkpoint that was completed while it ran: its output is to be shown, if that was not done."""


@dataclass(frozen=True, slots=True)
class Adopted:
    """A region that runs on; what its slots have to be told."""

    run: RegionRun
    commit: CheckpointId | None


class Adopting:
    """The regions of one job."""

    def __init__(self, regions: Regions) -> None:
        self._regions = regions
        self._expected: dict[Attempt, _Expected] = {}
        self.newest = CheckpointId(0)
        """Of all checkpoints that any slot of such a region was asked for."""

    def wakes(self, patience: float) -> list[float]:
        """When somebody is late."""
        return [run.since + patience for run in self.runs]

    @property
    def runs(self) -> list[RegionRun]:
        """Those of which it is not known yet."""
        return [run for run in self._regions.runs if run.state is RegionState.ADOPTING]

    def expect(self, entries: Iterable[journal.JournalEntry], at: Moment) -> None:
        """Read off the journal what may still run."""
        started: dict[int, journal.AttemptStarted] = {}
        completed: dict[CheckpointId, tuple[int, Manifest]] = {}
        unsettled = False
        for entry in entries:
            match entry:
                case journal.Submitted(initial=initial) if initial is not None:
                    completed[initial.checkpoint] = (entry.sequence, initial)
                case journal.AttemptStarted(region=region):
                    started[region] = entry
                case journal.Resized():
                    started.clear()
                    unsettled = True
                case journal.CheckpointCompleted(manifest=manifest):
                    completed[manifest.checkpoint] = (entry.sequence, manifest)
                    unsettled = manifest.kind not in _ORDINARY
                case journal.Ended():
                    return
        if unsettled:
            return
        for run in self._regions.runs:
            began = started.get(run.region.index)
            if began is not None and began.slots:
                self._expected[began.attempt] = _expected(began, completed)
                run.attempt = began.attempt
                run.enter(RegionState.ADOPTING, at.monotonic)

    def take(self, slot: SlotId, runs: Runs) -> bool:
        """A slot says what it runs. False: it is of no use, and is to end."""
        run, expected = self._regions.of(runs.attempt), self._expected.get(runs.attempt)
        self.newest = max(self.newest, runs.newest)
        if run is None or run.state is not RegionState.ADOPTING or expected is None:
            return False
        tasks = tuple(task for task in run.region.tasks if task.subtask in runs.subtasks)
        if slot not in expected.slots or runs.failed or len(tasks) != len(runs.subtasks):
            return False
        run.placement[slot] = tasks
        if runs.running:
            run.reported[slot] = None
        run.ended |= dict.fromkeys(runs.ended)
        return True

    def missing(self, task_manager: TaskManagerId) -> list[RegionRun]:
        """Regions that cannot be adopted, now that this TaskManager has said all that it runs."""
        return [
            run
            for run in self.runs
            if any(
                slot.task_manager == task_manager and slot not in run.placement
                for slot in self._expected[run.number].slots
            )
        ]

    def late(self, at: Moment, patience: float) -> list[RegionRun]:
        """Regions with slots that nobody has heard of for too long."""
        return [run for run in self.runs if at.monotonic - run.since >= patience]

    def settle(self, at: Moment) -> list[Adopted]:
        """Adopt what is complete."""
        adopted = []
        for run in self.runs:
            expected = self._expected[run.number]
            if run.placement.keys() != expected.slots:
                continue
            placed = sorted(task.subtask for tasks in run.placement.values() for task in tasks)
            if placed != sorted(run.region.subtasks):
                run.since = float("-inf")  # it never will be: late at the next look
                continue
            run.restored = expected.restored
            complete = len(run.reported) == len(run.placement)
            run.enter(RegionState.RUNNING if complete else RegionState.DEPLOYING, at.monotonic)
            adopted.append(Adopted(run, expected.latest))
        return adopted


def _expected(entry: journal.AttemptStarted, completed: dict[CheckpointId, tuple[int, Manifest]]) -> _Expected:
    since = [manifest for sequence, manifest in completed.values() if sequence > entry.sequence]
    restored = completed.get(entry.restored) if entry.restored is not None else None
    if since:
        newest = max(since, key=lambda manifest: manifest.checkpoint)
        return _Expected(
            frozenset(entry.slots), msgspec.structs.replace(newest, counters=newest.counted_before), newest.checkpoint
        )
    return _Expected(frozenset(entry.slots), restored[1] if restored else None, None)
