"""Where in the user's program something was written, so that every message can point at it.

The place is the innermost stack frame outside this package, as `file:line`; files below the working directory
are named relative to it.
"""

import os
import sys
import traceback
from pathlib import Path
from types import TracebackType

_PACKAGE = f"{Path(__file__).resolve().parent.parent}{os.sep}"


def caller() -> str:
    """`file:line` of the user's code that is calling into Penstock right now."""
    file, line = _calling_frame()
    return render(file, line)


def caller_file() -> Path | None:
    """The user's file that is calling into Penstock; None when it is typed into a shell."""
    path = Path(_calling_frame()[0])
    return path if path.is_file() else None


def render(file: str, line: int) -> str:
    """A place as people read it."""
    path = Path(file)
    if path.is_absolute() and path.is_relative_to(Path.cwd()):
        return f"{path.relative_to(Path.cwd())}:{line}"
    return f"{file}:{line}"


def innermost(trace: TracebackType | None, *, folder: Path | None = None) -> str | None:
    """The last place in a traceback that is the user's own: in the program's folder, if it is there at all."""
    frames = [frame for frame in traceback.extract_tb(trace) if _is_users(frame.filename)]
    own = [frame for frame in frames if folder is not None and _is_below(Path(frame.filename), folder)]
    for frame in reversed(own or frames):
        return render(frame.filename, frame.lineno or 0)
    return None


def _calling_frame() -> tuple[str, int]:
    frame = sys._getframe(1)
    while frame.f_back is not None and not _is_users(frame.f_code.co_filename):
        frame = frame.f_back
    return frame.f_code.co_filename, frame.f_lineno


def _is_below(path: Path, folder: Path) -> bool:
    return path.is_relative_to(folder) and "site-packages" not in path.parts


def _is_users(file: str) -> bool:
    return not file.startswith((_PACKAGE, "<frozen"))
