"""All commands, and how their errors end."""

import importlib.metadata
import sys
from typing import Annotated

import typer

from penstock.cli import (
    bootstrapping,
    commands,
    garbage,
    graphs,
    on_spark,
    processes,
    rescaling,
    running,
    savepoints,
    verifying,
)
from penstock.model.errors import PenstockError

EXIT_FAILED = 1
EXIT_USER_ERROR = 2

app = typer.Typer(
    name="penstock",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    rich_markup_mode="markdown",
    context_settings={"help_option_names": ["-h", "--help"]},
    help="Stream and batch processing in Python: exactly-once, event time, Arrow batches.",
    epilog="Start here: `penstock run examples/word_count.py:word_count`",
)
app.command("run", rich_help_panel="Programs")(running.run)
app.command("graph", rich_help_panel="Programs")(graphs.graph)
app.command("explain", rich_help_panel="Programs")(on_spark.explain)
app.command("bootstrap", rich_help_panel="Programs")(bootstrapping.bootstrap)
app.command("verify", rich_help_panel="Programs")(verifying.verify)
app.command("restore-check", rich_help_panel="Programs")(savepoints.restore_check)
app.command("status", rich_help_panel="Jobs")(commands.status)
app.command("checkpoints", rich_help_panel="Jobs")(commands.checkpoints)
app.command("savepoint", rich_help_panel="Jobs")(savepoints.savepoint)
app.command("rescale", rich_help_panel="Jobs")(rescaling.rescale)
app.command("rescales", rich_help_panel="Jobs")(rescaling.rescales)
app.command("stop", rich_help_panel="Jobs")(commands.stop)
app.command("cancel", rich_help_panel="Jobs")(commands.cancel)
app.add_typer(savepoints.savepoints_app, name="savepoints", rich_help_panel="Savepoints")
app.add_typer(savepoints.state_app, name="state", rich_help_panel="Savepoints")
app.command("gc", rich_help_panel="Savepoints")(garbage.gc)
app.command("jobmanager", rich_help_panel="Processes")(processes.jobmanager)
app.command("taskmanager", rich_help_panel="Processes")(processes.taskmanager)


def _print_version(wanted: bool) -> None:
    if wanted:
        print(f"penstock {importlib.metadata.version('penstock')}")
        raise typer.Exit


@app.callback()
def _root(
    version: Annotated[
        bool, typer.Option("--version", callback=_print_version, is_eager=True, help="Show the version and exit.")
    ] = False,
) -> None:
    pass


def run_command() -> None:
    """Errors that Penstock raises on purpose are shown as they are, without a traceback."""
    try:
        app()
    except PenstockError as error:
        print(error.render(), file=sys.stderr)
        sys.exit(EXIT_USER_ERROR)
