"""What an operator is, seen from the task that drives it.

One thread calls an operator; it never blocks, sleeps or locks. The order of calls:
`open`, `restore` (at most once), `on_restored`, then any of `on_batch`, `on_watermark`, `on_processing_time`,
`snapshot`, `on_committed`, at the end `on_end` once, `close` always.
"""

from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Protocol

import polars as pl

from penstock.model.clocks import MIN_WATERMARK, Clock
from penstock.model.handles import Redistribution
from penstock.model.ids import Attempt, CheckpointId, JobId, SubtaskId, Uid
from penstock.model.settings import JobSettings
from penstock.operators.user_metrics import UserMetrics
from penstock.state.chunks import INCREMENTAL_ROWS, Chunk
from penstock.state.key_groups import group_range
from penstock.state.rocks import LinkedFiles, RestoredFiles


class Output(Protocol):
    """Where an operator's rows go: the next operators of the chain, or the exchange."""

    def emit(self, frame: pl.DataFrame) -> None:
        """Pass rows on, in order. Empty frames are dropped."""
        ...

    def emit_side(self, name: str, frame: pl.DataFrame) -> None:
        """Pass rows on by the side output `name`; where nobody reads it they are dropped, and nothing is wrong."""
        ...

    def pass_watermark(self, time: int) -> None:
        """Pass a watermark on that `on_watermark` has held back."""
        ...


Call = tuple[Callable[[], Awaitable[Any]], Callable[[Any], None]]
"""What to await, and what to do with its result or exception."""


class Coroutines(Protocol):
    """Runs users' coroutines beside the slot's own thread, all on one event loop."""

    def start(self, calls: Sequence[Call]) -> None:
        """Run them; when one is done, its second half is called on the slot's own thread, and the slot is woken."""
        ...


@dataclass(slots=True)
class Counters:
    """Rows in and out are counted by the chain, the rest by the operator; the reporter reads them."""

    rows_in: int = 0
    rows_out: int = 0
    late_rows: int = 0
    bad_rows: int = 0
    state_rows: int = 0
    state_bytes: int = 0
    cache_hits: int = 0
    cache_misses: int = 0
    user: UserMetrics = field(default_factory=UserMetrics)


@dataclass(frozen=True, slots=True)
class StateHome:
    """Where the keyed state of an operator may live."""

    backend: str = "memory"
    folder: Path | None = None
    """For a database of this operator; does not exist yet."""
    budget: int = 0
    """Bytes of memory that this operator may take."""
    incremental_rows: int = INCREMENTAL_ROWS
    """State in memory with so many rows is snapshotted in chunks."""


@dataclass(frozen=True, slots=True)
class OperatorContext:
    """What an operator may know about where it runs."""

    job: JobId
    attempt: Attempt
    uid: Uid
    subtask: SubtaskId
    parallelism: int
    max_parallelism: int
    clock: Clock
    settings: JobSettings
    counters: Counters = field(default_factory=Counters)
    state: StateHome = StateHome()
    coroutines: Coroutines | None = None
    """None: where nothing asynchronous runs."""
    part: range | None = None
    """For a part of an operator: its key groups."""

    @property
    def groups(self) -> range:
        """The key groups of this subtask, or of the part of it that an operator is."""
        return self.part or group_range(self.subtask.index, self.parallelism, self.max_parallelism)


@dataclass(frozen=True, slots=True)
class Section:
    """One state of one operator, as a table. Keyed: first column `key_group` (UInt16), sorted by it."""

    state: str
    redistribution: Redistribution
    frame: pl.DataFrame


@dataclass(frozen=True, slots=True)
class FilesSection:
    """State of one operator in the files of a database."""

    state: str
    linked: LinkedFiles


@dataclass(frozen=True, slots=True)
class ChunkSection:
    """Part of one keyed state of one operator, which later checkpoints may name again."""

    state: str
    chunk: Chunk
    frame: pl.DataFrame | Callable[[], pl.DataFrame] | None
    """None: it is in the store. A function: is called if it is not."""


AnySection = Section | FilesSection | ChunkSection
Snapshot = Callable[[], Sequence[AnySection]]
"""The slow half of a snapshot: runs on a background thread, and sees the state as it was at the barrier."""


def empty_snapshot() -> Sequence[AnySection]:
    """The snapshot of an operator that has no state."""
    return ()


class Operator:
    """Defaults of a stateless operator."""

    context: OperatorContext
    output: Output

    timeless_ports: frozenset[int] = frozenset()
    """Inputs whose watermarks say nothing: event time goes by the others."""

    def open(self, context: OperatorContext, output: Output) -> None:
        """Called once, before anything else."""
        self.context, self.output = context, output

    def restore(self, sections: Mapping[str, Sequence[pl.DataFrame]]) -> None:
        """State by name, from one or more earlier subtasks; keyed rows are only those of own key groups."""

    def on_restored(self) -> None:
        """State is as it was left, or empty when nothing was: called once, after `open` and all that is restored."""

    def restore_files(self, restored: Sequence[RestoredFiles]) -> None:
        """Databases of one or more earlier subtasks; called before `restore`."""
        raise NotImplementedError(type(self).__name__)

    def on_batch(self, frame: pl.DataFrame, port: int = 0) -> None:
        """Rows of one input, never empty."""
        raise NotImplementedError(type(self).__name__)

    def ready_in_us(self) -> int:
        """0: rows may come; else how long to bring none. The task reads no input while one of its operators waits."""
        return 0

    @property
    def in_flight(self) -> bool:
        """Rows have come that will leave later, by themselves. The task does not end before."""
        return False

    def on_watermark(self, watermark: int) -> int | None:
        """Event time has reached `watermark`. Returns the watermark to pass on, or None to hold it."""
        return watermark

    def due(self) -> int | None:
        """The first watermark that may change something here; None: none does before more rows come."""
        return MIN_WATERMARK

    def on_processing_time(self, now_us: int) -> None:
        """Called between batches when `next_processing_time` has come."""

    def next_processing_time(self) -> int | None:
        """Wall-clock microseconds at which this operator wants to be called; None: never."""
        return None

    def on_barrier(self) -> None:
        """A barrier is about to be snapshotted and passed on: emit now what must be before it."""

    def snapshot(self, checkpoint: CheckpointId) -> Snapshot:
        """The fast half: remember the state as it is now, in microseconds."""
        return empty_snapshot

    def on_committed(self, checkpoint: CheckpointId) -> None:
        """The checkpoint is in the journal. May come late, more than once, or not at all before a restore."""

    def on_end(self) -> None:
        """All input has ended, and the last watermark was seen: emit what is left."""

    def retain(self, groups: range) -> bool:
        """From now on these are the key groups; what there is of others is given out no more, nor is it in a snapshot.

        False, and nothing has changed: it has to be made anew.
        """
        return False

    def close(self) -> None:
        """Release files and sockets. Called on failure too."""
