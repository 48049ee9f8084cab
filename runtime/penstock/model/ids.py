"""Names of things. Each kind of identifier has its own type, so that the checker keeps them apart."""

from typing import NewType

import msgspec

JobId = NewType("JobId", str)
Uid = NewType("Uid", str)
"""Names an operator for ever; its state is found by it."""

VertexId = NewType("VertexId", str)
"""A chain of operators in the job graph, named after the uid of its first operator."""

TaskManagerId = NewType("TaskManagerId", str)

Attempt = NewType("Attempt", int)
"""How many times regions of a job were started, over all JobManagers. A higher one fences all lower ones."""

Epoch = NewType("Epoch", int)
"""How many times a JobManager has come to lead. Claimed in the store; a higher one replaces all lower ones."""

NO_EPOCH = Epoch(0)

CheckpointId = NewType("CheckpointId", int)
ChannelId = NewType("ChannelId", int)
"""One sender subtask to one receiver subtask over one edge; unique in a job's execution graph."""


class SubtaskId(msgspec.Struct, frozen=True, order=True):
    """One parallel instance of a vertex."""

    vertex: VertexId
    index: int

    def __str__(self) -> str:
        return f"{self.vertex}/{self.index}"


class SlotId(msgspec.Struct, frozen=True, order=True):
    """One slot of one TaskManager. The process behind it changes with every deployment."""

    task_manager: TaskManagerId
    index: int

    def __str__(self) -> str:
        return f"{self.task_manager}#{self.index}"
