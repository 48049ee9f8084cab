"""How a change goes on, and how it ends: done, refused, rolled back."""

from typing import Any, Final

from penstock_operator.deciding.facts import Desired, EngineJob, Problem, Seen
from penstock_operator.deciding.pods import settled_workload
from penstock_operator.deciding.steps import Decision, Step, Workload
from penstock_operator.moments import from_us, moment_of, text_of
from penstock_operator.spec.status import Change, JobRef, Memory, PastChange, Rejected, Revision

PHASES: Final = {
    "Create": "Deploying",
    "Rollout": "Upgrading",
    "Rollback": "RollingBack",
    "Rescale": "Rescaling",
    "Suspend": "Suspending",
    "Resume": "Resuming",
    "Restore": "Restoring",
    "Run": "Starting",
}
CHANGE_CLASSES: Final = {"Create": "create", "Rescale": "rescale", "Rollout": "rollout", "Rollback": "rollout"}


def begin(
    desired: Desired, memory: Memory, seen: Seen, *, kind: str, step: str, origin: str = "", reason: str = ""
) -> Decision:
    """Write down what is about to be done; the next look does it."""
    now = text_of(seen.now)
    job = memory.job
    change = Change(
        id=f"{desired.name}-{desired.uid[:5]}-{memory.serial}-{desired.generation}",
        kind=kind,
        step=step,
        generation=desired.generation,
        revision=desired.revision,
        parallelism=desired.parallelism,
        from_revision=job.revision if job else "",
        from_parallelism=job.parallelism if job else 0,
        origin=origin,
        started_at=now,
        step_at=now,
        reason=reason,
    )
    return Decision(memory=with_change(memory, change), phase=PHASES[kind], waiting="to begin", seconds=0)


def with_change(memory: Memory, change: Change | None) -> Memory:
    """The same memory, with another change under way."""
    return memory.model_copy(update={"change": change})


def wait(
    memory: Memory,
    change: Change,
    workload: Workload | None,
    what: str,
    *steps: Step,
    problem: Problem | None = None,
    stalled: Problem | None = None,
    limited: Problem | None = None,
    seconds: float = 1,
) -> Decision:
    """The same step again, after a while."""
    message = f"waits for {what}" + (f" ({problem.text})" if problem is not None else "")
    change = change.model_copy(update={"message": message[:1000]})
    return Decision(
        memory=with_change(memory, change),
        phase=PHASES[change.kind],
        workload=workload,
        steps=steps,
        waiting=message,
        stalled=stalled,
        scaling_limited=limited,
        seconds=seconds,
    )


def go_on(
    memory: Memory,
    change: Change,
    seen: Seen,
    workload: Workload | None,
    *,
    step: str,
    steps: tuple[Step, ...] = (),
    **updates: Any,
) -> Decision:
    """To another step, right away."""
    change = change.model_copy(update={"step": step, "step_at": text_of(seen.now), "message": "", **updates})
    return Decision(
        memory=with_change(memory, change), phase=PHASES[change.kind], workload=workload, steps=steps, seconds=0
    )


def give_up(memory: Memory, seen: Seen, *, steps: tuple[Step, ...] = ()) -> Decision:
    """Something else is wanted by now, and nothing was done yet."""
    return Decision(
        memory=with_change(memory, None),
        phase="Running",
        workload=settled_workload(memory, seen),
        steps=steps,
        seconds=0,
    )


def retarget(desired: Desired, memory: Memory, change: Change, seen: Seen) -> Decision:
    """The old job has ended, the new one has committed nothing yet: aim at what is wanted now."""
    if desired.suspended:
        reached = memory.model_copy(update={"origin": change.origin})
        return go_on(reached, change, seen, None, step="Draining", kind="Suspend")
    return go_on(
        memory,
        change,
        seen,
        None,
        step="Deploying",
        revision=desired.revision,
        parallelism=desired.parallelism,
        generation=desired.generation,
    )


def target_moved(desired: Desired, change: Change) -> bool:
    """Somebody has edited the job since the change began."""
    if desired.invalid is not None:
        return False
    moved = (desired.revision, desired.parallelism) != (change.revision, change.parallelism)
    return moved or desired.suspended != (change.kind == "Suspend")


def may_roll_back(desired: Desired, memory: Memory, change: Change, seen: Seen) -> bool:
    """There is a revision to go back to, and the user has not forbidden it."""
    return (
        desired.rollback
        and change.kind == "Rollout"
        and change.from_revision != change.revision
        and memory.job is not None
        and memory.job.revision == change.from_revision
        and change.from_revision in seen.slots_per_pod
    )


def done(
    desired: Desired,
    memory: Memory,
    change: Change,
    seen: Seen,
    found: EngineJob,
    workload: Workload | None,
    steps: tuple[Step, ...],
) -> Decision:
    """The new job stands."""
    ref = JobRef(
        id=found.id,
        revision=change.revision,
        generation=change.generation,
        parallelism=change.parallelism,
        origin=change.origin,
    )
    stable = memory.stable
    if found.checkpoints or found.state == "finished":
        stable = Revision(generation=change.generation, revision=change.revision)
    back = change.kind == "Rollback"
    past = past_change(
        change,
        seen,
        to=str(change.parallelism) if change.kind == "Rescale" else change.revision,
        outcome="RolledBack" if back else "Done",
        back_us=found.running_us,
        message=change.reason,
    )
    memory = memory.model_copy(
        update={
            "job": ref,
            "change": None,
            "stable": stable,
            "suspended": None,
            "last_change": past,
            "origin": "",
            "rejected": memory.rejected if back else None,
        }
    )
    return Decision(memory=memory, phase="Running", workload=workload, steps=steps, seconds=1)


def failed(
    desired: Desired, memory: Memory, change: Change, seen: Seen, trouble: Problem, *, steps: tuple[Step, ...] = ()
) -> Decision:
    """The new revision does not start: back to the one before, or stop and say why."""
    if not may_roll_back(desired, memory, change, seen):
        return reject(desired, memory, change, seen, trouble, None, steps=steps)
    assert memory.job is not None
    rejected = _rejected(desired, change, trouble)
    back = change.model_copy(
        update={
            "kind": "Rollback",
            "step": "Deploying",
            "step_at": text_of(seen.now),
            "revision": change.from_revision,
            "parallelism": change.from_parallelism,
            "from_revision": change.revision,
            "from_parallelism": change.parallelism,
            "generation": memory.job.generation,
            "reason": f"{change.revision}: {trouble.text}"[:1000],
        }
    )
    memory = memory.model_copy(update={"change": back, "rejected": rejected})
    return Decision(memory=memory, phase="RollingBack", steps=steps, warning=trouble.text, seconds=0)


def reject(
    desired: Desired,
    memory: Memory,
    change: Change,
    seen: Seen,
    trouble: Problem,
    workload: Workload | None,
    *,
    steps: tuple[Step, ...] = (),
) -> Decision:
    """Leave everything as it is, and say why."""
    past = past_change(change, seen, outcome="Refused", message=trouble.text)
    memory = memory.model_copy(
        update={
            "change": None,
            "last_change": past,
            # A rollback that fails says so in the words of the revision that began it.
            "rejected": memory.rejected if change.kind == "Rollback" else _rejected(desired, change, trouble),
            "origin": change.origin or memory.origin,
            "suspended": None,
        }
    )
    return Decision(
        memory=memory,
        phase="Running" if workload is not None else "Failed",
        workload=workload,
        steps=steps,
        stalled=Problem(reason=trouble.reason, message=trouble.text),
        seconds=1,
    )


def past_change(
    change: Change,
    seen: Seen,
    *,
    change_class: str = "",
    to: str = "",
    outcome: str = "Done",
    back_us: int | None = None,
    message: str = "",
) -> PastChange:
    """For the record, with the time in which rows waited."""
    pause = change.pause_us / 1e6
    if change.stopped_at is not None and outcome != "Refused":
        until = from_us(back_us) if back_us else seen.now
        pause = max(0.0, (until - moment_of(change.stopped_at)).total_seconds())
    scaled = change.kind == "Rescale"
    restarted = change.stopped_at is not None
    return PastChange(
        kind=change.kind,
        change_class=change_class
        or ("restart" if restarted and scaled else CHANGE_CLASSES.get(change.kind, "restart")),
        generation=change.generation,
        from_=str(change.from_parallelism) if scaled else change.from_revision,
        to=to,
        outcome=outcome,
        pause_seconds=round(pause, 3),
        started_at=change.started_at,
        finished_at=text_of(seen.now),
        message=message[:1000],
    )


def _rejected(desired: Desired, change: Change, trouble: Problem) -> Rejected:
    return Rejected(
        generation=change.generation,
        revision=change.revision,
        parallelism=change.parallelism,
        restore=desired.restore,
        reason=trouble.reason,
        message=trouble.text[:2000],
    )
