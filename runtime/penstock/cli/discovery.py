"""Which JobManager a command talks to."""

import os
from typing import Annotated

import typer

from penstock.jobmanager.state_dir import StateDir
from penstock.model.errors import UserError
from penstock.rpc import RestClient

DEFAULT_URL = "http://127.0.0.1:8081"

JobArgument = Annotated[str, typer.Argument(metavar="JOB", help="Id of the job, as `penstock status` shows it.")]
JobManagerOption = Annotated[
    str | None,
    typer.Option(
        "--jobmanager",
        metavar="URL",
        help="REST address of the JobManager, or of several with commas between. "
        f"Default: $PENSTOCK_JOBMANAGER, else {DEFAULT_URL}.",
    ),
]
StateDirOption = Annotated[
    str | None,
    typer.Option("--state-dir", metavar="DIR|URI", help="Find the JobManager that works on this state directory."),
]
JsonOption = Annotated[bool, typer.Option("--json", help="Print JSON, for programs.")]


def find_jobmanager(url: str | None, state_dir: str | None = None) -> RestClient:
    """By URL, else by state directory, else by environment, else the default."""
    if url is None and state_dir is not None:
        addresses = StateDir(state_dir).addresses()
        if addresses is None:
            raise UserError(
                "C002",
                f"no JobManager works on {state_dir}",
                fix=f"penstock jobmanager --state-dir {state_dir}, or penstock run ... --state-dir {state_dir}",
            )
        url = addresses.rest
    return RestClient(url or os.environ.get("PENSTOCK_JOBMANAGER") or DEFAULT_URL)
