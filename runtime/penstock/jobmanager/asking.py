"""Questions about the state of a job, answered from its latest checkpoint, or from one that is named.

What a checkpoint names may be deleted while it is read, once newer ones have come: then the newest is asked.
"""

from collections.abc import Sequence
from typing import Final

from penstock.jobmanager.state_dir import StateDir
from penstock.model.clocks import SystemClock
from penstock.model.errors import FatalJobError, UserError
from penstock.model.ids import JobId
from penstock.model.views import StateView
from penstock.queries import CheckpointState, answer, key_of, state_of

LIMIT_BYTES: Final = 64 * 1024 * 1024
"""Read for one answer. A JobManager has other things to do, and little memory."""
_TRIES: Final = 3


def open_state(
    state_dir: StateDir, job: JobId, checkpoint: int | None = None, *, limit_bytes: int | None = None
) -> CheckpointState:
    """The state of a job in a state directory."""
    stored = state_dir.load(job)
    if stored is None:
        known = ", ".join(state_dir.job_ids()) or "none"
        raise UserError("H003", f'there is no job "{job}"', where=state_dir.root, fix=f"known jobs: {known}")
    entries = (recorded.entry for recorded in stored.recorded)
    return state_of(stored.store, stored.graph, entries, checkpoint=checkpoint, limit_bytes=limit_bytes)


def rows_of_key(
    state_dir: StateDir,
    job: JobId,
    name: str,
    key: Sequence[str],
    checkpoint: int | None,
    *,
    limit_bytes: int | None = LIMIT_BYTES,
) -> StateView:
    """The rows of one key, given as texts."""
    for last in (*[False] * (_TRIES - 1), True):
        state = open_state(state_dir, job, checkpoint, limit_bytes=limit_bytes)
        try:
            rows = state.key(name, *key_of(state, name, key))
        except FatalJobError:
            if last or checkpoint is not None:
                raise
        else:
            return answer(state, name, rows, SystemClock().now_us())
    raise AssertionError("unreachable")
