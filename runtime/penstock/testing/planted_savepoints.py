"""Bugs in savepoints that are put into the engine on purpose; see `planted`."""

from collections.abc import Sequence
from typing import Any

from penstock.checkpoint.whole_tables import whole_tables
from penstock.garbage.finds import AbandonedSavepoint
from penstock.jobmanager import shell
from penstock.operators.base import AnySection
from penstock.operators.function_calls import EVENT_TIMERS
from penstock.savepoints import writing
from penstock.savepoints.completing import Taken, complete
from penstock.savepoints.manifest import SavepointManifest
from penstock.savepoints.writing import STATES
from penstock.storage import ObjectStore
from penstock.testing.patching import Patch, Plant, patched


def savepoint_clears_the_folder() -> Patch:
    """Whoever completes a savepoint removes everything else from its folder, also what a later try has written."""

    def clear(store: ObjectStore, taken: Taken) -> SavepointManifest:
        named = {table.path for table in taken.tables}
        for info in list(store.list(f"{STATES}/")):
            if info.path not in named:
                store.delete(info.path)
        return complete(store, taken)

    return patched(shell, "complete", clear)


def savepoint_without_timers() -> Patch:
    """Timers are in checkpoints alone."""

    def forgetful(store: ObjectStore, spec: Any, sections: Sequence[AnySection], max_parallelism: int) -> Any:
        kept = [section for section in sections if section.state != EVENT_TIMERS]
        return whole_tables(store, spec, kept, max_parallelism)

    return patched(writing, "whole_tables", forgetful)


def gc_ignores_a_savepoint_in_progress() -> Patch:
    """Tables without a manifest are removed, whoever is about to write it."""

    def hasty(self: AbandonedSavepoint) -> int:
        for path in self.paths:
            self.store.delete(path)
        return len(self.items)

    return patched(AbandonedSavepoint, "remove", hasty)


PLANTED_IN_SAVEPOINTS: dict[str, Plant] = {
    "savepoint-clears-the-folder": savepoint_clears_the_folder,
    "savepoint-without-timers": savepoint_without_timers,
    "gc-ignores-a-savepoint-in-progress": gc_ignores_a_savepoint_in_progress,
}
