"""What is wanted and what is so: all that a decision is made from. Plain data, no I/O."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import datetime
from typing import Final

ENDED: Final = frozenset({"finished", "stopped", "cancelled", "failed"})


@dataclass(frozen=True, slots=True, kw_only=True)
class Problem:
    """Something that somebody has to look at."""

    reason: str
    message: str
    fix: str = ""
    component: str = ""
    pod: str = ""

    @property
    def text(self) -> str:
        """For a condition."""
        place = f"{self.component} {self.pod}: ".replace("  ", " ") if self.pod else ""
        return f"{place}{self.message}" + (f". {self.fix}" if self.fix else "")


@dataclass(frozen=True, slots=True, kw_only=True)
class Desired:
    """The FlowJob, with defaults in place."""

    namespace: str
    name: str
    uid: str
    generation: int
    revision: str
    """Names image, program and settings."""
    parallelism: int
    suspended: bool = False
    batch: bool = False
    upgrade_mode: str = "savepoint"
    restore_check: bool = True
    restore: str = ""
    """What `restore.from` says, as a text to compare."""
    restore_origin: str = ""
    """Where that is; empty: not known yet."""
    storage: str = ""
    savepoint_on_delete: bool = False
    delete_seconds: float = 300.0
    rollout_seconds: float = 600.0
    rollback: bool = True
    retries: int = 0
    ttl_seconds: int | None = None
    replace_runs: bool = False
    deleted_at: str | None = None
    finalizer: bool = True
    force_delete: bool = False
    paused: bool = False
    invalid: Problem | None = None
    due_run: str = ""
    """The latest time of the schedule that has come."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Pod:
    """A pod of a StatefulSet."""

    name: str
    component: str
    revision: str
    ready: bool = False
    leaving: bool = False
    problem: Problem | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Run:
    """A short-lived pod: submission, restore check, removal of a savepoint."""

    name: str
    state: str
    """active, succeeded or failed."""
    message: str = ""
    problem: Problem | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class EngineJob:
    """A job as the engine shows it."""

    id: str
    state: str
    parallelism: int = 0
    checkpoints: int = 0
    attempt: int = 0
    restarts: int = 0
    reason: str = ""
    submitted_us: int = 0
    running_us: int | None = None
    checkpoint_id: int | None = None
    checkpoint_us: int = 0
    checkpoint_bytes: int = 0
    checkpoint_duration_us: int = 0

    @property
    def ended(self) -> bool:
        """It will not go on by itself."""
        return self.state in ENDED


@dataclass(frozen=True, slots=True, kw_only=True)
class EngineSavepoint:
    """A savepoint that the engine was asked for."""

    name: str
    uri: str
    status: str
    """pending, completed or failed."""
    reason: str = ""
    size: int = 0
    sha256: str = ""
    checkpoint: int | None = None
    acknowledged: int = 0
    subtasks: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class EngineRescale:
    """A live rescale that the engine was asked for."""

    status: str
    """pending, completed or failed."""
    started_us: int
    parallelism_after: int
    kind: str = "live"
    """live, or restart when that was not possible."""
    reason: str = ""
    pause_us: int = 0
    groups_moved: int = 0
    bytes_moved: int = 0

    @property
    def cost(self) -> str:
        """For people."""
        moved = f"{self.groups_moved} key groups and {self.bytes_moved} bytes of state moved"
        return moved if self.kind == "live" else f"by a restart ({self.reason}): {moved}"


@dataclass(frozen=True, slots=True, kw_only=True)
class Engine:
    """A JobManager that answers."""

    jobs: tuple[EngineJob, ...] = ()
    savepoints: tuple[EngineSavepoint, ...] = ()
    """Of the job in hand."""
    rescales: tuple[EngineRescale, ...] | None = ()
    """Of the job in hand; None: this version cannot rescale a running job."""
    slots: int = 0
    busy_pods: frozenset[str] = frozenset()
    """TaskManagers with work."""

    def job(self, job_id: str) -> EngineJob | None:
        """By id."""
        return next((job for job in self.jobs if job.id == job_id), None)

    def savepoint(self, name: str) -> EngineSavepoint | None:
        """By name."""
        return next((each for each in self.savepoints if each.name == name), None)


@dataclass(frozen=True, slots=True, kw_only=True)
class Seen:
    """What is so."""

    now: datetime
    pods: tuple[Pod, ...] = ()
    runs: Mapping[str, Run] = field(default_factory=dict)
    """By the last part of their name: submit-3, check-4."""
    engine: Engine | None = None
    slots_per_pod: Mapping[str, int] = field(default_factory=dict)
    """By revision; one that is not here cannot be brought back."""
    jobmanagers: Mapping[str, int] = field(default_factory=dict)
    """By revision."""
    blocked: Problem | None = None
    """Pods that cannot even be created: quota, admission."""

    def of(self, component: str) -> tuple[Pod, ...]:
        """Pods of a component."""
        return tuple(pod for pod in self.pods if pod.component == component)

    @property
    def problems(self) -> tuple[Problem, ...]:
        """All that somebody has to look at."""
        found = [pod.problem for pod in self.pods] + [run.problem for run in self.runs.values()] + [self.blocked]
        return tuple(filter(None, found))

    @property
    def problem(self) -> Problem | None:
        """The first of them."""
        return next(iter(self.problems), None)
