"""Of a place for savepoints: those that were never completed, what is no part of those that were, and old ones.

A savepoint under way is a folder of tables without a manifest, and so is one that nobody will complete. They are
told apart by age: none takes longer than a checkpoint of its job may. Whoever is late all the same finds the folder
claimed, and fails: a manifest over tables that are gone cannot come about.
"""

import re
from collections import defaultdict
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Final

import msgspec

from penstock.garbage.finds import AbandonedSavepoint, Find, Garbage, Objects
from penstock.garbage.rules import Rules
from penstock.savepoints.manifest import ABANDONED, MANIFEST, SavepointManifest, decode
from penstock.savepoints.writing import STATES
from penstock.storage import ObjectInfo, ObjectStore, Prefixed

_PART: Final = re.compile(rf"(?:(?P<folder>.*)/)?(?P<inside>{STATES}/[^/]+/[^/]+|{re.escape(MANIFEST)})")


@dataclass(frozen=True, slots=True)
class _Folder:
    """One savepoint, or what may become one."""

    place: ObjectStore
    objects: list[ObjectInfo]
    """With paths as `place` knows them."""

    @property
    def tables(self) -> list[ObjectInfo]:
        return [each for each in self.objects if each.path != MANIFEST]

    def items(self, found: Iterable[ObjectInfo], why: str, now_us: int) -> tuple[Garbage, ...]:
        """For people."""
        where = self.place.uri.partition("?")[0]
        return tuple(
            Garbage(
                kind="savepoint",
                where=f"{where}/{each.path}",
                size=each.size,
                age_us=max(0, now_us - each.modified_us),
                why=why,
            )
            for each in found
        )


def find_in_folder(store: ObjectStore, rules: Rules, patience_us: int, now_us: int) -> Iterator[Find]:
    """What may go of all savepoints below `store`. `patience_us`: so long may one be under way."""
    complete: dict[str, list[tuple[SavepointManifest, _Folder]]] = defaultdict(list)
    for folder in _folders(store):
        claimed = any(each.path == MANIFEST for each in folder.objects)
        data = folder.place.get(MANIFEST) if claimed else None
        if claimed and data is None:
            continue  # somebody else removes it
        if data is None or data == ABANDONED:
            if max(each.modified_us for each in folder.objects) < now_us - max(rules.grace_us, patience_us):
                items = folder.items(folder.tables, "it was never completed", now_us)
                yield AbandonedSavepoint(folder.place, tuple(each.path for each in folder.tables), items, claimed)
            continue
        manifest = decode(data, where=folder.place.uri)
        complete[manifest.job_name].append((manifest, folder))
        named = {table.path for _, table in manifest.tables}
        oldest = now_us - rules.grace_us
        strays = [each for each in folder.tables if each.path not in named and each.modified_us < oldest]
        if strays:
            items = folder.items(strays, "it is no part of the savepoint", now_us)
            yield Objects(folder.place, tuple(each.path for each in strays), items)
    for name, saved in complete.items():
        if name:  # what somebody has built for any job is no older version of anything
            yield from _too_many(saved, rules.keep_savepoints, now_us)


def _too_many(saved: list[tuple[SavepointManifest, _Folder]], keep: int | None, now_us: int) -> Iterator[Find]:
    if keep is None:
        return
    saved.sort(key=lambda each: each[0].created_us, reverse=True)
    for _, folder in saved[keep:]:
        # Without its manifest it is no savepoint any more, whatever else is left behind.
        in_order = sorted(folder.objects, key=lambda each: (each.path != MANIFEST, each.path))
        items = folder.items(in_order, f"there are {keep} newer ones of the job", now_us)
        yield Objects(folder.place, tuple(each.path for each in in_order), items)


def _folders(store: ObjectStore) -> Iterator[_Folder]:
    found: dict[str, list[ObjectInfo]] = defaultdict(list)
    for each in store.list(""):
        if match := _PART.fullmatch(each.path):
            found[match["folder"] or ""].append(msgspec.structs.replace(each, path=match["inside"]))
    for folder, objects in sorted(found.items()):
        yield _Folder(Prefixed(store, folder) if folder else store, objects)
