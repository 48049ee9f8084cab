"""A writer that read the journal long ago must not be able to slip an entry into the hole of a deleted one."""

import pytest

from penstock.checkpoint import journal
from penstock.model.errors import FatalJobError, RetryableError
from penstock.model.handles import Manifest
from penstock.model.ids import Attempt, CheckpointId
from penstock.storage import MemoryStore, UnknownResultError


def manifest(checkpoint: int) -> Manifest:
    return Manifest(
        checkpoint=CheckpointId(checkpoint),
        kind="checkpoint",
        parallelism={},
        max_parallelism=16,
        triggered_us=0,
        completed_us=1,
        handles=(),
    )


def append(store: MemoryStore, entry: journal.JournalEntry) -> str:
    result = journal.append(store, entry)
    assert isinstance(result, journal.Appended)
    return result.sha256


def job_with_checkpoints(count: int) -> tuple[MemoryStore, list[str]]:
    store = MemoryStore()
    common = {"writer": "old", "time_us": 0}
    hashes = [append(store, journal.Submitted(sequence=0, parent="", name="job", graph_sha256="", **common))]
    started = journal.AttemptStarted(
        sequence=1, parent=hashes[-1], attempt=Attempt(1), region=0, restored=None, **common
    )
    hashes.append(append(store, started))
    for number in range(1, count + 1):
        completed = journal.CheckpointCompleted(
            sequence=number + 1, parent=hashes[-1], manifest=manifest(number), **common
        )
        hashes.append(append(store, completed))
    return store, hashes


def late_attempt(parent: str, sequence: int) -> journal.AttemptStarted:
    return journal.AttemptStarted(
        sequence=sequence, parent=parent, writer="late", time_us=0, attempt=Attempt(2), region=0, restored=None
    )


def test_an_entry_in_the_hole_of_a_deleted_checkpoint_is_a_conflict() -> None:
    store, hashes = job_with_checkpoints(3)
    store.delete(journal.path(2))
    assert isinstance(journal.append(store, late_attempt(hashes[1], 2)), journal.Conflict)


def test_such_an_entry_is_left_out_when_the_journal_is_read() -> None:
    store, hashes = job_with_checkpoints(3)
    store.delete(journal.path(2))
    journal.append(store, late_attempt(hashes[1], 2))
    assert [recorded.entry.sequence for recorded in journal.read_journal(store)] == [0, 1, 3, 4]


def test_a_wrong_entry_after_the_newest_checkpoint_is_never_left_out() -> None:
    store, hashes = job_with_checkpoints(1)
    append(store, late_attempt(hashes[-1], 3))
    append(store, late_attempt("another", 4))
    with pytest.raises(FatalJobError):
        journal.read_journal(store)


class Deaf(MemoryStore):
    """Writes, loses the answer, and cannot be asked afterwards."""

    def create(self, path: str, data: bytes) -> bool:
        super().create(path, data)
        raise UnknownResultError("C021", "lost")

    def get(self, path: str) -> bytes | None:
        raise RetryableError("C020", "away")


def test_a_write_that_nobody_can_ask_about_stays_in_doubt() -> None:
    entry = journal.Submitted(sequence=0, parent="", writer="w", time_us=0, name="job", graph_sha256="")
    with pytest.raises(UnknownResultError):
        journal.append(Deaf(), entry)
