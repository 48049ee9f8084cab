"""`FlowJob.status`. Its first part is the controller's memory: everything it must not forget between two looks.

Every field is declared, or the API server would drop it.
"""

from typing import Annotated, TypeVar

from pydantic import Field

from penstock_operator.spec.base import Doc, Timestamp

T = TypeVar("T")
Conditions = Annotated[
    tuple[T, ...],
    Field(json_schema_extra={"x-kubernetes-list-type": "map", "x-kubernetes-list-map-keys": ["type"]}),
]


class Condition(Doc):
    """One thing that is so, or not."""

    type: str
    """Ready, Reconciling, Stalled, JobRunning, StateDurable, ScalingLimited, Paused or Warning."""
    status: str
    """True, False or Unknown."""
    reason: str
    """One word, for programs."""
    message: str = ""
    """For people: what to do."""
    observed_generation: int | None = None
    """Of the spec that it speaks of."""
    last_transition_time: Timestamp | None = None
    """When status last changed."""


class JobRef(Doc):
    """The job of the engine that runs, or ran last."""

    id: str
    """In the engine."""
    revision: str
    """Of image, program and settings."""
    generation: int
    """Of the spec that started it."""
    parallelism: int
    """Subtasks per operator."""
    origin: str = ""
    """What it was started from; empty: the beginning."""


class Change(Doc):
    """What is under way."""

    id: str
    """Names of savepoints that it takes begin with it."""
    kind: str
    """Create, Rollout, Rescale, Suspend, Resume, Restore, Run or Rollback."""
    step: str
    """Checking, Stopping, Deploying, Starting, ScalingOut, Rescaling, ScalingIn or Draining."""
    generation: int
    """Of the spec that asked for it."""
    revision: str
    """That is to run."""
    parallelism: int
    """That it is to have."""
    from_revision: str = ""
    """That ran before."""
    from_parallelism: int = 0
    """That it had before."""
    origin: str = ""
    """What the new job starts from, once that is known."""
    savepoint: str = ""
    """Name of the savepoint that it takes now."""
    tries: int = 0
    """Savepoints that have failed."""
    started_at: Timestamp
    """When it began."""
    step_at: Timestamp
    """When its step began."""
    stopped_at: Timestamp | None = None
    """When the old job had ended."""
    pause_us: int = 0
    """How long the engine says that rows waited."""
    reason: str = ""
    """Why it was asked for."""
    message: str = ""
    """What it waits for."""


class PastChange(Doc):
    """What the last change was, and what it cost."""

    kind: str
    """As in a change that is under way."""
    change_class: Annotated[str, Field(alias="class")]
    """create, rescale (the job runs on), rollout (another program) or restart."""
    generation: int
    """Of the spec that asked for it."""
    from_: Annotated[str, Field(alias="from")] = ""
    """Revision or parallelism before."""
    to: str = ""
    """Revision or parallelism after."""
    outcome: str = "Done"
    """Done, Refused or RolledBack."""
    pause_seconds: float = 0.0
    """How long rows waited."""
    started_at: Timestamp
    """When it began."""
    finished_at: Timestamp
    """When it was done."""
    message: str = ""
    """How it went."""


class Revision(Doc):
    """A revision and the spec it comes from."""

    generation: int
    """Of the spec."""
    revision: str
    """Name of the ControllerRevision."""


class Rejected(Doc):
    """A spec that was not taken; it is not tried again until the spec or the restart annotation changes."""

    generation: int
    """Of the spec."""
    revision: str
    """Of image, program and settings."""
    parallelism: int
    """That was asked for."""
    restore: str = ""
    """What it was to be restored from."""
    reason: str
    """One word."""
    message: str
    """What is wrong, and what to do."""


class SavepointRef(Doc):
    """A savepoint that the controller took for a change."""

    name: str
    """Of its folder."""
    location: str
    """Of its files."""
    time: Timestamp
    """When it was whole."""


class Runs(Doc):
    """Of a batch job."""

    started: int = 0
    """Runs so far, retries left out."""
    retries: int = 0
    """Of this run."""
    last_schedule_time: Timestamp | None = None
    """For which the last run was started."""
    finished_at: Timestamp | None = None
    """When the last run ended."""


class Memory(Doc):
    """What the controller must not forget."""

    serial: int = 0
    """Jobs of the engine that were started so far."""
    job: JobRef | None = None
    """The job of the engine that runs, or ran last."""
    change: Change | None = None
    """What is under way."""
    last_change: PastChange | None = None
    """What the last change was, and what it cost."""
    stable: Revision | None = None
    """The last revision that took a checkpoint: what a failed one is rolled back to."""
    rejected: Rejected | None = None
    """A spec that was not taken."""
    suspended: bool | None = None
    """There are no pods, and the state waits."""
    origin: str = ""
    """What the next start begins with."""
    restored: str = ""
    """What restore.from said when it was obeyed."""
    last_savepoint: SavepointRef | None = None
    """The last one that a change took."""
    runs: Runs | None = None
    """Of a batch job."""
    last_scheduled_savepoint: Timestamp | None = None
    """For which the last savepoint of the schedule was asked."""


class ParallelismStatus(Doc):
    """Subtasks per operator."""

    desired: int = 1
    """What the spec says."""
    current: int = 0
    """What runs."""
    ready: int = 0
    """Slots of pods that are ready."""
    summary: str = ""
    """current/desired."""


class EngineStatus(Doc):
    """What the engine says of the job."""

    state: str = ""
    """created, waiting-for-slots, deploying, running, restarting, stopping, finished, stopped, cancelled, failed."""
    attempt: int = 0
    """Grows with each restart."""
    restarts: int = 0
    """After failures."""
    reason: str = ""
    """Why it is in this state."""
    started_at: Timestamp | None = None
    """When it was submitted."""


class CheckpointStatus(Doc):
    """The last one that was completed; told at most once a minute."""

    id: int
    """Its number."""
    time: Timestamp
    """When it was started."""
    bytes: int = 0
    """What a restore reads."""
    duration_ms: int = 0
    """How long it took."""


class Failure(Doc):
    """The first thing to look at."""

    component: str
    """jobmanager, taskmanager, submission, restore check or job."""
    pod: str = ""
    """Its name."""
    reason: str
    """One word: ImagePullBackOff, OOMKilled, Unschedulable ..."""
    message: str
    """What Kubernetes or the engine says."""
    fix: str = ""
    """What to do."""
    time: Timestamp
    """When it was first seen."""


class FlowJobStatus(Memory):
    """How the job is."""

    observed_generation: int | None = None
    """Of the spec that this status speaks of."""
    phase: str | None = None
    """One word for people; programs look at conditions."""
    conditions: Conditions[Condition] = ()
    """Ready, Reconciling, Stalled, JobRunning, StateDurable, ScalingLimited, Paused, Warning."""
    replicas: int | None = None
    """What runs, for the scale subresource."""
    selector: str | None = None
    """Of the TaskManagers' pods, for the scale subresource."""
    parallelism: ParallelismStatus | None = None
    """Subtasks per operator."""
    engine: EngineStatus | None = None
    """What the engine says of the job."""
    last_checkpoint: CheckpointStatus | None = None
    """The last one that was completed."""
    last_failure: Failure | None = None
    """The first thing to look at, as long as it is so."""
    operator_version: str | None = None
    """Of the controller that wrote this."""
