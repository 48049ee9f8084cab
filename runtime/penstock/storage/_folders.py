"""Folders that survive a crash: a new name is durable only when the folder that holds it is flushed."""

import contextlib
import itertools
import os
from pathlib import Path


def make_folders(folder: Path) -> None:
    """The folder and all above it, durably."""
    missing = list(itertools.takewhile(lambda parent: not parent.exists(), (folder, *folder.parents)))
    for new in reversed(missing):
        # Not mkdir(exist_ok=True): when somebody removes the folder between its two looks it raises FileExistsError,
        # and a store would take that for an object that is there.
        with contextlib.suppress(FileExistsError):
            new.mkdir()
        flush_folder(new.parent)


def flush_folder(folder: Path) -> None:
    """Make the names in a folder durable."""
    descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
