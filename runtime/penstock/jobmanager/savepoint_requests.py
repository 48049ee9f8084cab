"""Which savepoints people have asked for, and what became of each. No I/O.

A savepoint that is interrupted by a restart of the job is taken again afterwards, into the same folder; one that fails
by itself has failed, and the job goes on.
"""

from typing import Final

import msgspec

from penstock.checkpoint.coordinator import Pending
from penstock.jobmanager.timing import Moment
from penstock.model.elements import BarrierKind
from penstock.model.handles import Manifest
from penstock.model.views import SavepointView

HISTORY: Final = 50
PENDING, COMPLETED, FAILED = "pending", "completed", "failed"


class Savepoints:
    """Of one job, the oldest first."""

    def __init__(self) -> None:
        self._views: dict[str, SavepointView] = {}

    def request(self, uri: str, at: Moment, *, kind: BarrierKind) -> None:
        """One more. Asked for again, it stays what it is."""
        self._views.setdefault(uri, SavepointView(uri=uri, kind=kind.value, status=PENDING, requested_us=at.now_us))
        while len(self._views) > HISTORY:
            del self._views[next(iter(self._views))]

    def wanted(self, kind: BarrierKind) -> str:
        """The next one of that kind; empty: none."""
        return next((v.uri for v in self._views.values() if v.status == PENDING and v.kind == kind.value), "")

    def written(self, uri: str, size: int, sha256: str) -> None:
        """Its tables have so many bytes, its manifest this hash."""
        self._views[uri] = msgspec.structs.replace(self._views[uri], size=size, sha256=sha256)

    def completed(self, manifest: Manifest, at: Moment) -> None:
        """A checkpoint is in the journal; it may be one of these."""
        if view := self._views.get(manifest.savepoint):
            done = msgspec.structs.replace(view, checkpoint=manifest.checkpoint)
            self._views[view.uri] = _ended(done, COMPLETED, at)

    def failed(self, uri: str, reason: str, at: Moment) -> None:
        """It cannot be written."""
        if view := self._views.get(uri):
            self._views[uri] = _ended(msgspec.structs.replace(view, reason=reason), FAILED, at)

    def give_up(self, reason: str, at: Moment) -> None:
        """The job ends: what is pending never comes."""
        for uri in [view.uri for view in self._views.values() if view.status == PENDING]:
            self.failed(uri, reason, at)

    def views(self, pending: Pending | None) -> list[SavepointView]:
        """All of them, with how far the one is that is under way."""
        views = []
        for view in self._views.values():
            if pending is not None and view.uri == pending.barrier.savepoint and view.status == PENDING:
                tables = [table for handle in pending.handles.values() for table in handle.tables]
                view = msgspec.structs.replace(
                    view,
                    checkpoint=pending.barrier.checkpoint,
                    size=sum(table.size for table in tables),
                    acknowledged=len(pending.handles),
                    subtasks=len(pending.handles) + len(pending.waiting),
                )
            views.append(view)
        return views


def _ended(view: SavepointView, status: str, at: Moment) -> SavepointView:
    return msgspec.structs.replace(view, status=status, duration_us=max(0, at.now_us - view.requested_us))
