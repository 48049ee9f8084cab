"""The states of a job, and every move between them.

CREATED -> WAITING_FOR_SLOTS -> DEPLOYING -> RUNNING -> STOPPING -> FINISHED | STOPPED
                  ^                ^  |        |           |
                  |                |  v        v           v
                  +----------------+- RESTARTING <---------+
and from each of them to CANCELLED and FAILED; a job that is stopped while it does not run goes to STOPPED. STOPPING
goes back to RUNNING when the job was to stop with a savepoint that cannot be written.
"""

import enum
from typing import Final

from penstock.model.ids import JobId


class JobState(enum.Enum):
    """Where a job is; the values are what people see."""

    CREATED = "created"
    WAITING_FOR_SLOTS = "waiting-for-slots"
    DEPLOYING = "deploying"
    RUNNING = "running"
    RESTARTING = "restarting"
    STOPPING = "stopping"
    FINISHED = "finished"
    STOPPED = "stopped"
    CANCELLED = "cancelled"
    FAILED = "failed"


_S = JobState
TERMINAL: Final = frozenset({_S.FINISHED, _S.STOPPED, _S.CANCELLED, _S.FAILED})
_UNFINISHED: Final = frozenset({_S.STOPPED, _S.CANCELLED, _S.FAILED})

MOVES: Final[dict[JobState, frozenset[JobState]]] = {
    _S.CREATED: frozenset({_S.WAITING_FOR_SLOTS, _S.DEPLOYING}) | TERMINAL,
    _S.WAITING_FOR_SLOTS: frozenset({_S.DEPLOYING, _S.RESTARTING}) | _UNFINISHED,
    _S.DEPLOYING: frozenset({_S.RUNNING, _S.STOPPING, _S.WAITING_FOR_SLOTS, _S.RESTARTING}) | _UNFINISHED,
    _S.RUNNING: frozenset({_S.STOPPING, _S.RESTARTING}) | TERMINAL,
    _S.RESTARTING: frozenset({_S.WAITING_FOR_SLOTS, _S.DEPLOYING}) | _UNFINISHED,
    _S.STOPPING: frozenset({_S.RUNNING, _S.RESTARTING}) | TERMINAL,
    **{state: frozenset() for state in TERMINAL},
}
"""CREATED goes straight to an end when the journal of an earlier JobManager says so."""


class IllegalMove(Exception):
    """A bug of ours: the table says no."""

    def __init__(self, job: JobId, start: JobState, end: JobState) -> None:
        legal = ", ".join(sorted(state.value for state in MOVES[start])) or "none, it has ended"
        super().__init__(f"job {job}: {start.value} -> {end.value}; legal: {legal}")


def move(job: JobId, start: JobState, end: JobState) -> JobState:
    """The only way from one state to another."""
    if end not in MOVES[start]:
        raise IllegalMove(job, start, end)
    return end
