"""Where the state of a checkpoint lies. Plain data, carried by acknowledgements and manifests."""

import enum
from collections.abc import Iterator

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


class FileHandle(msgspec.Struct, frozen=True, kw_only=True):
    """A file of a database: one immutable object in the store, which several checkpoints may share."""

    name: str
    path: str
    size: int
    sha256: str


class Column(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """A column of a table in a savepoint."""

    name: str
    type: str
    """In the text form of `model.schemas`."""
    role: str
    """key_group | key | namespace | value | expiry."""
    internal: str = ""
    """What the operator calls it, when that is another name."""
    position: int
    """Where the operator has it."""


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
    """Keyed only: row offset of each group from `first_group`, one more than there are groups. With `files` it
    counts the groups themselves: which rows are there only the database knows."""
    path: str = ""
    """An object of its own, which several checkpoints may share; empty: the object of the subtask."""
    size: int = 0
    sha256: str = ""
    files: tuple[FileHandle, ...] = ()
    """The state is not a table but a database of these files."""
    columns: tuple[Column, ...] = ()
    """The object at `path` is a table of a savepoint: Parquet, in the form that `checkpoint.canonical` describes. Of
    keyed ones `group_offsets` counts the groups."""
    form: str = ""
    """map: each entry of a map has a row of its own in that table."""

    @property
    def shared(self) -> Iterator[tuple[str, int]]:
        """Path and size of objects that other checkpoints may share."""
        if self.path:
            yield self.path, self.size
        for file in self.files:
            yield file.path, file.size


class StateHandle(msgspec.Struct, frozen=True, kw_only=True):
    """The state of one subtask at one checkpoint: one immutable object, in the store or, when it is small, in here."""

    subtask: SubtaskId
    path: str
    size: int
    sha256: str
    sections: tuple[SectionHandle, ...]
    data: bytes = b""
    """What the object would hold, when it is so small that it needs none: then `path` is empty."""
    counters: tuple[OperatorMetrics, ...] = ()
    """Rows that its operators had counted at the barrier, since their deployment."""
    uploaded: int = -1
    """Bytes that were new; -1: all."""
    tables: tuple[SectionHandle, ...] = ()
    """What the subtask has written into the savepoint that this checkpoint is, too."""

    @property
    def shared_paths(self) -> list[str]:
        """Objects that other checkpoints may share."""
        return [path for section in self.sections for path, _ in section.shared]

    @property
    def paths(self) -> list[str]:
        """All objects that a restore needs."""
        return [*([self.path] if self.path else []), *self.shared_paths]

    @property
    def total_size(self) -> int:
        """Bytes of all of them."""
        return self.size + sum(size for section in self.sections for _, size in section.shared)

    @property
    def uploaded_size(self) -> int:
        """Bytes that this checkpoint added to the store."""
        return self.total_size if self.uploaded < 0 else self.uploaded


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
    counted_before: tuple[OperatorMetrics, ...] = ()
    """What of these was counted before the attempts that made this checkpoint: who takes them over counts on."""
    savepoint: str = ""
    """URI of the savepoint that was taken with it."""

    @property
    def size(self) -> int:
        """Bytes of state."""
        return sum(handle.total_size for handle in self.handles)

    @property
    def uploaded(self) -> int:
        """Bytes that were not in the store before."""
        return sum(handle.uploaded_size for handle in self.handles)
