"""The state that one checkpoint holds, as tables of the form that savepoints have.

Only the objects of the subtasks that own the key groups in question are read, each verified. User code is never
opened: values with a codec of the user's own stay the bytes that they are.
"""

import shutil
import tempfile
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any

import msgspec
import polars as pl

from penstock.checkpoint import canonical, journal, state_objects
from penstock.checkpoint.whole_tables import merged
from penstock.graph import JobGraph
from penstock.model import schemas, specs
from penstock.model.errors import UserError
from penstock.model.handles import Manifest, Redistribution, SectionHandle, StateHandle
from penstock.model.ids import Uid
from penstock.operators.base import Section
from penstock.operators.function_calls import EVENT_TIMERS, PROCESSING_TIMERS
from penstock.savepoints.shapes import inputs_of, operators_of
from penstock.state import databases
from penstock.state.key_groups import KEY_GROUP, key_groups, slice_groups
from penstock.state.rocks import LinkedFiles, RestoredFiles
from penstock.storage import ObjectStore


class StateTooLargeError(UserError):
    """What would have to be read for an answer is more than the asker allows."""


class CheckpointState:
    """The state of a job at one checkpoint."""

    def __init__(
        self, store: ObjectStore, graph: JobGraph, manifest: Manifest, *, limit_bytes: int | None = None
    ) -> None:
        """`store`: of the job. `limit_bytes`: an answer for which more has to be read is refused."""
        self.manifest = manifest
        self._store, self._graph, self._limit_bytes = store, graph, limit_bytes
        self._specs = {operator.uid: operator.spec for operator, _ in operators_of(graph)}

    @property
    def checkpoint(self) -> int:
        """Which one."""
        return self.manifest.checkpoint

    @property
    def taken_us(self) -> int:
        """When its barrier was sent: the state is that of all rows before, and of none after it."""
        return self.manifest.triggered_us

    @property
    def states(self) -> tuple[str, ...]:
        """Names of all keyed states: `uid.state`."""
        found = {f"{uid}.{field.name}" for uid, spec in self._specs.items() for field in getattr(spec, "states", ())}
        for handle in self.manifest.handles:
            keyed = (each for each in handle.sections if each.redistribution is Redistribution.KEYED)
            for each in keyed:
                # What else is in a database is known when it is read.
                names = (EVENT_TIMERS, PROCESSING_TIMERS) if each.files else (each.state,)
                found.update(f"{each.uid}.{name}" for name in names)
        return tuple(sorted(found))

    def frame(self, name: str, groups: range | None = None) -> pl.DataFrame:
        """The rows of a state, in the order of their key groups; of all of them, or of some."""
        uid, state = self._named(name)
        groups = groups or range(self.manifest.max_parallelism)
        tables = [
            canonical.to_table(self._specs[uid], Section(state, Redistribution.KEYED, frame))[0]
            for frame in self._frames(uid, state, groups)
            if frame.height
        ]
        return pl.concat(tables).sort(KEY_GROUP, maintain_order=True) if tables else pl.DataFrame()

    def key(self, name: str, *key: Any) -> pl.DataFrame:
        """The rows of one key: one value for each of its columns."""
        names, types = self.key_columns(name), self.key_types(name)
        if len(key) != len(names):
            raise UserError(
                "S031",
                f"{name} has the key {', '.join(names) or 'of no column'}, and {len(key)} values were given",
                fix="give one value for each column, in this order",
            )
        one = pl.DataFrame(
            [pl.Series(each, [value], dtype) for each, value, dtype in zip(names, key, types, strict=True)]
        )
        group = int(key_groups(one, names, self.manifest.max_parallelism)[0])
        rows = self.frame(name, range(group, group + 1))
        if rows.is_empty():
            return rows
        return rows.filter(
            [pl.col(each).eq_missing(pl.lit(one.item(0, each), dtype)) for each, dtype in one.schema.items()]
        )

    def key_columns(self, name: str) -> tuple[str, ...]:
        """What the key of a state is made of."""
        uid, state = self._named(name)
        spec = self._specs[uid]
        return canonical.state_keys(spec, state) or canonical.state_keys(spec, "")

    def key_types(self, name: str) -> list[pl.DataType]:
        """The same, as types."""
        uid, _ = self._named(name)
        columns = {column: kind for port in inputs_of(self._graph)[uid].values() for column, kind in port.items()}
        return [schemas.type_from_text(columns[each]) for each in self.key_columns(name)]

    def _named(self, name: str) -> tuple[Uid, str]:
        uid, _, state = name.rpartition(".")
        if name not in self.states or Uid(uid) not in self._specs:
            raise UserError(
                "S024",
                f'checkpoint {self.checkpoint} has no keyed state "{name}"',
                fix="it has: " + (", ".join(self.states) or "none"),
            )
        return Uid(uid), state

    def _frames(self, uid: Uid, state: str, groups: range) -> Iterator[pl.DataFrame]:
        spec = self._specs[uid]
        for handle in self.manifest.handles:
            wanted = tuple(each for each in handle.sections if _holds(each, uid, state, groups))
            if not wanted:
                continue
            self._check_size(handle, wanted)
            folder = Path(tempfile.mkdtemp(prefix="penstock-query-"))
            try:
                own = msgspec.structs.replace(handle, sections=wanted)
                read = state_objects.read(
                    self._store, [own], groups=groups, index=0, parallelism=1, uids={uid}, folder=folder
                )
                if frames := read.get(uid, {}).get(state):
                    yield _together(frames, spec, state, wanted)
                for files in read.files.get(uid, ()):
                    yield from _of_database(files, spec, state, groups, self.manifest.max_parallelism)
            finally:
                shutil.rmtree(folder, ignore_errors=True)

    def _check_size(self, handle: StateHandle, wanted: Sequence[SectionHandle]) -> None:
        shared = sum(size for section in wanted for _, size in section.shared)
        size = shared + (handle.size if any(not each.path and not each.files for each in wanted) else 0)
        if self._limit_bytes is not None and size > self._limit_bytes:
            raise StateTooLargeError(
                "S032",
                f"{size} bytes of state would have to be read for that, and {self._limit_bytes} may be",
                fix="read them where you are: penstock state get JOB UID.STATE --state-dir DIR",
            )


def state_of(
    store: ObjectStore,
    graph: JobGraph,
    entries: Iterable[journal.JournalEntry],
    *,
    checkpoint: int | None = None,
    limit_bytes: int | None = None,
) -> CheckpointState:
    """The state of a job at its latest checkpoint, or at that one, if it is retained."""
    manifests = {
        int(entry.manifest.checkpoint): entry.manifest
        for entry in entries
        if isinstance(entry, journal.CheckpointCompleted)
    }
    if not manifests or (checkpoint is not None and checkpoint not in manifests):
        which = "no checkpoint yet" if checkpoint is None else f"no checkpoint {checkpoint}"
        raise UserError(
            "S030",
            f"the job has {which}",
            fix="retained are: " + (", ".join(map(str, sorted(manifests))) or "none; wait for the first one"),
        )
    manifest = manifests[max(manifests) if checkpoint is None else checkpoint]
    return CheckpointState(store, graph, manifest, limit_bytes=limit_bytes)


def _holds(section: SectionHandle, uid: Uid, state: str, groups: range) -> bool:
    if section.uid != uid or section.redistribution is not Redistribution.KEYED:
        return False
    return (bool(section.files) or section.state == state) and state_objects.holds_groups(section, groups)


def _together(
    frames: list[pl.DataFrame], spec: specs.OperatorSpec, state: str, sections: Sequence[SectionHandle]
) -> pl.DataFrame:
    """What a subtask has written of a state, in one piece or in chunks."""
    if not any(each.path and not each.columns for each in sections):
        return pl.concat(frames)
    keys = canonical.state_keys(spec, state) if canonical.declared(spec, state) is not None else None
    return merged(frames, keys)


def _of_database(
    files: RestoredFiles, spec: specs.OperatorSpec, state: str, groups: range, max_parallelism: int
) -> Iterator[pl.DataFrame]:
    held = range(max(files.groups.start, groups.start), min(files.groups.stop, groups.stop))
    linked = LinkedFiles(files.folder, held, {}, 0)
    for name, frames in databases.read_linked(linked, canonical.state_keys(spec, state), max_parallelism):
        if name == state:
            # Key groups and keys of a database are those of all groups below its last one.
            yield from (slice_groups(frame, held) for frame in frames)
