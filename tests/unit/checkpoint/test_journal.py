"""The journal: who writes first wins, whoever loses knows it, and what is broken is said."""

import hashlib

import pytest

from penstock.checkpoint import journal
from penstock.checkpoint.journal import Appended, AttemptStarted, CheckpointCompleted, Conflict, Ended, Submitted
from penstock.model.errors import FatalJobError
from penstock.model.handles import Manifest
from penstock.model.ids import Attempt, CheckpointId
from penstock.storage import MemoryStore, UnknownResultError


def manifest(number: int) -> Manifest:
    return Manifest(
        checkpoint=CheckpointId(number),
        kind="checkpoint",
        parallelism={},
        max_parallelism=128,
        triggered_us=0,
        completed_us=0,
        handles=(),
    )


class Writer:
    """Appends to a store the way a JobManager does."""

    def __init__(self, store: MemoryStore, name: str = "jm-1", sequence: int = 0, parent: str = "") -> None:
        self.store, self.name, self.sequence, self.parent = store, name, sequence, parent

    def entry(self, kind: type[journal.Entry], **fields: object) -> journal.JournalEntry:
        head = {"sequence": self.sequence, "parent": self.parent, "writer": self.name, "time_us": 5}
        return kind(**head, **fields)  # type: ignore[return-value]

    def append(self, kind: type[journal.Entry], **fields: object) -> Appended | Conflict:
        result = journal.append(self.store, self.entry(kind, **fields))
        if isinstance(result, Appended):
            self.sequence, self.parent = self.sequence + 1, result.sha256
        return result

    def submit(self) -> None:
        self.append(Submitted, name="job", graph_sha256="0")

    def attempt(self, number: int) -> Appended | Conflict:
        return self.append(AttemptStarted, attempt=Attempt(number), region=0, restored=None)

    def checkpoint(self, number: int) -> Appended | Conflict:
        return self.append(CheckpointCompleted, manifest=manifest(number))


class LosesAnswers(MemoryStore):
    """Every create arrives or not, and nobody hears of it."""

    arrives = True

    def create(self, path: str, data: bytes) -> bool:
        if self.arrives:
            super().create(path, data)
        raise UnknownResultError("C001", "the connection was reset")


@pytest.fixture
def store() -> MemoryStore:
    return MemoryStore()


def test_entries_come_back_in_order_with_their_hashes(store: MemoryStore) -> None:
    writer = Writer(store)
    writer.submit()
    writer.attempt(1)
    writer.checkpoint(1)
    writer.append(Ended, outcome="finished")
    recorded = journal.read_journal(store)
    assert [type(r.entry) for r in recorded] == [Submitted, AttemptStarted, CheckpointCompleted, Ended]
    assert [r.entry.parent for r in recorded[1:]] == [r.sha256 for r in recorded[:-1]]
    assert recorded[-1].sha256 == writer.parent


def test_an_empty_store_has_an_empty_journal(store: MemoryStore) -> None:
    assert journal.read_journal(store) == []
    assert journal.latest([]) is None


def test_the_slower_of_two_writers_gets_a_conflict(store: MemoryStore) -> None:
    old = Writer(store)
    old.submit()
    new = Writer(store, "jm-2", old.sequence, old.parent)
    assert isinstance(new.attempt(1), Appended)
    conflict = old.attempt(1)
    assert isinstance(conflict, Conflict)
    assert conflict.found is not None
    assert conflict.found.writer == "jm-2"


def test_a_replaced_writer_conflicts_even_after_old_checkpoints_are_deleted(store: MemoryStore) -> None:
    old = Writer(store)
    old.submit()
    new = Writer(store, "jm-2", old.sequence, old.parent)
    new.attempt(1)
    for number in range(1, 4):
        new.checkpoint(number)
    store.delete(journal.path(2))
    assert isinstance(old.checkpoint(1), Conflict)


def test_a_lost_answer_is_settled_by_what_lies_in_the_store() -> None:
    store = LosesAnswers()
    writer = Writer(store)
    assert isinstance(writer.append(Submitted, name="job", graph_sha256="0"), Appended)
    other = Writer(store, "jm-2")
    assert isinstance(other.append(Submitted, name="job", graph_sha256="0"), Conflict)


def test_an_answer_that_stays_unknown_is_the_callers_to_retry() -> None:
    store = LosesAnswers()
    store.arrives = False
    writer = Writer(store)
    with pytest.raises(UnknownResultError):
        writer.submit()
    store.arrives = True
    writer.submit()
    assert len(journal.read_journal(store)) == 1


def test_deleted_checkpoints_leave_legal_gaps(store: MemoryStore) -> None:
    writer = Writer(store)
    writer.submit()
    writer.attempt(1)
    for number in range(1, 5):
        writer.checkpoint(number)
    store.delete(journal.path(2))
    store.delete(journal.path(3))
    found = journal.latest(recorded.entry for recorded in journal.read_journal(store))
    assert found == manifest(4)


def test_a_gap_after_the_newest_checkpoint_is_an_error(store: MemoryStore) -> None:
    writer = Writer(store)
    writer.submit()
    writer.attempt(1)
    writer.checkpoint(1)
    writer.checkpoint(2)
    writer.attempt(2)
    store.delete(journal.path(3))
    with pytest.raises(FatalJobError, match=r"S002 journal entry journal/000000000003.json .* is missing"):
        journal.read_journal(store)


def test_a_journal_without_its_beginning_is_an_error(store: MemoryStore) -> None:
    writer = Writer(store)
    writer.submit()
    writer.attempt(1)
    store.delete(journal.path(0))
    with pytest.raises(FatalJobError, match=r"journal/000000000000.json"):
        journal.read_journal(store)


@pytest.mark.parametrize("content", [b"", b"{", b'{"type":"Other"}', b'{"type":"Ended"}'])
def test_a_broken_newest_entry_is_loud(store: MemoryStore, content: bytes) -> None:
    Writer(store).submit()
    store.put(journal.path(1), content)
    with pytest.raises(FatalJobError, match=r"S002 journal entry journal/000000000001.json cannot be used"):
        journal.read_journal(store)


def test_a_changed_entry_breaks_the_chain(store: MemoryStore) -> None:
    writer = Writer(store)
    writer.submit()
    forged = Writer(store, sequence=1, parent=hashlib.sha256(b"other").hexdigest())
    forged.attempt(1)
    with pytest.raises(FatalJobError, match=r"S002 .*its SHA-256 is"):
        journal.read_journal(store)


def test_an_entry_in_the_wrong_place_is_an_error(store: MemoryStore) -> None:
    Writer(store).submit()
    data = store.get(journal.path(0))
    assert data is not None
    store.put(journal.path(7), data)
    with pytest.raises(FatalJobError, match="it holds entry 0"):
        journal.read_journal(store)


def test_a_restore_starts_from_the_last_checkpoint_or_from_where_the_job_began(store: MemoryStore) -> None:
    writer = Writer(store)
    submitted = writer.entry(Submitted, name="job", graph_sha256="0", initial=manifest(9))
    attempt = writer.entry(AttemptStarted, attempt=Attempt(1), region=0, restored=None)
    completed = writer.entry(CheckpointCompleted, manifest=manifest(10))
    assert journal.latest([submitted, attempt]) == manifest(9)
    assert journal.latest([submitted, attempt, completed, attempt]) == manifest(10)


def with_a_late_entry(store: MemoryStore) -> Conflict | Appended:
    """A writer reads the journal, sleeps while another goes on, and then fills the gap of a deleted checkpoint."""
    writer = Writer(store)
    writer.submit()
    writer.attempt(1)
    late = Writer(store, "jm-2", writer.sequence, writer.parent)
    for number in range(1, 4):
        writer.checkpoint(number)
    store.delete(journal.path(2))
    return late.attempt(2)


def test_a_writer_that_read_the_journal_long_ago_cannot_take_the_place_of_a_deleted_checkpoint(
    store: MemoryStore,
) -> None:
    assert isinstance(with_a_late_entry(store), Conflict)


def test_what_such_a_writer_left_behind_is_not_part_of_the_journal(store: MemoryStore) -> None:
    with_a_late_entry(store)
    assert [recorded.entry.sequence for recorded in journal.read_journal(store)] == [0, 1, 3, 4]
