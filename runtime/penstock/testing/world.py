"""Virtual time, seeded chance and the order of everything that happens in a simulation.

Owns: the only queue of events, the only clock, all random choices, the trace.
Invariant: a world is a function of its seed. Nothing in it reads a real clock, iterates over a set or asks for an
address in memory, so the same seed gives the same trace in every process.
"""

import hashlib
import heapq
import itertools
import random
import shutil
import tempfile
from collections import Counter
from collections.abc import Callable
from pathlib import Path

WALL_START_US = 1_800_000_000_000_000
"""Simulations begin at this wall-clock time, in 2027: late enough for any made-up event time."""

Action = Callable[[], None]


class Exhausted(Exception):
    """The bound of steps or of virtual time was reached."""


class VirtualClock:
    """A `model.clocks.Clock` whose time passes when the world says so. Machines disagree by `skew_us`."""

    def __init__(self, world: "World", *, skew_us: int = 0) -> None:
        self._world, self._skew_us = world, skew_us

    def now_us(self) -> int:
        """Wall-clock microseconds, a little off, as on real machines."""
        return WALL_START_US + self._world.now_us + self._skew_us

    def monotonic(self) -> float:
        """Seconds since the simulation began."""
        return self._world.now_us / 1_000_000


class World:
    """A heap of events. Time jumps from one to the next; among events of one instant chance decides."""

    def __init__(self, seed: int, *, max_steps: int = 400_000, keep_trace: bool = False) -> None:
        self.seed = seed
        self.now_us = 0
        self.steps = 0
        self.marks: Counter[str] = Counter()
        """Rare situations that were met, see `sometimes`."""
        self.lines: list[str] | None = [] if keep_trace else None
        self._max_steps = max_steps
        self._random = self.stream("order")
        self._sequence = itertools.count()
        self._heap: list[tuple[int, int, int, str, Action]] = []
        self._at_close: list[Action] = []
        self._folder: Path | None = None
        self._hash = hashlib.blake2b(digest_size=16)

    def stream(self, name: str) -> random.Random:
        """A source of chance of its own: what one part of the world draws does not move the others."""
        return random.Random(f"{self.seed}/{name}")

    def after(self, delay_us: int, label: str, action: Action, *, order: random.Random | None = None) -> None:
        """Let `action` happen in `delay_us`. Labelled events are part of the trace.

        `order`: a source of chance that decides among events of one instant, instead of the world's own.
        """
        at = self.now_us + max(0, delay_us)
        drawn = (order or self._random).getrandbits(32)
        heapq.heappush(self._heap, (at, drawn, next(self._sequence), label, action))

    def run(self, *, until: Callable[[], bool], limit_us: int) -> bool:
        """Let things happen until `until` holds. False: it did not before `limit_us`, or nothing is left to happen."""
        while not until():
            if not self._heap or self._heap[0][0] > limit_us:
                self.now_us = max(self.now_us, limit_us)
                return until()
            if self.steps >= self._max_steps:
                raise Exhausted(f"{self.steps} steps and no end at {self.now_us / 1e6:.3f} s")
            self.steps += 1
            self.now_us, _, _, label, action = heapq.heappop(self._heap)
            if label:
                self.trace(label)
            action()
        return True

    @property
    def folder(self) -> Path:
        """For files of the processes in it. Real, but nothing in the world depends on where it is."""
        if self._folder is None:
            self._folder = Path(tempfile.mkdtemp(prefix="penstock-world-"))
            self.at_close(lambda: shutil.rmtree(self.folder, ignore_errors=True))
        return self._folder

    def at_close(self, action: Action) -> None:
        """Do this when the simulation is over."""
        self._at_close.append(action)

    def close(self) -> None:
        """Nothing happens any more."""
        self._heap.clear()
        for action in self._at_close:
            action()

    def trace(self, text: str) -> None:
        """Something that must be the same in every run of this seed."""
        line = f"{self.now_us} {text}"
        self._hash.update(line.encode())
        if self.lines is not None:
            self.lines.append(f"{self.now_us / 1e6:11.6f}  {text}")

    def sometimes(self, name: str) -> None:
        """A rare situation has come about; a campaign must meet each at least once."""
        self.marks[name] += 1

    @property
    def digest(self) -> str:
        """The hash of the whole trace so far."""
        return self._hash.hexdigest()
