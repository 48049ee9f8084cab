"""Everything that may go of a state directory, of places for savepoints, and of the buckets that its jobs write to."""

from collections.abc import Iterator, Sequence

import msgspec

from penstock.garbage import folders, staged
from penstock.garbage.finds import Find
from penstock.garbage.jobs import JobFacts, find_in_job
from penstock.garbage.rules import LAST_STEPS_US, Rules
from penstock.graph import JobGraph
from penstock.jobmanager.state_dir import GRAPH, StateDir
from penstock.model.ids import JobId
from penstock.savepoints import catalogue
from penstock.savepoints.manifest import open_savepoint
from penstock.storage import ObjectStore, open_uploads


def find_all(
    state_dir: StateDir, rules: Rules, now_us: int, *, places: Sequence[ObjectStore] | None = None
) -> Iterator[Find]:
    """What may go. `places`: where savepoints lie, beside those that were given no other place."""
    facts: dict[JobId, JobFacts] = {}
    graphs: dict[JobId, JobGraph] = {}
    for job in state_dir.job_ids():
        store = state_dir.store(job)
        facts[job], finds = find_in_job(store, rules, now_us)
        yield from finds
        if facts[job].submitted and (data := store.get(GRAPH)) is not None:
            graphs[job] = msgspec.json.decode(data, type=JobGraph)
    everywhere = [state_dir.open(state_dir.savepoints), *(places or ())]
    patience_us = rules.savepoint_us
    if patience_us is None:
        running = [graph.settings.checkpoint.timeout_us for job, graph in graphs.items() if not facts[job].ended]
        patience_us = max(running) + LAST_STEPS_US if running else 0
    for place in everywhere:
        yield from folders.find_in_folder(place, rules, patience_us, now_us)
    yield from _staged(state_dir, facts, graphs, everywhere, rules, now_us)
    if state_dir.folder is None:
        yield from staged.find_uploads(open_uploads(state_dir.root), facts, rules, now_us)


def _staged(
    state_dir: StateDir,
    facts: dict[JobId, JobFacts],
    graphs: dict[JobId, JobGraph],
    places: Sequence[ObjectStore],
    rules: Rules,
    now_us: int,
) -> Iterator[Find]:
    sinks = [(job, *sink) for job, graph in graphs.items() for sink in staged.bucket_sinks(graph)]
    if not sinks:
        return
    promised: set[str] = set()
    for job in graphs:
        for manifest in facts[job].manifests:
            promised |= staged.promised_by_checkpoint(state_dir.store(job), manifest)
    for place in places:
        for uri, saved in catalogue.find(place.uri):
            promised |= staged.promised_by_savepoint(open_savepoint(uri), saved)
    for job, uid, directory in sinks:
        yield from staged.find_staged(open_uploads(directory), job, uid, facts[job], promised, rules, now_us)
