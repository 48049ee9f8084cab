"""What a connector is, seen from the source and sink operators.

A connector is made from plain options (`specs.Connector`); `connectors.registry` finds its class by kind.
Reading is by split: a split is a part of the input with a position of its own, read by one subtask at a time.
"""

from collections.abc import Callable, Sequence
from typing import Any, Protocol, runtime_checkable

import msgspec
import polars as pl

from penstock.model.clocks import Clock
from penstock.model.ids import Attempt, CheckpointId, JobId, SubtaskId, Uid
from penstock.model.settings import SourceSettings


class Split(msgspec.Struct, frozen=True, kw_only=True):
    """A part of a source."""

    id: str
    """Stable over restarts; state is found by it."""
    whole: str = ""
    """What it was cut from, a file for example; empty: it is whole. A whole is cut once: what a checkpoint holds of
    it is all of it, and stays cut as it was when the source would cut it another way."""
    place: int = 0
    """Where in the whole it begins."""
    options: dict[str, Any] = {}

    @property
    def origin(self) -> str:
        """The name of the whole."""
        return self.whole or self.id


class ReadResult(msgspec.Struct, frozen=True, kw_only=True):
    """One answer of a split reader."""

    frame: pl.DataFrame | None = None
    """Rows, or None when there are none just now."""
    ended: bool = False
    """The split is exhausted; `frame` may hold its last rows."""
    wait_us: int = 0
    """With no rows: how long it makes sense to wait before asking again."""
    bad_rows: int = 0
    """Rows that were dropped because they could not be read (`on_bad_record = "drop"`)."""
    watermark: int | None = None
    """The input itself says that no row at or before this (microseconds) follows those of `frame`."""
    idle: bool = False
    """The input itself says that nothing comes for a while: it holds nobody back until its next rows."""


class SplitReader(Protocol):
    """Reads one split. Never blocks for long: a socket without data answers with `wait_us`."""

    def read(self, max_rows: int) -> ReadResult:
        """The next rows, in the columns that were asked for."""
        ...

    def position(self) -> dict[str, Any]:
        """Where the next `read` goes on, as JSON values: after the rows that were returned."""
        ...

    def close(self) -> None:
        """Release what is open."""
        ...


class SourceContext(msgspec.Struct, frozen=True, kw_only=True):
    """What a source may know about where it runs."""

    subtask_index: int
    parallelism: int
    columns: tuple[str, ...] | None
    predicates: tuple[bytes, ...] = ()
    """Serialised Polars expressions: rows for which one is not true may be left out. A source may ignore them."""
    settings: SourceSettings
    clock: Clock
    place: str
    """`job/uid[subtask]`, for error messages."""


class Source(Protocol):
    """Task side of a source connector."""

    sequential: bool
    """True: splits of a subtask are read one after the other (files); False: in turns (generators, sockets)."""

    def splits(self) -> Sequence[Split]:
        """All splits that are known when the source starts, the same in every subtask.

        The caller gives split i to subtask i mod parallelism.
        """
        ...

    def discover(self, seen: frozenset[str], context: SourceContext) -> Sequence[Split]:
        """New splits for this subtask only, each found by exactly one subtask; empty for most sources.

        `seen`: the origins of those that are known.
        """
        ...

    @property
    def discovers(self) -> bool:
        """True when the source is unbounded because new splits may appear."""
        ...

    def open(self, split: Split, position: dict[str, Any] | None, context: SourceContext) -> SplitReader:
        """Start reading, from the beginning or where an earlier reader stopped."""
        ...


@runtime_checkable
class TimedSource(Protocol):
    """A source whose input tells how far event time has come, with `ReadResult.watermark`."""

    tells_time: bool
    """True: only that counts, not what a watermark strategy makes of the rows."""


class SinkContext(msgspec.Struct, frozen=True, kw_only=True):
    """What a sink may know about where it runs."""

    job: JobId
    attempt: Attempt
    uid: Uid
    subtask: SubtaskId
    clock: Clock


Stage = Callable[[], list[dict[str, Any]]]
"""Makes rows durable where no reader sees them; the committables that describe them, as JSON values.

Called in the background while `write` goes on, so it shares nothing with it; again, if it raised.
"""


class Sink(Protocol):
    """Task side of a sink connector, two-phase.

    `write` takes rows; `prepare` (at a barrier) sets apart what was written, and the stage that it returns makes it
    durable; its committables become part of the checkpoint; `commit` makes them visible and is idempotent, since a
    restore commits again what the checkpoint holds. A sink without phases has nothing to prepare.
    """

    def write(self, frame: pl.DataFrame) -> None:
        """Take rows; invisible to readers of the target until committed."""
        ...

    def prepare(self, checkpoint: CheckpointId) -> Stage | None:
        """Set apart what was written since the last call, at once: a barrier waits. None: nothing was."""
        ...

    def commit(self, committables: list[dict[str, Any]]) -> None:
        """Make visible, each once however often it is called."""
        ...

    def recover(self, committables: list[dict[str, Any]]) -> None:
        """Clean up when a subtask starts: commit these, remove what its other attempts left staged.

        Called once before the first `write`; with an empty list when there is nothing to restore.
        """
        ...

    def close(self) -> None:
        """Release what is open; staged rows are abandoned."""
        ...


@runtime_checkable
class PacedSink(Protocol):
    """A sink that says when it takes no rows. A slot has one thread, so none may wait inside `write`."""

    def ready_in_us(self) -> int:
        """0: rows may come; else how long to ask nothing of it. Its task leaves the input where it is meanwhile."""
        ...
