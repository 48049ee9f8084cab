"""What a slot is told to run: subtasks, their chained operators and their channels. Plain data."""

import msgspec

from penstock.model.handles import StateHandle
from penstock.model.ids import Attempt, ChannelId, JobId, SlotId, SubtaskId, Uid, VertexId
from penstock.model.settings import JobSettings
from penstock.model.specs import MAIN_OUTPUT, Operator, Partitioning, Schema, Source


class ChainLink(msgspec.Struct, frozen=True, kw_only=True):
    """An operator in a chain. A chain is a tree: one head, each other operator hangs under one."""

    operator: Operator
    parent: int | None
    """Index of the operator whose output it takes; None: the head, it takes the task's inputs or is a source."""
    output: str = MAIN_OUTPUT
    """Which output of its parent it takes."""


class OutputChannel(msgspec.Struct, frozen=True, kw_only=True):
    """The sender's view of a channel."""

    channel: ChannelId
    receiver: SubtaskId
    slot: SlotId
    address: str
    """Data address of the receiver's slot process; the sender's own address: an in-memory channel."""


class OutputEdge(msgspec.Struct, frozen=True, kw_only=True):
    """All channels of one edge that leave a subtask."""

    producer: int
    """Index in the chain of the operator whose rows leave here."""
    output: str = MAIN_OUTPUT
    """Which of its outputs."""
    partitioning: Partitioning
    channels: tuple[OutputChannel, ...]
    """In the order of the receivers' subtask index; Forward: just one."""
    routing: tuple[int, ...] = ()
    """Hash only: key group -> index into `channels`."""
    schema: Schema
    target: Uid
    """The operator that takes the rows: the head of the receiving chain."""
    port: int = 0
    """Which of its inputs."""
    loop: Uid | None = None
    """The loop that the edge is part of, by its head."""


class InputChannel(msgspec.Struct, frozen=True, kw_only=True):
    """The receiver's view of a channel."""

    channel: ChannelId
    sender: SubtaskId
    slot: SlotId
    port: int
    """Which input of the head operator: union and joins have several."""
    schema: Schema
    keys: tuple[str, ...] = ()
    """Rows come by key group of these columns; empty: in another way."""
    in_order: bool = False
    """Barriers never overtake rows here: each receiver of a broadcast has read it up to a place of its own."""
    loop: Uid | None = None
    """The loop that this channel is part of, by its head: marks travel on it."""
    feedback: bool = False
    """It closes the loop: its end is not waited for, and a barrier is passed on before it has come round."""


class Task(msgspec.Struct, frozen=True, kw_only=True):
    """One subtask to run."""

    subtask: SubtaskId
    parallelism: int
    max_parallelism: int
    chain: tuple[ChainLink, ...]
    inputs: tuple[InputChannel, ...] = ()
    outputs: tuple[OutputEdge, ...] = ()
    restore: tuple[StateHandle, ...] = ()
    """State objects of the checkpoint that hold something for this subtask."""
    born: int = 0
    """The rescale that it came with; it names what it writes, beside the attempt. 0: it began with the attempt."""


def alignment_of(task: Task) -> tuple[str, int] | None:
    """The group of sources that the task's own keeps step with, and the bound. A source without one is one itself."""
    head = task.chain[0].operator
    if not isinstance(head.spec, Source) or head.spec.alignment is None:
        return None
    # No uid has a #, and no name of a group.
    return head.spec.alignment.group or f"#{head.uid}", head.spec.alignment.within_us


class Owner(msgspec.Struct, frozen=True, kw_only=True):
    """Where a subtask runs."""

    subtask: SubtaskId
    slot: SlotId
    address: str


class Reshape(msgspec.Struct, frozen=True, kw_only=True):
    """What a RESCALE barrier changes. Vertices that are not named keep their subtasks."""

    number: int
    """Grows within a job."""
    before: dict[VertexId, int]
    after: dict[VertexId, int]
    owners: tuple[Owner, ...]
    """Of the subtasks of these vertices, afterwards."""


class Deployment(msgspec.Struct, frozen=True, kw_only=True):
    """Everything that one slot process runs. A process takes one deployment in its life."""

    job: JobId
    attempt: Attempt
    slot: SlotId
    tasks: tuple[Task, ...]
    settings: JobSettings
    store: str
    """URI of the object store's root for this job's state."""
    joins: Reshape | None = None
    """The tasks join others that run already: they begin behind that barrier, and are handed their state."""
