"""How long to wait before a failed region starts again, and when to give the job up."""

import random

from penstock.model.settings import RestartSettings


class Restarts:
    """The back-off and the budget of one job.

    Failures that come while an earlier one is still being waited out belong to it: one lost TaskManager that
    breaks five regions is one failure.
    """

    def __init__(self, settings: RestartSettings, rng: random.Random, *, count: int = 0) -> None:
        self.settings, self._rng = settings, rng
        self._in_a_row = 0
        self._said, self._said_times = "", 0
        self._running_since: float | None = None
        self.count = count
        """Over the life of the job."""
        self.resume_at = float("-inf")
        """Nothing starts before this."""

    @property
    def in_a_row(self) -> int:
        """Failures that count against the budget."""
        return self._in_a_row

    def on_running(self, monotonic: float) -> None:
        """Everything runs."""
        self._running_since = monotonic

    def on_failure(self, monotonic: float) -> bool:
        """Something failed; sets `resume_at`. False: the budget is used up."""
        if monotonic < self.resume_at:
            return True
        since, self._running_since = self._running_since, None
        if since is not None and monotonic - since >= self.settings.reset_after_us / 1e6:
            self._in_a_row = 0
        self._in_a_row += 1
        if self._in_a_row > self.settings.budget:
            return False
        self.count += 1
        self.resume_at = monotonic + self._delay()
        return True

    def same_again(self, said: str) -> int:
        """How often in a row a function has now failed in these very words, which name the rows that it was given."""
        self._said_times = self._said_times + 1 if said == self._said else 1
        self._said = said
        return self._said_times

    def _delay(self) -> float:
        """Grows with each failure in a row; spread by a quarter, so that jobs of one lost host do not start as one."""
        steps = min(self._in_a_row - 1, 64)
        delay_us = min(self.settings.first_delay_us * self.settings.factor**steps, self.settings.max_delay_us)
        return delay_us / 1e6 * self._rng.uniform(0.75, 1.0)
