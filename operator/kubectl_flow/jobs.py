"""A FlowJob as the API server holds it, and waiting for what becomes of it."""

import sys
import threading
from collections.abc import Callable, Mapping
from typing import Any, Final

from kubectl_flow.kubectl import Kubectl, Object
from penstock.model.clocks import SystemClock
from penstock.model.errors import RetryableError, UserError
from penstock_operator.moments import elapsed, utc_now
from penstock_operator.spec.status import FlowJobStatus

_POLL_SECONDS: Final = 1.0


def status_of(job: Mapping[str, Any]) -> FlowJobStatus:
    """What the controller says of it."""
    return FlowJobStatus.model_validate(job.get("status") or {})


def condition(status: FlowJobStatus, kind: str) -> tuple[str, str, str]:
    """Status, reason and message."""
    found = next((each for each in status.conditions if each.type == kind), None)
    return (found.status, found.reason, found.message) if found is not None else ("Unknown", "", "")


def ago(time: str | None) -> str:
    """How long it is since then, in words of people: 5 s, 12 min, 3 h, 4 d."""
    if not time:
        return "?"
    seconds = max(0.0, elapsed(time, utc_now()))
    for limit, divisor, unit in ((120, 1, "s"), (7200, 60, "min"), (172_800, 3600, "h")):
        if seconds < limit:
            return f"{seconds / divisor:.0f} {unit}"
    return f"{seconds / 86_400:.0f} d"


def wait_for(kubectl: Kubectl, name: str, what: str, done: Callable[[Object], bool], *, seconds: float) -> Object:
    """A FlowJob that `done` likes; what it waits for meanwhile goes to standard error, each thing once."""
    clock, pause, shown = SystemClock(), threading.Event(), ""
    deadline = clock.monotonic() + seconds
    while True:
        try:
            job = kubectl.job(name)
        except RetryableError:
            if clock.monotonic() > deadline:
                raise
            pause.wait(_POLL_SECONDS)
            continue
        if done(job):
            return job
        status = status_of(job)
        line = f"{status.phase or 'new'}: {status.change.message}" if status.change and status.change.message else ""
        if line and line != shown:
            print(line, file=sys.stderr, flush=True)
            shown = line
        if clock.monotonic() > deadline:
            fix = f"it goes on by itself; see kubectl flow status {name}"
            raise UserError("K007", f"not within {seconds:.0f} s: {what}", where=name, fix=fix)
        pause.wait(_POLL_SECONDS)


def settled(job: Object) -> bool:
    """The controller has nothing left to do for the spec as it is."""
    status = status_of(job)
    current = status.observed_generation == job["metadata"]["generation"]
    return current and status.change is None and condition(status, "Reconciling")[0] == "False"


def wait_settled(kubectl: Kubectl, name: str, *, seconds: float) -> FlowJobStatus:
    """The status that a change has ended with; an error when it was refused or rolled back."""
    status = status_of(wait_for(kubectl, name, "the change is done", settled, seconds=seconds))
    truth, reason, message = condition(status, "Stalled")
    if truth == "True":
        raise UserError("K008", f"{reason}: {message}", where=name, fix=f"kubectl flow status {name}")
    return status


def change_line(status: FlowJobStatus) -> str:
    """The last change, and what it cost."""
    past = status.last_change
    if past is None:
        return "nothing has changed"
    way = f"{past.from_ or 'nothing'} -> {past.to or 'nothing'}"
    outcome = "" if past.outcome == "Done" else f", {past.outcome}"
    words = f"{past.kind} ({past.change_class}) {way}{outcome}, rows waited {past.pause_seconds:.1f} s"
    return f"{words}, {ago(past.finished_at)} ago" + (f": {past.message}" if past.message else "")
