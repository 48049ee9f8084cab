"""Builds a program's graph in a process of its own: neither the CLI nor a JobManager imports user code."""

import subprocess
import sys
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path

import msgspec

from penstock.graph import JobGraph
from penstock.model.errors import UserError


class BuildRequest(msgspec.Struct, frozen=True, kw_only=True):
    """What `penstock.cli.build` is asked to do."""

    program: str
    parallelism: int
    checkpoint_interval: str | None
    restarts: int | None
    max_parallelism: int | None = None
    settings: dict[str, str] = {}
    args: tuple[str, ...] = ()
    """What the program finds in `sys.argv[1:]`."""
    output: str
    """Where the answer goes: the user's program may print."""


class BuildProblem(msgspec.Struct, frozen=True, kw_only=True):
    """A UserError on its way between two processes."""

    code: str
    what: str
    where: str | None
    fix: str | None


class BuildAnswer(msgspec.Struct, frozen=True, kw_only=True):
    """One of the two."""

    graph: JobGraph | None = None
    problem: BuildProblem | None = None


def build_graph(
    program: str,
    *,
    parallelism: int = 1,
    checkpoint_interval: str | None = None,
    restarts: int | None = None,
    max_parallelism: int | None = None,
    settings: Mapping[str, str] | None = None,
    args: Sequence[str] = (),
) -> JobGraph:
    """The graph of `file.py:function`; UserError with the user's own file and line."""
    with tempfile.TemporaryDirectory(prefix="penstock-build-") as folder:
        output = Path(folder) / "answer.json"
        request = BuildRequest(
            program=program,
            parallelism=parallelism,
            checkpoint_interval=checkpoint_interval,
            restarts=restarts,
            max_parallelism=max_parallelism,
            settings=dict(settings or {}),
            args=tuple(args),
            output=str(output),
        )
        command = [sys.executable, "-m", "penstock.cli.build", msgspec.json.encode(request).decode()]
        # What the program prints while it is built is not the output of this command.
        finished = subprocess.run(command, stdout=sys.stderr.fileno() if _has_file(sys.stderr) else None, check=False)
        if not output.exists():
            raise UserError(
                "P001",
                f"{program} ended the process that built it (exit code {finished.returncode})",
                fix='put what the script does by itself under if __name__ == "__main__":',
            )
        answer = msgspec.json.decode(output.read_bytes(), type=BuildAnswer)
    if answer.graph is not None:
        return answer.graph
    assert answer.problem is not None
    problem = answer.problem
    raise UserError(problem.code, problem.what, where=problem.where, fix=problem.fix)


def _has_file(stream: object) -> bool:
    try:
        stream.fileno()  # type: ignore[attr-defined]
    except (OSError, AttributeError):
        return False
    return True
