"""A database as it was at a barrier, until its files are linked.

Owns: that it is written and linked once, by whichever thread comes first. That is the background thread, unless the
slot's own has to make room: rows that changed since the barrier may be written only after those of the barrier.
"""

import threading
from collections.abc import Callable, Sequence

from penstock.state.rocks import Database, LinkedFiles
from penstock.state.stored import StoredView


class FrozenDatabase:
    """Holds the views of all dictionaries in the database, and lets go of them when the files are linked."""

    def __init__(self, database: Database, views: Sequence[StoredView], describe: Callable[[], None]) -> None:
        """`describe` writes what the database says about its rows."""
        self._database, self._views, self._describe = database, views, describe
        self._lock = threading.Lock()
        self._linked: LinkedFiles | Exception | None = None

    def link(self) -> LinkedFiles:
        """Write what was frozen and link the files; the second time, what came of the first."""
        with self._lock:
            if self._linked is None:
                try:
                    for view in self._views:
                        view.write()
                    self._describe()
                    self._linked = self._database.link()
                except Exception as error:
                    self._linked = error
                for view in self._views:
                    view.release()
            if isinstance(self._linked, Exception):
                raise self._linked
            return self._linked
