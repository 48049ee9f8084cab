"""This JobManager's place at the end of a job's journal.

Invariant: one entry is outstanding at most, and the next one is made only when its predecessor's hash is known.
"""

from typing import TypeVar

from penstock.checkpoint import journal
from penstock.jobmanager.events import JobSubmitted
from penstock.jobmanager.regions import RegionRun
from penstock.jobmanager.rescaling import Move
from penstock.jobmanager.timing import Moment
from penstock.model.ids import Epoch

E = TypeVar("E", bound=journal.Entry)


class JournalWriter:
    """Makes entries, and recognises the answers to them."""

    def __init__(self, writer: str, epoch: Epoch, retry: float, *, sequence: int = 0, parent: str = "") -> None:
        self._writer, self._epoch, self._retry = writer, epoch, retry
        self._sequence, self._parent = sequence, parent
        self._outstanding: journal.Entry | None = None
        self.not_before = float("-inf")
        """After a refusal the store gets a pause."""

    def ready(self, monotonic: float) -> bool:
        """Whether another entry may be made."""
        return self._outstanding is None and monotonic >= self.not_before

    def make(self, kind: type[E], at: Moment, **fields: object) -> E:
        """The next entry. It is outstanding from now on."""
        assert self._outstanding is None
        entry = kind(
            sequence=self._sequence,
            parent=self._parent,
            writer=self._writer,
            epoch=self._epoch,
            time_us=at.now_us,
            **fields,
        )
        self._outstanding = entry
        return entry

    def submitted(self, name: str, submission: JobSubmitted, at: Moment) -> journal.Submitted:
        """The first entry of a job."""
        return self.make(
            journal.Submitted,
            at,
            name=name,
            graph_sha256=submission.graph_sha256,
            restored_from=submission.restored_from,
            initial=submission.initial,
        )

    def attempt_started(self, run: RegionRun, at: Moment) -> journal.AttemptStarted:
        """A region has slots, and may use them once this is written."""
        return self.make(
            journal.AttemptStarted,
            at,
            attempt=run.number,
            region=run.region.index,
            restored=run.restored.checkpoint if run.restored else None,
            cause=run.cause,
            slots=tuple(run.placement),
        )

    def resized(self, move: Move, at: Moment) -> journal.Resized:
        """From now on attempts are of that size."""
        return self.make(
            journal.Resized,
            at,
            parallelism=move.size.parallelism,
            operators=dict(move.size.operators),
            checkpoint=move.checkpoint,
            requested_us=move.requested_us,
            cause=move.cause,
            live=move.live,
        )

    def written(self, entry: journal.JournalEntry, sha256: str) -> bool:
        """It is in the store. False: that was not the outstanding one."""
        if entry != self._outstanding:
            return False
        self._outstanding = None
        self._sequence, self._parent = entry.sequence + 1, sha256
        return True

    def refused(self, entry: journal.JournalEntry, monotonic: float) -> bool:
        """It was not written. False: that was not the outstanding one."""
        if entry != self._outstanding:
            return False
        self._outstanding = None
        self.not_before = monotonic + self._retry
        return True
