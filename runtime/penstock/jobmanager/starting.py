"""How the core comes to a job: a client submits it, or its journal is found in the store."""

import random
from dataclasses import dataclass

from penstock.checkpoint import coordinator, journal
from penstock.checkpoint.selection import check_restorable
from penstock.graph import JobGraph
from penstock.jobmanager.events import JobRecovered, JobSubmitted
from penstock.jobmanager.failures import Failure
from penstock.jobmanager.jobs import TAKEN_UP, Job
from penstock.jobmanager.journal_writer import JournalWriter
from penstock.jobmanager.lifecycle import JobState
from penstock.jobmanager.restarts import Restarts
from penstock.jobmanager.slots import SlotPool
from penstock.jobmanager.timing import Moment, Timing
from penstock.model.errors import UserError
from penstock.model.ids import Epoch, Uid


@dataclass(frozen=True, slots=True)
class Surroundings:
    """What all jobs of a JobManager share."""

    writer: str
    epoch: Epoch
    rng: random.Random
    timing: Timing
    pool: SlotPool


def submitted(event: JobSubmitted, around: Surroundings, at: Moment) -> Job:
    """A new job. One that cannot start from the checkpoint it is given ends at once, and says why."""
    initial = event.initial
    settings = event.graph.settings
    job = Job(
        event.job,
        event.graph,
        event.store,
        checkpoints=coordinator.Coordinator(
            settings.checkpoint, last_id=initial.checkpoint if initial else 0, initial=initial
        ),
        restarts=Restarts(settings.restart, around.rng),
        writer=JournalWriter(around.writer, around.epoch, around.timing.journal_retry),
        pool=around.pool,
        timing=around.timing,
        at=at,
    )
    job.submission = event
    job.restored_from = event.restored_from
    if initial is not None:
        try:
            check_restorable(initial, max_parallelism=event.graph.max_parallelism, uids=_uids(event.graph))
        except UserError as error:
            job.end(JobState.FAILED, str(error))
    return job


def recovered(event: JobRecovered, around: Surroundings, at: Moment) -> Job:
    """A job of an earlier JobManager: shown when it has ended, else started again from its last checkpoint."""
    settings = event.graph.settings
    attempts = [entry for entry in event.entries if isinstance(entry, journal.AttemptStarted)]
    last = event.entries[-1]
    job = Job(
        event.job,
        event.graph,
        event.store,
        checkpoints=coordinator.from_journal(settings.checkpoint, event.entries),
        restarts=Restarts(settings.restart, around.rng, count=sum(bool(entry.cause) for entry in attempts)),
        writer=JournalWriter(
            around.writer,
            around.epoch,
            around.timing.journal_retry,
            sequence=last.sequence + 1,
            parent=event.last_sha256,
        ),
        pool=around.pool,
        timing=around.timing,
        at=at,
    )
    first = event.entries[0]
    job.submitted_us = first.time_us
    job.restored_from = first.restored_from if isinstance(first, journal.Submitted) else ""
    job.rescaling.recover(event.entries, at)
    for entry in attempts:
        job.regions.last_attempt = max(job.regions.last_attempt, entry.attempt)
        if entry.cause:
            code, _, reason = entry.cause.partition(" ")
            job.failures.add(Failure(code, reason), entry.attempt, entry.time_us)
    for run in job.regions.runs:
        run.cause = TAKEN_UP if attempts else ""
    job.adopting.expect(event.entries, at)
    job.take_up_stop(event.entries)
    if isinstance(last, journal.Ended):
        job.show_ended(JobState(last.outcome), last.reason, last.time_us)
    return job


def _uids(graph: JobGraph) -> set[Uid]:
    return {link.operator.uid for vertex in graph.vertices for link in vertex.chain}
