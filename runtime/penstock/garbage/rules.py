"""What may go, and after how long."""

from dataclasses import dataclass

HOUR_US = 3_600_000_000
LAST_STEPS_US = 1_800_000_000
"""Added to the time that a checkpoint may take: what follows on its last acknowledgement, with a store that is away
for minutes, and clocks that are not the same."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Rules:
    """Durations in microseconds."""

    grace_us: int = HOUR_US
    """What nothing names stays for so long after it was written."""
    submission_us: int = 24 * HOUR_US
    """A job that is not in a journal yet may be copying its state for so long."""
    savepoint_us: int | None = None
    """A savepoint may be under way for so long; None: as the settings of the running jobs say."""
    ended_us: int | None = None
    """Jobs that ended longer ago go as a whole, with their checkpoints; None: none does."""
    keep_savepoints: int | None = None
    """So many of each job's name stay, the newest ones; None: all."""
