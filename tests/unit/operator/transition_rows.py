"""What rows of the transition table are made of, and what must hold for each."""

import hashlib
from collections.abc import Callable
from dataclasses import dataclass, replace
from datetime import UTC, datetime, timedelta
from typing import Any

from penstock_operator.deciding.decide import decide
from penstock_operator.deciding.facts import (
    Desired,
    Engine,
    EngineJob,
    EngineRescale,
    EngineSavepoint,
    Pod,
    Problem,
    Run,
    Seen,
)
from penstock_operator.deciding.steps import (
    CancelJob,
    Decision,
    DeletePods,
    RemoveFinalizer,
    Rescale,
    StopJob,
    Submit,
    TakeSavepoint,
)
from penstock_operator.spec.status import Change, JobRef, Memory

NOW = datetime(2026, 1, 1, 12, tzinfo=UTC)
LONG_AGO = "2026-01-01T11:00:00Z"
JUST_NOW = "2026-01-01T12:00:00Z"
RAN = JobRef(id="orders-abcde-1", revision="r1", generation=1, parallelism=1)
IMAGE = Problem(
    reason="ImagePullBackOff", message="no such image", component="taskmanager", pod="orders-taskmanager-0"
)


def remembered(**more: Any) -> Memory:
    return Memory(serial=1, job=RAN).model_copy(update=more)


def changing(kind: str, step: str, *, began: str = JUST_NOW, job: JobRef | None = RAN, **more: Any) -> Memory:
    """With a change under way; `memory_...`: of the memory around it."""
    outer = {key.removeprefix("memory_"): more.pop(key) for key in list(more) if key.startswith("memory_")}
    fields = {"revision": "r1", "parallelism": 1, "from_revision": "r1", "from_parallelism": 1, **more}
    change = Change(id="c", kind=kind, step=step, generation=2, started_at=began, step_at=began, **fields)
    return Memory(serial=1, job=job, change=change).model_copy(update=outer)


def pods(*, taskmanagers: int = 1, revision: str = "r1", ready: bool = True, problem: Problem | None = None):
    def pod(component: str, number: int) -> Pod:
        found = problem if component == "taskmanager" else None
        name = f"orders-{component}-{number}"
        return Pod(name=name, component=component, revision=revision, ready=ready and not found, problem=found)

    return (pod("jobmanager", 0), *(pod("taskmanager", number) for number in range(taskmanagers)))


def engine(state: str = "running", *, serial: int = 1, slots: int = 1, **more: Any) -> Engine:
    parts = {key: more.pop(key) for key in ("savepoints", "rescales", "busy_pods") if key in more}
    job = EngineJob(id=f"orders-abcde-{serial}", state=state, **{"parallelism": 1, "checkpoints": 1, **more})
    return Engine(jobs=(job,), slots=slots, **parts)


def saved(name: str, status: str) -> tuple[EngineSavepoint, ...]:
    return (EngineSavepoint(name=name, uri=f"s3://b/{name}", status=status, reason="the store is away"),)


def runs_of_check(state: str, *, removed: bool = True) -> dict[str, Run]:
    """The check of revision r2 has ended, and its savepoint `c-check` is removed, or not yet."""
    runs = [Run(name="check-1-r2", state=state, message="S004" if state == "failed" else "")]
    if removed:
        runs.append(Run(name=f"rm-{hashlib.sha256(b's3://b/c-check').hexdigest()[:8]}", state="active"))
    return {run.name: run for run in runs}


def rescaled(status: str, after: int = 3) -> tuple[EngineRescale, ...]:
    begun = int(NOW.timestamp() * 1e6)
    return (EngineRescale(status=status, started_us=begun, parallelism_after=after, pause_us=900_000, reason="no"),)


def seen(live: Engine | None = None, *, now: datetime = NOW, **more: Any) -> Seen:
    known = {"r1": 1, "r2": 1}
    return Seen(now=now, engine=live, slots_per_pod=known, **{"pods": pods(), **more})


NOTHING = Seen(now=NOW, slots_per_pod={"r1": 1, "r2": 1})
CHECKED = {"revision": "r2", "savepoint": "c-check"}


@dataclass(frozen=True)
class Row:
    """`change`: kind and step of the change that is under way afterwards; None: none."""

    name: str
    desired: Desired
    memory: Memory
    seen: Seen
    phase: str
    change: tuple[str, str] | None = None
    steps: tuple[type, ...] = ()
    says: Callable[[Any], bool] = lambda decision: True


def check(row: Row) -> None:
    """The next step is the one that the row names, and nothing besides."""
    decision = decide(row.desired, row.memory, row.seen)
    change = decision.memory.change
    asked = tuple(type(step) for step in decision.steps if type(step) in row.steps)
    assert decision.phase == row.phase
    assert (change and (change.kind, change.step)) == row.change
    assert asked == row.steps, decision.steps
    destructive = {StopJob, CancelJob, TakeSavepoint, Submit, RemoveFinalizer, Rescale, DeletePods}
    assert not {type(step) for step in decision.steps} & destructive - set(row.steps)
    assert row.says(decision), decision
    check_again(row, decision)


def check_again(row: Row, once: Decision) -> None:
    """A controller that dies when its memory is written is followed by one that does what was left."""
    before, after = row.memory.change, once.memory.change
    if before is None or after is None:
        return
    if (before.kind, before.step, before.revision) != (after.kind, after.step, after.revision):
        return  # it goes on from there
    later = replace(row.seen, now=NOW + timedelta(milliseconds=1))
    assert [type(step) for step in decide(row.desired, once.memory, later).steps] == [
        type(step) for step in once.steps
    ]
