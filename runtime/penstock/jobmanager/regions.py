"""Regions of a job on their way from waiting to running.

Owns: which regions there are, apart or merged for want of slots, and the numbers of their attempts.

    WAITING -> JOURNALING -> DEPLOYING -> RUNNING
       ^           |             |           |
       |           |             +-----------+--> FAILING (the cause may still come)
       +-----------+-----------------------------------+

JOURNALING: slots are reserved and the attempt has its number, but nobody else knows of it until it is written.
"""

import enum
from collections.abc import Sequence
from dataclasses import dataclass, field

import msgspec

from penstock.checkpoint.selection import handles_for
from penstock.graph import JobGraph, Region, execution, slots_wanted
from penstock.jobmanager import packing
from penstock.jobmanager.failures import Failure
from penstock.model.counters import OperatorMetrics
from penstock.model.handles import Manifest
from penstock.model.ids import Attempt, SlotId, SubtaskId
from penstock.model.messages import GroupTime, TaskMetrics
from penstock.model.tasks import Task


class RegionState(enum.Enum):
    """How far a region is."""

    WAITING = "waiting"
    """For its back-off, then for slots."""
    ADOPTING = "adopting"
    """An earlier JobManager has started it: whether it still runs is not known yet (`adopting`)."""
    JOURNALING = "journaling"
    """Slots are reserved, its attempt is on its way into the journal."""
    DEPLOYING = "deploying"
    RUNNING = "running"
    FAILING = "failing"
    """A connection was lost: for a moment, whoever caused it may say so before everything is ended."""


@dataclass(slots=True)
class RegionRun:
    """A region and its present attempt. Dictionaries stand for ordered sets."""

    region: Region
    state: RegionState = RegionState.WAITING
    since: float = 0.0
    """When it came into this state."""
    attempt: Attempt | None = None
    restored: Manifest | None = None
    placement: dict[SlotId, tuple[Task, ...]] = field(default_factory=dict)
    reported: dict[SlotId, None] = field(default_factory=dict)
    ended: dict[SubtaskId, None] = field(default_factory=dict)
    metrics: dict[SubtaskId, TaskMetrics] = field(default_factory=dict)
    reached: dict[SlotId, dict[str, GroupTime]] = field(default_factory=dict)
    """What slots have said of their aligned sources, with what they know of others since."""
    failure: Failure | None = None
    cause: str = ""
    """Why this attempt is needed; empty for the first."""
    rescale: int = 0
    """The last one of the attempt: sources that had ended before may have got other splits."""
    counted: list[OperatorMetrics] = field(default_factory=list)
    """By subtasks that have left the attempt."""

    @property
    def number(self) -> Attempt:
        """Of the attempt, once slots are reserved for it."""
        assert self.attempt is not None
        return self.attempt

    @property
    def wanted(self) -> int:
        """Slots that it can fill."""
        return slots_wanted(self.region)

    @property
    def uids(self) -> set[str]:
        """Its operators."""
        return {link.operator.uid for task in self.region.tasks for link in task.chain}

    @property
    def alive(self) -> bool:
        """Processes work for it."""
        return self.state in (RegionState.DEPLOYING, RegionState.RUNNING, RegionState.FAILING)

    @property
    def all_ended(self) -> bool:
        """Every subtask has seen the end of its input."""
        return len(self.ended) == len(self.region.subtasks)

    def enter(self, state: RegionState, monotonic: float) -> None:
        """Change state."""
        self.state, self.since = state, monotonic

    def reset(self, monotonic: float, cause: str) -> None:
        """Back to the start; nothing of the last attempt counts any more."""
        self.enter(RegionState.WAITING, monotonic)
        self.attempt = self.restored = self.failure = None
        self.cause, self.counted, self.rescale = cause, [], 0
        self.placement, self.reported, self.ended, self.metrics, self.reached = {}, {}, {}, {}, {}

    def source_slots(self) -> list[SlotId]:
        """Slots with subtasks that have no input: barriers start there."""
        return [slot for slot, tasks in self.placement.items() if any(not task.inputs for task in tasks)]

    def tasks_to_restore(self, slot: SlotId) -> tuple[Task, ...]:
        """The slot's tasks, each with the state objects it has to read."""
        return tuple(_with_state(task, self.restored) for task in self.placement[slot])


class Regions:
    """All regions of one job."""

    def __init__(self, graph: JobGraph, *, since: float) -> None:
        self.graph = graph
        """As it is run: planned for the present parallelism."""
        self._apart: Sequence[Region] = execution(graph)
        self.last_attempt = Attempt(0)
        self.next_channel = 0
        """Above all numbers of channels that were ever used, but for those that `graph` gives by itself."""
        self.runs: list[RegionRun] = []
        self.set_apart(since, cause="")

    @property
    def merged(self) -> bool:
        """Whether some of them share slots, and so start and fail together."""
        return len(self.runs) < len(self._apart)

    @property
    def all_running(self) -> bool:
        """A checkpoint can be taken."""
        return all(run.state is RegionState.RUNNING for run in self.runs)

    @property
    def all_ended(self) -> bool:
        """All have seen the end of their input."""
        return all(run.all_ended for run in self.runs)

    def waiting(self) -> list[RegionRun]:
        """Those without slots."""
        return [run for run in self.runs if run.state is RegionState.WAITING]

    def of(self, attempt: Attempt) -> RegionRun | None:
        """Whose present attempt this is; None: it is over."""
        return next((run for run in self.runs if run.attempt == attempt), None)

    def next_attempt(self) -> Attempt:
        """A number that no attempt of this job ever had."""
        self.last_attempt = Attempt(self.last_attempt + 1)
        return self.last_attempt

    def set_apart(self, since: float, *, cause: str) -> None:
        """Each by itself, as the graph has them."""
        self.runs = [RegionRun(region, since=since, cause=cause) for region in self._apart]

    def replan(self, graph: JobGraph, since: float) -> None:
        """Another size. None of them may run."""
        self.graph, self._apart = graph, execution(graph)
        self.set_apart(since, cause="")

    def settle(self, graph: JobGraph, region: Region) -> None:
        """Another size, which the only region has already."""
        self.graph, self._apart = graph, (region,)

    def merge(self, count: int, since: float) -> None:
        """At most so many. None of them may run."""
        cause = self.runs[0].cause
        self.runs = [RegionRun(region, since=since, cause=cause) for region in packing.merge(self._apart, count)]

    def check_invariants(self) -> None:
        """For tests: attempts are unique, and every subtask has a place."""
        attempts = [run.attempt for run in self.runs if run.attempt is not None]
        assert len(set(attempts)) == len(attempts)
        assert all(attempt <= self.last_attempt for attempt in attempts)
        subtasks = [subtask for run in self.runs for subtask in run.region.subtasks]
        assert sorted(subtasks) == sorted(subtask for region in self._apart for subtask in region.subtasks)


def _with_state(task: Task, manifest: Manifest | None) -> Task:
    if manifest is None:
        return task
    handles = handles_for(
        manifest,
        index=task.subtask.index,
        parallelism=task.parallelism,
        max_parallelism=task.max_parallelism,
        uids={link.operator.uid for link in task.chain},
    )
    return msgspec.structs.replace(task, restore=handles)
