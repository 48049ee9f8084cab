"""Bugs of JobManagers that lead no more, or believe so."""

import msgspec

from penstock.checkpoint import journal
from penstock.storage import ObjectStore
from penstock.testing.patching import Patch, Plant, patched


def old_leaders_manifest() -> Patch:
    """A manifest whose place is taken is written behind whatever is there: that of a leader that was replaced, too."""
    append = journal.append

    def stubborn(store: ObjectStore, entry: journal.JournalEntry) -> journal.Appended | journal.Conflict:
        result = append(store, entry)
        while isinstance(result, journal.Conflict) and isinstance(entry, journal.CheckpointCompleted):
            last = journal.read_journal(store)[-1]
            entry = msgspec.structs.replace(entry, sequence=last.entry.sequence + 1, parent=last.sha256)
            result = append(store, entry)
        return result

    return patched(journal, "append", stubborn)


def own_412_is_failure() -> Patch:
    """Who is told that an object exists takes it for somebody else's, though an earlier try of its own made it."""
    append = journal.append

    def hasty(store: ObjectStore, entry: journal.JournalEntry) -> journal.Appended | journal.Conflict:
        there = store.get(journal.path(entry.sequence))
        if there is not None:
            return journal.Conflict(journal.decode(there, where=journal.path(entry.sequence)))
        return append(store, entry)

    return patched(journal, "append", hasty)


PLANTED_LEADERS: dict[str, Plant] = {
    "old-leaders-manifest": old_leaders_manifest,
    "own-412-is-failure": own_412_is_failure,
}
