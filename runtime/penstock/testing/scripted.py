"""The ends of a job under test: sources that follow a script, sinks that remember.

Owns: what has happened of the script, over all restarts; what each sink has committed.
Invariant: what a sink shows was committed by a checkpoint that is in the journal, so a crash takes back what came
after it, here as in production.
"""

import itertools
import random
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, ClassVar

import polars as pl

from penstock.connectors.base import ReadResult, SinkContext, SourceContext, Split, Stage
from penstock.model import specs
from penstock.model.clocks import MAX_WATERMARK, MIN_WATERMARK
from penstock.model.ids import CheckpointId
from penstock.model.settings import SourceSettings
from penstock.operators.base import Operator, OperatorContext
from penstock.operators.factory import load_function, make_operator
from penstock.operators.sinks import SinkOperator
from penstock.operators.sources import SourceOperator
from penstock.taskmanager.chain import MakeOperator
from penstock.testing.inputs import Checkpoint, Crash, Idle, Pause, Step, Watermark, microseconds

KIND = "scripted"
STEP_US = 2_000
"""Virtual time between two elements of an input: rows are through a small job before the next ones come."""
_POLL_US = 500

Place = tuple[str, int, int]
"""Input, split, number of the step."""


class Director:
    """Knows how far the script is. Readers ask it; whoever runs the job listens to it."""

    def __init__(
        self,
        *,
        checkpoint_every: int,
        crash_after: Sequence[int],
        stop_after: Sequence[int] = (),
        parallelisms: Sequence[int],
        rng: random.Random,
    ) -> None:
        self.request_checkpoint: Callable[[], None] = lambda: None
        self.request_crash: Callable[[int, int | None], None] = lambda _delay_us, _parallelism: None
        self._checkpoint_every, self._rng = checkpoint_every, rng
        self.request_stop: Callable[[int | None], None] = lambda _parallelism: None
        self._crash_after, self._parallelisms = list(crash_after), list(parallelisms)
        self._stop_after = list(stop_after)
        self._batches = self._rows = self._completed = 0
        self._waiting: dict[Place, int] = {}
        self._over: set[Place] = set()
        self._dying = False

    # ------------------------------------------------------------ the run says

    def on_start(self) -> None:
        """The job starts, or has been restored: rows are counted anew."""
        self._rows, self._dying = 0, False
        self._waiting = dict.fromkeys(self._waiting, self._completed)

    def on_checkpoint(self) -> None:
        """One is complete."""
        self._completed += 1

    # ------------------------------------------------------------ readers say

    @property
    def holds(self) -> bool:
        """Nothing is read any more: a crash is on its way."""
        return self._dying

    def on_batch(self, rows: int) -> None:
        """A batch was read."""
        self._rows += rows
        self._batches += 1
        if self._checkpoint_every and self._batches % self._checkpoint_every == 0:
            self.request_checkpoint()
        if self._crash_after and self._rows >= self._crash_after[0]:
            self._crash_after.pop(0)
            # Somewhere on the way: rows may be in a channel, in an operator, in a checkpoint that is being taken.
            self._die(self._rng.randrange(10 * STEP_US), None)

        if self._stop_after and self._rows >= self._stop_after[0] and not self._dying:
            self._stop_after.pop(0)
            self.request_stop(self._next_parallelism())

    def may_pass(self, place: Place, step: Checkpoint | Crash) -> bool:
        """Whether a step that happens once is over."""
        if place in self._over:
            return True
        if isinstance(step, Crash):
            self._over.add(place)
            self._die(0, step.parallelism)
            return False
        if place not in self._waiting:
            self._waiting[place] = self._completed
            self.request_checkpoint()
        if self._completed > self._waiting[place]:
            self._over.add(place)
        return place in self._over

    def _die(self, delay_us: int, parallelism: int | None) -> None:
        self._dying = True
        self.request_crash(delay_us, self._next_parallelism() if parallelism is None else parallelism)

    def _next_parallelism(self) -> int | None:
        return self._parallelisms.pop(0) if self._parallelisms else None


# ---------------------------------------------------------------- sources


@dataclass(frozen=True)
class ScriptedInput:
    """A source as a program names it: `flow.read(ScriptedInput(...))`."""

    name: str
    schema: pl.Schema
    splits: tuple[tuple[Step, ...], ...]
    tells_time: bool
    bounded: bool = True

    @property
    def connector(self) -> specs.Connector:
        """What the slots open; the rows stay here."""
        return specs.Connector(kind=KIND, options={"name": self.name})

    def as_source(self) -> "ScriptedInput":
        """It is its own definition."""
        return self

    def resolve(self, settings: SourceSettings) -> "ScriptedInput":
        """Nothing to look up."""
        return self


class ScriptedSource:
    """Task side; splits are read side by side."""

    sequential = False
    discovers = False

    def __init__(self, given: ScriptedInput, event_time: specs.EventTime | None, director: Director) -> None:
        self._given, self._director = given, director
        self.tells_time = given.tells_time
        self._unit = event_time.unit if event_time is not None else "us"

    def splits(self) -> Sequence[Split]:
        """Numbered."""
        return [Split(id=str(number)) for number in range(len(self._given.splits))]

    def discover(self, seen: frozenset[str], context: SourceContext) -> Sequence[Split]:
        """Never any."""
        return ()

    def open(self, split: Split, position: dict[str, Any] | None, context: SourceContext) -> "ScriptedReader":
        """Position: the next step."""
        steps = self._given.splits[int(split.id)]
        start = position["step"] if position else 0
        return ScriptedReader((self._given.name, int(split.id)), steps, start, self._unit, self._director, context)


class ScriptedReader:
    """Follows the script of one split."""

    def __init__(
        self,
        split: tuple[str, int],
        steps: Sequence[Step],
        start: int,
        unit: str,
        director: Director,
        context: SourceContext,
    ) -> None:
        self._split, self._steps, self._next, self._unit = split, steps, start, unit
        self._director, self._clock = director, context.clock
        self._columns = context.columns
        self._due = 0.0

    def read(self, max_rows: int) -> ReadResult:
        """The next element, when its time has come."""
        now = self._clock.monotonic()
        if now < self._due or self._director.holds:
            return ReadResult(wait_us=max(_POLL_US, round((self._due - now) * 1_000_000)))
        if self._next >= len(self._steps):
            return ReadResult(ended=True)
        step = self._steps[self._next]
        if isinstance(step, Checkpoint | Crash) and not self._director.may_pass((*self._split, self._next), step):
            return ReadResult(wait_us=_POLL_US)
        self._next += 1
        rest_us = STEP_US + (step.micros if isinstance(step, Pause) else 0)
        self._due = now + rest_us / 1_000_000
        match step:
            case pl.DataFrame():
                self._director.on_batch(step.height)
                return ReadResult(frame=step if self._columns is None else step[list(self._columns)])
            case Watermark(time=time):
                return ReadResult(watermark=microseconds(time, self._unit), wait_us=rest_us)
            case Idle():
                return ReadResult(idle=True, wait_us=rest_us)
        return ReadResult(wait_us=rest_us)

    def position(self) -> dict[str, Any]:
        """The next step."""
        return {"step": self._next}

    def close(self) -> None:
        """Nothing is open."""


# ---------------------------------------------------------------- sinks


@dataclass(frozen=True, slots=True)
class Written:
    """What came to one subtask of a sink: rows, or a watermark (microseconds)."""

    order: int
    run: int
    subtask: int
    subtasks: int
    what: pl.DataFrame | int


@dataclass(slots=True)
class Captured:
    """All sinks of a job under test, by uid."""

    written: dict[str, list[Written]] = field(default_factory=dict)
    run: int = 0
    order: "itertools.count[int]" = field(default_factory=itertools.count)
    staged: dict[str, list[Written]] = field(default_factory=dict)
    names: "itertools.count[int]" = field(default_factory=itertools.count)

    def events(self, uid: str) -> list[pl.DataFrame | int]:
        """Rows in the order in which they came to the sink, and how far time had come at all its subtasks."""
        events: list[pl.DataFrame | int] = []
        reached, last = dict[tuple[int, int], int](), MIN_WATERMARK
        for each in sorted(self.written.get(uid, ()), key=lambda written: written.order):
            if isinstance(each.what, pl.DataFrame):
                events.append(each.what)
                continue
            reached[each.run, each.subtask] = each.what
            time = min(reached.get((each.run, subtask), MIN_WATERMARK) for subtask in range(each.subtasks))
            if last < time < MAX_WATERMARK:
                events.append(time)
                last = time
        return events


@dataclass(frozen=True)
class Capture:
    """A sink as a program names it: `.write(Capture())`."""

    takes_changelog: ClassVar[bool] = True
    """Updates come as rows, each with what it does in a column `change`."""

    @property
    def connector(self) -> specs.Connector:
        """What the slots open."""
        return specs.Connector(kind=KIND)

    def as_sink(self) -> "Capture":
        """It is its own definition."""
        return self

    def check(self, schema: pl.Schema) -> None:
        """Takes anything."""


class CapturingSink:
    """Task side: two-phase, as the sinks that matter are."""

    def __init__(self, captured: Captured, context: SinkContext, subtasks: int) -> None:
        self._captured, self._context, self._subtasks = captured, context, subtasks
        self._run = captured.run
        self._new: list[Written] = []

    def write(self, frame: pl.DataFrame) -> None:
        """Keep rows."""
        self.note(frame)

    def note(self, what: pl.DataFrame | int) -> None:
        """Keep rows, or a watermark, in their order."""
        order, subtask = next(self._captured.order), self._context.subtask.index
        self._new.append(Written(order, self._run, subtask, self._subtasks, what))

    def prepare(self, checkpoint: CheckpointId) -> Stage | None:
        """Set apart what came since the last time."""
        new, self._new = self._new, []
        if not new:
            return None
        name = str(next(self._captured.names))

        def stage() -> list[dict[str, Any]]:
            self._captured.staged[name] = new
            return [{"staged": name}]

        return stage

    def commit(self, committables: list[dict[str, Any]]) -> None:
        """Show each, once."""
        shown = self._captured.written.setdefault(self._context.uid, [])
        for each in committables:
            shown.extend(self._captured.staged.pop(each["staged"], ()))

    def recover(self, committables: list[dict[str, Any]]) -> None:
        """What the checkpoint holds; the rest of what is staged nobody will ever ask for."""
        self.commit(committables)

    def close(self) -> None:
        """What was not staged is lost."""
        self._new = []


class CapturingOperator(SinkOperator):
    """A sink that remembers watermarks too."""

    def on_watermark(self, watermark: int) -> int | None:
        """In its place between the rows."""
        sink = self._ready()
        assert isinstance(sink, CapturingSink)
        sink.note(watermark)
        return super().on_watermark(watermark)


def operators(inputs: Mapping[str, ScriptedInput], director: Director, captured: Captured) -> MakeOperator:
    """As in production, but for the ends."""

    def make(description: specs.Operator, context: OperatorContext) -> Operator:
        match description.spec:
            case specs.Source(connector=specs.Connector(kind=kind, options=options)) as spec if kind == KIND:
                source = ScriptedSource(inputs[options["name"]], spec.event_time, director)
                return SourceOperator(spec, source, load_function)
            case specs.Sink():
                return CapturingOperator(lambda sink: CapturingSink(captured, sink, context.parallelism))
        return make_operator(description, context)

    return make
