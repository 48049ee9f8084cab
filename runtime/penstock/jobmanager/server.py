"""The JobManager process: gRPC for TaskManagers, REST for people, the core and its shell between them."""

import asyncio
import dataclasses
import hashlib
import logging
import os
import random
import re
import signal
import sys
from collections.abc import Callable, Coroutine, Mapping, Sequence
from typing import Any, TypeVar

import msgspec

from penstock.checkpoint import journal
from penstock.config import JobManagerSettings
from penstock.graph import JobGraph
from penstock.jobmanager import asking, restoring
from penstock.jobmanager.core import Core
from penstock.jobmanager.events import (
    CancelRequested,
    CheckpointRequested,
    JobRecovered,
    JobSubmitted,
    RescaleRequested,
    SavepointRequested,
    StopRequested,
)
from penstock.jobmanager.front_desk import FrontDesk, reception
from penstock.jobmanager.leading import Election, LeadershipLostError
from penstock.jobmanager.leases import Claim, new_claim
from penstock.jobmanager.rest import application
from penstock.jobmanager.shell import DecidingCore, Shell
from penstock.jobmanager.state_dir import GRAPH, StateDir, StoredJob
from penstock.jobmanager.timing import Timing
from penstock.model.clocks import Clock, SystemClock
from penstock.model.errors import PenstockError, RetryableError, UserError
from penstock.model.ids import JobId
from penstock.model.views import (
    CheckpointView,
    ClusterView,
    JobView,
    PlanView,
    ProcessView,
    RescaleView,
    SavepointView,
    StateView,
)
from penstock.savepoints.checks import RestoreOptions
from penstock.storage import ObjectStore, Prefixed, UnknownResultError

logger = logging.getLogger(__name__)

T = TypeVar("T")

EXIT_REPLACED = 3
"""Of a process that led and was replaced."""

_ASK_AGAIN_SECONDS = 0.2

_JOURNAL_SECONDS = 20.0
"""How long a client is kept waiting for a store; less than the client itself waits."""


class JobManager:
    """Everything of the process but its sockets and signals."""

    def __init__(
        self,
        state_dir: StateDir,
        shell: Shell,
        core: DecidingCore,
        *,
        claim: Claim,
        host: str,
        clock: Clock,
        rng: random.Random,
    ) -> None:
        self._state_dir, self._shell, self._core, self._clock = state_dir, shell, core, clock
        self._claim, self._host, self._random = claim, host, rng
        self._jobs: list[JobId] = []
        self._arriving: set[JobId] = set()

    async def recover(self) -> None:
        """Take up all jobs that the state directory holds, from whoever led before: nothing of theirs counts any more.

        LeadershipLostError when somebody leads in a later epoch.
        """
        jobs = await asyncio.to_thread(self._state_dir.job_ids)
        loads = await asyncio.gather(*(self._take_over(job) for job in jobs))
        found = [stored for stored in loads if stored is not None]
        for stored in sorted(found, key=lambda stored: stored.submitted_us):
            self._add(stored.job)
            self._shell.feed(
                JobRecovered(
                    job=stored.job,
                    graph=stored.graph,
                    store=stored.store.uri,
                    entries=tuple(recorded.entry for recorded in stored.recorded),
                    last_sha256=stored.recorded[-1].sha256,
                )
            )

    def health(self) -> dict[str, Any]:
        """The process answers."""
        claim = self._claim
        return {"status": "ok", "role": "leader", "id": claim.holder, "epoch": claim.epoch, "pid": os.getpid()}

    def cluster(self) -> ClusterView:
        """The core's view, with this process in front."""
        view = self._core.view_cluster()
        myself = ProcessView(role="jobmanager", id=self._claim.holder, pid=os.getpid(), host=self._host)
        return msgspec.structs.replace(view, processes=(myself, *view.processes))

    def job_ids(self) -> list[JobId]:
        """In the order in which they were submitted or found."""
        return list(self._jobs)

    def job(self, job: JobId) -> JobView:
        """The core's view."""
        return self._core.view_job(job)

    def plan(self, job: JobId) -> PlanView:
        """The core's view."""
        return self._core.plan(job)

    def checkpoints(self, job: JobId) -> tuple[CheckpointView, ...]:
        """The core's view."""
        return tuple(self._core.checkpoints(job))

    async def graph(self, job: JobId) -> bytes:
        """As it was stored."""
        return await asyncio.to_thread(self._state_dir.store(job).get, GRAPH) or b"null"

    async def submit(
        self,
        body: bytes,
        *,
        name: str | None,
        origin: str | None,
        restore: RestoreOptions | None = None,
        job_id: str | None = None,
    ) -> JobId:
        """Store the graph, and the state to start from, before the core hears of the job.

        Returns when the job is in its journal: who was told of a job will find it again. Who gives the job an id may
        ask again, after a lost answer: a job that is there already is the answer.
        """
        job = None if job_id is None else _checked_id(job_id)
        if job is None:
            return await self._submit(body, job, name=name, origin=origin, restore=restore)
        if job in self._jobs:
            return job
        if job in self._arriving:
            raise RetryableError("C008", f"job {job} is being submitted", fix="ask again in a moment")
        self._arriving.add(job)
        try:
            return await self._submit(body, job, name=name, origin=origin, restore=restore)
        finally:
            self._arriving.remove(job)

    async def _submit(
        self, body: bytes, job: JobId | None, *, name: str | None, origin: str | None, restore: RestoreOptions | None
    ) -> JobId:
        try:
            graph = msgspec.json.decode(body, type=JobGraph)
        except msgspec.DecodeError as error:
            raise UserError(
                "H005",
                f"the body is not a job graph: {error}",
                fix="send what `penstock graph program.py:function --json` prints, built with the same version",
            ) from error
        if name:
            graph = msgspec.structs.replace(graph, name=name)
        found = await asyncio.to_thread(restoring.find_origin, self._state_dir, origin) if origin else None
        job = job or self._new_id(graph.name)
        store = self._state_dir.store(job)
        data = msgspec.json.encode(graph)
        options = restore or RestoreOptions()
        try:
            initial = await asyncio.to_thread(found.adopt, graph, options, store) if found else None
        except PenstockError:
            await asyncio.to_thread(_remove_all, store)
            raise
        await asyncio.to_thread(store.put, GRAPH, data)
        self._add(job)
        self._shell.feed(
            JobSubmitted(
                job=job,
                graph=graph,
                graph_sha256=hashlib.sha256(data).hexdigest(),
                store=store.uri,
                restored_from=found.uri if found else "",
                initial=initial,
            )
        )
        try:
            async with asyncio.timeout(_JOURNAL_SECONDS):
                await self._shell.in_journal(job)
        except TimeoutError as error:
            raise RetryableError(
                "C008",
                f"job {job} is not in its journal after {_JOURNAL_SECONDS:.0f} s: the store does not take it",
                where=store.uri,
                fix=f"look whether the store works; then `penstock status` tells what became of {job}",
            ) from error
        return job

    def cancel(self, job: JobId) -> None:
        """End it now."""
        self._shell.feed(CancelRequested(job=job))

    def stop(self, job: JobId) -> None:
        """End it with a checkpoint."""
        self._shell.feed(StopRequested(job=job))

    def trigger_checkpoint(self, job: JobId) -> None:
        """Take one now."""
        self._shell.feed(CheckpointRequested(job=job))

    def savepoints(self, job: JobId) -> tuple[SavepointView, ...]:
        """The core's view."""
        return self._core.savepoints(job)

    def rescales(self, job: JobId) -> tuple[RescaleView, ...]:
        """The core's view."""
        return self._core.rescales(job)

    def rescale(self, job: JobId, parallelism: int | None, operators: Mapping[str, int]) -> RescaleView:
        """Begin; UserError when the job cannot have that size."""
        self._shell.feed(RescaleRequested(job=job, size=self._core.plan_rescale(job, parallelism, operators)))
        return self._core.rescales(job)[-1]

    async def state(self, job: JobId, name: str, key: Sequence[str], checkpoint: int | None) -> StateView:
        """The rows of one key, read from the store. No user code is opened, and little is read."""
        return await asyncio.to_thread(asking.rows_of_key, self._state_dir, job, name, key, checkpoint)

    async def take_savepoint(
        self, job: JobId, *, folder: str | None, stop: bool, name: str | None = None
    ) -> SavepointView:
        """Begin to take one; its folder is named by the job or by the caller, and is that savepoint's alone."""
        name = _checked_id(name) if name else f"{job}-{self._random.randrange(16**8):08x}"
        parent = folder or self._state_dir.savepoints
        try:
            store = await asyncio.to_thread(lambda: Prefixed(self._state_dir.open(parent), name))
        except OSError as error:
            raise UserError(
                "S027", f"nothing can be written there: {error}", where=parent, fix="name another folder: --to"
            ) from error
        event = StopRequested(job=job, savepoint=store.uri) if stop else SavepointRequested(job=job, uri=store.uri)
        self._shell.feed(event)
        return next(view for view in self._core.savepoints(job) if view.uri == store.uri)

    async def _take_over(self, job: JobId) -> StoredJob | None:
        """Read a job, and write into its journal who leads now, before anything is decided on what was read."""
        while True:
            stored = await asyncio.to_thread(self._load, job)
            if stored is None or stored.ended is not None:
                return stored
            if (newest := max(recorded.entry.epoch for recorded in stored.recorded)) > self._claim.epoch:
                raise LeadershipLostError(f"epoch {self._claim.epoch} is over: {job} is led in epoch {newest}")
            entry = journal.taken_over(
                stored.recorded[-1], writer=self._claim.holder, epoch=self._claim.epoch, now_us=self._clock.now_us()
            )
            result = await self._append(stored.store, entry)
            if isinstance(result, journal.Appended):
                recorded = (*stored.recorded, journal.Recorded(entry, result.sha256))
                return dataclasses.replace(stored, recorded=recorded)
            # Whoever led before has written something meanwhile, which is the last that counts: read again.

    async def _append(self, store: ObjectStore, entry: journal.JournalEntry) -> journal.Appended | journal.Conflict:
        while True:
            try:
                return await asyncio.to_thread(journal.append, store, entry)
            except UnknownResultError as error:
                logger.warning("nobody knows whether the journal was written", extra={"why": str(error)})
                await asyncio.sleep(_ASK_AGAIN_SECONDS)

    def _load(self, job: JobId) -> StoredJob | None:
        try:
            stored = self._state_dir.load(job)
        except RetryableError:
            # A store that does not answer now says nothing about the job: this process ends, the next one asks.
            raise
        except (PenstockError, msgspec.DecodeError):
            # One broken job must not keep the others down; its files stay for somebody to look at.
            logger.exception("job not recovered", extra={"job": job})
            return None
        if stored is None:
            logger.warning("submission was cut short", extra={"job": job})
        return stored

    def _add(self, job: JobId) -> None:
        self._shell.add_job(job, self._state_dir.store(job))
        self._jobs.append(job)

    def _new_id(self, name: str) -> JobId:
        """Readable and unique: the job's name and six random hex digits."""
        slug = re.sub(r"[^a-z0-9]+", "-", name.lower()).strip("-")[:40] or "job"
        return JobId(f"{slug}-{self._random.randrange(16**6):06x}")


def _checked_id(text: str) -> JobId:
    """An id that somebody else chose becomes part of paths."""
    if not re.fullmatch(r"[a-z0-9]([-a-z0-9]{0,98}[a-z0-9])?", text):
        raise UserError(
            "H003", f'"{text}" cannot be an id', fix="up to 100 lower-case letters, digits and hyphens: orders-1"
        )
    return JobId(text)


def _remove_all(store: ObjectStore) -> None:
    """What was copied for a job that is not to be."""
    for info in store.list(""):
        store.delete(info.path)


def run(settings: JobManagerSettings) -> None:
    """`serve` as a process of its own: one that is replaced ends at once with EXIT_REPLACED."""

    async def serve_or_exit() -> None:
        try:
            await serve(settings)
        except LeadershipLostError as error:
            print(error.render(), file=sys.stderr, flush=True)
            # Not by way of asyncio, which waits for threads: writes to stores that do not answer may be under way in
            # them, and whatever becomes of these does not count.
            os._exit(EXIT_REPLACED)

    asyncio.run(serve_or_exit())


async def serve(
    settings: JobManagerSettings,
    *,
    clock: Clock | None = None,
    rng: random.Random | None = None,
    on_started: Callable[[Claim], None] | None = None,
) -> None:
    """Run a JobManager until SIGTERM or SIGINT: as a standby while another one leads, then as the leader.

    Jobs are not cancelled at its end: the next one takes them up. LeadershipLostError: another one leads now.
    """
    clock, rng = clock or SystemClock(), rng or random.SystemRandom()
    name = f"jm-{rng.randrange(16**8):08x}"
    state_dir = StateDir(settings.state_dir)
    await asyncio.to_thread(state_dir.prepare)
    async with reception(settings) as front:
        election = Election(
            state_dir.lease,
            lambda epoch: new_claim(epoch, holder=name, grpc=front.grpc, rest=front.rest),
            settings=settings.lease,
            clock=clock,
        )
        front.stand_by(lambda: election.leader)
        stopping = asyncio.Event()
        for number in (signal.SIGTERM, signal.SIGINT):
            asyncio.get_running_loop().add_signal_handler(number, stopping.set)
        claim = await _unless(stopping, election.win(stand_by=settings.standby))
        if claim is None:
            return
        why = await _lead(claim, state_dir, settings, front, election, stopping, clock=clock, rng=rng, told=on_started)
        if why:
            logger.error("jobmanager ends: it leads no more", extra={"epoch": claim.epoch, "why": why})
            raise LeadershipLostError(why)
        logger.info("jobmanager stops", extra={"id": name, "epoch": claim.epoch})
        await election.release(claim)


async def _lead(
    claim: Claim,
    state_dir: StateDir,
    settings: JobManagerSettings,
    front: FrontDesk,
    election: Election,
    stopping: asyncio.Event,
    *,
    clock: Clock,
    rng: random.Random,
    told: Callable[[Claim], None] | None,
) -> str:
    """Until somebody wants this process to end, or it leads no more; returns why, then."""
    timing = Timing(heartbeat_timeout=settings.link.given_up_after_seconds)
    core = Core(writer=claim.holder, epoch=claim.epoch, timing=timing)
    shell = Shell(core, epoch=claim.epoch, clock=clock, link=settings.link)
    manager = JobManager(state_dir, shell, core, claim=claim, host=settings.host, clock=clock, rng=rng)
    local_only = settings.host in {"127.0.0.1", "::1", "localhost"}
    async with asyncio.TaskGroup() as tasks:
        # From the first moment on: what follows reads journals, which may take a while.
        holding = tasks.create_task(election.hold(claim))
        work = tasks.create_task(shell.run())
        await shell.running.wait()
        ends = [holding, *(tasks.create_task(event.wait()) for event in (stopping, shell.overtaken))]
        why = ""
        try:
            await manager.recover()
        except LeadershipLostError as lost:
            why = lost.what
        else:
            front.lead(shell.tell, application(manager, max_body_bytes=settings.max_body_bytes, local_only=local_only))
            facts = {"grpc": claim.grpc, "rest": claim.rest, "state_dir": settings.state_dir}
            logger.info("jobmanager leads", extra={**facts, "id": claim.holder, "epoch": claim.epoch})
            election.answer()
            if told is not None:
                told(claim)
            await asyncio.wait([*ends, work], return_when=asyncio.FIRST_COMPLETED)
            front.close()
            if holding.done():
                why = holding.result()
            elif shell.overtaken.is_set():
                why = "another JobManager has written the journal of a job"
        for task in (*ends, work):
            task.cancel()
    return why


async def _unless(stopping: asyncio.Event, work: Coroutine[Any, Any, T]) -> T | None:
    """The result; None when somebody wants this process to end before there is one."""
    waiting, working = asyncio.ensure_future(stopping.wait()), asyncio.ensure_future(work)
    try:
        await asyncio.wait([waiting, working], return_when=asyncio.FIRST_COMPLETED)
        return working.result() if working.done() else None
    finally:
        waiting.cancel()
        working.cancel()
