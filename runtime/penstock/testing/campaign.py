"""Many episodes on several processes, and what they add up to."""

import contextlib
import multiprocessing
import os
from collections import Counter
from collections.abc import Generator, Sequence
from dataclasses import dataclass, field
from functools import partial

from penstock.testing.episodes import Episode, run_episode
from penstock.testing.planted import PLANTED

RARE = (
    "JobManager that was replaced fenced by the journal",
    "back-pressure while aligning",
    "barrier overtook rows",
    "barrier of an aborted checkpoint forwarded",
    "cancelled, to go on from a checkpoint",
    "checkpoint aborted",
    "checkpoint declined",
    "commit made by a restore",
    "commit repeated by a restore",
    "commit took effect but its answer was lost",
    "frame of an old attempt reached a new process",
    "garbage removed: savepoint",
    "garbage removed: state",
    "grew",
    "journal given up",
    "journal write with unknown result: happened",
    "journal write with unknown result: later",
    "journal write with unknown result: not",
    "link broken during alignment",
    "message of another JobManager refused",
    "one region restarted while another ran on",
    "region taken over as it ran",
    "restart during a restore",
    "rows in flight restored",
    "rows of a loop restored",
    "savepoint completed",
    "slot lost while aligning",
    "shrank",
    "source waited for slower ones",
    "split discovered",
    "staging failed",
    "stopped, to go on from a checkpoint",
    "went back to the size before",
)
"""Situations that every campaign of some size must have met, or it has not looked where it hurts."""

RARE_FROM_SEEDS = 300

RAREST = (
    "JobManager that came too late saw a later epoch",
    "late JobManager filled a hole in the journal",
)
"""The same for large ones: since a new leader writes into every journal before anything else, an old one hardly ever
comes so far."""

RAREST_FROM_SEEDS = 2000
CHUNK = 4


@dataclass(slots=True)
class Summary:
    """A campaign so far."""

    seeds: int = 0
    failed: list[Episode] = field(default_factory=list)
    struck: "Counter[str]" = field(default_factory=Counter)
    marks: "Counter[str]" = field(default_factory=Counter)
    """Episodes in which a rare situation came about."""
    jobs: "Counter[str]" = field(default_factory=Counter)
    restarts: int = 0
    checkpoints: int = 0
    steps: int = 0
    virtual_us: int = 0

    def add(self, episode: Episode) -> None:
        """One more."""
        self.seeds += 1
        self.struck += episode.struck
        self.marks.update(episode.marks.keys())
        self.jobs[episode.job] += 1
        self.restarts += episode.restarts
        self.checkpoints += episode.checkpoints
        self.steps += episode.steps
        self.virtual_us += episode.virtual_us
        if not episode.clean:
            self.failed.append(episode)

    def never_met(self) -> list[str]:
        """Rare situations that are missing in a campaign of this size."""
        expected = [
            *(RARE if self.seeds >= RARE_FROM_SEEDS else ()),
            *(RAREST if self.seeds >= RAREST_FROM_SEEDS else ()),
        ]
        return [name for name in expected if not self.marks[name]]


def planted_bug(name: str | None) -> contextlib.AbstractContextManager[object]:
    """The engine with this bug in it; as it is without a name."""
    return PLANTED[name]() if name else contextlib.nullcontext()


def run_seeds(seeds: Sequence[int], *, workers: int, planted: str | None = None) -> Generator[Episode, None, None]:
    """Episodes as they are done, in any order. Stop when you have seen enough."""
    if workers == 1:
        with planted_bug(planted):
            yield from map(run_episode, seeds)
        return
    # One core each: threads of Polars in every worker would fight for the same two.
    os.environ["POLARS_MAX_THREADS"] = "1"
    with multiprocessing.get_context("spawn").Pool(workers) as pool:
        yield from pool.imap_unordered(partial(_run_one, planted), seeds, chunksize=CHUNK)


def _run_one(planted: str | None, seed: int) -> Episode:
    with planted_bug(planted):
        return run_episode(seed)
