"""Aligned sources of one job: how far each slot is, and what each is told of the others. No I/O.

Owns: the slowest of a group of sources, seen from each slot; what each slot has been told.
Does not own: which split waits (`operators.sources`), when slots say how far they are (`taskmanager.aligning`).
Invariant: a slot that has not said anything counts as the slowest: it may go back to a checkpoint. Nothing is kept of
an attempt that is over, and what a slot says that it has heard outweighs what was sent to it.
"""

from collections.abc import Iterator

from penstock.jobmanager.outbox import Outbox
from penstock.jobmanager.regions import RegionRun, Regions
from penstock.model import messages, tasks
from penstock.model.clocks import MAX_WATERMARK, MIN_WATERMARK
from penstock.model.ids import SlotId


class Aligning:
    """Drives the alignment of a job."""

    def __init__(self, regions: Regions, outbox: Outbox) -> None:
        self._regions, self._outbox = regions, outbox

    def heard(self, run: RegionRun, message: messages.Reached) -> None:
        """A slot says how far it is; whoever must know because of it is told."""
        if message.slot not in run.placement:
            return
        run.reached[message.slot] = {each.group: each for each in message.times}
        for name in run.reached[message.slot]:
            self._tell(name)

    def _tell(self, name: str) -> None:
        members = list(self._members(name))
        for run, slot in members:
            if slot is None or (known := run.reached.get(slot, {}).get(name)) is None:
                continue
            others = min(
                (_time(other_run, other, name) for other_run, other in members if other != slot),
                default=MAX_WATERMARK,
            )
            if others != known.others:
                align = messages.Align(job=self._outbox.job, attempt=run.number, others={name: others})
                self._outbox.send(slot, align)
                run.reached[slot][name] = messages.GroupTime(group=name, time=known.time, others=others)

    def _members(self, name: str) -> Iterator[tuple[RegionRun, SlotId | None]]:
        """Where sources of the group run; no slot: nowhere just now."""
        for run in self._regions.runs:
            if not run.placement and any(_is_in(task, name) for task in run.region.tasks):
                yield run, None
            for slot, placed in run.placement.items():
                if any(_is_in(task, name) for task in placed):
                    yield run, slot


def _is_in(task: tasks.Task, name: str) -> bool:
    alignment = tasks.alignment_of(task)
    return alignment is not None and alignment[0] == name


def _time(run: RegionRun, slot: SlotId | None, name: str) -> int:
    said = run.reached.get(slot, {}).get(name) if slot is not None else None
    return MIN_WATERMARK if said is None else said.time
