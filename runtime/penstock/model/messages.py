"""Messages between JobManager, TaskManager and slot. One-way, frozen, each names its job and attempt.

A TaskManager relays between its slots and the JobManager, so most messages exist once and travel both hops.
A receiver drops what belongs to an older attempt; it is an answer, not an error.
"""

import msgspec

from penstock.model.counters import OperatorMetrics
from penstock.model.elements import BarrierKind
from penstock.model.handles import StateHandle
from penstock.model.ids import Attempt, CheckpointId, JobId, SlotId, SubtaskId, TaskManagerId, VertexId
from penstock.model.tasks import Deployment, Reshape, Task


class Message(msgspec.Struct, frozen=True, kw_only=True, tag=True, omit_defaults=True):
    """Base of all messages."""


# ---------------------------------------------------------------- JobManager -> slot, by way of its TaskManager


class Deploy(Message, frozen=True, kw_only=True):
    """Run these tasks."""

    deployment: Deployment


class Trigger(Message, frozen=True, kw_only=True):
    """To slots with source subtasks: emit this barrier."""

    job: JobId
    attempt: Attempt
    checkpoint: CheckpointId
    kind: BarrierKind = BarrierKind.CHECKPOINT
    overtakes: bool = False
    """The barrier passes by rows that wait in queues, from the start."""
    savepoint: str = ""
    """URI of the savepoint that subtasks write tables into."""


class Overtake(Message, frozen=True, kw_only=True):
    """To all slots: alignment takes too long; from now on the barrier passes by rows that wait in queues."""

    job: JobId
    attempt: Attempt
    checkpoint: CheckpointId


class Commit(Message, frozen=True, kw_only=True):
    """The checkpoint is in the journal: two-phase sinks make its output visible."""

    job: JobId
    attempt: Attempt
    checkpoint: CheckpointId


class Abort(Message, frozen=True, kw_only=True):
    """The checkpoint was given up; a barrier of it that still arrives is forwarded, not snapshotted."""

    job: JobId
    attempt: Attempt
    checkpoint: CheckpointId


class Cancel(Message, frozen=True, kw_only=True):
    """To a TaskManager: end the slot's process, whatever it does; a fresh one takes its place."""

    slot: SlotId
    job: JobId
    attempt: Attempt


class Probe(Message, frozen=True, kw_only=True):
    """To a TaskManager: are you there? Nothing follows from it, but one that is gone is found out by it."""


class Align(Message, frozen=True, kw_only=True):
    """To slots with aligned sources: how far the slowest of all other slots is, by group of sources."""

    job: JobId
    attempt: Attempt
    others: dict[str, int]


class Prepare(Message, frozen=True, kw_only=True):
    """A RESCALE barrier will come: connect what it changes. Asked again when there is no answer."""

    job: JobId
    attempt: Attempt
    reshape: Reshape
    tasks: tuple[Task, ...]
    """Those that the slot has afterwards."""


class Forgo(Message, frozen=True, kw_only=True):
    """The barrier that was prepared for does not come."""

    job: JobId
    attempt: Attempt
    number: int


class Reassign(Message, frozen=True, kw_only=True):
    """To slots with sources whose number changes: where all splits were at the barrier."""

    job: JobId
    attempt: Attempt
    number: int
    vertex: VertexId
    handles: tuple[StateHandle, ...]


ToSlot = Deploy | Trigger | Overtake | Commit | Abort | Align | Prepare | Forgo | Reassign
ToTaskManager = Deploy | Trigger | Overtake | Commit | Abort | Align | Prepare | Forgo | Reassign | Cancel | Probe


class Directed(msgspec.Struct, frozen=True, kw_only=True):
    """A message with the slot it is for."""

    slot: SlotId
    message: ToTaskManager


# ---------------------------------------------------------------- slot -> JobManager, by way of its TaskManager


class Running(Message, frozen=True, kw_only=True):
    """All tasks of the deployment are restored and open; sources may be triggered."""

    job: JobId
    attempt: Attempt
    slot: SlotId


class Acknowledged(Message, frozen=True, kw_only=True):
    """The subtask's snapshot is durable."""

    job: JobId
    attempt: Attempt
    checkpoint: CheckpointId
    subtask: SubtaskId
    handle: StateHandle


class Declined(Message, frozen=True, kw_only=True):
    """The subtask could not snapshot or upload; the checkpoint cannot complete."""

    job: JobId
    attempt: Attempt
    checkpoint: CheckpointId
    subtask: SubtaskId
    reason: str


class Committed(Message, frozen=True, kw_only=True):
    """The slot's sinks have made the checkpoint's output visible."""

    job: JobId
    attempt: Attempt
    checkpoint: CheckpointId
    slot: SlotId


class InputEnded(Message, frozen=True, kw_only=True):
    """The subtask has seen the end of all its inputs (a source: of all its splits) and has flushed."""

    job: JobId
    attempt: Attempt
    subtask: SubtaskId


class Failed(Message, frozen=True, kw_only=True):
    """The slot's deployment is broken: a user's exception, a lost peer, a lost process."""

    job: JobId
    attempt: Attempt
    slot: SlotId
    subtask: SubtaskId | None
    code: str
    reason: str
    """What happened, the user's own stack first when there is one."""
    secondary: bool = False
    """True for a lost connection: somebody else's failure is the cause, if one is known."""
    fatal: bool = False
    """Restarting cannot help."""


class GroupTime(msgspec.Struct, frozen=True, kw_only=True):
    """How far the sources of a slot are that belong to one group."""

    group: str
    time: int
    """The slowest of them; MAX_WATERMARK: they have ended or are idle, and nobody need wait for them."""
    others: int
    """What they have heard of other slots: whoever knows better tells them."""


class Reached(Message, frozen=True, kw_only=True):
    """From a slot with aligned sources, when they have come further, and again and again: any one may be lost."""

    job: JobId
    attempt: Attempt
    slot: SlotId
    times: tuple[GroupTime, ...]


class TaskMetrics(msgspec.Struct, frozen=True, kw_only=True):
    """What a subtask reports with every heartbeat."""

    subtask: SubtaskId
    operators: tuple[OperatorMetrics, ...]
    watermark: int
    """Lowest over its inputs or splits; MIN_WATERMARK: none yet."""
    busy: float
    """Share of the time since the last report that it worked."""
    backpressured: float
    """Share of the time that it had input but its outputs were full."""
    held: bool = False
    """A source that waits for slower ones."""
    ended: bool = False


class SlotReport(Message, frozen=True, kw_only=True):
    """Slot -> TaskManager, twice a second from a thread of its own: alive, and how far."""

    job: JobId
    attempt: Attempt
    slot: SlotId
    tasks: tuple[TaskMetrics, ...]
    rescale: int = 0
    """The last one that was settled in the slot before the report was made."""
    stuck_seconds: float = 0.0
    """How long the main loop has not come round; the TaskManager makes an error of it (P008)."""
    stuck_stack: str = ""
    """In which operator, and where in the user's code; goes on the sentence."""
    rss_bytes: int = 0
    """0: not measured."""


class Prepared(Message, frozen=True, kw_only=True):
    """All that the barrier changes is connected."""

    job: JobId
    attempt: Attempt
    slot: SlotId
    number: int


class Moved(msgspec.Struct, frozen=True, kw_only=True):
    """Key groups that a subtask was handed."""

    vertex: VertexId
    first: int
    end: int
    size: int
    """Bytes."""
    pause_us: int
    """From the barrier at the old owner until rows that had waited were worked off."""
    rebuilt: bool = False
    """They have the owner that they had, which had to be made anew for its part."""


class Settled(Message, frozen=True, kw_only=True):
    """The barrier has passed all tasks of the slot, and nothing is awaited any more."""

    job: JobId
    attempt: Attempt
    slot: SlotId
    number: int
    moved: tuple[Moved, ...]


FromSlot = (
    Running | Acknowledged | Declined | Committed | InputEnded | Failed | Reached | SlotReport | Prepared | Settled
)


# ---------------------------------------------------------------- TaskManager -> JobManager


class Runs(msgspec.Struct, frozen=True, kw_only=True):
    """What a slot runs, for a JobManager that has not deployed it, or has lost sight of it."""

    job: JobId
    attempt: Attempt
    subtasks: tuple[SubtaskId, ...]
    running: bool
    """It has said so."""
    ended: tuple[SubtaskId, ...] = ()
    """Subtasks that have seen the end of their input."""
    newest: CheckpointId = CheckpointId(0)
    """The last checkpoint that its sources were asked for."""
    failed: bool = False
    """It cannot be taken over: it has failed, or something else than an ordinary checkpoint has begun."""


class SlotInfo(msgspec.Struct, frozen=True, kw_only=True):
    """A slot and the process that is behind it now."""

    slot: SlotId
    address: str
    pid: int
    runs: Runs | None = None
    """In a Register: what it was told to do."""


class Register(Message, frozen=True, kw_only=True):
    """A TaskManager offers its slots. Sent again whenever it has lost the JobManager."""

    task_manager: TaskManagerId
    address: str
    """Of its gRPC service."""
    host: str
    pid: int
    slots: tuple[SlotInfo, ...]
    versions: dict[str, str]
    """python, penstock, polars: a job built for others is refused (P006)."""


class SlotReady(Message, frozen=True, kw_only=True):
    """A fresh process stands behind the slot."""

    info: SlotInfo


class Heartbeat(Message, frozen=True, kw_only=True):
    """Alive; with what the slots report."""

    task_manager: TaskManagerId
    reports: tuple[SlotReport, ...] = ()


class Leaving(Message, frozen=True, kw_only=True):
    """The TaskManager shuts down; its slots are gone."""

    task_manager: TaskManagerId


ToJobManager = (
    Running | Acknowledged | Declined | Committed | InputEnded | Failed | Reached
    | Register | SlotReady | Heartbeat | Leaving | Prepared | Settled
)  # fmt: skip
