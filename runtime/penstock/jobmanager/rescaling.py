"""Another parallelism for a job that runs: what was asked for, how far it is, what became of the others. No I/O.

    SLOTS -> BARRIER -> JOURNALING -> STARTING -> completed
      |         |           |             |
      +---------+-----------+-> failed    +-> RETURNING -> failed, at the size before

and where the job can go on meanwhile (`moving`)

    SLOTS -> PREPARING -> MOVING -> JOURNALING -> completed
                 |           |           |
                 +-> failed  +-----------+-> failed, by a restart at the size before

SLOTS: some are missing; the job runs on as it is. PREPARING: new slots get their tasks. MOVING: the barrier is on its
way, or groups are. BARRIER: they are kept for it, and a RESTART checkpoint is due or
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
from penstock.graph import JobGraph, NotLive, Size
from penstock.jobmanager.moving import Moving
from penstock.jobmanager.regions import Regions
from penstock.jobmanager.slots import SlotPool, Usage
from penstock.jobmanager.timing import Moment
from penstock.model.elements import BarrierKind
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
    PREPARING = "preparing"
    MOVING = "moving"
    BARRIER = "barrier"
    JOURNALING = "journaling"
    STARTING = "starting"
    RETURNING = "returning"


_PATIENT: Final = (Phase.SLOTS, Phase.PREPARING, Phase.MOVING, Phase.BARRIER)


@dataclass(frozen=True, slots=True)
class Move:
    """What the journal is to say."""

    size: Size
    checkpoint: CheckpointId
    requested_us: int
    cause: str = ""
    live: bool = False


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
    live: bool = False
    """The job goes on meanwhile."""
    why_not_live: str = ""


@dataclass(slots=True)
class Rescaling:
    """The sizes of one job."""

    job: JobId
    regions: Regions
    pool: SlotPool
    submitted: JobGraph
    size: Size
    """That the journal says."""
    moving: Moving
    _present: _Present | None = None
    _views: list[RescaleView] = field(default_factory=list)

    # ------------------------------------------------------------ what is known

    @property
    def wanted_barrier(self) -> BarrierKind | None:
        """Of this kind, as soon as one is possible."""
        if self._present is not None and self._present.phase is Phase.BARRIER:
            return BarrierKind.RESTART
        if self._present is not None and self._present.phase is Phase.PREPARING and self.moving.ready:
            return BarrierKind.RESCALE
        return None

    @property
    def switching(self) -> bool:
        """Nothing else may begin before the journal has the new size."""
        return self._present is not None and self._present.phase in (
            Phase.MOVING,
            Phase.JOURNALING,
            Phase.RETURNING,
        )

    @property
    def phase(self) -> Phase | None:
        """How far the one that is under way is."""
        return self._present.phase if self._present is not None else None

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
        present, wakes = self._present, self.moving.wakes()
        if present is not None and present.phase in _PATIENT:
            wakes.append(present.deadline)
        return wakes

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
        self.moving.drive(at)
        if present is None:
            return ""
        if present.phase is Phase.STARTING:
            self._complete(present, at)
        elif present.phase is Phase.SLOTS:
            self._keep_slots(present, at)
        elif present.phase is Phase.MOVING and present.checkpoint is not None and self.moving.settled:
            present.phase = Phase.JOURNALING
        if present.phase not in (Phase.SLOTS, Phase.PREPARING, Phase.BARRIER) or at.monotonic < present.deadline:
            return ""
        waited = (at.now_us - present.requested_us) / 1e6
        return f"given up after {waited:.1f} s: {self._views[-1].reason}"

    def late(self, at: Moment) -> str:
        """Groups that do not arrive in time: why the job has to start again, mostly nothing."""
        present = self._present
        if present is None or present.phase is not Phase.MOVING or at.monotonic < present.deadline:
            return ""
        return f"the rescale was not complete {(at.now_us - present.stopped_us) / 1e6:.1f} s after its barrier"

    def on_barrier(self, checkpoint: CheckpointId, at: Moment) -> None:
        """It is on its way. What a RESTART barrier reaches first stands still."""
        present = self._present
        if present is None:
            return
        present.stopped_us = at.now_us
        if present.live:
            present.phase = Phase.MOVING
            present.deadline = at.monotonic + 2 * self.submitted.settings.checkpoint.timeout_us / 1e6
            self.moving.on_barrier(checkpoint)
        self._show(reason="moves key groups" if present.live else "waits for its checkpoint")

    def on_checkpoint(self, manifest: Manifest) -> bool:
        """Its checkpoint is in the journal. False: it was given up meanwhile, and nothing follows."""
        present = self._present
        if present is not None and present.phase is Phase.MOVING:
            present.checkpoint = manifest.checkpoint
            return True
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
        if present.phase is Phase.MOVING:
            return None
        return Move(size, present.checkpoint, present.requested_us, present.failure, present.live)

    def on_written(self, entry: journal.Resized, at: Moment, *, goes_on: bool = False) -> JobGraph:
        """The journal says it; the plan to go on with, and if the attempt does `goes_on`, nothing else changes."""
        self.size = Size(entry.parallelism, entry.operators)
        self._set_free()
        present = self._present
        assert present is not None
        if goes_on:
            self._complete_live(present, at)
            return present.graph
        self.moving.forget()
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

    def on_live_refused(self, reason: str) -> str:
        """What runs has another size than the journal says: why the job has to start again."""
        if self._present is not None:
            self._present.phase = Phase.MOVING
        return reason

    def on_failure(self, reason: str, at: Moment) -> bool:
        """A region has failed. True: it did not come up at its new size, and goes back."""
        present = self._present
        if present is not None and present.phase in (Phase.PREPARING, Phase.MOVING):
            moves = present.phase is Phase.MOVING
            self.moving.forget()
            self._fail(f"went back to the size before: {reason}" if moves else reason, at)
            return moves
        if present is None or present.phase is not Phase.STARTING:
            return False
        present.phase, present.failure = Phase.RETURNING, reason
        self._show(reason=f"goes back: {reason}")
        return True

    def give_up(self, reason: str, at: Moment, *, always: bool = False) -> None:
        """It is not to be; `always`: however far it is."""
        early = (Phase.SLOTS, Phase.PREPARING, Phase.BARRIER)
        if self._present is not None and (always or self._present.phase in early):
            if self._present.phase is Phase.PREPARING:
                self.moving.abandon(at)
            self.moving.forget()
            self._set_free()
            self._fail(reason, at)

    def recover(self, entries: Iterable[journal.JournalEntry], at: Moment) -> None:
        """What an earlier JobManager has written. The last one may still have to show that it comes up."""
        before: Size | None = None
        last: journal.Resized | None = None
        graph = self.submitted
        for entry in entries:
            match entry:
                case journal.Resized():
                    before, self.size = self.size, Size(entry.parallelism, entry.operators)
                    self._remember(entry, before)
                    graph = self._graph_of(graph, entry)
                    last = entry if not entry.cause else None
                case journal.CheckpointCompleted():
                    last = None
        if before is None:
            return
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

    def _graph_of(self, running: JobGraph, entry: journal.Resized) -> JobGraph:
        size = Size(entry.parallelism, entry.operators)
        live = graphs.resized_live(running, self.submitted, size) if entry.live else None
        return live if isinstance(live, JobGraph) else graphs.resized(self.submitted, size)

    def _prepare_live(self, present: _Present, at: Moment) -> bool:
        """Whether the job gets its size while it runs, or waits for slots to do so."""
        plan = self.moving.plan(present.after)
        free = self.pool.free()
        if not isinstance(plan, NotLive):
            if len(plan.missing) > len(free):
                held = len(plan.held)
                wanted = held + len(plan.missing)
                self._show(reason=f"needs {wanted} slots, has {held}, {len(free)} free; waits for more")
                return True
            obstacle = self.moving.begin(plan, free, at)
            if obstacle is None:
                present.phase, present.live, present.graph = Phase.PREPARING, True, plan.graph
                timeout = self.submitted.settings.checkpoint.timeout_us / 1e6
                present.deadline = max(present.deadline, at.monotonic + timeout)
                self._show(reason="prepares its slots", kind=LIVE)
                return True
            plan = obstacle
        present.why_not_live = plan.reason
        return False

    def _complete_live(self, present: _Present, at: Moment) -> None:
        moved = self.moving.moved
        self.moving.settle(at)
        self._present = None
        handed = [each for each in moved if not each.rebuilt]
        pauses = sorted(each.pause_us for each in handed for _ in range(each.first, each.end))
        self._show(
            status=COMPLETED,
            reason="",
            ended_us=at.now_us,
            groups_moved=len(pauses),
            bytes_moved=sum(each.size for each in handed),
            pause_us_p50=_quantile(pauses, 0.5),
            pause_us_p99=_quantile(pauses, 0.99),
            pause_us_max=_quantile(pauses, 1.0),
        )

    def _keep_slots(self, present: _Present, at: Moment) -> None:
        if self._prepare_live(present, at):
            return
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
            reason=f"started again: {present.why_not_live}" if present.why_not_live else "",
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
                kind=LIVE if entry.live else RESTART,
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


def _quantile(ordered: list[int], share: float) -> int | None:
    """0: nothing moved, so nothing waited."""
    return ordered[min(len(ordered) - 1, int(share * len(ordered)))] if ordered else 0
