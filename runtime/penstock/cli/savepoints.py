"""Commands about savepoints: take one, look at them, look after them."""

import json
import sys
import threading
from pathlib import Path
from typing import Annotated

import msgspec
import polars as pl
import typer
from rich.text import Text

from penstock.cli.building import build_graph
from penstock.cli.discovery import JobArgument, JobManagerOption, JsonOption, StateDirOption, find_jobmanager
from penstock.cli.tables import console, new_table, print_json
from penstock.jobmanager.asking import open_state, rows_of_key
from penstock.jobmanager.state_dir import StateDir
from penstock.local import figures
from penstock.model.clocks import SystemClock
from penstock.model.errors import RetryableError, UserError
from penstock.model.ids import JobId
from penstock.model.views import SavepointView
from penstock.queries import answer
from penstock.rpc import RestClient
from penstock.savepoints import Savepoint, catalogue
from penstock.savepoints import open as open_savepoint
from penstock.savepoints.checks import REFUSED, Report, RestoreOptions, restore_report
from penstock.savepoints.manifest import SavepointManifest

_POLL_SECONDS = 0.2
_PATIENCE_SECONDS = 30.0

FolderOption = Annotated[
    str | None,
    typer.Option("--to", metavar="FOLDER", help="Path or URI; the savepoint gets a folder of its own in it."),
]
SavepointArgument = Annotated[str, typer.Argument(metavar="SAVEPOINT", help="Path or URI of its folder.")]
AllowNonRestoredOption = Annotated[
    bool, typer.Option("--allow-non-restored", help="Leave state behind that no operator takes.")
]
AllowForeignOption = Annotated[bool, typer.Option("--allow-foreign", help="The savepoint may be of another job.")]
EvolveOption = Annotated[
    bool, typer.Option("--evolve", help="Fields of state may be dropped, key groups be computed anew.")
]
MapUidOption = Annotated[
    list[str] | None,
    typer.Option(
        "--map-uid", metavar="OLD=NEW", help="Operator, state (uid.state) or field; empty NEW: leave behind."
    ),
]

savepoints_app = typer.Typer(no_args_is_help=True, help="Look at savepoints and look after them.")
state_app = typer.Typer(no_args_is_help=True, help="Look into the state of jobs and savepoints.")


def savepoint(
    job: JobArgument,
    to: FolderOption = None,
    jobmanager: JobManagerOption = None,
    state_dir: StateDirOption = None,
    as_json: JsonOption = False,
) -> None:
    """Take a savepoint of a running job: its state as Parquet files that anybody can read. The job goes on.

    Examples: `penstock savepoint orders-3f2a11`, `penstock savepoint orders-3f2a11 --to s3://backups/orders`
    """
    client = find_jobmanager(jobmanager, state_dir)
    take(client, job, to, stop=False, as_json=as_json)


def take(client: RestClient, job: str, to: str | None, *, stop: bool, as_json: bool) -> None:
    """Have one taken, wait for it, and say how to go on from it."""
    view = client.take_savepoint(job, folder=to and absolute(to), stop=stop)
    view = _wait(client, job, view.uri, quiet=as_json)
    if as_json:
        print_json(view)
    elif view.status == "completed":
        took = figures.duration(view.duration_us or 0)
        print(f"savepoint {view.uri}: {figures.size(view.size)} in {took}")
        print(f"go on from it: penstock run PROGRAM --from {view.uri}")
    if view.status != "completed":
        raise UserError("S027", f"the savepoint has failed: {view.reason}", where=view.uri, fix="the job goes on")


def restore_check(
    program: Annotated[str, typer.Argument(metavar="PROGRAM", help="`file.py:function` or `module:function`.")],
    origin: Annotated[str, typer.Option("--from", metavar="SAVEPOINT", help="Path or URI of its folder.")],
    args: Annotated[
        list[str] | None, typer.Argument(metavar="[-- ARGS]", help="What the program finds in `sys.argv[1:]`.")
    ] = None,
    parallelism: Annotated[int, typer.Option("--parallelism", "-p", min=1, help="Subtasks per operator.")] = 1,
    max_parallelism: Annotated[
        int | None, typer.Option("--max-parallelism", min=1, help="Key groups of state; fixed for its life.")
    ] = None,
    allow_non_restored: AllowNonRestoredOption = False,
    allow_foreign: AllowForeignOption = False,
    evolve: EvolveOption = False,
    map_uid: MapUidOption = None,
    as_json: JsonOption = False,
) -> None:
    """Say what `penstock run --from` would do with each state of a savepoint. Every object is verified.

    Example: `penstock restore-check prog.py:fn --from ./savepoints/orders-3f2a11-5d1e0c44 --map-uid count=counts`
    """
    found = open_savepoint(origin)
    options = restore_options(
        allow_non_restored=allow_non_restored, allow_foreign=allow_foreign, evolve=evolve, map_uid=map_uid
    )
    graph = build_graph(program, parallelism=parallelism, max_parallelism=max_parallelism, args=args or ())
    report = restore_report(found.manifest, graph, options)
    problems = [each for each in catalogue.verify(found.store, found.manifest, deep=True) if not each.stray]
    if as_json:
        print_json({"findings": report.findings, "problems": problems})
    else:
        _print_report(report)
        for problem in problems:
            print(f"broken: {problem.path}: {problem.what}")
    raise typer.Exit(1 if report.refused or problems else 0)


@savepoints_app.command("ls")
def list_savepoints(
    folder: Annotated[
        str | None, typer.Argument(metavar="FOLDER", help="Path or URI; default: those of --state-dir.")
    ] = None,
    state_dir: StateDirOption = None,
    as_json: JsonOption = False,
) -> None:
    """Show the savepoints in a folder and below it, the newest last."""
    if folder is None and state_dir is None:
        raise UserError("S001", "which savepoints?", fix="penstock savepoints ls FOLDER, or --state-dir DIR")
    found = list(catalogue.find(folder or StateDir(state_dir or ".").savepoints))
    if as_json:
        print_json([{"uri": uri, **_summary(manifest)} for uri, manifest in found])
        return
    table = new_table("savepoint", "job", "age", "size", "states", "rows", "checkpoint")
    now_us = SystemClock().now_us()
    for uri, manifest in found:
        table.add_row(
            Text(uri),
            manifest.job or "(built)",
            figures.duration(max(0, now_us - manifest.created_us)),
            figures.size(manifest.size),
            str(len(manifest.states)),
            figures.rows(sum(state.rows for state in manifest.states)),
            str(manifest.lineage.checkpoint or ""),
        )
    console().print(table)


@savepoints_app.command("show")
def show(savepoint: SavepointArgument, as_json: JsonOption = False) -> None:
    """Show what a savepoint holds."""
    manifest = open_savepoint(savepoint).manifest
    if as_json:
        print_json(manifest)
        return
    lineage = manifest.lineage
    print(f"job {manifest.job or '(built)'}, {manifest.max_parallelism} key groups, format {manifest.format}")
    print(f"checkpoint {lineage.checkpoint}, started from {lineage.restored_from or 'the beginning'}")
    print(f"written by penstock {lineage.versions.get('penstock', '?')}, polars {lineage.versions.get('polars', '?')}")
    table = new_table("state", "kind", "rows", "size", "tables", "columns")
    for state in manifest.states:
        columns = ", ".join(f"{each.name} {each.type}" for each in state.columns)
        table.add_row(
            Text(state.name),
            state.kind,
            figures.rows(state.rows),
            figures.size(state.size),
            str(len(state.tables)),
            Text(columns),
        )
    console().print(table)
    for uid, splits in manifest.sources.items():
        for split in splits:
            print(f"source {uid}: split {split['split']} at {split['position']}{', ended' if split['ended'] else ''}")
    for uid, time in manifest.watermarks.items():
        print(f"watermark {uid}: {time}")


@savepoints_app.command("verify")
def verify(
    savepoint: SavepointArgument,
    deep: Annotated[bool, typer.Option("--deep", help="Read every object again and compare its SHA-256.")] = False,
    as_json: JsonOption = False,
) -> None:
    """Compare every object of a savepoint with its manifest. Ends with 1 when one is missing or broken."""
    found = open_savepoint(savepoint)
    problems = catalogue.verify(found.store, found.manifest, deep=deep)
    if as_json:
        print_json(problems)
    else:
        for problem in problems:
            print(f"{problem.path}: {problem.what}")
        objects = sum(1 for _ in found.manifest.tables)
        print(f"{objects} objects, {figures.size(found.manifest.size)}, {len(problems)} problems")
    raise typer.Exit(1 if any(not problem.stray for problem in problems) else 0)


@savepoints_app.command("diff")
def diff(first: SavepointArgument, second: SavepointArgument, as_json: JsonOption = False) -> None:
    """Compare two savepoints, state by state and row by row."""
    found = list(catalogue.compare(open_savepoint(first), open_savepoint(second)))
    if as_json:
        print_json(found)
        return
    table = new_table("state", "in", "rows", "added", "removed", "columns")
    for each in found:
        table.add_row(
            Text(each.name),
            each.only_in,
            f"{each.rows[0]} -> {each.rows[1]}",
            str(each.added),
            str(each.removed),
            Text(", ".join(each.columns)),
        )
    console().print(table)


@savepoints_app.command("copy")
def copy(
    savepoint: SavepointArgument,
    target: Annotated[str, typer.Argument(metavar="TARGET", help="Path or URI of a folder that has none.")],
) -> None:
    """Copy a savepoint to another folder or store; every object is verified on the way."""
    print(catalogue.copy(open_savepoint(savepoint), target))


@savepoints_app.command("rm")
def remove(
    savepoint: SavepointArgument,
    yes: Annotated[bool, typer.Option("--yes", help="Do not ask.")] = False,
) -> None:
    """Remove a savepoint. Jobs that were started from it have copies of their own."""
    found = open_savepoint(savepoint)
    if not yes:
        typer.confirm(f"remove {found.uri} ({figures.size(found.manifest.size)})?", abort=True)
    print(f"{catalogue.remove(found.store, found.manifest)} objects removed")


@state_app.command("read")
def read_state(
    savepoint: SavepointArgument,
    name: Annotated[str, typer.Argument(metavar="UID.STATE", help="As `penstock savepoints show` names it.")],
    limit: Annotated[int, typer.Option("--limit", min=0, help="Rows; 0: all.")] = 20,
    as_json: JsonOption = False,
) -> None:
    """Print the rows of a state.

    Example: `penstock state read ./savepoints/orders-3f2a11-5d1e0c44 totals.total --limit 5`
    """
    found = open_savepoint(savepoint)
    rows = _first_rows(found, name, limit)
    if as_json:
        print(rows.write_json())
        return
    with pl.Config(tbl_rows=-1, tbl_cols=-1, tbl_width_chars=console().width):
        print(rows)
    print(f"{rows.height} of {found.manifest.state(name).rows} rows", file=sys.stderr)


@state_app.command("get")
def get_state(
    job: JobArgument,
    name: Annotated[str, typer.Argument(metavar="UID.STATE", help="Operator and state.")],
    key: Annotated[
        list[str] | None, typer.Option("--key", "-k", metavar="VALUE", help="Once for each column of the key.")
    ] = None,
    checkpoint: Annotated[
        int | None, typer.Option("--checkpoint", metavar="N", help="A retained one; default: the latest.")
    ] = None,
    limit: Annotated[int, typer.Option("--limit", min=0, help="Rows of a whole table; 0: all.")] = 20,
    jobmanager: JobManagerOption = None,
    state_dir: StateDirOption = None,
    as_json: JsonOption = False,
) -> None:
    """Print the state of a job, as its latest checkpoint holds it: the rows of a key, or with no key a table.

    With --state-dir it is read from there, whether the job runs or not; else the JobManager is asked, for a key.

    Examples: `penstock state get orders-3f2a11 totals.total --key ann`,
    `penstock state get orders-3f2a11 totals.total --state-dir s3://lake/penstock --limit 0 --json`
    """
    if state_dir is None:
        if not key:
            raise UserError("H006", "a JobManager is asked for a key", fix="--key VALUE, or --state-dir for a table")
        view = find_jobmanager(jobmanager).state(job, name, *key, checkpoint=checkpoint)
    elif key:
        view = rows_of_key(StateDir(state_dir), JobId(job), name, key, checkpoint, limit_bytes=None)
    else:
        found = open_state(StateDir(state_dir), JobId(job), checkpoint)
        rows = found.frame(name)
        view = answer(found, name, rows.head(limit) if limit else rows, SystemClock().now_us())
    if as_json:
        print_json(view)
        return
    table = new_table(*view.columns)
    for row in view.rows:
        table.add_row(*(Text(value if isinstance(value, str) else json.dumps(value)) for value in row.values()))
    if view.rows:
        console().print(table)
    age = figures.duration(view.age_us)
    print(f"{len(view.rows)} rows of {name} at checkpoint {view.checkpoint}, {age} ago", file=sys.stderr)


def restore_options(
    *, allow_non_restored: bool, allow_foreign: bool, evolve: bool, map_uid: list[str] | None
) -> RestoreOptions:
    """From the flags of a command."""
    pairs = []
    for text in map_uid or ():
        old, separator, new = text.partition("=")
        if not old or not separator:
            raise UserError("S025", f'--map-uid "{text}" is not OLD=NEW', fix="--map-uid count=counts")
        pairs.append((old, new))
    return RestoreOptions(
        allow_non_restored=allow_non_restored, allow_foreign=allow_foreign, evolve=evolve, map_uid=tuple(pairs)
    )


def absolute(place: str) -> str:
    """A place as the JobManager, which runs in another folder, finds it."""
    return place if "://" in place else str(Path(place).absolute())


def _wait(client: RestClient, job: str, uri: str, *, quiet: bool) -> SavepointView:
    clock, shown = SystemClock(), ""
    heard, pause = clock.monotonic(), threading.Event()
    while True:
        try:
            view = next((each for each in client.savepoints(job) if each.uri == uri), None)
        except RetryableError:
            if clock.monotonic() - heard > _PATIENCE_SECONDS:
                raise
            view = SavepointView(uri=uri, kind="", status="pending", requested_us=0)
        else:
            heard = clock.monotonic()
        if view is None:
            raise UserError(
                "S027",
                "the JobManager was started anew and does not know of this savepoint",
                where=uri,
                fix=f"penstock savepoints show {uri} tells whether it was completed; else take another",
            )
        if view.status != "pending":
            return view
        line = f"{view.acknowledged} of {view.subtasks} subtasks, {figures.size(view.size)}"
        if not quiet and view.subtasks and line != shown:
            print(line, file=sys.stderr)
            shown = line
        pause.wait(_POLL_SECONDS)


def _print_report(report: Report) -> None:
    table = new_table("state", "verdict", "rows", "size", "why", "fix")
    for finding in report.findings:
        code = f"{finding.code} " if finding.verdict == REFUSED else ""
        table.add_row(
            Text(finding.name),
            finding.verdict,
            figures.rows(finding.rows),
            figures.size(finding.size),
            Text(code + finding.detail),
            Text(finding.fix),
        )
    console().print(table)


def _first_rows(found: Savepoint, name: str, limit: int) -> pl.DataFrame:
    frames, left = [found.schema(name).to_frame()], limit
    for frame in found.frames(name):
        frames.append(frame.head(left) if limit else frame)
        left -= frame.height
        if limit and left <= 0:
            break
    return pl.concat(frames)


def _summary(manifest: SavepointManifest) -> dict[str, object]:
    plain = msgspec.to_builtins(manifest)
    wanted = ("job", "job_name", "created_us", "size", "max_parallelism", "lineage", "format")
    return {name: plain[name] for name in wanted} | {"states": [state.name for state in manifest.states]}
