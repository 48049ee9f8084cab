"""Of a job's folder: objects that no entry of its journal names.

A restore needs what the journal names, and nothing else. What it does not name yet may come to be named by attempts
that are in force: by a checkpoint that is under way, or by the next one after it, since a subtask uploads only once
what checkpoints share. Attempts that were replaced never complete a checkpoint again; of a job that has ended none
does.

Objects are listed before the journal is read: whatever was named in between is seen.
"""

import re
from collections.abc import Iterator, Sequence
from typing import Final

from penstock.checkpoint import journal
from penstock.checkpoint.shared_objects import FOLDER as SHARED
from penstock.garbage.finds import Find, Garbage, Objects
from penstock.garbage.rules import Rules
from penstock.jobmanager.state_dir import GRAPH
from penstock.model.handles import Manifest
from penstock.storage import ObjectInfo, ObjectStore

_STATE: Final = re.compile(rf"(?:checkpoints/\d+|{SHARED})/(?P<attempt>\d+)-.*")
_RESTORED: Final = "restored/"


class JobFacts:
    """What the journal of a job says about what is needed."""

    def __init__(self, entries: Sequence[journal.JournalEntry]) -> None:
        last = entries[-1] if entries else None
        self.submitted = bool(entries)
        self.ended_us = last.time_us if isinstance(last, journal.Ended) else None
        self.manifests = tuple(_manifests(entries))
        regions = {each.region: each.attempt for each in entries if isinstance(each, journal.AttemptStarted)}
        self._lowest = min(regions.values(), default=0)

    @property
    def ended(self) -> bool:
        """Nothing follows."""
        return self.ended_us is not None

    def in_force(self, attempt: int) -> bool:
        """Whether it may run, now or later."""
        return not self.ended and attempt >= self._lowest


def facts_of(store: ObjectStore) -> JobFacts:
    """Of the job in `store`."""
    return JobFacts([recorded.entry for recorded in journal.read_journal(store)])


def find_in_job(store: ObjectStore, rules: Rules, now_us: int) -> tuple[JobFacts, Iterator[Find]]:
    """What its journal says, and what may go of the folder of one job."""
    objects = list(store.list(""))
    facts = facts_of(store)
    return facts, _find(store, objects, facts, rules, now_us)


def _find(
    store: ObjectStore, objects: Sequence[ObjectInfo], facts: JobFacts, rules: Rules, now_us: int
) -> Iterator[Find]:
    if not facts.submitted or GRAPH not in {each.path for each in objects}:
        if objects and all(each.modified_us < now_us - rules.submission_us for each in objects):
            yield _objects(store, objects, "job", "its submission was cut short", now_us)
        return
    if rules.ended_us is not None and facts.ended_us is not None and facts.ended_us < now_us - rules.ended_us:
        # Without its graph it is no job any more, whatever else is left behind.
        in_order = sorted(objects, key=lambda each: (each.path != GRAPH, each.path))
        yield _objects(store, in_order, "job", "the job has ended", now_us)
        return
    named = {path for manifest in facts.manifests for handle in manifest.handles for path in handle.paths}
    unnamed = [each for each in objects if each.path not in named and each.modified_us < now_us - rules.grace_us]
    if found := [each for each in unnamed if _is_state(each.path, facts)]:
        yield _objects(store, found, "state", "no checkpoint names it", now_us)


def attempt_of(path: str) -> int | None:
    """The attempt that wrote a state object."""
    match = _STATE.fullmatch(path)
    return int(match["attempt"]) if match else None


def _is_state(path: str, facts: JobFacts) -> bool:
    attempt = attempt_of(path)
    return path.startswith(_RESTORED) if attempt is None else not facts.in_force(attempt)


def _manifests(entries: Sequence[journal.JournalEntry]) -> Iterator[Manifest]:
    for entry in entries:
        if isinstance(entry, journal.CheckpointCompleted):
            yield entry.manifest
        elif isinstance(entry, journal.Submitted) and entry.initial is not None:
            yield entry.initial


def _objects(store: ObjectStore, found: Sequence[ObjectInfo], kind: str, why: str, now_us: int) -> Objects:
    place = store.uri.partition("?")[0]
    items = (
        Garbage(
            kind=kind, where=f"{place}/{each.path}", size=each.size, age_us=max(0, now_us - each.modified_us), why=why
        )
        for each in found
    )
    return Objects(store, tuple(each.path for each in found), tuple(items))
