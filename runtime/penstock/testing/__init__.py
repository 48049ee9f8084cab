"""A whole cluster in one process, in virtual time, under a seed: `run_episode(seed)`.

The engine's own core, shell, relays, slots, operators and journal run unchanged on simulated clocks, networks,
storage and processes, which fail as the seed says. `python -m penstock.testing.sim` runs many seeds.
"""

from penstock.testing.episodes import Episode, run_episode

__all__ = ["Episode", "run_episode"]
