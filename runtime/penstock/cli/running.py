"""`penstock run`: from a program to its result, on a cluster of its own or on a running one."""

import shlex
import sys
from pathlib import Path
from typing import Annotated

import msgspec
import typer

from penstock.cli.building import build_graph
from penstock.cli.discovery import JsonOption
from penstock.cli.named_values import named_values
from penstock.cli.on_spark import ConfOption, EngineOption, MasterOption, is_spark, run_on_spark
from penstock.cli.savepoints import (
    AllowForeignOption,
    AllowNonRestoredOption,
    EvolveOption,
    MapUidOption,
    absolute,
    restore_options,
)
from penstock.cli.tables import print_json
from penstock.graph import JobGraph
from penstock.local.following import counted_interrupts, follow
from penstock.local.progress import Progress, SilentProgress, choose_progress, summary
from penstock.local.running import run_graph
from penstock.model.clocks import SystemClock
from penstock.model.errors import UserError
from penstock.model.specs import Sink
from penstock.model.views import JobView
from penstock.rpc import RestClient
from penstock.savepoints import RestoreOptions


def run(
    program: Annotated[str, typer.Argument(metavar="PROGRAM", help="`file.py:function` or `module:function`.")],
    args: Annotated[
        list[str] | None, typer.Argument(metavar="[-- ARGS]", help="What the program finds in `sys.argv[1:]`.")
    ] = None,
    parallelism: Annotated[int, typer.Option("--parallelism", "-p", min=1, help="Subtasks per operator.")] = 1,
    task_managers: Annotated[int, typer.Option("--task-managers", min=1, help="Processes that hold slots.")] = 1,
    checkpoint_interval: Annotated[
        str | None, typer.Option("--checkpoint-interval", metavar="TIME", help="Like 1s, 500ms, 5m.")
    ] = None,
    max_parallelism: Annotated[
        int | None, typer.Option("--max-parallelism", min=1, help="Key groups of state; fixed for its life.")
    ] = None,
    restarts: Annotated[
        int | None, typer.Option("--restarts", min=0, help="Failures in a row before the job has failed.")
    ] = None,
    settings: Annotated[
        list[str] | None,
        typer.Option("--set", metavar="NAME=VALUE", help="A setting of the job, as `flow.configure` knows them."),
    ] = None,
    state_dir: Annotated[
        str | None,
        typer.Option(
            "--state-dir", metavar="DIR|URI", help="Keep journal and checkpoints here, or in s3://bucket/folder."
        ),
    ] = None,
    origin: Annotated[
        str | None,
        typer.Option("--from", metavar="latest|JOB[@CHECKPOINT]|FOLDER", help="A checkpoint or savepoint."),
    ] = None,
    allow_non_restored: AllowNonRestoredOption = False,
    allow_foreign: AllowForeignOption = False,
    evolve: EvolveOption = False,
    map_uid: MapUidOption = None,
    jobmanager: Annotated[
        str | None,
        typer.Option("--jobmanager", metavar="URL", help="Submit to this JobManager instead of starting one."),
    ] = None,
    detach: Annotated[
        bool, typer.Option("--detach", help="With --jobmanager: print the job's id as soon as it is submitted.")
    ] = False,
    job_id: Annotated[
        str | None,
        typer.Option("--id", metavar="ID", help="With --jobmanager: the job's id. Submitted twice, it is one job."),
    ] = None,
    engine: EngineOption = "stream",
    master: MasterOption = None,
    conf: ConfOption = None,
    as_json: JsonOption = False,
) -> None:
    """Run a program until it ends, with live progress.

    Ctrl-C stops it with a final checkpoint and says how to go on from there; twice cancels it.

    Examples:
    `penstock run examples/word_count.py:word_count`

    `penstock run prog.py:fn -p 4 --task-managers 2 --checkpoint-interval 1s --state-dir ./state`

    `penstock run prog.py:fn --state-dir ./state --from latest`

    `penstock run prog.py:fn --state-dir s3://bucket/jobs`

    `penstock run prog.py:fn --from ./savepoints/orders-3f2a11-5d1e0c44 -p 8`

    `penstock run prog.py:fn --engine spark --master "local[4]"`
    """
    on_spark = is_spark(engine, master, conf)
    if on_spark and (jobmanager is not None or state_dir is not None or origin is not None):
        raise UserError(
            "P018",
            "--engine spark takes no --jobmanager, --state-dir or --from: a batch begins at the beginning",
            fix="leave them out, or run it as a stream",
        )
    origin = origin and (absolute(origin) if "/" in origin else origin)
    restore = restore_options(
        allow_non_restored=allow_non_restored, allow_foreign=allow_foreign, evolve=evolve, map_uid=map_uid
    )
    if jobmanager is None and (detach or job_id is not None):
        raise UserError("C014", "--detach and --id are for a running JobManager", fix="name it: --jobmanager URL")
    graph = build_graph(
        program,
        parallelism=parallelism,
        checkpoint_interval=checkpoint_interval,
        restarts=restarts,
        max_parallelism=max_parallelism,
        settings=named_values("--set", settings, example="source.on_bad_record=drop"),
        args=args or (),
    )
    if on_spark:
        _run_batch(graph, master, conf, as_json=as_json)
        return
    if jobmanager is not None and detach:
        submitted = _submit(RestClient(jobmanager), graph, origin, restore, job_id)
        if as_json:
            print_json(submitted)
        else:
            print(submitted.id)
        return
    progress: Progress = SilentProgress(sys.stderr) if as_json else choose_progress()
    if jobmanager is not None:
        view = _run_there(RestClient(jobmanager), graph, progress, origin, restore, job_id)
        kept, folder = None, None
        rows: dict[str, list[dict[str, object]]] = {}
    else:
        result = run_graph(
            graph, progress=progress, task_managers=task_managers, state_dir=state_dir, resume=origin, restore=restore
        )
        view, kept, folder = result.job, result.state_dir if result.kept else None, result.folder
        rows = {uid: frame.rows(named=True) for uid, frame in result.frames.items()} if as_json else {}
        if not as_json:
            for uid, frame in result.frames.items():
                print(f"{uid}:\n{frame}")
    again = _go_on_command(program, view, kept, parallelism, task_managers, checkpoint_interval, jobmanager)
    if as_json:
        print_json(
            {
                "job": view,
                "outputs": _outputs(graph),
                "collected": rows,
                "state_dir": kept,
                "go_on": again,
            }
        )
    else:
        _print_end(view, graph, folder, again)
    raise typer.Exit(1 if view.state == "failed" else 0)


def _run_batch(graph: JobGraph, master: str | None, conf: list[str] | None, *, as_json: bool) -> None:
    result = run_on_spark(graph, master, conf)
    if as_json:
        rows = {uid: frame.rows(named=True) for uid, frame in result.frames.items()}
        print_json({"job": result.job, "seconds": result.seconds, "outputs": _outputs(graph), "collected": rows})
        return
    for uid, frame in result.frames.items():
        print(f"{uid}:\n{frame}")
    for text in _outputs(graph).values():
        print(f"output: {text}", file=sys.stderr)


def _run_there(
    client: RestClient,
    graph: JobGraph,
    progress: Progress,
    origin: str | None,
    restore: RestoreOptions,
    job_id: str | None,
) -> JobView:
    job = _submit(client, graph, origin, restore, job_id).id
    with counted_interrupts() as interrupts:
        try:
            return follow(client, job, progress, interrupts, clock=SystemClock())
        finally:
            progress.close()


def _submit(
    client: RestClient, graph: JobGraph, origin: str | None, restore: RestoreOptions, job_id: str | None
) -> JobView:
    return client.submit(msgspec.json.encode(graph), origin=origin, restore=restore.query, job_id=job_id)


def _print_end(view: JobView, graph: JobGraph, folder: Path | None, again: str | None) -> None:
    lines = [summary(view, SystemClock().now_us())]
    lines += [f"output: {text}" for text in _outputs(graph).values()]
    if view.state == "failed" and folder is not None:
        lines.append(f"logs: {folder / 'logs'}")
    if again:
        lines.append(f"go on from the last checkpoint: {again}")
    print("\n".join(lines), file=sys.stderr)


def _outputs(graph: JobGraph) -> dict[str, str]:
    """Sink uid -> where its rows are, for sinks that have a place."""
    found = {}
    for vertex in graph.vertices:
        for link in vertex.chain:
            spec = link.operator.spec
            if isinstance(spec, Sink):
                place = spec.connector.options.get("path") or spec.connector.options.get("directory")
                if place:
                    found[str(link.operator.uid)] = str(place)
    return found


def _go_on_command(
    program: str,
    view: JobView,
    kept: str | None,
    parallelism: int,
    task_managers: int,
    checkpoint_interval: str | None,
    jobmanager: str | None,
) -> str | None:
    """What to type to continue a job that was stopped, or that failed or was cancelled after a checkpoint."""
    if view.state == "finished" or not view.checkpoints_completed:
        return None
    words = ["penstock", "run", program]
    if parallelism != 1:
        words += ["--parallelism", str(parallelism)]
    if task_managers != 1:
        words += ["--task-managers", str(task_managers)]
    if checkpoint_interval is not None:
        words += ["--checkpoint-interval", checkpoint_interval]
    if jobmanager is not None:
        words += ["--jobmanager", jobmanager, "--from", view.id]
    elif kept is not None:
        words += ["--state-dir", kept, "--from", "latest"]
    return shlex.join(words)
