"""`--engine spark`, and `penstock explain`: the same program over bounded input, by PySpark."""

import importlib
import importlib.util
import sys
from typing import Annotated, Any

import typer

from penstock.cli.building import build_graph
from penstock.cli.named_values import named_values
from penstock.graph import JobGraph, as_text
from penstock.model.errors import UserError

ENGINES = ("stream", "spark")

EngineOption = Annotated[
    str, typer.Option("--engine", metavar="stream|spark", help="Who runs it; spark: a bounded program, as a batch.")
]
MasterOption = Annotated[
    str | None,
    typer.Option("--master", metavar="URL", help="With --engine spark: where Spark runs, else local[*]."),
]
ConfOption = Annotated[
    list[str] | None, typer.Option("--conf", metavar="NAME=VALUE", help="With --engine spark: a setting of Spark.")
]


def explain(
    program: Annotated[str, typer.Argument(metavar="PROGRAM", help="`file.py:function` or `module:function`.")],
    engine: EngineOption = "stream",
    master: MasterOption = None,
    conf: ConfOption = None,
    args: Annotated[
        list[str] | None, typer.Argument(metavar="[-- ARGS]", help="What the program finds in `sys.argv[1:]`.")
    ] = None,
) -> None:
    """Print how an engine would run a program. Nothing runs.

    Examples: `penstock explain prog.py:fn`, `penstock explain prog.py:fn --engine spark`
    """
    graph = build_graph(program, args=args or ())
    if is_spark(engine, master, conf):
        print(batch().explain(graph, master=master, conf=pairs(conf)))
    else:
        print(as_text(graph))


def run_on_spark(graph: JobGraph, master: str | None, conf: list[str] | None) -> Any:
    """Run it, and show what collect sinks have."""
    result = batch().run(graph, master=master, conf=pairs(conf))
    print(f"{graph.name} finished on Spark after {result.seconds:.1f} s", file=sys.stderr)
    return result


def is_spark(engine: str, master: str | None, conf: list[str] | None) -> bool:
    """Whether Spark is asked for."""
    if engine not in ENGINES:
        raise UserError("P018", f'--engine "{engine}" is not known', fix="--engine stream, or --engine spark")
    if engine != "spark" and (master is not None or conf):
        raise UserError("P018", "--master and --conf are for Spark", fix="add --engine spark")
    return engine == "spark"


def batch() -> Any:
    """The package that needs PySpark; says what to install when that is missing."""
    if importlib.util.find_spec("pyspark") is None:
        raise UserError(
            "P080",
            "PySpark is not installed, and --engine spark needs it",
            fix="pip install 'penstock[spark]', and Java 17 or newer",
        )
    return importlib.import_module("penstock.batch")


def pairs(conf: list[str] | None) -> dict[str, str]:
    """Settings of Spark as they were given."""
    return named_values("--conf", conf, example="spark.sql.shuffle.partitions=64")
