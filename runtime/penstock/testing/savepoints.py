"""Savepoints of a simulated job: somebody who wants them, and asks again by the same name, and what must hold of them.

One that a JobManager calls completed, or that the journal speaks of, is there; and whatever has a manifest is whole,
for ever: no JobManager that was replaced, and no later try, takes anything out of it.
"""

from collections.abc import Sequence
from typing import TYPE_CHECKING

from penstock.checkpoint import journal
from penstock.model.ids import JobId
from penstock.savepoints import catalogue
from penstock.savepoints.manifest import ABANDONED, MANIFEST, read_manifest
from penstock.testing.cluster import Cluster

if TYPE_CHECKING:
    from penstock.testing.clients import Client

ASK_AGAIN_US = 300_000


class SavepointWishes:
    """Of one run of a job."""

    def __init__(self, client: "Client", after_us: Sequence[int]) -> None:
        self._client, self._cluster, self._world = client, client.cluster, client.cluster.world
        self._names = 0
        for delay in after_us:
            self._world.after(delay, "", lambda: self._ask(self._new_name(), stop=False))

    def stop(self) -> None:
        """The job shall end with one."""
        self._ask(self._new_name(), stop=True)

    def _new_name(self) -> str:
        self._names += 1
        return f"{self._client.job}-savepoint-{self._names}"

    def _ask(self, name: str, *, stop: bool) -> None:
        job, leader = self._client.job, self._cluster.leader
        if self._client.outcome is not None:
            return
        if leader.process.alive and (view := leader.view(job)) is not None:
            known = leader.savepoint(job, name)
            if known is None and view.state == "running" and not leader.takes_savepoint(job):
                if stored(self._cluster, f"savepoints/{name}"):
                    # A JobManager that is gone had completed it, and nobody was told.
                    self._world.sometimes("savepoint that nobody was told of")
                    if not stop:
                        return
                    name = self._new_name()
                self._world.trace(f"client: wants savepoint {name}{' and the job to stop' if stop else ''}")
                leader.take_savepoint(job, name, stop=stop)
            elif known is not None and known.status == "completed":
                if not stored(self._cluster, f"savepoints/{name}"):
                    self._cluster.watcher.violation("savepoint", f"{name} is called completed and is not there")
                self._world.sometimes("savepoint completed")
                return
            elif known is not None and known.status == "failed":
                self._world.sometimes("savepoint failed")
                if not stop:
                    return
                name = self._new_name()
        self._world.after(ASK_AGAIN_US, "", lambda: self._ask(name, stop=stop))


def stored(cluster: Cluster, folder: str) -> bool:
    """Whether a savepoint lies there, with whatever it says about itself."""
    return cluster.state_dir.look(folder).get(MANIFEST) not in (None, ABANDONED)


def judge(cluster: Cluster, job: JobId) -> None:
    """All that there are, at the end of a run."""
    watcher = cluster.watcher
    for recorded in journal.read_journal(cluster.state_dir.look(job)):
        entry = recorded.entry
        if isinstance(entry, journal.CheckpointCompleted) and (uri := entry.manifest.savepoint):
            folder = f"savepoints/{uri.rpartition('/')[2]}"
            if not stored(cluster, folder):
                watcher.violation("savepoint", f"{folder} is in the journal of {job} and is not there")
    for folder in cluster.state_dir.finished_savepoints():
        store = cluster.state_dir.look(folder)
        for problem in catalogue.verify(store, read_manifest(store), deep=True):
            if not problem.stray:
                watcher.violation("savepoint", f"{folder}: {problem}")
