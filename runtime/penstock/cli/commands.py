"""Commands about jobs on a running JobManager: status, checkpoints, stop, cancel."""

from typing import Annotated

import typer
from rich.table import Table
from rich.text import Text

from penstock.cli import savepoints
from penstock.cli.discovery import JobArgument, JobManagerOption, JsonOption, StateDirOption, find_jobmanager
from penstock.cli.tables import console, new_table, print_json
from penstock.local import figures
from penstock.model.clocks import SystemClock
from penstock.model.views import CheckpointView, ClusterView


def status(jobmanager: JobManagerOption = None, state_dir: StateDirOption = None, as_json: JsonOption = False) -> None:
    """Show jobs, slots and every process with its pid.

    Examples: `penstock status`, `penstock status --state-dir ./state --json`
    """
    view = find_jobmanager(jobmanager, state_dir).cluster()
    if as_json:
        print_json(view)
    else:
        shown = console()
        shown.print(jobs_table(view, SystemClock().now_us()))
        shown.print(processes_table(view))
        shown.print(f"{view.slots_free} of {view.slots_total} slots are free", highlight=False)


def checkpoints(
    job: JobArgument,
    jobmanager: JobManagerOption = None,
    state_dir: StateDirOption = None,
    as_json: JsonOption = False,
) -> None:
    """Show the checkpoints of a job.

    A retained one can be started from: `penstock run program.py:fn --state-dir DIR --from JOB@CHECKPOINT`
    """
    found = find_jobmanager(jobmanager, state_dir).checkpoints(job)
    if as_json:
        print_json(found)
    else:
        console().print(checkpoints_table(found, SystemClock().now_us()))


def stop(
    job: JobArgument,
    savepoint: Annotated[
        bool, typer.Option("--savepoint", help="The final checkpoint is a savepoint, too: Parquet files.")
    ] = False,
    to: Annotated[
        str | None, typer.Option("--to", metavar="FOLDER", help="Where the savepoint gets a folder of its own.")
    ] = None,
    jobmanager: JobManagerOption = None,
    state_dir: StateDirOption = None,
) -> None:
    """End a job with a final checkpoint; it can go on from there.

    Examples: `penstock stop orders-3f2a11`, `penstock stop orders-3f2a11 --savepoint --to s3://backups/orders`
    """
    if savepoint or to is not None:
        savepoints.take(find_jobmanager(jobmanager, state_dir), job, to, stop=True, as_json=False)
        return
    view = find_jobmanager(jobmanager, state_dir).stop(job)
    print(f"{view.id} is {view.state}")


def cancel(job: JobArgument, jobmanager: JobManagerOption = None, state_dir: StateDirOption = None) -> None:
    """End a job now. Its last checkpoint stays; doing it twice does no harm."""
    view = find_jobmanager(jobmanager, state_dir).cancel(job)
    print(f"{view.id} is {view.state}")


def jobs_table(view: ClusterView, now_us: int) -> Table:
    """A row per job."""
    table = new_table("job", "state", "for", "attempt", "restarts", "rows read", "checkpoints", "reason")
    # Ids are copied into other commands: never cut.
    table.columns[0].min_width = max((len(job.id) for job in view.jobs), default=0)
    for job in view.jobs:
        table.add_row(
            Text(job.id),
            job.state,
            figures.duration(figures.running_us(job, now_us)),
            str(job.attempt),
            str(job.restarts),
            figures.rows(figures.rows_read(job)),
            str(job.checkpoints_completed),
            Text(job.reason.partition("\n")[0]),
        )
    return table


def processes_table(view: ClusterView) -> Table:
    """A row per process."""
    table = new_table("role", "id", "pid", "host", "slots", "job", "attempt", "memory", "subtasks")
    for process in view.processes:
        table.add_row(
            process.role,
            process.id,
            str(process.pid),
            process.host,
            str(process.slots or ""),
            process.job or "",
            "" if process.attempt is None else str(process.attempt),
            figures.size(process.rss_bytes) if process.rss_bytes else "",
            Text(", ".join(process.subtasks)),
        )
    return table


def checkpoints_table(found: list[CheckpointView], now_us: int) -> Table:
    """A row per checkpoint, the newest last."""
    table = new_table("checkpoint", "kind", "status", "age", "took", "size", "subtasks", "kept", "reason")
    for checkpoint in found:
        table.add_row(
            str(checkpoint.id),
            checkpoint.kind,
            checkpoint.status,
            figures.duration(max(0, now_us - checkpoint.triggered_us)),
            "" if checkpoint.duration_us is None else figures.duration(checkpoint.duration_us),
            figures.size(checkpoint.size),
            f"{checkpoint.acknowledged}/{checkpoint.subtasks}",
            "yes" if checkpoint.retained else "",
            Text(checkpoint.reason),
        )
    return table
