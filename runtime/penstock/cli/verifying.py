"""`penstock verify`: the same program on both engines, and every row compared."""

import sys
import tempfile
from pathlib import Path
from typing import Annotated, Any

import polars as pl
import typer

from penstock.cli.building import build_graph
from penstock.cli.discovery import JsonOption
from penstock.cli.on_spark import ConfOption, MasterOption, batch, pairs
from penstock.cli.tables import print_json
from penstock.graph import JobGraph, as_text
from penstock.local.progress import SilentProgress
from penstock.local.running import run_graph
from penstock.model.errors import FatalJobError, UserError
from penstock.model.ids import Uid
from penstock.model.specs import Sink

SHOWN_ROWS = 20


def verify(
    program: Annotated[str, typer.Argument(metavar="PROGRAM", help="`file.py:function` or `module:function`.")],
    args: Annotated[
        list[str] | None, typer.Argument(metavar="[-- ARGS]", help="What the program finds in `sys.argv[1:]`.")
    ] = None,
    parallelism: Annotated[int, typer.Option("--parallelism", "-p", min=1, help="Of the stream.")] = 1,
    master: MasterOption = None,
    conf: ConfOption = None,
    as_json: JsonOption = False,
) -> None:
    """Run a bounded program as a stream and on Spark, and compare all rows of every sink.

    Nothing is written to where the program writes: rows are collected in a folder of their own. Exit code 1 when
    there is a difference, which is shown as rows with their key group, and the plans of both.

    Example: `penstock verify prog.py:fn`
    """
    spark = batch()
    graph = build_graph(program, parallelism=parallelism, args=args or ())
    with tempfile.TemporaryDirectory(prefix="penstock-verify-") as folder:
        differences = differences_of(spark, graph, Path(folder), master, pairs(conf))
        differ = [each for each in differences if each.count or each.remark]
        if as_json:
            print_json({"sinks": [_as_json(each) for each in differences], "equal": not differ})
        else:
            _show(differences)
            if differ:
                print(f"\n== plan of the stream ==\n{as_text(graph)}")
                print(f"\n== plan of Spark ==\n{spark.explain(graph, master=master, conf=pairs(conf))}")
    sys.stdout.flush()
    raise typer.Exit(1 if differ else 0)


def differences_of(
    batch: Any, graph: JobGraph, folder: Path, master: str | None = None, conf: dict[str, str] | None = None
) -> list[Any]:
    """What each sink has on one engine only."""
    if graph.program is None:
        raise UserError("P081", "the graph does not hold the program", fix="build it anew")
    shapes = batch.shapes(graph.program)
    on_spark = batch.run(batch.collecting(graph, _folders(graph, folder / "spark")), master=master, conf=conf)
    streamed = batch.collecting(graph, _folders(graph, folder / "stream"))
    result = run_graph(streamed, progress=SilentProgress(sys.stderr), state_dir=folder / "state")
    if result.job.state != "finished":
        failures = result.job.failures
        raise FatalJobError(
            failures[-1].code if failures else "C000", failures[-1].reason if failures else result.job.reason
        )
    made = []
    for shape in shapes:
        rows, other = result.frames[shape.uid], on_spark.frames[shape.uid]
        if shape.single_changes:
            made.append(
                batch.Difference(
                    shape.uid,
                    rows.height,
                    rows.clear(),
                    rows.clear(),
                    remark="not compared: operators behind as_changelog() see every change of a stream, and "
                    "of a batch only what it comes to",
                )
            )
        else:
            made.append(batch.compare(shape, rows, other, graph.max_parallelism))
    return made


def _folders(graph: JobGraph, folder: Path) -> dict[Uid, str]:
    assert graph.program is not None
    sinks = [node.operator.uid for node in graph.program.nodes if isinstance(node.operator.spec, Sink)]
    return {uid: str(folder / str(number)) for number, uid in enumerate(sinks)}


def _show(differences: list[Any]) -> None:
    for each in differences:
        if each.remark:
            print(f"{each.uid}: {each.remark}")
        elif not each.count:
            print(f"{each.uid}: {each.rows} rows, the same on both engines")
        else:
            print(f"{each.uid}: {each.count} rows differ, of {each.rows}")
            for name, rows in (("the stream", each.only_on_stream), ("Spark", each.only_on_spark)):
                if rows.height:
                    print(f"only on {name}: {rows.height} rows")
                    with pl.Config(tbl_rows=SHOWN_ROWS, tbl_cols=-1, tbl_hide_dataframe_shape=True):
                        print(rows.head(SHOWN_ROWS))


def _as_json(each: Any) -> dict[str, Any]:
    return {
        "uid": each.uid,
        "rows": each.rows,
        "only_on_stream": each.only_on_stream.head(SHOWN_ROWS).rows(named=True),
        "only_on_spark": each.only_on_spark.head(SHOWN_ROWS).rows(named=True),
        "differ": each.count,
        "remark": each.remark,
    }
