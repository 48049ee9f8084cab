"""The person who runs a job: submits it, may want it to end, and asks again when nobody seems to have listened."""

from collections.abc import Sequence
from functools import partial

from penstock.checkpoint import journal
from penstock.model.ids import JobId
from penstock.testing.cluster import Cluster
from penstock.testing.endpoints import Target
from penstock.testing.jobs import Ending, Job, Rescale
from penstock.testing.savepoints import SavepointWishes

ASK_AGAIN_US = 700_000


class Client:
    """One run of a job."""

    def __init__(self, cluster: Cluster, target: Target, job: Job) -> None:
        self.cluster, self._target, self._job = cluster, target, job
        self._before = cluster.job
        self._own: JobId | None = None
        self._wishes: SavepointWishes | None = None

    @property
    def accepted(self) -> bool:
        """The job is in its journal."""
        return self.cluster.job != self._before

    @property
    def job(self) -> JobId:
        """Of this run."""
        if self._own is None:
            assert self.accepted
            self._own = self.cluster.job
        assert self._own is not None
        return self._own

    @property
    def outcome(self) -> str | None:
        """How the run has ended."""
        return self.cluster.watcher.outcome(self.job)

    def submit(self) -> None:
        """Start the job, from where its run before has ended if there was one; again until it is accepted."""
        if self.accepted:
            return
        leader = self.cluster.leader
        knows = self._before is None or leader.view(self._before) is not None
        if leader.process.alive and leader.answers and knows:
            origin = self._origin()
            # Rows in flight, which only checkpoints have, may ask for the parallelism that there was.
            graph = self._job.again if origin is not None and origin != self._before else self._job.graph
            leader.submit(graph, origin=origin)
        self.cluster.world.after(ASK_AGAIN_US, "", self.submit)

    def want_savepoints(self) -> None:
        """Somebody will want some."""
        self._wishes = SavepointWishes(self, self._job.savepoints_us)

    def end_later(self, ending: Ending) -> None:
        """Somebody will want it to end: this run, not the one after it."""
        assert self.job
        self.cluster.world.after(ending.after_us, "", lambda: self._end(ending))

    def rescale_later(self, rescales: Sequence[Rescale]) -> None:
        """Somebody will want this run to have another parallelism, again and again."""
        assert self.job
        for rescale in rescales:
            self.cluster.world.after(rescale.after_us, "", partial(self._rescale, rescale))

    def _rescale(self, rescale: Rescale) -> None:
        leader = self.cluster.leader
        if self.outcome is None and leader.process.alive and leader.view(self.job) is not None:
            self.cluster.world.trace(f"client: wants parallelism {rescale.parallelism}")
            leader.rescale(self.job, rescale.parallelism)

    def _end(self, ending: Ending) -> None:
        if self.outcome is not None:
            return
        leader = self.cluster.leader
        listens = leader.process.alive and leader.view(self.job) is not None
        if listens and ending.may_come(self._target.visible):
            if ending.how == "savepoint":
                assert self._wishes is not None
                self._wishes.stop()
                return
            self.cluster.world.trace(f"client: wants the job to {ending.how}")
            leader.end(self.job, ending.how)
        self.cluster.world.after(ASK_AGAIN_US, "", lambda: self._end(ending))

    def _origin(self) -> str | None:
        """The job before, if it left a checkpoint, or the savepoint that was that; else nothing of it can be seen."""
        if self._before is None:
            return None
        recorded = journal.read_journal(self.cluster.state_dir.look(self._before))
        last = journal.latest(each.entry for each in recorded)
        return None if last is None else last.savepoint or self._before
