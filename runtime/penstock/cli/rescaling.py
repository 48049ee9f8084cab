"""`penstock rescale`: another parallelism for a job that runs."""

import sys
import threading
from typing import Annotated

import typer
from rich.table import Table
from rich.text import Text

from penstock.cli.discovery import JobArgument, JobManagerOption, JsonOption, StateDirOption, find_jobmanager
from penstock.cli.tables import console, new_table, print_json
from penstock.local import figures
from penstock.model.clocks import SystemClock
from penstock.model.errors import RetryableError, UserError
from penstock.model.views import RescaleView
from penstock.rpc import RestClient

_POLL_SECONDS = 0.1
_PATIENCE_SECONDS = 30.0
"""How long a JobManager may be gone: the next one knows of the rescale if its journal does."""


def rescale(
    job: JobArgument,
    parallelism: Annotated[
        int | None, typer.Option("--parallelism", "-p", min=1, help="Of operators that name none.")
    ] = None,
    operator: Annotated[
        list[str] | None, typer.Option("--operator", metavar="UID=N", help="Of one operator; may be repeated.")
    ] = None,
    no_wait: Annotated[bool, typer.Option("--no-wait", help="Do not wait until it is done.")] = False,
    jobmanager: JobManagerOption = None,
    state_dir: StateDirOption = None,
    as_json: JsonOption = False,
) -> None:
    """Change the parallelism of a running job, and wait until it runs with it.

    Slots come first: while some are missing the job runs on as it is. If it does not come up at its new size it goes
    back to the one before. Ctrl-C ends the waiting, not the rescale.

    Examples: `penstock rescale orders-3f2a11 --parallelism 4`, `penstock rescale orders-3f2a11 --operator totals=8`
    """
    operators = dict(_operator(text) for text in operator or ())
    if parallelism is None and not operators:
        raise UserError("H006", "no parallelism is given", fix="--parallelism N, --operator UID=N, or both")
    client = find_jobmanager(jobmanager, state_dir)
    view = client.rescale(job, parallelism=parallelism, operators=operators)
    if not no_wait:
        view = _wait(client, job, view, quiet=as_json)
    if as_json:
        print_json(view)
    elif view.status == "completed":
        print(_summary(view))
    elif view.status == "pending":
        print(f"rescale {view.id} of {job}: {_sizes(view)}; {view.reason or 'begins'}")
    if view.status == "failed":
        raise UserError("S063", f"rescale {view.id} has failed: {view.reason}", fix="the job goes on as it was")


def rescales(
    job: JobArgument,
    jobmanager: JobManagerOption = None,
    state_dir: StateDirOption = None,
    as_json: JsonOption = False,
) -> None:
    """Show how the parallelism of a job was changed: what moved, how long it waited, and which way was taken."""
    found = find_jobmanager(jobmanager, state_dir).rescales(job)
    if as_json:
        print_json(found)
    else:
        console().print(rescales_table(found, SystemClock().now_us()))


def rescales_table(found: list[RescaleView], now_us: int) -> Table:
    """A row per rescale, the newest last."""
    table = new_table("rescale", "size", "way", "status", "age", "took", "groups", "moved", "p50/p99/max", "reason")
    for view in found:
        pauses = (view.pause_us_p50, view.pause_us_p99, view.pause_us_max)
        table.add_row(
            str(view.id),
            Text(_sizes(view).removeprefix("parallelism ")),
            view.kind,
            view.status,
            figures.duration(max(0, now_us - view.started_us)),
            "" if view.ended_us is None else figures.duration(view.ended_us - view.started_us),
            "" if view.groups_moved is None else str(view.groups_moved),
            "" if view.bytes_moved is None else figures.size(view.bytes_moved),
            "/".join(figures.duration(pause) for pause in pauses if pause is not None),
            Text(view.reason),
        )
    return table


def _operator(text: str) -> tuple[str, int]:
    uid, equals, number = text.rpartition("=")
    if not equals or not number.isdigit() or int(number) < 1:
        raise UserError("H006", f'--operator "{text}" is not UID=N', fix="like --operator totals=4; N from 1")
    return uid, int(number)


def _wait(client: RestClient, job: str, view: RescaleView, *, quiet: bool) -> RescaleView:
    clock, shown, number = SystemClock(), "", view.id
    heard, pause = clock.monotonic(), threading.Event()
    while view.status == "pending":
        if view.reason and view.reason != shown and not quiet:
            print(f"{_sizes(view)}: {view.reason}", file=sys.stderr, flush=True)
        shown = view.reason
        pause.wait(_POLL_SECONDS)
        try:
            found = next((each for each in client.rescales(job) if each.id == number), None)
        except RetryableError:
            if clock.monotonic() - heard > _PATIENCE_SECONDS:
                raise
            continue
        heard = clock.monotonic()
        if found is None:
            raise UserError(
                "S063", "the JobManager was started anew before the job had another size", fix="ask for it again"
            )
        view = found
    return view


def _sizes(view: RescaleView) -> str:
    changed = [f"{uid} {n} -> {view.after[uid]}" for uid, n in view.before.items() if view.after.get(uid, n) != n]
    if view.parallelism_before != view.parallelism_after:
        return f"parallelism {view.parallelism_before} -> {view.parallelism_after}"
    return ", ".join(changed) or f"parallelism {view.parallelism_after}"


def _summary(view: RescaleView) -> str:
    took = figures.duration((view.ended_us or view.started_us) - view.started_us)
    facts = [f"{_sizes(view)} in {took}", view.kind]
    if view.pause_us_max is not None:
        facts.append(f"paused {figures.duration(view.pause_us_max)}")
    if view.groups_moved is not None:
        facts.append(f"{view.groups_moved} key groups moved")
    if view.bytes_moved is not None:
        facts.append(figures.size(view.bytes_moved))
    if view.reason:
        facts.append(view.reason)
    return ", ".join(facts)
