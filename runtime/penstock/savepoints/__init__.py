"""Savepoints: the state of a job as tables that anybody can read, write and go on from.

writing      a subtask's part of one
manifest     `manifest.json`
completing   the last step of taking one
shapes       what the state of an operator depends on
evolution    how the values of a state may change
checks       whether a job can go on from one
restoring    from one to the first checkpoint of a job
frames       one as tables
building     one from tables
catalogue    find, verify, compare, copy, remove
"""

from penstock.savepoints.building import Builder, build
from penstock.savepoints.checks import RestoreOptions
from penstock.savepoints.frames import Savepoint, open  # noqa: A004 - users write penstock.savepoints.open

__all__ = ["Builder", "RestoreOptions", "Savepoint", "build", "open"]
