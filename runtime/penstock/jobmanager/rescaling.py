"""Another parallelism for a job that runs: what was asked for, how far it is, what became of the others. No I/O.

    SLOTS -> BARRIER -> JOURNALING -> STARTING -> completed
      |         |           |             |
      +---------+-----------+-> failed    +-> RETURNING -> failed, at the size before

SLOTS: some are missing; the job runs on as it is. BARRIER: they are kept for it, and a RESTART checkpoint is due or
under way. JOURNALING: that is complete, sources emit nothing, and the new size is on its way into the journal.
STARTING: the journal says so; all regions start again. RETURNING: they did not come up, and the size before, which
restores the same checkpoint, is on its way into the journal.

Owns: which size the job has, and is to have. Does not own: the barrier (`checkpointing`), the journal (`jobs`).
Invariant: slots are kept only in BARRIER and JOURNALING; what runs is of the size that the journal says.
"""

import enum
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Final

import msgspec

from penstock import graph as graphs
from penstock.checkpoint import journal
from penstock.graph import JobGraph, Size
from penstock.jobmanager.regions import Regions
from penstock.jobmanager.slots import SlotPool, Usage
from penstock.jobmanager.timing import Moment
from penstock.model.handles import Manifest
from penstock.model.ids import Attempt, CheckpointId, JobId
from penstock.model.views import RescaleView

HISTORY: Final = 50
PENDING, COMPLETED, FAILED = "pending", "completed", "failed"
LIVE, RESTART = "live", "restart"
_KEPT: Final = Attempt(0)
"""Stands for the attempt in slots that are kept: none has this number."""


class Phase(enum.Enum):
    """How far a rescale is."""

    SLOTS = "slots"
    BARRIER = "barrier"
    JOURNALING = "journaling"
    STARTING = "starting"
    RETURNING = "returning"


@dataclass(frozen=True, slots=True)
class Move:
    """What the journal is to say."""

    size: Size
    checkpoint: CheckpointId
    requested_us: int
    cause: str = ""


@dataclass(slots=True)
class _Present:
    """The one that is under way."""

    before: Size
    after: Size
    graph: JobGraph
    """Of the size after."""
    wanted: int
    """Slots that it can fill."""
    requested_us: int
    deadline: float
    phase: Phase = Phase.SLOTS
    checkpoint: CheckpointId | None = None
    stopped_us: int = 0
    """When sources were asked to emit nothing more."""
    failure: str = ""


@dataclass(slots=True)
class Rescaling:
    """The sizes of one job."""

    job: JobId
    regions: Regions
    pool: SlotPool
    submitted: JobGraph
    size: Size
    """That the journal says."""
    _present: _Present | None = None
    _views: list[RescaleView] = field(default_factory=list)

    # ------------------------------------------------------------ what is known

    @property
    def wants_barrier(self) -> bool:
        """A RESTART checkpoint is due, as soon as one is possible."""
        return self._present is not None and self._present.phase is Phase.BARRIER

    @property
    def switching(self) -> bool:
        """Nothing else may begin before the journal has the new size."""
        return self._present is not None and self._present.phase in (Phase.JOURNALING, Phase.RETURNING)

    @property
    def under_way(self) -> RescaleView | None:
        """For people."""
        return self._views[-1] if self._present is not None else None

    def views(self) -> tuple[RescaleView, ...]:
        """All of them, the newest last."""
        return tuple(self._views)

    def plan(self, parallelism: int | None, operators: Mapping[str, int]) -> Size:
        """The size that is asked for; UserError when the job cannot have it."""
        size = self.size.changed(parallelism, operators)
        graphs.resized(self.submitted, size)
        return size

    def wakes(self) -> list[float]:
        """When patience ends."""
        present = self._present
        waits = present is not None and present.phase in (Phase.SLOTS, Phase.BARRIER)
        return [present.deadline] if present is not None and waits else []

    # ------------------------------------------------------------ what happens

    def request(self, size: Size, at: Moment) -> None:
        """Somebody wants it. One at a time; a size that the job has is had at once."""
        if self._present is not None:
            return
        before, after = self.regions.graph, graphs.resized(self.submitted, size)
        sizes = graphs.operator_sizes(before), graphs.operator_sizes(after)
        self._views.append(
            RescaleView(
                id=self._views[-1].id + 1 if self._views else 1,
                kind=RESTART,
                status=PENDING,
                started_us=at.now_us,
                before=sizes[0],
                after=sizes[1],
                parallelism_before=self.size.parallelism,
                parallelism_after=size.parallelism,
            )
        )
        del self._views[:-HISTORY]
        if size == self.size:
            self._show(status=COMPLETED, kind=LIVE, reason="it has that size", ended_us=at.now_us, groups_moved=0)
            return
        self._present = _Present(
            before=self.size,
            after=size,
            graph=after,
            wanted=sum(graphs.slots_wanted(region) for region in graphs.execution(after)),
            requested_us=at.now_us,
            deadline=at.monotonic + self.submitted.settings.rescale.slot_wait_us / 1e6,
        )

    def drive(self, at: Moment) -> str:
        """Every region runs: keep slots when all are there. Returns why it has to be given up, mostly nothing."""
        present = self._present
        if present is None:
            return ""
        if present.phase is Phase.STARTING:
            self._complete(present, at)
        elif present.phase is Phase.SLOTS:
            self._keep_slots(present, at)
        if present.phase not in (Phase.SLOTS, Phase.BARRIER) or at.monotonic < present.deadline:
            return ""
        waited = (at.now_us - present.requested_us) / 1e6
        return f"given up after {waited:.1f} s: {self._views[-1].reason}"

    def on_barrier(self, at: Moment) -> None:
        """A RESTART barrier is on its way: what it reaches first stands still."""
        if self._present is not None:
            self._present.stopped_us = at.now_us
            self._show(reason="waits for its checkpoint")

    def on_checkpoint(self, manifest: Manifest) -> bool:
        """The RESTART checkpoint is in the journal. False: it was given up meanwhile, and nothing follows."""
        present = self._present
        if present is None or present.phase is not Phase.BARRIER:
            return False
        present.phase, present.checkpoint = Phase.JOURNALING, manifest.checkpoint
        moved = graphs.moved_groups(self.regions.graph, present.graph)
        self._show(reason="starts again", bytes_moved=manifest.size, groups_moved=moved)
        return True

    def next_move(self) -> Move | None:
        """What the journal is to say, when it is time."""
        present = self._present
        if present is None or present.checkpoint is None or not self.switching:
            return None
        size = present.after if present.phase is Phase.JOURNALING else present.before
        return Move(size, present.checkpoint, present.requested_us, present.failure)

    def on_written(self, entry: journal.Resized, at: Moment) -> JobGraph:
        """The journal says it; the plan to go on with."""
        self.size = Size(entry.parallelism, entry.operators)
        self._set_free()
        present = self._present
        assert present is not None
        if present.phase is Phase.RETURNING:
            self._fail(f"went back to the size before: {present.failure}", at)
            return graphs.resized(self.submitted, self.size)
        present.phase = Phase.STARTING
        self._show(reason="starts again")
        return present.graph

    def on_refused(self, reason: str, at: Moment) -> CheckpointId | None:
        """It was not written, and is not: the job stays as it is. Returns the checkpoint that nothing follows from."""
        present = self._present
        if present is None or present.phase is not Phase.JOURNALING:
            return None  # the way back is tried again
        self.give_up(reason, at, always=True)
        return present.checkpoint

    def on_failure(self, reason: str) -> bool:
        """A region has failed. True: it did not come up at its new size, and goes back."""
        present = self._present
        if present is None or present.phase is not Phase.STARTING:
            return False
        present.phase, present.failure = Phase.RETURNING, reason
        self._show(reason=f"goes back: {reason}")
        return True

    def give_up(self, reason: str, at: Moment, *, always: bool = False) -> None:
        """It is not to be; `always`: however far it is."""
        if self._present is not None and (always or self._present.phase in (Phase.SLOTS, Phase.BARRIER)):
            self._set_free()
            self._fail(reason, at)

    def recover(self, entries: Iterable[journal.JournalEntry], at: Moment) -> None:
        """What an earlier JobManager has written. The last one may still have to show that it comes up."""
        before: Size | None = None
        last: journal.Resized | None = None
        for entry in entries:
            match entry:
                case journal.Resized():
                    before, self.size = self.size, Size(entry.parallelism, entry.operators)
                    self._remember(entry, before)
                    last = entry if not entry.cause else None
                case journal.CheckpointCompleted():
                    last = None
        if before is None:
            return
        graph = graphs.resized(self.submitted, self.size)
        self.regions.replan(graph, at.monotonic)
        if last is not None:
            self._present = _Present(
                before=before,
                after=self.size,
                graph=graph,
                wanted=0,
                requested_us=last.requested_us,
                deadline=0.0,
                phase=Phase.STARTING,
                checkpoint=last.checkpoint,
            )
            self._show(status=PENDING, ended_us=None, reason="starts again")

    # ------------------------------------------------------------ inside

    def _keep_slots(self, present: _Present, at: Moment) -> None:
        held = sum(len(run.placement) for run in self.regions.runs)
        free = self.pool.free()
        missing = present.wanted - held
        if missing > len(free):
            self._show(reason=f"needs {present.wanted} slots, has {held}, {len(free)} free; waits for more")
            return
        self.pool.reserve([info.slot for info in free[: max(0, missing)]], Usage(self.job, _KEPT))
        present.phase = Phase.BARRIER
        present.deadline = max(present.deadline, at.monotonic + self.submitted.settings.checkpoint.timeout_us / 1e6)
        self._show(reason="waits for its checkpoint")

    def _set_free(self) -> None:
        self.pool.set_free(Usage(self.job, _KEPT))

    def _complete(self, present: _Present, at: Moment) -> None:
        self._present = None
        # All stand still from the barrier on; nobody here knows which of them came back first.
        pause_us = max(0, at.now_us - present.stopped_us) if present.stopped_us else None
        self._show(
            status=COMPLETED,
            reason="",
            ended_us=at.now_us,
            pause_us_p50=pause_us,
            pause_us_p99=pause_us,
            pause_us_max=pause_us,
        )

    def _fail(self, reason: str, at: Moment) -> None:
        self._present = None
        self._show(status=FAILED, reason=reason, ended_us=at.now_us)

    def _show(self, **changes: object) -> None:
        self._views[-1] = msgspec.structs.replace(self._views[-1], **changes)

    def _remember(self, entry: journal.Resized, before: Size) -> None:
        if entry.cause and self._views:
            self._show(status=FAILED, reason=f"went back to the size before: {entry.cause}")
            return
        sizes = [graphs.operator_sizes(graphs.resized(self.submitted, size)) for size in (before, self.size)]
        self._views.append(
            RescaleView(
                id=self._views[-1].id + 1 if self._views else 1,
                kind=RESTART,
                status=COMPLETED,
                started_us=entry.requested_us,
                ended_us=entry.time_us,
                before=sizes[0],
                after=sizes[1],
                parallelism_before=before.parallelism,
                parallelism_after=self.size.parallelism,
            )
        )
        del self._views[:-HISTORY]
