"""`penstock gc`: remove what nobody needs any more."""

import sys
from collections import Counter
from typing import Annotated

import typer
from rich.text import Text

from penstock.cli.discovery import JsonOption
from penstock.cli.tables import console, new_table, print_json
from penstock.garbage import Garbage, Rules, find_all
from penstock.jobmanager.state_dir import StateDir
from penstock.local import figures
from penstock.model.clocks import SystemClock
from penstock.model.durations import parse_duration
from penstock.model.errors import PenstockError, UserError
from penstock.savepoints.manifest import open_savepoint

_SHOWN = 200
"""Lines; a program asks for JSON."""


def gc(
    state_dir: Annotated[str, typer.Option("--state-dir", metavar="DIR|URI", help="Whose garbage: jobs, savepoints.")],
    dry_run: Annotated[bool, typer.Option("--dry-run", "-n", help="Say what would go, and remove nothing.")] = False,
    grace: Annotated[
        str, typer.Option("--grace", metavar="DURATION", help="What nobody names stays for so long.")
    ] = "1h",
    savepoints: Annotated[
        list[str] | None,
        typer.Option("--savepoints", metavar="FOLDER", help="Another place where savepoints lie; may be repeated."),
    ] = None,
    ended: Annotated[
        str | None,
        typer.Option("--ended", metavar="DURATION", help="Jobs that ended longer ago go, with their checkpoints."),
    ] = None,
    keep_savepoints: Annotated[
        int | None,
        typer.Option("--keep-savepoints", min=0, metavar="N", help="Of each job's name the newest N stay."),
    ] = None,
    as_json: JsonOption = False,
) -> None:
    """Remove what no checkpoint and no savepoint names: left behind by processes that died, or a store that was away.

    Jobs may run meanwhile, or not. What a checkpoint or savepoint under way has written stays, and so does whatever is
    younger than the grace period.

    Examples: `penstock gc --state-dir s3://lake/penstock --dry-run`,
    `penstock gc --state-dir ./state --ended 30d --keep-savepoints 5`
    """
    place = StateDir(state_dir)
    if place.folder is not None and not place.folder.is_dir():
        raise UserError("C001", f"there is no state directory {state_dir}", fix="name the one that jobs run on")
    rules = Rules(
        grace_us=parse_duration(grace, what="--grace"),
        ended_us=None if ended is None else parse_duration(ended, what="--ended"),
        keep_savepoints=keep_savepoints,
    )
    # All that goes is known before anything goes: what is found wrong on the way leaves all as it is.
    places = [open_savepoint(folder) for folder in savepoints or ()]
    finds = list(find_all(place, rules, SystemClock().now_us(), places=places))
    if dry_run:
        items = [item for find in finds for item in find.items]
        print_json(items) if as_json else _show(items, "would go")
        return
    gone, failures = list[Garbage](), list[PenstockError]()
    for find in finds:
        try:
            count = find.remove()
        except PenstockError as error:
            failures.append(error)
        else:
            gone += find.items[:count]
    print_json(gone) if as_json else _show(gone, "are gone")
    if failures:
        print(f"{len(failures)} of {len(finds)} finds could not be removed, the first one:", file=sys.stderr)
        raise failures[0]


def _show(items: list[Garbage], what: str) -> None:
    if not items:
        print("no garbage")
        return
    table = new_table("what", "size", "age", "why", "where")
    for item in items[:_SHOWN]:
        size = figures.size(item.size) if item.size else ""
        table.add_row(item.kind, size, figures.duration(item.age_us), item.why, Text(item.where))
    shown = console()
    shown.print(table)
    if len(items) > _SHOWN:
        shown.print(f"and {len(items) - _SHOWN} more: --json names them all", highlight=False)
    kinds = Counter(item.kind for item in items)
    total = figures.size(sum(item.size for item in items))
    counted = ", ".join(f"{count} of kind {kind}" for kind, count in kinds.items())
    shown.print(f"{len(items)} objects {what}, {total}: {counted}", highlight=False)
