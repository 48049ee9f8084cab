"""Runs a job on an embedded cluster until it ends: what `flow.run()` and `penstock run` do."""

import contextlib
import hashlib
import os
import re
import shutil
import sys
import tempfile
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path
from typing import Any

import msgspec
import polars as pl

from penstock.api.flows import Flow
from penstock.graph import JobGraph
from penstock.jobmanager.state_dir import StateDir, StoredJob
from penstock.local.cluster import LocalCluster
from penstock.local.collecting import place_collected, read_frames
from penstock.local.following import counted_interrupts, follow
from penstock.local.progress import Progress, SilentProgress, choose_progress, summary
from penstock.model.clocks import Clock, SystemClock
from penstock.model.durations import parse_duration
from penstock.model.errors import FatalJobError, UserError
from penstock.model.settings import JobSettings, with_texts
from penstock.model.views import JobView
from penstock.savepoints.checks import RestoreOptions
from penstock.storage import folder_of


@dataclass(frozen=True, slots=True)
class RunResult:
    """How a job ended, and what its collect sinks have."""

    job: JobView
    state_dir: str
    """Path or URI."""
    folder: Path
    """Logs and collected rows. The state directory itself, unless that is an object store."""
    kept: bool
    """The state directory is still there: another run may go on from it."""
    frames: dict[str, pl.DataFrame]

    def collected(self, uid: str | None = None) -> pl.DataFrame:
        """Rows of the collect sink; its uid is needed when there are several."""
        if uid is None and len(self.frames) == 1:
            return next(iter(self.frames.values()))
        if uid is None or uid not in self.frames:
            there = ", ".join(self.frames) or "none: write to ps.collect()"
            raise UserError("P023", f"which collect sink? there are: {there}", fix='result.collected("uid")')
        return self.frames[uid]


class JobFailedError(FatalJobError):
    """The job has ended as failed; `result` has its last view and what it had committed."""

    def __init__(self, result: RunResult) -> None:
        self.result = result
        last = result.job.failures[-1] if result.job.failures else None
        super().__init__(
            last.code if last else "C000",
            result.job.reason or (last.reason if last else "it failed"),
            where=f"job {result.job.id}",
            fix=f"logs are in {result.folder / 'logs'}",
        )


def run_flow(
    flow_or_graph: Flow | JobGraph,
    *,
    parallelism: int = 1,
    task_managers: int = 1,
    checkpoint_interval: str | timedelta | float | None = None,
    restarts: int | None = None,
    state_dir: str | Path | None = None,
    resume: str | None = None,
    restore: RestoreOptions | None = None,
    progress: Progress | bool | None = None,
    settings: JobSettings | None = None,
    **plan: Any,
) -> RunResult:
    """Run until it ends; JobFailedError when that is in failure.

    `restarts`: failures in a row before it has failed. `state_dir`: a path or `s3://bucket/folder`. `resume`: "latest"
    or "job@checkpoint" of it, or the folder of a savepoint; `restore`: what is allowed then. `progress`: False for
    silence. `settings` and `plan` go to `Flow.plan`.
    """
    if isinstance(flow_or_graph, JobGraph):
        graph = flow_or_graph
    else:
        graph = flow_or_graph.plan(parallelism=parallelism, settings=settings, **plan)
    graph = with_settings(graph, checkpoint_interval=checkpoint_interval, restarts=restarts)
    shown = SilentProgress(sys.stdout) if progress is False else None if progress is True else progress
    result = run_graph(
        graph,
        task_managers=task_managers,
        state_dir=state_dir,
        resume=resume,
        restore=restore,
        progress=shown or choose_progress(),
    )
    if progress is not False:
        print(summary(result.job, SystemClock().now_us()), file=sys.stderr)
    if result.job.state == "failed":
        raise JobFailedError(result)
    return result


def run_graph(
    graph: JobGraph,
    *,
    progress: Progress,
    task_managers: int = 1,
    state_dir: str | Path | None = None,
    resume: str | None = None,
    restore: RestoreOptions | None = None,
    clock: Clock | None = None,
) -> RunResult:
    """Run until it ends, in whatever way."""
    clock = clock or SystemClock()
    folder = _directory(state_dir)
    root = str(folder) if state_dir is None else str(state_dir)
    unfinished = _check_directory(StateDir(root), resume)
    graph = unfinished.graph if unfinished else place_collected(graph, folder, resumed=resume is not None)
    with (
        counted_interrupts() as interrupts,
        contextlib.closing(progress),
        LocalCluster(
            root,
            folder=folder,
            task_managers=task_managers,
            slots_per_task_manager=-(-_widest(graph) // task_managers),
            clock=clock,
        ) as cluster,
    ):
        if unfinished is None:
            allowed = (restore or RestoreOptions()).query
            job = cluster.client.submit(msgspec.json.encode(graph), origin=resume, restore=allowed).id
        else:
            job = unfinished.job
            progress.note(f"job {job} had not ended: it goes on as it was submitted")
        view = follow(
            cluster.client,
            job,
            progress,
            interrupts,
            clock=clock,
            printed=cluster.printed,
            check=cluster.check,
        )
    kept = state_dir is not None or view.state != "finished"
    result = RunResult(view, root, folder, kept, read_frames(graph))
    if not kept:
        shutil.rmtree(folder, ignore_errors=True)
    return result


def with_settings(
    graph: JobGraph,
    *,
    checkpoint_interval: str | timedelta | float | None = None,
    restarts: int | None = None,
    values: Mapping[str, str] | None = None,
) -> JobGraph:
    """The same graph, with what was asked for in place of what the program says."""
    if values:
        graph = msgspec.structs.replace(graph, settings=with_texts(graph.settings, values, where="--set"))
    checkpoint, restart = graph.settings.checkpoint, graph.settings.restart
    if checkpoint_interval is not None:
        micros = parse_duration(checkpoint_interval, what="checkpoint interval")
        checkpoint = msgspec.structs.replace(checkpoint, interval_us=micros)
    if restarts is not None:
        restart = msgspec.structs.replace(restart, budget=restarts)
    settings = msgspec.structs.replace(graph.settings, checkpoint=checkpoint, restart=restart)
    return msgspec.structs.replace(graph, settings=settings)


def _widest(graph: JobGraph) -> int:
    """Slots that the job can use: subtasks of one vertex each have their own."""
    return max((vertex.parallelism for vertex in graph.vertices), default=1)


def _directory(state_dir: str | Path | None) -> Path:
    """On this machine: the given one, or a temporary one; that stays when the run breaks off, for its logs."""
    if state_dir is None:
        return Path(tempfile.mkdtemp(prefix="penstock-"))
    folder = (folder_of(str(state_dir)) or _beside(str(state_dir))).absolute()
    folder.mkdir(parents=True, exist_ok=True)
    return folder


def _beside(uri: str) -> Path:
    """Where logs and collected rows are when the state is in an object store: the same at the next run."""
    home = Path(os.environ.get("XDG_STATE_HOME") or Path.home() / ".local" / "state")
    readable = re.sub(r"[^A-Za-z0-9._-]+", "-", uri.partition("?")[0].partition("://")[2])
    return home / "penstock" / f"{readable}-{hashlib.sha256(uri.encode()).hexdigest()[:8]}"


def _check_directory(state_dir: StateDir, resume: str | None) -> StoredJob | None:
    """The job that goes on by itself, if there is one: the newest, when it has not ended."""
    state_dir.check()
    stored = [job for job in map(state_dir.load, state_dir.job_ids()) if job is not None]
    unfinished = [job for job in stored if job.ended is None]
    if not unfinished:
        return None
    newest = max(unfinished, key=lambda job: job.submitted_us)
    if resume not in ("latest", newest.job):
        raise UserError(
            "C007",
            f"{state_dir.root} holds a job that has not ended: {newest.job}",
            fix="go on with it (--from latest), or give another --state-dir",
        )
    return newest
