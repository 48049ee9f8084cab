"""The kinds of jobs that are tortured. Every row of a result is unique, so that one that is written twice is seen."""

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from itertools import count

import stateful_programs
import torture_programs
from oracles import Oracle

from penstock.model.settings import StateSettings

IN_MEMORY = StateSettings()
IN_ROCKSDB = StateSettings(backend="rocksdb", memory_budget=64 * 1024 * 1024)


@dataclass(frozen=True, slots=True)
class Kind:
    """A program (flow, out, seed), and what judges its output."""

    program: Callable[..., None]
    oracle: Callable[[int], Oracle]
    state: StateSettings = IN_MEMORY


KINDS = {
    "keyed windows": Kind(torture_programs.keyed_windows, torture_programs.expected_of_keyed_windows),
    "keyed process": Kind(torture_programs.keyed_process, torture_programs.expected_of_keyed_process),
    "loop": Kind(torture_programs.loop, torture_programs.expected_of_loop),
    "sessions": Kind(stateful_programs.sessions, stateful_programs.expected_of_sessions),
    "interval join": Kind(stateful_programs.interval_join, stateful_programs.expected_of_interval_join),
    "timers and ttl": Kind(stateful_programs.timers, stateful_programs.expected_of_timers),
    "broadcast rules": Kind(stateful_programs.broadcast_rules, stateful_programs.expected_of_broadcast_rules),
    "async": Kind(stateful_programs.calls, stateful_programs.expected_of_calls),
    "rocksdb": Kind(stateful_programs.ledger, stateful_programs.expected_of_ledger, IN_ROCKSDB),
}


def kind_of(seed: int) -> str:
    """As many seeds in a row as there are kinds have each of them once."""
    return tuple(KINDS)[seed % len(KINDS)]


def seeds(first: int, kind: str | None) -> Iterator[int]:
    """From the first on; those of one kind."""
    return (seed for seed in count(first) if kind in (None, kind_of(seed)))
