"""Gives the regions of a job slots, deploys them there, and gives the slots back. No I/O.

Owns: how long the job waits for slots. Does not own: which slots there are (`slots`), who shares them (`packing`).
Invariant: a region that is given slots has an attempt number that no region had before.
"""

from penstock import graph as graphs
from penstock.graph import JobGraph
from penstock.jobmanager import packing, versions
from penstock.jobmanager.outbox import Outbox
from penstock.jobmanager.regions import RegionRun, Regions, RegionState
from penstock.jobmanager.slots import SlotPool, Usage
from penstock.jobmanager.timing import Moment
from penstock.model import messages
from penstock.model.errors import UserError
from penstock.model.tasks import Deployment

PACKED = "the job is packed on fewer slots"


class Placing:
    """The slots of one job."""

    def __init__(self, graph: JobGraph, store: str, *, regions: Regions, pool: SlotPool, outbox: Outbox) -> None:
        self._graph, self._store, self._regions, self._pool, self._outbox = graph, store, regions, pool, outbox
        self._packing = packing.Packing(graph.settings.restart.slot_wait_us / 1e6)

    @property
    def short(self) -> bool:
        """Slots are missing."""
        return self._packing.missing_since is not None

    def wakes(self) -> list[float]:
        """When patience ends."""
        return self._packing.wakes()

    def place(self, at: Moment, *, not_before: float) -> packing.Choice | UserError | None:
        """Reserve slots for regions that wait: all they want, or after a while what there is.

        Returns what came of it, None when nobody waits. `Merge`: regions that ran were ended, since all have to
        share what there is; an error: there are slots, but they cannot run this job.
        """
        waiting = self._regions.waiting()
        if not waiting or at.monotonic < not_before:
            self._packing.satisfied()
            return None
        if self._regions.merged and len(waiting) == len(self._regions.runs):
            # Nothing runs: what was merged for want of slots is taken apart again.
            self._regions.set_apart(at.monotonic, cause=waiting[0].cause)
        free = self._pool.free()
        choice = self._choose(free, at)
        if isinstance(choice, packing.Merge):
            if self._end_all(at):
                return choice
            self._regions.merge(len(free), at.monotonic)
            choice = self._choose(free, at)
        if isinstance(choice, packing.Share):
            for run, slots in zip(self._regions.waiting(), choice.slots, strict=True):
                if mismatch := versions.mismatch(self._graph.versions, self._pool.versions(slots)):
                    return mismatch
                self._reserve(run, slots, at)
        return choice

    def deploy(self, run: RegionRun, at: Moment) -> None:
        """Its attempt is in the journal: slots may hear of it."""
        run.enter(RegionState.DEPLOYING, at.monotonic)
        for slot in run.placement:
            deployment = Deployment(
                job=self._outbox.job,
                attempt=run.number,
                slot=slot,
                tasks=run.tasks_to_restore(slot),
                settings=self._graph.settings,
                store=self._store,
            )
            self._pool.deployed(slot)
            self._outbox.send(slot, messages.Deploy(deployment=deployment))
        restored = run.restored.checkpoint if run.restored else None
        self._outbox.note("info", "region deployed", attempt=run.number, slots=len(run.placement), restored=restored)

    def probe(self, run: RegionRun) -> None:
        """A connection broke: ask the region's TaskManagers whether they are there, since one that is not is why."""
        first_slots = {slot.task_manager: slot for slot in reversed(run.placement)}
        for slot in sorted(first_slots.values()):
            self._outbox.send(slot, messages.Probe())

    def end_attempt(self, run: RegionRun, at: Moment, cause: str) -> None:
        """Give the slots back; the region waits for others."""
        self._release(run, at)
        run.reset(at.monotonic, cause)

    def release_all(self, at: Moment) -> None:
        """Nothing of the job runs any more."""
        for run in self._regions.runs:
            self._release(run, at)

    def replan(self, graph: JobGraph, at: Moment) -> None:
        """End everything, and start again at another size."""
        self.release_all(at)
        self._regions.replan(graph, at.monotonic)

    def abandon(self) -> None:
        """Another JobManager has the job, and its slots."""
        self._pool.abandon(self._outbox.job)

    def _choose(self, free: list[messages.SlotInfo], at: Moment) -> packing.Choice:
        return self._packing.choose(
            [run.wanted for run in self._regions.waiting()],
            free,
            returning=self._pool.returning(),
            held=sum(len(run.placement) for run in self._regions.runs),
            monotonic=at.monotonic,
        )

    def _end_all(self, at: Moment) -> bool:
        """Whether any region had slots; they come back."""
        active = [run for run in self._regions.runs if run.state is not RegionState.WAITING]
        for run in active:
            self.end_attempt(run, at, PACKED)
        return bool(active)

    def _reserve(self, run: RegionRun, slots: list[messages.SlotInfo], at: Moment) -> None:
        run.attempt = self._regions.next_attempt()
        run.placement = dict(graphs.place(run.region, slots))
        run.enter(RegionState.JOURNALING, at.monotonic)
        self._pool.reserve(run.placement, Usage(self._outbox.job, run.attempt))

    def _release(self, run: RegionRun, at: Moment) -> None:
        if run.attempt is not None:
            self._pool.release(run.placement, Usage(self._outbox.job, run.attempt), at.monotonic)
