"""`python -m penstock.cli.build REQUEST`: imports the user's program, writes its job graph, ends."""

import os
import sys
from pathlib import Path

import msgspec

from penstock.api.flows import DEFAULT_MAX_PARALLELISM
from penstock.api.programs import build
from penstock.cli.building import BuildAnswer, BuildProblem, BuildRequest
from penstock.local.running import with_settings
from penstock.model.errors import UserError


def answer(request: BuildRequest) -> BuildAnswer:
    """The graph, or what is wrong with the program."""
    try:
        graph = build(
            request.program,
            parallelism=request.parallelism,
            max_parallelism=request.max_parallelism or DEFAULT_MAX_PARALLELISM,
        )
        graph = with_settings(
            graph,
            checkpoint_interval=request.checkpoint_interval,
            restarts=request.restarts,
            values=request.settings,
        )
    except UserError as error:
        return BuildAnswer(problem=BuildProblem(code=error.code, what=error.what, where=error.where, fix=error.fix))
    return BuildAnswer(graph=graph)


if __name__ == "__main__":
    # Modules of the directory that the command was given in can be imported, as with `python file.py`.
    sys.path.insert(0, str(Path.cwd()))
    request = msgspec.json.decode(sys.argv[1], type=BuildRequest)
    sys.argv = [request.program, *request.args]
    Path(request.output).write_bytes(msgspec.json.encode(answer(request)))
    sys.stdout.flush()
    # Polars and pyarrow may abort while an interpreter that has used both is torn down.
    os._exit(0)
