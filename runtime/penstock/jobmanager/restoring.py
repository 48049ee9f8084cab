"""Starting a job from the checkpoint of an earlier one, or from a savepoint.

The state objects are copied into the new job's store: both jobs then live, retain and delete on their own, and
either can be removed without a thought for the other. Whatever speaks against it is said before anything is started.
"""

import hashlib
from dataclasses import dataclass

import msgspec

from penstock.checkpoint import journal
from penstock.graph import JobGraph
from penstock.jobmanager.state_dir import StateDir, StoredJob
from penstock.model.errors import UserError
from penstock.model.handles import Manifest, SectionHandle, StateHandle
from penstock.model.ids import JobId, Uid
from penstock.savepoints import restoring as savepoints
from penstock.savepoints.checks import RestoreOptions, restore_report
from penstock.savepoints.manifest import SavepointManifest, read_manifest
from penstock.savepoints.shapes import operators_of
from penstock.storage import ObjectStore


@dataclass(frozen=True, slots=True)
class Origin:
    """A checkpoint and the job that took it."""

    source: StoredJob
    manifest: Manifest

    @property
    def uri(self) -> str:
        """For the journal of the new job, and for people."""
        return f"{self.source.job}@{self.manifest.checkpoint}"

    def adopt(self, graph: JobGraph, options: RestoreOptions, target: ObjectStore) -> Manifest:
        """Copy the checkpoint's objects, each checked by its SHA-256; the manifest that names the copies."""
        manifest = _renamed(self.manifest, graph, options)
        handles = tuple(_copy(handle, number, self, target) for number, handle in enumerate(manifest.handles))
        return msgspec.structs.replace(manifest, handles=handles)


@dataclass(frozen=True, slots=True)
class SavepointOrigin:
    """A savepoint, wherever it comes from."""

    store: ObjectStore
    manifest: SavepointManifest

    @property
    def uri(self) -> str:
        """Where it is."""
        return self.store.uri

    def adopt(self, graph: JobGraph, options: RestoreOptions, target: ObjectStore) -> Manifest:
        """Check it against the graph, then copy its tables, each checked by its SHA-256."""
        report = restore_report(self.manifest, graph, options)
        return savepoints.adopt(self.store, self.manifest, report, target, max_parallelism=graph.max_parallelism)


def find_origin(state_dir: StateDir, text: str) -> Origin | SavepointOrigin:
    """`latest`, `<job>` (its last checkpoint), `<job>@<checkpoint>`, or the folder of a savepoint."""
    if is_savepoint(text):
        store = state_dir.open_savepoint(text)
        return SavepointOrigin(store, read_manifest(store))
    name, _, checkpoint = text.partition("@")
    source = _newest(state_dir) if name == "latest" else _named(state_dir, name)
    if source.ended is None:
        raise UserError(
            "S008",
            f"job {source.job} has not ended: two jobs would go on from the same place",
            where=state_dir.root,
            fix=f"penstock stop {source.job}",
        )
    manifests = {
        int(recorded.entry.manifest.checkpoint): recorded.entry.manifest
        for recorded in source.recorded
        if isinstance(recorded.entry, journal.CheckpointCompleted)
    }
    if not checkpoint:
        last = journal.latest(recorded.entry for recorded in source.recorded)
        if last is not None:
            return Origin(source, last)
    elif checkpoint.isdigit() and int(checkpoint) in manifests:
        return Origin(source, manifests[int(checkpoint)])
    there = ", ".join(f"{source.job}@{number}" for number in sorted(manifests)) or "none"
    raise UserError(
        "S001",
        f'no checkpoint "{text}": job {source.job} has {there}',
        where=state_dir.root,
        fix="name one of these, or start without --from",
    )


def _renamed(manifest: Manifest, graph: JobGraph, options: RestoreOptions) -> Manifest:
    """State under the uids that operators have now, without what may be left behind."""
    names = dict(options.map_uid)
    known = {operator.uid for operator, _ in operators_of(graph)}

    def section(held: SectionHandle) -> SectionHandle | None:
        uid = Uid(names.get(held.uid, held.uid))
        left_behind = not uid or (options.allow_non_restored and uid not in known)
        return None if left_behind else msgspec.structs.replace(held, uid=uid)

    handles = [
        msgspec.structs.replace(handle, sections=kept)
        for handle in manifest.handles
        if (kept := tuple(filter(None, map(section, handle.sections)))) or not handle.sections
    ]
    return msgspec.structs.replace(manifest, handles=tuple(handles))


def is_savepoint(text: str) -> bool:
    """Whether it names a place, and not a job of the state directory."""
    return "://" in text or text.startswith("/")


def _copy(handle: StateHandle, number: int, origin: Origin, target: ObjectStore) -> StateHandle:
    path = f"restored/{origin.manifest.checkpoint}/{number:06d}"

    def copied(old: str, sha256: str, new: str) -> str:
        if old:
            _copy_object(handle, origin, target, old, sha256, new)
        return new if old else ""

    def copied_section(section: SectionHandle) -> SectionHandle:
        files = tuple(
            msgspec.structs.replace(file, path=copied(file.path, file.sha256, f"{path}-{file.sha256}"))
            for file in section.files
        )
        own = copied(section.path, section.sha256, f"{path}-{section.sha256}")
        return msgspec.structs.replace(section, path=own, files=files)

    sections = tuple(map(copied_section, handle.sections))
    return msgspec.structs.replace(handle, path=copied(handle.path, handle.sha256, path), sections=sections)


def _copy_object(handle: StateHandle, origin: Origin, target: ObjectStore, path: str, sha256: str, new: str) -> None:
    data = origin.source.store.get(path)
    found = "missing" if data is None else hashlib.sha256(data).hexdigest()
    if data is None or found != sha256:
        raise UserError(
            "S002",
            f"checkpoint {origin.uri} cannot be used: state of {handle.subtask} is {found}, not {sha256}",
            where=f"{origin.source.store.uri}/{path}",
            fix="name an older checkpoint of that job: penstock checkpoints " + origin.source.job,
        )
    target.put(new, data)


def _newest(state_dir: StateDir) -> StoredJob:
    stored = [job for job in map(state_dir.load, state_dir.job_ids()) if job is not None]
    if not stored:
        raise UserError(
            "S001",
            "there is no earlier job to start from",
            where=state_dir.root,
            fix="start without --from, or give the --state-dir of the earlier run",
        )
    return max(stored, key=lambda job: job.submitted_us)


def _named(state_dir: StateDir, name: str) -> StoredJob:
    known = state_dir.job_ids()
    stored = state_dir.load(JobId(name)) if name in known else None
    if stored is None:
        raise UserError(
            "S001",
            f'no job "{name}" to start from',
            where=state_dir.root,
            fix=f"known jobs: {', '.join(known) or 'none'}; or `latest`",
        )
    return stored
