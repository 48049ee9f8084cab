"""Where the state of a checkpoint lies. Plain data, carried by acknowledgements and manifests."""

import enum

import msgspec

from penstock.model.counters import OperatorMetrics
from penstock.model.ids import CheckpointId, SubtaskId, Uid


class Redistribution(enum.Enum):
    """How the rows of a state find their subtask when a job is restored."""

    KEYED = "keyed"
    """By the column `key_group`; the section is sorted by it."""

    LIST = "list"
    """Split evenly over the subtasks."""

    UNION = "union"
    """Every subtask gets all rows, and takes what it needs."""


class SectionHandle(msgspec.Struct, frozen=True, kw_only=True):
    """One state of one operator inside a state object: an Arrow IPC stream at a byte range."""

    uid: Uid
    state: str
    redistribution: Redistribution
    offset: int
    length: int
    rows: int
    first_group: int = 0
    group_offsets: tuple[int, ...] = ()
    """Keyed only: row offset of each group from `first_group`, one more than there are groups."""


class StateHandle(msgspec.Struct, frozen=True, kw_only=True):
    """The state of one subtask at one checkpoint: one immutable object in the store."""

    subtask: SubtaskId
    path: str
    size: int
    sha256: str
    sections: tuple[SectionHandle, ...]
    counters: tuple[OperatorMetrics, ...] = ()
    """Rows that its operators had counted at the barrier, since their deployment."""


class Manifest(msgspec.Struct, frozen=True, kw_only=True):
    """A completed checkpoint: everything that a restore needs, beside the graph."""

    checkpoint: CheckpointId
    kind: str
    parallelism: dict[str, int]
    """Vertex -> parallelism when it was taken."""
    max_parallelism: int
    triggered_us: int
    completed_us: int
    handles: tuple[StateHandle, ...]
    unaligned: bool = False
    """Barriers were allowed to overtake rows: some of its sections may be rows in flight."""
    counters: tuple[OperatorMetrics, ...] = ()
    """Rows that each operator had counted since the job was first started, over all restarts."""

    @property
    def size(self) -> int:
        """Bytes of state."""
        return sum(handle.size for handle in self.handles)
