"""Tests of stream programs, in one process and in virtual time.

`run_stream` runs a whole program on rows, watermarks and faults that a test describes, with the engine's own
operators, channels and checkpoints; `assert_rows` and its like compare what came out.

For the engine itself there is a simulation of a whole cluster under a seed, `run_episode(seed)`: core, shell,
relays, slots, operators and journal run unchanged on simulated clocks, networks, storage and processes, which fail
as the seed says. `python -m penstock.testing.sim` runs many seeds.
"""

from penstock.testing.asserting import assert_events, assert_late, assert_rows, assert_survives
from penstock.testing.episodes import Episode, run_episode
from penstock.testing.inputs import checkpoint, crash, idle, pause, source, watermark
from penstock.testing.streams import StreamFailedError, StreamResult, run_stream

__all__ = [
    "Episode", "StreamFailedError", "StreamResult", "assert_events", "assert_late", "assert_rows", "assert_survives",
    "checkpoint", "crash", "idle", "pause", "run_episode", "run_stream", "source", "watermark",
]  # fmt: skip
