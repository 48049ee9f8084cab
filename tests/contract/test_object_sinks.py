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
from object_sink_promises import ROWS, SinkPromises, notes, open_sink, prepare, unfinished, visible

from penstock import connectors
from penstock.checkpoint.journal import AttemptStarted, Ended
from penstock.garbage.jobs import JobFacts
from penstock.garbage.rules import Rules
from penstock.garbage.staged import find_staged
from penstock.model.clocks import SystemClock
from penstock.model.ids import Attempt, JobId
from penstock.storage import open_uploads

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


def test_garbage_collection_discards_what_no_checkpoint_holds_and_nothing_else() -> None:
    place, day_us = new_place(), 24 * 3_600_000_000
    store, later = open_uploads(place), SystemClock().now_us() + day_us
    sinks = [open_sink(connectors.parquet(place), attempt=attempt) for attempt in (1, 2, 3)]
    staged = []
    for number, sink in enumerate(sinks):
        sink.write(ROWS.slice(10 * number, 10))
        staged.append(prepare(sink, number + 1))
    lost = store.stage(staged[0][0]["target"].replace("-0.parquet", "-7.parquet"), b"whose answer was lost")
    assert lost
    running = JobFacts([started(3)])

    def sweep(facts: JobFacts, promised: set[str], grace_us: int = 0) -> int:
        rules = Rules(grace_us=grace_us)
        finds = list(find_staged(store, JobId("job"), "out", facts, promised, rules, later))
        return sum(find.remove() for find in finds)

    assert sweep(running, {staged[0][0]["target"]}, grace_us=2 * day_us) == 0
    assert sweep(running, {staged[0][0]["target"]}) == 2  # of attempt 2, and the one that nobody noted
    assert unfinished(place, staged[1]) == 0
    sinks[0].commit(staged[0])
    sinks[2].commit(staged[2])
    assert visible(place) == [*range(10), *range(20, 30)]
    open_sink(connectors.parquet(place), attempt=4).write(ROWS)
    last = open_sink(connectors.parquet(place), attempt=4)
    last.write(ROWS)
    kept = prepare(last, 9)
    assert sweep(JobFacts([started(4)]), set()) == 0
    ended = JobFacts([started(4), Ended(sequence=1, parent="", writer="w", time_us=0, outcome="failed")])
    assert sweep(ended, {kept[0]["target"]}) == 0
    assert sweep(ended, set()) == 1
    assert notes(place) == []
    assert list(store.unfinished("")) == []


def started(attempt: int) -> AttemptStarted:
    return AttemptStarted(
        sequence=0, parent="", writer="w", time_us=0, attempt=Attempt(attempt), region=0, restored=None
    )
