"""`penstock bootstrap`: history on Spark, as a savepoint that the stream starts from."""

import sys
from datetime import UTC, datetime
from typing import Annotated

import typer

from penstock.cli.building import build_graph
from penstock.cli.on_spark import ConfOption, MasterOption, batch, pairs
from penstock.cli.savepoints import absolute
from penstock.model.errors import UserError


def bootstrap(
    program: Annotated[str, typer.Argument(metavar="PROGRAM", help="`file.py:function` or `module:function`.")],
    until: Annotated[str, typer.Option("--until", metavar="TIME", help="Like 2026-01-31T12:00:00; UTC.")],
    to: Annotated[str, typer.Option("--to", metavar="FOLDER", help="Path or URI of the savepoint.")],
    args: Annotated[
        list[str] | None, typer.Argument(metavar="[-- ARGS]", help="What the program finds in `sys.argv[1:]`.")
    ] = None,
    max_parallelism: Annotated[
        int | None, typer.Option("--max-parallelism", min=1, help="Key groups of state; fixed for its life.")
    ] = None,
    master: MasterOption = None,
    conf: ConfOption = None,
) -> None:
    """Run a program over its history on Spark, and write the state as a savepoint that the stream goes on from.

    Each part of a source is read up to its first row that is later than TIME; the stream begins with that row. What
    the program puts out on the way goes to its sinks.

    Example: `penstock bootstrap prog.py:fn --until 2026-01-31T12:00:00 --to ./history`, then
    `penstock run prog.py:fn --from ./history`
    """
    spark = batch()
    graph = build_graph(program, args=args or (), max_parallelism=max_parallelism)
    uri = absolute(to)
    session = spark.session(master, pairs(conf), name=graph.name)
    for uid, frame in spark.bootstrap(graph, session, until_us=instant_us(until), to=uri).items():
        print(f"{uid}:\n{frame}")
    print(f"go on as a stream: penstock run {program} --from {uri}", file=sys.stderr)


def instant_us(text: str) -> int:
    """A time as people write it, in microseconds since 1970."""
    try:
        time = datetime.fromisoformat(text)
    except ValueError:
        raise UserError("P011", f'--until "{text}" is no time', fix="--until 2026-01-31T12:00:00") from None
    since = (time if time.tzinfo is not None else time.replace(tzinfo=UTC)) - datetime.fromtimestamp(0, UTC)
    return since.days * 86_400_000_000 + since.seconds * 1_000_000 + since.microseconds
