"""Something that may go, and how it is removed.

Time passes between finding and removing. Each find is such that this does no harm: either nobody can name its objects
any more, or it is claimed first.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

import msgspec

from penstock.connectors import object_sink
from penstock.savepoints.manifest import ABANDONED, MANIFEST
from penstock.storage import ObjectStore, UnfinishedUpload, UnknownResultError, UploadStore


class Garbage(msgspec.Struct, frozen=True, kw_only=True):
    """One object, for people."""

    kind: str
    """state | job | savepoint | staged file | upload."""
    where: str
    """Its address."""
    size: int
    age_us: int
    why: str


class Find(Protocol):
    """What goes together."""

    @property
    def items(self) -> Sequence[Garbage]:
        """What it is made of."""
        ...

    def remove(self) -> int:
        """Remove it, unless that is wrong by now. Gives how many of its items are gone."""
        ...


@dataclass(frozen=True, slots=True)
class Objects:
    """Objects that nobody will name again, in the order in which they go."""

    store: ObjectStore
    paths: tuple[str, ...]
    items: tuple[Garbage, ...]

    def remove(self) -> int:
        """One after the other."""
        for path in self.paths:
            self.store.delete(path)
        return len(self.items)


@dataclass(frozen=True, slots=True)
class AbandonedSavepoint:
    """Tables over which nobody has written a manifest, and which somebody may still be about to."""

    store: ObjectStore
    paths: tuple[str, ...]
    items: tuple[Garbage, ...]
    claimed_before: bool
    """By somebody who did not come to the end, long ago."""

    def remove(self) -> int:
        """In the place of the manifest a claim is written: whoever comes to complete the savepoint fails by it."""
        if not (self._claim() or self.claimed_before) or self.store.get(MANIFEST) != ABANDONED:
            return 0
        for path in self.paths:
            self.store.delete(path)
        self.store.delete(MANIFEST)
        return len(self.items)

    def _claim(self) -> bool:
        try:
            return self.store.create(MANIFEST, ABANDONED)
        except UnknownResultError:
            return False  # the next one sees what became of it


@dataclass(frozen=True, slots=True)
class StagedFiles:
    """What a sink has staged in a bucket, and noted."""

    store: UploadStore
    note: str
    items: tuple[Garbage, ...]

    def remove(self) -> int:
        """The uploads, then the note of them."""
        object_sink.discard(self.store, self.note)
        return len(self.items)


@dataclass(frozen=True, slots=True)
class Upload:
    """An upload that nobody completes."""

    store: UploadStore
    upload: UnfinishedUpload
    items: tuple[Garbage, ...]

    def remove(self) -> int:
        """Abort it."""
        self.store.discard(self.upload)
        return len(self.items)
