"""A change that is under way: from one job of the engine to the next, step by step.

    Checking -> Stopping -> Deploying -> Starting       Rollout; a refusal while Checking leaves the old job alone
                Stopping -> Deploying -> Starting       Restore, Rollout without a check, a rescale of an ended job
                            Deploying -> Starting       Create, Resume, Run
                Stopping -> Draining                    Suspend
    ScalingOut -> Rescaling -> ScalingIn                Rescale of a running job
    Starting fails before the first checkpoint -> Rollback: Deploying -> Starting with the revision before

Two rules keep state safe. A job is started only when no other one of this FlowJob lives. And what it starts from is
the last place of which output was committed: the savepoint that the old job stopped with, else its last checkpoint;
a new job that has completed a checkpoint has committed output, so it is never rolled back by itself.
"""

import hashlib
from collections.abc import Callable
from typing import Final

from penstock_operator.deciding.facts import Desired, EngineJob, Problem, Seen
from penstock_operator.deciding.outcomes import (
    done,
    failed,
    give_up,
    go_on,
    may_roll_back,
    past_change,
    reject,
    retarget,
    target_moved,
    wait,
)
from penstock_operator.deciding.pods import (
    hopeless,
    missing,
    no_pods,
    settled_workload,
    stale,
    surplus,
    wider_workload,
    workload_of,
)
from penstock_operator.deciding.steps import (
    CancelJob,
    CheckRestore,
    Decision,
    DeletePods,
    DeleteRun,
    RemoveSavepoint,
    Rescale,
    StopJob,
    Submit,
    TakeSavepoint,
    Workload,
)
from penstock_operator.moments import elapsed, moment_of, text_of
from penstock_operator.names import engine_job, is_own_engine_job
from penstock_operator.spec.status import Change, Memory, SavepointRef

RUNNING_PATIENCE: Final = 60.0
"""Seconds for which a job that restarts may come back to take its savepoint, before its last checkpoint has to do."""
SAVEPOINT_TRIES: Final = 5
DRAIN_PATIENCE: Final = 30.0
"""Seconds for which pods that are to go may still have work after a rescale."""
CALM_SECONDS: Final = 60.0
"""A job that takes no checkpoints counts as stable after running so long."""


def advance(desired: Desired, memory: Memory, change: Change, seen: Seen) -> Decision:
    """The next step of a change."""
    return _STEPS[change.step](desired, memory, change, seen)


def _checking(desired: Desired, memory: Memory, change: Change, seen: Seen) -> Decision:
    """The old job runs; a savepoint of it is shown to the new image."""
    assert memory.job is not None
    workload = settled_workload(memory, seen)
    run = f"check-{memory.serial}-{desired.revision[:5]}"
    if target_moved(desired, change):
        tidy = _removal(memory, change, seen)
        return give_up(memory, seen, steps=(*([tidy] if tidy else []), DeleteRun(run)))
    found = seen.engine.job(memory.job.id) if seen.engine else None
    if seen.engine is None or found is None or found.state != "running":
        if elapsed(change.step_at, seen.now) > RUNNING_PATIENCE:
            return go_on(memory, change, seen, workload, step="Stopping")
        return wait(memory, change, workload, "the old job to run")
    name = change.savepoint or f"{change.id}-check"
    taken = seen.engine.savepoint(name)
    if taken is None or not change.savepoint:
        change = change.model_copy(update={"savepoint": name})
        step = TakeSavepoint(job_id=found.id, name=name, stop=False)
        return wait(memory, change, workload, "a savepoint to check the new revision with", step)
    if taken.status == "pending":
        return wait(memory, change, workload, "a savepoint to check the new revision with")
    if taken.status == "failed":
        return _savepoint_failed(desired, memory, change, seen, workload, taken.reason, suffix="check")
    check = seen.runs.get(run)
    if check is None:
        ask = CheckRestore(run=run, revision=change.revision, parallelism=change.parallelism, savepoint=taken.uri)
        return wait(memory, change, workload, "the restore check", ask)
    trouble = hopeless([check.problem], change, desired, seen)
    if check.state == "failed":
        trouble = Problem(reason="RestoreRefused", message=check.message or "the restore check has failed")
    if check.state != "succeeded" and trouble is None:
        return wait(memory, change, workload, "the restore check", problem=check.problem)
    if (removal := _removal(memory, change, seen)) is not None:
        # First this, and the next step when it has been seen: a controller that dies in between leaves nothing behind.
        return wait(memory, change, workload, "the savepoint of the restore check to be removed", removal)
    if trouble is None:
        return go_on(memory, change, seen, workload, step="Stopping", steps=(DeleteRun(run),), savepoint="")
    return reject(desired, memory, change, seen, trouble, workload, steps=(DeleteRun(run),))


def _removal(memory: Memory, change: Change, seen: Seen) -> RemoveSavepoint | None:
    """Of the savepoint that was taken for the check, unless there is none, or its removal was asked for."""
    taken = seen.engine.savepoint(change.savepoint) if seen.engine is not None and change.savepoint else None
    if taken is None or taken.status != "completed" or memory.job is None:
        return None
    run = f"rm-{hashlib.sha256(taken.uri.encode()).hexdigest()[:8]}"
    return None if run in seen.runs else RemoveSavepoint(run, taken.uri, memory.job.revision)


def _stopping(desired: Desired, memory: Memory, change: Change, seen: Seen) -> Decision:
    """The old job ends, with its state in a safe place."""
    assert memory.job is not None
    # Pods that came for a larger size stay for it.
    scaled = change.kind == "Rescale"
    workload = wider_workload(memory, change, seen) if scaled else settled_workload(memory, seen)
    if seen.engine is None:
        if elapsed(change.step_at, seen.now) > RUNNING_PATIENCE and change.kind != "Suspend":
            # The JobManager itself may be what the new revision mends; it will find the old job in the journal.
            return go_on(memory, change, seen, workload, step="Deploying", origin=memory.job.id)
        return wait(memory, change, workload, "a JobManager that answers")
    found = seen.engine.job(memory.job.id)
    mode = _mode(desired, memory, change)
    if found is None or found.ended:
        return _stopped(desired, memory, change, seen, found, mode)
    if found.state == "stopping":
        return wait(memory, change, workload, "the old job to stop")
    if mode == "stateless":
        return wait(memory, change, workload, "the old job to end", CancelJob(found.id))
    if found.state != "running":
        late = elapsed(change.step_at, seen.now) > RUNNING_PATIENCE
        ending = (CancelJob(found.id),) if late or mode == "last-state" else ()
        return wait(memory, change, workload, f"the old job, which is {found.state}", *ending)
    if mode == "last-state":
        return wait(memory, change, workload, "the old job to stop", StopJob(found.id))
    name = change.savepoint or f"{change.id}-{change.tries}"
    taken = seen.engine.savepoint(name)
    if taken is not None and taken.status == "failed":
        return _savepoint_failed(desired, memory, change, seen, workload, taken.reason)
    change = change.model_copy(update={"savepoint": name})
    steps = () if taken is not None else (TakeSavepoint(job_id=found.id, name=name, stop=True),)
    return wait(memory, change, workload, "the old job to stop with a savepoint", *steps)


def _stopped(
    desired: Desired, memory: Memory, change: Change, seen: Seen, found: EngineJob | None, mode: str
) -> Decision:
    assert memory.job is not None
    assert seen.engine is not None
    last = memory.last_savepoint
    taken = seen.engine.savepoint(change.savepoint) if change.savepoint else None
    if mode == "stateless":
        origin = desired.restore_origin if change.kind == "Restore" else ""
    elif taken is not None and taken.status == "completed":
        origin = taken.uri
        last = SavepointRef(name=taken.name, location=taken.uri, time=text_of(seen.now))
    elif found is not None and found.checkpoints:
        origin = found.id
    else:
        origin = memory.job.origin
    restored = desired.restore if change.kind == "Restore" else memory.restored
    memory = memory.model_copy(update={"origin": origin, "last_savepoint": last, "restored": restored})
    following = "Draining" if change.kind == "Suspend" else "Deploying"
    stopped_at = change.stopped_at or text_of(seen.now)
    return go_on(memory, change, seen, None, step=following, origin=origin, stopped_at=stopped_at, savepoint="")


def _deploying(desired: Desired, memory: Memory, change: Change, seen: Seen) -> Decision:
    """Pods of the target revision come up; whatever still lives in the engine ends."""
    if target_moved(desired, change) and change.kind != "Rollback":
        return retarget(desired, memory, change, seen)
    workload = workload_of(change.revision, change.parallelism, seen)
    if workload is None:
        gone = Problem(reason="RevisionLost", message=f"revision {change.revision} is no longer known")
        return failed(desired, memory, change, seen, gone)
    live = [job for job in seen.engine.jobs if not job.ended] if seen.engine else []
    foreign = [job.id for job in live if not is_own_engine_job(job.id, desired.name, desired.uid)]
    if foreign:
        owned = Problem(
            reason="StorageInUse",
            message=f"M014 {desired.storage} holds job {foreign[0]}, which is not this FlowJob's and has not ended",
            fix="name another checkpoints.storage, or end that job",
        )
        return wait(memory, change, workload, "storage of its own", stalled=owned, seconds=10)
    if live:
        steps = tuple(StopJob(job.id) if job.state == "running" else CancelJob(job.id) for job in live)
        return wait(memory, change, workload, "the job before to end", *steps)
    if old := stale(change.revision, seen):
        return wait(memory, change, workload, "pods of the revision before to go", DeletePods(old))
    lacking = missing(workload, seen)
    if lacking is None and seen.engine is not None and seen.engine.slots >= change.parallelism:
        origin = _origin(desired, memory, change, seen)
        memory = memory.model_copy(update={"serial": memory.serial + 1})
        return go_on(memory, change, seen, workload, step="Starting", origin=origin)
    trouble = hopeless(seen.problems, change, desired, seen)
    if trouble is not None and may_roll_back(desired, memory, change, seen):
        return failed(desired, memory, change, seen, trouble)
    waiting = lacking or ("a JobManager that answers" if seen.engine is None else "slots of the TaskManagers")
    return wait(memory, change, workload, waiting, problem=seen.problem, stalled=trouble)


def _origin(desired: Desired, memory: Memory, change: Change, seen: Seen) -> str:
    """What to start from, now that all jobs before have ended.

    One that was ended in this step may have completed checkpoints: their output is committed.
    """
    assert seen.engine is not None
    if change.kind in {"Restore", "Run"} or (desired.upgrade_mode == "stateless" and change.kind == "Rollout"):
        return change.origin
    latest = seen.engine.job(engine_job(desired.name, desired.uid, memory.serial))
    if latest is not None and latest.checkpoints and (memory.job is None or latest.id != memory.job.id):
        return latest.id
    if memory.job is not None and change.origin == memory.job.id:
        before = seen.engine.job(memory.job.id)
        if before is not None and not before.checkpoints:
            return memory.job.origin
    return change.origin


def _starting(desired: Desired, memory: Memory, change: Change, seen: Seen) -> Decision:
    """The program is handed in, and watched until its first checkpoint."""
    workload = workload_of(change.revision, change.parallelism, seen)
    job_id = engine_job(desired.name, desired.uid, memory.serial)
    run = f"submit-{memory.serial}"
    found = seen.engine.job(job_id) if seen.engine else None
    if target_moved(desired, change) and change.kind != "Rollback" and not (found and found.checkpoints):
        return retarget(desired, memory, change, seen)
    if seen.engine is None:
        return wait(memory, change, workload, "a JobManager that answers", problem=seen.problem)
    submission = seen.runs.get(run)
    if found is None:
        return _submitting(desired, memory, change, seen, job_id=job_id, run=run)
    tidy = (DeleteRun(run),) if submission is not None and submission.state != "active" else ()
    if found.state == "failed" and not found.checkpoints and not desired.batch:
        broken = Problem(component="job", reason="JobFailed", message=found.reason or "the job has failed")
        return failed(desired, memory, change, seen, broken, steps=tidy)
    if found.ended or _stands(change, found, seen):
        return done(desired, memory, change, seen, found, workload, tidy)
    overdue = elapsed(change.step_at, seen.now) > desired.rollout_seconds
    if overdue and change.kind == "Rollout" and may_roll_back(desired, memory, change, seen):
        late = Problem(
            component="job",
            reason="RolloutTimeout",
            message=f"no checkpoint within {desired.rollout_seconds:.0f} s: {found.state}, {found.reason}",
        )
        return failed(desired, memory, change, seen, late, steps=tidy)
    what = "the job to run" if found.state != "running" else "the first checkpoint"
    return wait(memory, change, workload, what, *tidy, problem=seen.problem)


def _submitting(desired: Desired, memory: Memory, change: Change, seen: Seen, *, job_id: str, run: str) -> Decision:
    workload = workload_of(change.revision, change.parallelism, seen)
    submission = seen.runs.get(run)
    if submission is None:
        step = Submit(
            run=run, job_id=job_id, revision=change.revision, parallelism=change.parallelism, origin=change.origin
        )
        return wait(memory, change, workload, "the submission", step)
    if submission.state == "succeeded":
        # The engine was asked before the submission ended, or it has lost the job: ask both again.
        if elapsed(change.step_at, seen.now) > RUNNING_PATIENCE:
            return wait(memory, change, workload, "the submission, again", DeleteRun(run))
        return wait(memory, change, workload, "the submission")
    trouble = hopeless([submission.problem], change, desired, seen)
    if submission.state == "failed":
        trouble = Problem(
            component="submission",
            reason="SubmissionFailed",
            message=submission.message or "the pod that hands the program in has failed",
        )
    if trouble is None:
        return wait(memory, change, workload, "the submission", problem=submission.problem)
    return failed(desired, memory, change, seen, trouble, steps=(DeleteRun(run),))


def _draining(_desired: Desired, memory: Memory, change: Change, seen: Seen) -> Decision:
    """The state waits; pods go."""
    workload = no_pods(memory.job.revision if memory.job else change.revision, seen)
    if seen.pods:
        return wait(memory, change, workload, "the pods to go")
    past = past_change(change, seen, change_class="restart", to="suspended")
    memory = memory.model_copy(update={"suspended": True, "change": None, "last_change": past, "rejected": None})
    return Decision(memory=memory, phase="Suspended", workload=workload, seconds=0)


def _scaling_out(desired: Desired, memory: Memory, change: Change, seen: Seen) -> Decision:
    """Pods first; the job is not touched until all slots are there."""
    assert memory.job is not None
    if target_moved(desired, change):
        return give_up(memory, seen)
    workload = wider_workload(memory, change, seen)
    found = seen.engine.job(memory.job.id) if seen.engine else None
    if found is not None and found.ended:
        return go_on(memory, change, seen, workload, step="Stopping")
    lacking = missing(workload, seen)
    if seen.engine is None or lacking is not None or seen.engine.slots < change.parallelism:
        limit = seen.problem or seen.blocked
        late = elapsed(change.step_at, seen.now) > 5
        return wait(
            memory,
            change,
            workload,
            lacking or "slots of the TaskManagers",
            problem=limit,
            limited=limit if late else None,
        )
    if seen.engine.rescales is None:
        return go_on(memory, change, seen, workload, step="Stopping")
    if found is None or found.state != "running":
        return wait(memory, change, workload, "the job to run")
    return go_on(memory, change, seen, workload, step="Rescaling")


def _rescaling(desired: Desired, memory: Memory, change: Change, seen: Seen) -> Decision:
    """The engine moves key groups while the job runs."""
    assert memory.job is not None
    workload = wider_workload(memory, change, seen)
    found = seen.engine.job(memory.job.id) if seen.engine else None
    if seen.engine is None or found is None:
        return wait(memory, change, workload, "a JobManager that answers")
    if found.ended:
        return go_on(memory, change, seen, workload, step="Stopping")
    begun = int(moment_of(change.step_at).timestamp() * 1e6)
    rescales = [each for each in seen.engine.rescales or () if each.started_us >= begun - 1_000_000]
    last = rescales[-1] if rescales else None
    if found.parallelism == change.parallelism and (last is None or last.status != "pending"):
        pause, cost = (last.pause_us, last.cost) if last is not None else (0, "")
        ref = memory.job.model_copy(update={"parallelism": change.parallelism, "generation": change.generation})
        memory = memory.model_copy(update={"job": ref})
        return go_on(memory, change, seen, workload, step="ScalingIn", pause_us=pause, reason=cost)
    if last is not None and last.status == "failed":
        failed = Problem(reason="RescaleFailed", message=f"the job keeps its parallelism: {last.reason}")
        return reject(desired, memory, change, seen, failed, settled_workload(memory, seen))
    if last is not None and last.status == "pending":
        return wait(memory, change, workload, "the engine to move key groups")
    if found.state != "running":
        return wait(memory, change, workload, "the job to run")
    return wait(memory, change, workload, "the engine to move key groups", Rescale(found.id, change.parallelism))


def _scaling_in(_desired: Desired, memory: Memory, change: Change, seen: Seen) -> Decision:
    """Pods that have nothing left to do go."""
    assert memory.job is not None
    workload = settled_workload(memory, seen)
    leaving = surplus(workload, seen)
    busy = seen.engine.busy_pods if seen.engine else frozenset()
    waits = elapsed(change.step_at, seen.now) < DRAIN_PATIENCE
    if waits and any(pod.name in busy for pod in leaving):
        return wait(memory, change, wider_workload(memory, change, seen), "pods that are to go to have no work")
    if leaving:
        return wait(memory, change, workload, "pods that have no work to go")
    past = past_change(change, seen, to=str(change.parallelism), message=change.reason)
    memory = memory.model_copy(update={"change": None, "last_change": past, "rejected": None})
    return Decision(memory=memory, phase="Running", workload=workload, seconds=1)


def _savepoint_failed(
    desired: Desired,
    memory: Memory,
    change: Change,
    seen: Seen,
    workload: Workload | None,
    reason: str,
    suffix: str = "",
) -> Decision:
    """The job goes on; a store that is away for a minute is tried again, under another name."""
    tries = change.tries + 1
    if tries >= SAVEPOINT_TRIES or elapsed(change.started_at, seen.now) > desired.rollout_seconds:
        trouble = Problem(component="job", reason="SavepointFailed", message=f"no savepoint can be taken: {reason}")
        return reject(desired, memory, change, seen, trouble, workload)
    name = f"{change.id}-{suffix}{tries}"
    change = change.model_copy(update={"tries": tries, "savepoint": name})
    step = TakeSavepoint(job_id=memory.job.id if memory.job else "", name=name, stop=not suffix)
    return wait(memory, change, workload, f"a savepoint, again: {reason}", step, seconds=5)


def _mode(desired: Desired, memory: Memory, change: Change) -> str:
    """How the old job ends."""
    fresh_run = change.kind == "Run" and memory.runs is not None and memory.runs.retries == 0
    if change.kind == "Restore" or fresh_run:
        return "stateless"
    if change.kind == "Rollout":
        return desired.upgrade_mode
    # Suspending and resuming never loses state: that is what they are for.
    return "last-state" if desired.upgrade_mode == "last-state" else "savepoint"


def _stands(change: Change, found: EngineJob, seen: Seen) -> bool:
    """Whether the new job may be called started."""
    if found.state != "running":
        return False
    if change.kind != "Rollout" or found.checkpoints:
        return True
    return found.running_us is not None and seen.now.timestamp() - found.running_us / 1e6 > CALM_SECONDS


_STEPS: Final[dict[str, Callable[[Desired, Memory, Change, Seen], Decision]]] = {
    "Checking": _checking,
    "Stopping": _stopping,
    "Deploying": _deploying,
    "Starting": _starting,
    "Draining": _draining,
    "ScalingOut": _scaling_out,
    "Rescaling": _rescaling,
    "ScalingIn": _scaling_in,
}
