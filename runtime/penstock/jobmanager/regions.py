"""Regions of a job on their way from waiting to running.

    WAITING -> JOURNALING -> DEPLOYING -> RUNNING
       ^           |             |           |
       |           |             +-----------+--> FAILING (the cause may still come)
       +-----------+-----------------------------------+

JOURNALING: slots are reserved and the attempt has its number, but nobody else knows of it until it is written.
"""

import enum
from dataclasses import dataclass, field

import msgspec

from penstock.checkpoint.selection import handles_for
from penstock.graph import Region, slots_wanted
from penstock.jobmanager.failures import Failure
from penstock.model.handles import Manifest
from penstock.model.ids import Attempt, SlotId, SubtaskId
from penstock.model.messages import TaskMetrics
from penstock.model.tasks import Task


class RegionState(enum.Enum):
    """How far a region is."""

    WAITING = "waiting"
    """For its back-off, then for slots."""
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
    failure: Failure | None = None
    cause: str = ""
    """Why this attempt is needed; empty for the first."""

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
        self.cause = cause
        self.placement, self.reported, self.ended, self.metrics = {}, {}, {}, {}

    def source_slots(self) -> list[SlotId]:
        """Slots with subtasks that have no input: barriers start there."""
        return [slot for slot, tasks in self.placement.items() if any(not task.inputs for task in tasks)]

    def tasks_to_restore(self, slot: SlotId) -> tuple[Task, ...]:
        """The slot's tasks, each with the state objects it has to read."""
        return tuple(_with_state(task, self.restored) for task in self.placement[slot])


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
