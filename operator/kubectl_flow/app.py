"""All commands, and how their errors end."""

import sys

import typer

from kubectl_flow import changes, importing, looking, planning, reporting, status
from penstock.model.errors import PenstockError

EXIT_USER_ERROR = 2

app = typer.Typer(
    name="kubectl flow",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    rich_markup_mode="markdown",
    context_settings={"help_option_names": ["-h", "--help"]},
    help="Penstock on Kubernetes: look at FlowJobs, change them, and keep their savepoints.",
    epilog="Start here: `kubectl flow status`",
)
savepoints_app = typer.Typer(no_args_is_help=True, help="Look after the catalogue of savepoints.")
app.command("status", rich_help_panel="Look")(status.status)
app.command("plan", rich_help_panel="Look")(planning.plan)
app.command("logs", rich_help_panel="Look", context_settings={"ignore_unknown_options": True})(looking.logs)
app.command("events", rich_help_panel="Look")(looking.events)
app.command("report", rich_help_panel="Look")(reporting.report)
app.command("savepoint", rich_help_panel="Change")(changes.savepoint)
app.command("rescale", rich_help_panel="Change")(changes.rescale)
app.command("suspend", rich_help_panel="Change")(changes.suspend)
app.command("resume", rich_help_panel="Change")(changes.resume)
app.command("rollback", rich_help_panel="Change")(changes.rollback)
savepoints_app.command("import")(importing.import_savepoints)
app.add_typer(savepoints_app, name="savepoints", rich_help_panel="Change")


@app.callback()
def _root() -> None:
    pass


def run_command() -> None:
    """Errors that are raised on purpose are shown as they are, without a traceback."""
    try:
        app()
    except PenstockError as error:
        print(error.render(), file=sys.stderr)
        sys.exit(EXIT_USER_ERROR)
