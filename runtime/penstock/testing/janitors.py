"""Garbage collection while a simulated job runs, by somebody in a hurry.

Nothing but the attempts in force and what journals and manifests name protects what the job needs: there is hardly any
grace period, and between finding and removing anything may happen. Draws from streams of its own, and from no other.
"""

from collections.abc import Sequence
from functools import partial

from penstock.garbage import Find, Rules, find_all
from penstock.model.errors import RetryableError
from penstock.testing.cluster import Cluster
from penstock.testing.jobmanagers import SimulatedStateDir
from penstock.testing.stores import FaultyStore
from penstock.testing.world import Action, VirtualClock

_FOREVER_US = 10**15
_DURING_SAVEPOINTS_US = 400_000
_UNTIL_US = 6_000_000


class Janitor:
    """Of one run of a job."""

    def __init__(self, cluster: Cluster, name: str, savepoints_us: Sequence[int]) -> None:
        self._world = world = cluster.world
        self._random = rng = world.stream(f"janitor, {name}")
        store = FaultyStore(world, cluster.store.inner, name=f"janitor's store, {name}")
        store.conditions = cluster.store.conditions
        self._cluster, self._store = cluster, store
        self._state_dir = SimulatedStateDir(store)
        self._clock = VirtualClock(world, skew_us=rng.randrange(-2_000_000, 2_000_000))
        times = [rng.randrange(_UNTIL_US) for _ in range(rng.choice((0, 1, 2)))]
        times += [at + rng.randrange(_DURING_SAVEPOINTS_US) for at in savepoints_us if rng.random() < 0.7]
        for at in sorted(times):
            self._after(at, self._look)
        self._tell_others, cluster.watcher.on_phase = cluster.watcher.on_phase, self._on_phase

    def _on_phase(self, phase: str) -> None:
        """All tables of a savepoint are there, and its manifest is not: the worst of all moments."""
        self._tell_others(phase)
        if phase == "tables" and self._random.random() < 0.5:
            self._look()

    def _after(self, delay_us: int, action: Action) -> None:
        self._world.after(delay_us, "", action, order=self._random)

    def _look(self) -> None:
        self._store.conditions = self._cluster.store.conditions
        grace_us = self._random.choice((0, 0, 100_000, 1_000_000))
        rules = Rules(grace_us=grace_us, savepoint_us=grace_us, submission_us=_FOREVER_US)
        try:
            finds = list(find_all(self._state_dir, rules, self._clock.now_us()))
        except RetryableError:
            return
        delay_us = 0
        for find in finds:
            delay_us += self._random.randrange(0, self._random.choice((1_000, 50_000, 300_000)))
            self._after(delay_us, partial(self._remove, find))

    def _remove(self, find: Find) -> None:
        try:
            count = find.remove()
        except RetryableError:
            return
        for kind in sorted({item.kind for item in find.items[:count]}):
            self._world.sometimes(f"garbage removed: {kind}")
