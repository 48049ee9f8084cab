"""Events with stable reasons, from what has changed between two statuses. No I/O."""

from dataclasses import dataclass

from penstock_operator.spec.status import Failure, FlowJobStatus


@dataclass(frozen=True, slots=True)
class Happened:
    """For `kubectl describe`."""

    type: str
    """Normal or Warning."""
    reason: str
    message: str


def happened(old: FlowJobStatus, new: FlowJobStatus) -> list[Happened]:
    """In the order in which people would tell it."""
    found: list[Happened] = []
    if new.change is not None and (old.change is None or old.change.kind != new.change.kind):
        target = f"parallelism {new.change.parallelism}" if new.change.kind == "Rescale" else new.change.revision
        why = f": {new.change.reason}" if new.change.reason else ""
        rolled_back = new.change.kind == "Rollback"
        kind = "Warning" if rolled_back else "Normal"
        found.append(Happened(kind, f"{new.change.kind}Started", f"{new.change.kind} to {target}{why}"))
    past = new.last_change
    if past is not None and past != old.last_change:
        words = f"{past.kind} ({past.change_class}) {past.from_ or 'nothing'} -> {past.to or 'nothing'}"
        if past.outcome == "Done":
            found.append(
                Happened("Normal", f"{past.kind}Done", f"{words}; rows waited for {past.pause_seconds:.1f} s")
            )
        else:
            found.append(Happened("Warning", f"{past.kind}{past.outcome}", f"{words}: {past.message}"))
    if new.last_savepoint is not None and new.last_savepoint != old.last_savepoint:
        found.append(Happened("Normal", "SavepointTaken", new.last_savepoint.location))
    failure = new.last_failure
    if failure is not None and (old.last_failure is None or _told_by(old.last_failure) != _told_by(failure)):
        place = f"{failure.component} {failure.pod}: " if failure.pod else ""
        found.append(Happened("Warning", failure.reason, f"{place}{failure.message}. {failure.fix}"[:1000]))
    if old.engine is not None and new.engine is not None and new.engine.restarts > old.engine.restarts:
        found.append(Happened("Warning", "JobRestarted", f"restart {new.engine.restarts}: {new.engine.reason}"))
    return found


def _told_by(failure: Failure) -> tuple[str, str, str]:
    """What makes it another one: what is said of a pod changes with each try, what is said of a spec does not."""
    return failure.pod, failure.reason, "" if failure.pod else failure.message
