"""What the JobManager shows: the bodies of its REST answers, read by the CLI, the dashboard and the operator."""

from typing import Any

import msgspec

from penstock.model.counters import UserMetric


class OperatorView(msgspec.Struct, frozen=True, kw_only=True):
    """One operator, summed over its subtasks."""

    uid: str
    name: str
    rows_in: int = 0
    rows_out: int = 0
    late_rows: int = 0
    bad_rows: int = 0
    state_rows: int = 0
    state_bytes: int = 0
    cache_hits: int = 0
    """Rows of state that were at hand when they were asked for; of state in RocksDB."""
    cache_misses: int = 0
    user: tuple[UserMetric, ...] = ()
    """What its functions count themselves."""


class VertexView(msgspec.Struct, frozen=True, kw_only=True):
    """One chain, summed over its subtasks."""

    id: str
    parallelism: int
    operators: tuple[OperatorView, ...]
    watermark_us: int | None = None
    """Lowest over the subtasks; None: none yet."""
    busy: float = 0.0
    """Highest over the subtasks, as is back-pressure: one slow subtask slows all."""
    backpressured: float = 0.0
    held: int = 0
    """Subtasks whose source waits for slower ones."""
    ended: bool = False


class CheckpointView(msgspec.Struct, frozen=True, kw_only=True):
    """A checkpoint that is under way, done or given up."""

    id: int
    kind: str
    status: str
    """pending | completed | failed | aborted (by a restart, or by the last checkpoint of the job)."""
    triggered_us: int
    duration_us: int | None = None
    size: int = 0
    """Bytes that a restore reads."""
    uploaded: int = 0
    """Bytes that were not in the store before: files and chunks that did not change are not uploaded again."""
    acknowledged: int = 0
    subtasks: int = 0
    reason: str = ""
    unaligned: bool = False
    """Its barriers were allowed to overtake rows."""
    retained: bool = False


class SavepointView(msgspec.Struct, frozen=True, kw_only=True):
    """A savepoint that somebody has asked this JobManager for."""

    uri: str
    kind: str
    """savepoint | stop."""
    status: str
    """pending | completed | failed."""
    requested_us: int
    duration_us: int | None = None
    checkpoint: int | None = None
    size: int = 0
    """Bytes of its tables."""
    sha256: str = ""
    """Of its manifest, which holds those of all its tables."""
    acknowledged: int = 0
    subtasks: int = 0
    reason: str = ""


class RescaleView(msgspec.Struct, frozen=True, kw_only=True):
    """A change of a job's parallelism. What is not known, or not yet, is None."""

    id: int
    kind: str
    """live | restart: whether all of the job stood still for it."""
    status: str
    """pending | completed | failed."""
    reason: str = ""
    """Pending: what it waits for. Failed: why. Completed by a restart: why not live."""
    started_us: int
    ended_us: int | None = None
    before: dict[str, int] = msgspec.field(name="from", default_factory=dict)
    """Operator -> parallelism."""
    after: dict[str, int] = msgspec.field(name="to", default_factory=dict)
    parallelism_before: int
    """Of operators that name none."""
    parallelism_after: int
    groups_moved: int | None = None
    """Key groups that another subtask has now, over all operators with keyed input."""
    bytes_moved: int | None = None
    """State that was handed over, or read again."""
    pause_us_p50: int | None = None
    """How long a key group that moved was served by nobody."""
    pause_us_p99: int | None = None
    pause_us_max: int | None = None


class FailureView(msgspec.Struct, frozen=True, kw_only=True):
    """One restart and why."""

    time_us: int
    attempt: int
    code: str
    reason: str
    place: str = ""


class JobView(msgspec.Struct, frozen=True, kw_only=True):
    """A job."""

    id: str
    name: str
    state: str
    """created | waiting-for-slots | deploying | running | restarting | stopping | finished | stopped |
    cancelled | failed."""
    attempt: int
    restarts: int
    parallelism: int
    """Of operators that name none."""
    submitted_us: int
    running_us: int | None = None
    ended_us: int | None = None
    reason: str = ""
    """Why it is in this state, when that is not obvious; what to do about it."""
    vertices: tuple[VertexView, ...] = ()
    checkpoints_completed: int = 0
    checkpoints_failed: int = 0
    last_checkpoint: CheckpointView | None = None
    failures: tuple[FailureView, ...] = ()
    warnings: tuple[str, ...] = ()
    rescale: RescaleView | None = None
    """The one that is under way."""


class ProcessView(msgspec.Struct, frozen=True, kw_only=True):
    """A process of the cluster."""

    role: str
    """jobmanager | taskmanager | slot."""
    id: str
    pid: int
    host: str
    slots: int = 0
    job: str | None = None
    attempt: int | None = None
    subtasks: tuple[str, ...] = ()
    rss_bytes: int = 0


class ClusterView(msgspec.Struct, frozen=True, kw_only=True):
    """Everything that runs."""

    processes: tuple[ProcessView, ...]
    slots_total: int
    slots_free: int
    jobs: tuple[JobView, ...]


class PlanLine(msgspec.Struct, frozen=True, kw_only=True):
    """What an operator does, or one step of it."""

    text: str
    uid: str = ""
    """Of the operator, in its first line."""
    depth: int = 0
    """In the tree of a chain."""
    is_detail: bool = False
    """Below the operator's own name."""


class PlanVertex(msgspec.Struct, frozen=True, kw_only=True):
    """One chain."""

    id: str
    parallelism: int
    column: int
    """From the left: one more than the rightmost input."""
    lines: tuple[PlanLine, ...]


class PlanEdge(msgspec.Struct, frozen=True, kw_only=True):
    """How rows come from one chain into another."""

    source: str
    target: str
    label: str
    is_feedback: bool = False


class PlanView(msgspec.Struct, frozen=True, kw_only=True):
    """A job graph, to be drawn."""

    name: str
    vertices: tuple[PlanVertex, ...]
    """Inputs come first."""
    edges: tuple[PlanEdge, ...]


class StateView(msgspec.Struct, frozen=True, kw_only=True):
    """Rows of a state, as a checkpoint holds them."""

    state: str
    """`uid.state`."""
    checkpoint: int
    taken_us: int
    """When its barrier was sent."""
    age_us: int
    """Since then."""
    columns: dict[str, str] = {}
    """Name -> type; empty when there are no rows."""
    rows: tuple[dict[str, Any], ...] = ()
    """Bytes in base64."""
