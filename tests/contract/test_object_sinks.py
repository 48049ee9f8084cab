"""Sinks in an object store, whatever fails: here with one in memory, in `tests/services` with real servers."""

import itertools
import sys
from pathlib import Path
from typing import Any

import polars as pl
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

sys.path.insert(0, str(Path(__file__).parent))
from object_sink_promises import SinkPromises, notes, open_sink, prepare, visible

from penstock import connectors

_numbers = itertools.count()
STEPS = st.lists(st.sampled_from(["write", "checkpoint", "commit", "crash", "crash and lose"]), max_size=25)


def new_place() -> str:
    return f"memory://object-sinks-{next(_numbers)}/out"


class TestSinksInMemory(SinkPromises):
    @pytest.fixture
    def place(self) -> str:
        return new_place()


@settings(deadline=None, max_examples=60)
@given(steps=STEPS)
def test_whatever_fails_readers_see_each_row_of_completed_checkpoints_once(steps: list[str]) -> None:
    """A source that replays from the last checkpoint, a sink, and crashes at any point between steps."""
    place = new_place()
    attempt, checkpoint, produced = 1, 0, 0
    completed: tuple[int, list[dict[str, Any]]] = (0, [])
    sink = open_sink(connectors.parquet(place), attempt=attempt)
    sink.recover([])
    for step in [*steps, "checkpoint", "commit"]:
        if step == "write":
            sink.write(pl.DataFrame({"n": range(produced, produced + 3), "day": ["x", "y", "x"]}))
            produced += 3
        elif step == "checkpoint":
            checkpoint += 1
            completed = (produced, [*completed[1], *prepare(sink, checkpoint)])
        elif step == "commit":
            sink.commit(completed[1])
            completed = (completed[0], [])
        else:
            if step == "crash and lose":
                prepare(sink, checkpoint + 1)
            attempt += 1
            produced = completed[0]
            sink = open_sink(connectors.parquet(place), attempt=attempt)
            sink.recover(completed[1])
        seen = visible(place)
        assert len(set(seen)) == len(seen)
        assert set(seen) <= set(range(completed[0]))
    assert visible(place) == list(range(completed[0]))
    assert notes(place) == []
