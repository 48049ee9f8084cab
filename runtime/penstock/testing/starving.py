"""Whether checkpoints of a job starve: it runs, nothing befalls it, and for a long time none is completed.

Owns: since when a run has been calm. It is as long as all its tasks run, no fault works on, and nothing is written
into its journal; a fault works on for a while after it is over, until whoever it hit is found missing or is back.
"""

from penstock.model.settings import CheckpointSettings
from penstock.testing.clients import Client
from penstock.testing.faults import Injector

LOOK_US = 100_000
PATIENCE_US = 1_000_000
"""For a checkpoint that nothing hinders, from its start to its entry in the journal."""
LEAST_TIMEOUT_US = 600_000
"""Jobs that give checkpoints up sooner may do so for ever, on slow slots: that is what they asked for."""


class StarvationWatch:
    """Looks at one run of a job until it has ended."""

    def __init__(self, client: Client, injector: Injector, settings: CheckpointSettings) -> None:
        self._client, self._injector = client, injector
        self._world, self._watcher = client.cluster.world, client.cluster.watcher
        # Without overtaking, a checkpoint may wait behind rows for all the time that it has.
        waits_us = settings.timeout_us if settings.alignment_timeout_us is None else settings.alignment_timeout_us
        self._limit_us = settings.interval_us + settings.min_pause_us + waits_us + PATIENCE_US
        self._calm_since_us = self._world.now_us
        self._journal_length = 0
        if settings.timeout_us >= LEAST_TIMEOUT_US:
            self._look()

    def _look(self) -> None:
        if self._client.outcome is not None:
            return
        now, length = self._world.now_us, self._watcher.journal_length(self._client.job)
        if length != self._journal_length or self._injector.works_until_us > now or not self._runs():
            self._calm_since_us, self._journal_length = now, length
        elif now - self._calm_since_us > self._limit_us:
            seconds = (now - self._calm_since_us) / 1e6
            self._watcher.violation("starvation", f"no checkpoint in {seconds:.1f} s in which nothing hindered it")
            return
        self._world.after(LOOK_US, "", self._look)

    def _runs(self) -> bool:
        view = self._client.cluster.view()
        return view is not None and view.state == "running" and self._watcher.runs(self._client.job)
