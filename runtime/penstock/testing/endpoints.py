"""Simulated ends of a job: sources with made-up rows, and a two-phase target that is watched all the time.

The sink keeps to the protocol of the file sink, name for name, with dictionaries instead of folders: staged parts
belong to one subtask of one attempt, committing moves a part to its final name, recovery removes what earlier
attempts of the same subtask left staged. What the target sees, a reader of the real folder would see.
"""

import itertools
import random
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import polars as pl

from penstock.connectors.base import ReadResult, SinkContext, SourceContext, Split, Stage
from penstock.model.clocks import Clock
from penstock.model.errors import FatalJobError, RetryableError
from penstock.model.ids import Attempt, CheckpointId, JobId
from penstock.model.settings import JobSettings
from penstock.model.specs import Connector
from penstock.testing.answers import Answer, Row
from penstock.testing.watching import Watcher
from penstock.testing.world import World

KIND = "simulated"

SILENCE_US = 100_000
"""How often a split that says nothing is asked."""

# ---------------------------------------------------------------- source


@dataclass(frozen=True, slots=True)
class SplitInput:
    """The rows of one split, in the order in which they are read, and how fast they come."""

    rows: pl.DataFrame
    batch_rows: int
    row_us: int
    """Time that each row takes; a batch is there at once, and the next one when the time of its rows is over."""


@dataclass(frozen=True)
class SourceInput:
    """A source as a program names it: `flow.read(SourceInput(...))`."""

    name: str
    splits: tuple[SplitInput, ...]
    schema: pl.Schema
    endless: bool = False
    """Splits fall silent instead of ending, as the partitions of a queue do."""
    grows_every_us: int = 0
    """So much time lies between the appearances of two splits; 0: all are there from the start."""

    @property
    def bounded(self) -> bool:
        """Whether it ends by itself."""
        return not self.endless and not self.grows_every_us

    @property
    def connector(self) -> Connector:
        """What the slots open; the rows stay here."""
        return Connector(kind=KIND, options={"name": self.name})

    def as_source(self) -> "SourceInput":
        """It is its own definition."""
        return self

    def resolve(self, settings: JobSettings) -> "SourceInput":
        """Nothing to look up."""
        return self


class SimulatedSource:
    """Task side; splits are read in turns. In the last run of a job the input is all there, and has an end."""

    sequential = False

    def __init__(self, given: SourceInput, world: World, *, last_run: bool) -> None:
        self._given, self._world, self._last_run = given, world, last_run
        self.discovers = bool(given.grows_every_us) and not last_run

    def splits(self) -> Sequence[Split]:
        """Numbered."""
        return () if self.discovers else [self._split(number) for number in range(len(self._given.splits))]

    def discover(self, seen: frozenset[str], context: SourceContext) -> Sequence[Split]:
        """Those that have appeared, dealt out in another way than a restore deals them."""
        count = min(len(self._given.splits), self._world.now_us // max(1, self._given.grows_every_us))
        first = (context.subtask_index - 1) % context.parallelism
        mine = (self._split(number) for number in range(first, count, context.parallelism))
        found = [split for split in mine if split.id not in seen]
        if found:
            self._world.sometimes("split discovered")
        return found

    def _split(self, number: int) -> Split:
        return Split(id=f"{self._given.name}-{number}")

    def open(self, split: Split, position: dict[str, Any] | None, context: SourceContext) -> "SimulatedReader":
        """Position: rows read."""
        given = self._given.splits[int(split.id.rpartition("-")[2])]
        columns = context.columns or tuple(given.rows.columns)
        start = position["rows"] if position else 0
        return SimulatedReader(given, columns, start, context.clock, ends=self._last_run or not self._given.endless)


class SimulatedReader:
    """Gives a batch, then nothing for a while."""

    def __init__(
        self, given: SplitInput, columns: Sequence[str], start: int, clock: Clock, *, ends: bool = True
    ) -> None:
        self._given, self._rows, self._next, self._clock = given, given.rows.select(columns), start, clock
        self._ends = ends
        self._due = 0.0

    def read(self, max_rows: int) -> ReadResult:
        """The next rows, when their time has come."""
        now = self._clock.monotonic()
        if now < self._due:
            return ReadResult(wait_us=max(1, round((self._due - now) * 1_000_000)))
        frame = self._rows.slice(self._next, min(max_rows, self._given.batch_rows))
        self._next += frame.height
        self._due = now + frame.height * self._given.row_us / 1_000_000
        ended = self._ends and self._next >= self._rows.height
        if not frame.height:
            return ReadResult(ended=ended, wait_us=SILENCE_US)
        return ReadResult(frame=frame, ended=ended)

    def position(self) -> dict[str, Any]:
        """Rows read."""
        return {"rows": self._next}

    def close(self) -> None:
        """Nothing is open."""


# ---------------------------------------------------------------- sink


@dataclass(frozen=True)
class SinkOutput:
    """A sink as a program names it: `.write(SinkOutput())`."""

    @property
    def connector(self) -> Connector:
        """What the slots open."""
        return Connector(kind=KIND)

    def as_sink(self) -> "SinkOutput":
        """It is its own definition."""
        return self

    def check(self, schema: pl.Schema) -> None:
        """Takes anything."""


@dataclass(slots=True)
class Target:
    """Where results become visible. Judges every row at the moment at which it does."""

    world: World
    watcher: Watcher
    answer: Answer
    random: random.Random
    fails: float = 0.0
    """Chance that staging fails, or a commit breaks off, before or after it took effect."""
    staged: dict[str, list[Row]] = field(default_factory=dict)
    parts: dict[str, int] = field(default_factory=dict)
    """Visible parts and their number of rows."""
    visible: "Counter[Row]" = field(default_factory=Counter)

    def stage(self, name: str, rows: list[Row]) -> None:
        """Keep rows where no reader sees them."""
        if self.random.random() < self.fails:
            self.world.sometimes("staging failed")
            raise RetryableError("C022", "the simulated target took no rows")
        self.staged[name] = rows

    def publish(self, name: str, part: str, checkpoint: CheckpointId, job: JobId, attempt: Attempt) -> None:
        """Move a staged part to its final name; nothing happens when that was done before."""
        breaks_off = self.random.random() < self.fails
        if breaks_off and self.random.random() < 0.5:
            raise RetryableError("C022", "the simulated target refused a commit")
        rows = self.staged.pop(name, None)
        if rows is not None:
            self._show(part, rows, journaled=self.watcher.is_journaled(job, checkpoint, attempt))
        elif part not in self.parts:
            raise FatalJobError("S010", f"neither staged part {name} nor {part} exists", fix="bring it back")
        if breaks_off:
            self.world.sometimes("commit took effect but its answer was lost")
            raise RetryableError("C022", "the simulated target lost the answer to a commit")

    def _show(self, part: str, rows: list[Row], *, journaled: bool) -> None:
        self.world.trace(f"target: {part} with {len(rows)} rows")
        if not journaled:
            self.watcher.violation("visibility", f"{part} is visible, but its checkpoint is not in the journal")
        if part in self.parts:
            self.watcher.violation("visibility", f"{part} was visible before, and its rows have vanished")
        self.parts[part] = len(rows)
        self.visible.update(rows)
        for row in rows:
            if (wrong := self.answer.too_much(self.visible, row)) is not None:
                self.watcher.violation("output", wrong)


class SimulatedSink:
    """Task side, one per subtask."""

    def __init__(self, target: Target, context: SinkContext) -> None:
        self._target, self._context = target, context
        self._owner = f"{context.job}/{context.uid}/{context.subtask.index}"
        self._rows: list[Row] = []
        self._numbers = itertools.count()

    def write(self, frame: pl.DataFrame) -> None:
        """Keep rows in memory, as the file sink does."""
        self._rows.extend(frame.rows())

    def prepare(self, checkpoint: CheckpointId) -> Stage | None:
        """Set them apart."""
        rows, self._rows = self._rows, []
        return partial(self._stage, checkpoint, rows) if rows else None

    def _stage(self, checkpoint: CheckpointId, rows: list[Row]) -> list[dict[str, Any]]:
        job, attempt = self._context.job, self._context.attempt
        name = f"{self._owner}/{attempt}/{next(self._numbers)}"
        self._target.stage(name, rows)
        part = f"part/{self._owner}/{attempt}/{checkpoint}"
        return [{"staged": name, "part": part, "checkpoint": checkpoint, "job": job, "attempt": attempt}]

    def commit(self, committables: list[dict[str, Any]]) -> None:
        """Publish each; again is the same as once."""
        for each in committables:
            self._target.publish(each["staged"], each["part"], each["checkpoint"], each["job"], each["attempt"])

    def recover(self, committables: list[dict[str, Any]]) -> None:
        """Publish what the checkpoint holds, remove what earlier attempts of this subtask left."""
        for each in committables:
            done = each["part"] in self._target.parts
            self._target.world.sometimes("commit repeated by a restore" if done else "commit made by a restore")
        self.commit(committables)
        for name in list(self._target.staged):
            owner, attempt, _ = name.rsplit("/", 2)
            if owner == self._owner and int(attempt) < self._context.attempt:
                del self._target.staged[name]

    def close(self) -> None:
        """Rows that were not staged are abandoned."""
        self._rows = []
