"""The last step of a savepoint, when several have tried to take it."""

import sys
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parent))
from made import take

from penstock.model.errors import UserError
from penstock.model.handles import SectionHandle
from penstock.model.ids import Attempt, CheckpointId, JobId, SubtaskId, Uid, VertexId
from penstock.operators.base import Section
from penstock.savepoints import catalogue
from penstock.savepoints.completing import Taken, complete
from penstock.savepoints.manifest import ABANDONED, MANIFEST, read_manifest
from penstock.savepoints.writing import write_tables
from penstock.storage import MemoryStore


@pytest.fixture(scope="module")
def job():
    return take()


def tables(job, store: MemoryStore, *, attempt: int, checkpoint: int) -> tuple[SectionHandle, ...]:
    """What a try of the only subtask writes: the state `total`."""
    state = job.savepoint.manifest.state("account.total")
    operators = {link.operator.uid: link.operator.spec for vertex in job.graph.vertices for link in vertex.chain}
    frame = job.savepoint.frame("account.total")
    return write_tables(
        store,
        store,
        checkpoint=CheckpointId(checkpoint),
        attempt=Attempt(attempt),
        subtask=SubtaskId(VertexId("v"), 0),
        operators=operators,
        sections=[(Uid("account"), Section("total", state.redistribution, frame))],
        max_parallelism=128,
    )


def completed(job, store: MemoryStore, made: tuple[SectionHandle, ...], checkpoint: int) -> None:
    complete(
        store,
        Taken(
            uri=store.uri,
            job=JobId("j"),
            graph=job.graph,
            checkpoint=CheckpointId(checkpoint),
            stops=False,
            triggered_us=1,
            now_us=2,
            restored_from="",
            tables=made,
        ),
    )


def test_what_an_earlier_try_has_left_is_removed(job):
    store = MemoryStore("savepoint")
    (left,) = tables(job, store, attempt=1, checkpoint=7)
    made = tables(job, store, attempt=2, checkpoint=7)
    completed(job, store, made, 7)
    assert store.get(left.path) is None
    assert catalogue.verify(store, read_manifest(store), deep=True) == []


@pytest.mark.parametrize("second", [(1, 9), (2, 5), (2, 9)])
def test_the_first_manifest_decides_whose_tables_stay(job, second):
    """(attempt, checkpoint) of the second: one of two JobManagers has been replaced, and may have counted further."""
    store = MemoryStore("savepoint")
    made = tables(job, store, attempt=1, checkpoint=7), tables(job, store, attempt=second[0], checkpoint=second[1])
    completed(job, store, made[0], 7)
    data = store.get(MANIFEST)
    with pytest.raises(UserError, match="S021"):
        completed(job, store, made[1], second[1])
    assert store.get(MANIFEST) == data
    assert catalogue.verify(store, read_manifest(store), deep=True) == []


def test_an_answer_that_was_lost_is_made_up_for(job):
    store = MemoryStore("savepoint")
    made = tables(job, store, attempt=1, checkpoint=7)
    completed(job, store, made, 7)
    completed(job, store, made, 7)
    assert catalogue.verify(store, read_manifest(store), deep=True) == []


def test_tables_that_were_taken_for_garbage_make_no_savepoint(job):
    """A JobManager stood still for hours with all acknowledgements in its hands."""
    store = MemoryStore("savepoint")
    made = tables(job, store, attempt=1, checkpoint=7)
    store.delete(made[0].path)
    with pytest.raises(UserError, match=r"S027.*is gone"):
        completed(job, store, made, 7)
    assert store.get(MANIFEST) is None


def test_a_folder_that_is_being_removed_takes_no_savepoint(job):
    store = MemoryStore("savepoint")
    made = tables(job, store, attempt=1, checkpoint=7)
    store.put(MANIFEST, ABANDONED)
    with pytest.raises(UserError, match="S021"):
        completed(job, store, made, 7)
