"""In buckets: what sinks have staged and nobody will show, and uploads that nobody will complete.

Whatever a checkpoint or a savepoint holds is shown by the job that goes on from it, whichever job that is and however
late: it stays as long as they do.
"""

import re
from collections.abc import Iterable, Iterator, Set
from typing import Final

import msgspec
import polars as pl

from penstock.checkpoint import canonical
from penstock.connectors.gathering import file_name, job_mark
from penstock.connectors.object_sink import STAGING, StagingNote
from penstock.garbage.finds import Find, Garbage, StagedFiles, Upload
from penstock.garbage.jobs import JobFacts, attempt_of
from penstock.garbage.rules import Rules
from penstock.graph import JobGraph
from penstock.model import specs
from penstock.model.handles import Manifest, StateHandle
from penstock.model.ids import JobId
from penstock.operators.sinks import COMMITTABLES
from penstock.savepoints.frames import read_tables
from penstock.savepoints.manifest import SavepointManifest
from penstock.savepoints.shapes import operators_of
from penstock.storage import ObjectStore, UploadStore

_NOTE: Final = re.compile(r"(?P<subtask>\d+)-(?P<attempt>\d+)-[0-9a-f]+-\d+\.json")


def bucket_sinks(graph: JobGraph) -> Iterator[tuple[str, str]]:
    """Uid and address of each sink of a job whose files lie in a bucket."""
    for operator, _ in operators_of(graph):
        if isinstance(operator.spec, specs.Sink):
            directory = str(operator.spec.connector.options.get("directory", ""))
            if "://" in directory:
                yield operator.uid, directory


def promised_by_checkpoint(store: ObjectStore, manifest: Manifest) -> set[str]:
    """Paths of the staged files that a checkpoint holds."""
    return set(_targets(frame for handle in manifest.handles for frame in _committables(store, handle)))


def promised_by_savepoint(store: ObjectStore, manifest: SavepointManifest) -> set[str]:
    """The same of a savepoint."""
    states = [state for state in manifest.states if state.state == COMMITTABLES and state.rows]
    return set(_targets(frame for state in states for frame in read_tables(store, state)))


def find_staged(
    store: UploadStore, job: JobId, uid: str, facts: JobFacts, promised: Set[str], rules: Rules, now_us: int
) -> Iterator[Find]:
    """What one sink has staged in vain: noted, or not even that."""
    place, oldest = store.uri.partition("?")[0], now_us - rules.grace_us
    folder = f"{STAGING}/{file_name(job)}/{file_name(uid)}/"
    noted: set[str] = set()
    for info in store.list(folder):
        match, data = _NOTE.fullmatch(info.path.removeprefix(folder)), store.get(info.path)
        if match is None or data is None:
            continue
        paths = msgspec.json.decode(data, type=StagingNote).paths
        noted.update(paths)
        if info.modified_us < oldest and not facts.in_force(int(match["attempt"])) and promised.isdisjoint(paths):
            found = (("staged file", f"{place}/{path}", info.modified_us) for path in paths)
            items = (_garbage(*each, now_us, "no checkpoint holds it") for each in found)
            yield StagedFiles(store, info.path, tuple(items))
    part = re.compile(
        rf"(?:.*/)?part-{job_mark(job)}-{re.escape(file_name(uid))}-\d+-(?P<attempt>\d+)-[0-9a-f]+-\d+\.\w+"
    )
    for upload in store.unfinished(""):
        match = part.fullmatch(upload.path)
        if match is None or upload.path in noted or upload.path in promised or upload.begun_us >= oldest:
            continue
        if not facts.in_force(int(match["attempt"])):
            item = _garbage("upload", f"{place}/{upload.path}", upload.begun_us, now_us, "nobody knows of it")
            yield Upload(store, upload, (item,))


def find_uploads(store: UploadStore, jobs: dict[JobId, JobFacts], rules: Rules, now_us: int) -> Iterator[Find]:
    """Of a state directory: uploads of objects that were large, whose writers are gone."""
    place = store.uri.partition("?")[0]
    for upload in store.unfinished(""):
        top, _, rest = upload.path.partition("/")
        job, _, inside = rest.partition("/")
        facts, attempt = jobs.get(JobId(job)) if top == "jobs" else None, attempt_of(inside)
        running = facts is not None and attempt is not None and facts.in_force(attempt)
        if upload.begun_us < now_us - rules.grace_us and not running:
            why = "nobody completes it"
            yield Upload(store, upload, (_garbage("upload", f"{place}/{upload.path}", upload.begun_us, now_us, why),))


def _garbage(kind: str, where: str, since_us: int, now_us: int, why: str) -> Garbage:
    """Of what is not to be seen nobody tells the size."""
    return Garbage(kind=kind, where=where, size=0, age_us=max(0, now_us - since_us), why=why)


def _committables(store: ObjectStore, handle: StateHandle) -> Iterator[pl.DataFrame]:
    """Only these of a state object, which may be large."""
    for section in handle.sections:
        if section.state != COMMITTABLES or not section.rows:
            continue
        path = section.path or handle.path
        if section.columns:  # of a savepoint that the job was started from
            data = store.get(path) or b""
            yield canonical.from_table(canonical.decode(data, section.columns), section.columns, section.form)
        elif path:
            yield pl.read_ipc_stream(store.get_range(path, section.offset, section.length))
        else:
            yield pl.read_ipc_stream(handle.data[section.offset : section.offset + section.length])


def _targets(frames: Iterable[pl.DataFrame]) -> Iterator[str]:
    for frame in frames:
        for text in frame.get_column("committable"):
            yield msgspec.json.decode(text).get("target", "")
