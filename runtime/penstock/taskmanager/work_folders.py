"""Folders of slot processes on the disk of a TaskManager's machine.

A slot's files lie in one folder, named by its process. The process is mostly killed, so the TaskManager removes the
folder after it; what a killed TaskManager leaves is removed by the next one.
"""

import os
import shutil
import tempfile
from pathlib import Path

_PREFIX = "penstock-slot-"


def work_folder(pid: int) -> Path:
    """The folder of a slot's process, below TMPDIR."""
    return Path(tempfile.gettempdir()) / f"{_PREFIX}{pid}"


def remove_work_folder(pid: int) -> None:
    """The process has ended."""
    shutil.rmtree(work_folder(pid), ignore_errors=True)


def remove_abandoned_folders() -> None:
    """Folders of processes that are gone, and that nobody cleaned up after."""
    for folder in Path(tempfile.gettempdir()).glob(f"{_PREFIX}*"):
        pid = folder.name.removeprefix(_PREFIX)
        if pid.isdigit() and not _is_alive(int(pid)):
            shutil.rmtree(folder, ignore_errors=True)


def _is_alive(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    except PermissionError:
        return True
    return True
