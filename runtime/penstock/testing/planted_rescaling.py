"""Bugs in rescales that are put into the engine on purpose; see `planted`."""

from collections.abc import Sequence

import msgspec
import polars as pl

from penstock.model.ids import SubtaskId
from penstock.operators.base import AnySection
from penstock.operators.divided import Divided
from penstock.state.rocks import RestoredFiles
from penstock.taskmanager import parcels
from penstock.taskmanager.parcels import Leaving, Parcel
from penstock.testing.patching import Patch, Plant, patched


def drop_the_last_moved_group() -> Patch:
    """When a job shrinks, the last key group of each parcel is left behind."""
    make = parcels.parcel_of

    def short(
        leaving: Leaving,
        number: int,
        subtask: SubtaskId,
        receiver: SubtaskId,
        groups: range,
        own: Sequence[AnySection],
    ) -> Parcel:
        if receiver.index >= subtask.index:
            return make(leaving, number, subtask, receiver, groups, own)
        parcel = make(leaving, number, subtask, receiver, range(groups.start, groups.stop - 1), own)
        return msgspec.structs.replace(parcel, end=groups.stop)

    return patched(parcels, "parcel_of", short)


def held_rows_are_forgotten() -> Patch:
    """Rows that came for a key group while its state was on its way are gone when it is there."""
    arrive = Divided.arrive

    def forgetful(
        self: Divided, groups: range, sections: "dict[str, list[pl.DataFrame]]", files: Sequence[RestoredFiles]
    ) -> None:
        for part in self.parts:
            if part.groups == groups and part.operator is None:
                part.held = [element for element in part.held if isinstance(element, int)]
        arrive(self, groups, sections, files)

    return patched(Divided, "arrive", forgetful)


PLANTED_IN_RESCALES: dict[str, Plant] = {
    "drop-the-last-moved-group": drop_the_last_moved_group,
    "held-rows-are-forgotten": held_rows_are_forgotten,
}
