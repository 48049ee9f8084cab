"""What to do next for a FlowJob.

A function of three things: what is wanted (`Desired`), what the controller has written down (`Memory`), and what is so
(`Seen`). It names the next steps only; the loop runs again, so a plan is never remembered, but for the one change that
is under way (`Memory.change`, see `changes`).

    wanted, remembered                    -> what begins
    deleted                               -> end the job in order, then let go
    no finalizer                          -> take one
    nothing runs, nothing ran             -> Create
    suspended is wanted, a job runs       -> Suspend
    running is wanted, state waits        -> Resume
    another place to restore from         -> Restore
    another revision                      -> Rollout
    another parallelism                   -> Rescale
    the job was ended by somebody else    -> Resume, from its last checkpoint
    a batch run is due, or may be retried -> Run
"""

from penstock_operator.deciding.changes import advance
from penstock_operator.deciding.facts import Desired, EngineJob, Problem, Seen
from penstock_operator.deciding.outcomes import begin
from penstock_operator.deciding.pods import no_pods, settled_workload, workload_of
from penstock_operator.deciding.steps import (
    AddFinalizer,
    CancelJob,
    Decision,
    DeleteSelf,
    RemoveFinalizer,
    Step,
    StopJob,
    TakeSavepoint,
)
from penstock_operator.moments import elapsed, text_of
from penstock_operator.names import is_own_engine_job
from penstock_operator.spec.status import JobRef, Memory, Revision, Runs


def decide(desired: Desired, memory: Memory, seen: Seen) -> Decision:
    """The next steps."""
    if desired.deleted_at is not None:
        return _deleting(desired, memory, seen)
    if not desired.finalizer:
        return Decision(memory=memory, phase="Pending", steps=(AddFinalizer(),), seconds=0)
    if desired.paused:
        return Decision(memory=memory, phase=_phase_of(memory, seen), waiting="paused by annotation")
    if memory.change is not None:
        return advance(desired, memory, memory.change, seen)
    if desired.invalid is not None:
        return Decision(
            memory=memory,
            phase="Invalid" if memory.job is None else _phase_of(memory, seen),
            workload=settled_workload(memory, seen),
            stalled=desired.invalid,
        )
    if memory.job is None:
        return _nothing_ran(desired, memory, seen)
    return _settled(desired, memory, memory.job, seen)


def _deleting(desired: Desired, memory: Memory, seen: Seen) -> Decision:
    if not desired.finalizer:
        return Decision(memory=memory, phase="Deleting", waiting="deletion")
    assert desired.deleted_at is not None
    left = desired.delete_seconds - elapsed(desired.deleted_at, seen.now)
    live = _own_live(desired, seen)
    never_ran = memory.job is None and (memory.change is None or memory.change.step != "Starting")
    at_rest = seen.engine is not None and not live
    # A batch job that is over has no pods, and nobody answers any more.
    if desired.force_delete or left <= 0 or memory.suspended or never_ran or at_rest or _is_over(memory):
        return Decision(memory=memory, phase="Deleting", steps=(RemoveFinalizer(),), seconds=0)
    steps: list[Step] = []
    for job in live:
        if job.state == "stopping":
            continue
        if job.state != "running":
            steps.append(CancelJob(job.id))
        elif desired.savepoint_on_delete:
            steps.append(TakeSavepoint(job_id=job.id, name=f"{job.id}-final", stop=True))
        else:
            steps.append(StopJob(job.id))
    what = "the job to end" if seen.engine else "a JobManager that answers, to end the job"
    return Decision(
        memory=memory,
        phase="Deleting",
        steps=tuple(steps),
        waiting=f"waits for {what}, for at most {left:.0f} s; annotation penstock.dev/force-delete ends the wait",
        seconds=1,
    )


def _nothing_ran(desired: Desired, memory: Memory, seen: Seen) -> Decision:
    if desired.suspended:
        return Decision(memory=memory.model_copy(update={"suspended": True}), phase="Suspended")
    if (refusal := refused(desired, memory)) is not None:
        return Decision(
            memory=memory,
            phase="Failed",
            workload=workload_of(desired.revision, desired.parallelism, seen),
            stalled=refusal,
        )
    if desired.restore and not desired.restore_origin:
        return Decision(memory=memory, phase="Pending", waiting=_no_origin(desired), seconds=5)
    memory = memory.model_copy(
        update={
            "restored": desired.restore,
            "origin": desired.restore_origin or memory.origin,
            "runs": Runs(started=1, last_schedule_time=desired.due_run or text_of(seen.now))
            if desired.batch
            else None,
        }
    )
    return begin(desired, memory, seen, kind="Create", step="Deploying", origin=memory.origin)


def _settled(desired: Desired, memory: Memory, job: JobRef, seen: Seen) -> Decision:
    refusal = refused(desired, memory)
    if memory.suspended:
        if desired.suspended:
            return Decision(memory=memory, phase="Suspended", workload=no_pods(job.revision, seen))
        if refusal is None:
            return begin(desired, memory, seen, kind="Resume", step="Deploying", origin=memory.origin)
    found = seen.engine.job(job.id) if seen.engine else None
    if seen.engine is not None and found is None and not memory.suspended:
        return _lost(memory, job, seen)
    ended = found is not None and found.ended
    over = _is_over(memory)
    if desired.suspended and not over and not (ended and found and found.state == "finished"):
        return begin(desired, memory, seen, kind="Suspend", step="Stopping")
    if refusal is None and not over and (began := _differs(desired, memory, job, found, seen)) is not None:
        return began
    if over or ended:
        return _ended(desired, memory, job, found, seen, refusal)
    return _running(desired, memory, job, found, seen, refusal)


def _differs(desired: Desired, memory: Memory, job: JobRef, found: EngineJob | None, seen: Seen) -> Decision | None:
    if desired.restore and desired.restore != memory.restored:
        if not desired.restore_origin:
            return Decision(
                memory=memory,
                phase=_phase_of(memory, seen),
                workload=settled_workload(memory, seen),
                waiting=_no_origin(desired),
                seconds=5,
            )
        return begin(desired, memory, seen, kind="Restore", step="Stopping", reason=f"restore from {desired.restore}")
    ended = found is not None and found.ended
    if ended and found is not None and found.state == "finished":
        return None
    if desired.revision != job.revision:
        checked = desired.upgrade_mode == "savepoint" and desired.restore_check and _runs(found)
        return begin(desired, memory, seen, kind="Rollout", step="Checking" if checked else "Stopping")
    if desired.parallelism != job.parallelism:
        if ended:
            return begin(desired, memory, seen, kind="Rescale", step="Stopping")
        return begin(desired, memory, seen, kind="Rescale", step="ScalingOut")
    if found is not None and found.state in {"stopped", "cancelled"}:
        reason = f"job {found.id} was {found.state} by somebody else"
        return begin(desired, memory, seen, kind="Resume", step="Stopping", reason=reason)
    return None


def _ended(
    desired: Desired, memory: Memory, job: JobRef, found: EngineJob | None, seen: Seen, refusal: Problem | None
) -> Decision:
    """The job came to an end by itself, or failed."""
    if desired.batch and memory.runs is not None:
        return _batch_ended(desired, memory, memory.runs, job, found, seen)
    if found is not None and found.state == "finished":
        return Decision(memory=memory, phase="Finished", workload=no_pods(job.revision, seen))
    stalled = refusal or Problem(
        component="job",
        reason="JobFailed",
        message=found.reason.partition("\n")[0] if found else "the job has failed",
        fix="correct the program, or set another value of annotation penstock.dev/restart to try again",
    )
    return Decision(memory=memory, phase="Failed", workload=settled_workload(memory, seen), stalled=stalled)


def _is_over(memory: Memory) -> bool:
    return memory.runs is not None and memory.runs.finished_at is not None


def _batch_ended(
    desired: Desired, memory: Memory, runs: Runs, job: JobRef, found: EngineJob | None, seen: Seen
) -> Decision:
    succeeded = found is None or found.state == "finished"
    if runs.finished_at is None:
        if not succeeded and runs.retries < desired.retries:
            again = memory.model_copy(update={"runs": runs.model_copy(update={"retries": runs.retries + 1})})
            return begin(desired, again, seen, kind="Run", step="Stopping", reason="the run has failed")
        outcome = runs.model_copy(update={"finished_at": text_of(seen.now)})
        memory = memory.model_copy(update={"runs": outcome})
        return Decision(memory=memory, phase="Finished" if succeeded else "Failed", seconds=0)
    if desired.revision != job.revision or (desired.due_run and desired.due_run != runs.last_schedule_time):
        fresh = Runs(started=runs.started + 1, last_schedule_time=desired.due_run or runs.last_schedule_time)
        memory = memory.model_copy(update={"runs": fresh, "origin": ""})
        return begin(desired, memory, seen, kind="Run", step="Deploying", reason="the run is due")
    steps: tuple[Step, ...] = ()
    if desired.ttl_seconds is not None and elapsed(runs.finished_at, seen.now) >= desired.ttl_seconds:
        steps = (DeleteSelf(),)
    failed = found is not None and found.state != "finished"
    return Decision(
        memory=memory,
        phase="Failed" if failed else "Finished",
        # What has failed stays for somebody to look at.
        workload=settled_workload(memory, seen) if failed else no_pods(job.revision, seen),
        steps=steps,
        stalled=Problem(component="job", reason="JobFailed", message=found.reason, fix="see the logs of its pods")
        if failed and found is not None
        else None,
    )


def _running(
    desired: Desired, memory: Memory, job: JobRef, found: EngineJob | None, seen: Seen, refusal: Problem | None
) -> Decision:
    if found is not None and found.checkpoints and (memory.stable is None or memory.stable.revision != job.revision):
        stable = Revision(generation=job.generation, revision=job.revision)
        memory = memory.model_copy(update={"stable": stable})
    due = desired.batch and memory.runs and desired.due_run and desired.due_run != memory.runs.last_schedule_time
    if due and desired.replace_runs and memory.runs is not None:
        fresh = Runs(started=memory.runs.started + 1, last_schedule_time=desired.due_run)
        memory = memory.model_copy(update={"runs": fresh, "origin": ""})
        return begin(desired, memory, seen, kind="Run", step="Stopping", reason="the next run is due")
    return Decision(
        memory=memory,
        phase=_phase_of(memory, seen),
        workload=settled_workload(memory, seen),
        waiting="" if _runs(found) else "the job to run",
        stalled=refusal if refusal is not None and not _only_scaling(memory) else None,
        scaling_limited=refusal if refusal is not None and _only_scaling(memory) else None,
        seconds=10 if _runs(found) else 2,
    )


def _only_scaling(memory: Memory) -> bool:
    return memory.rejected is not None and memory.job is not None and memory.rejected.revision == memory.job.revision


def _lost(memory: Memory, job: JobRef, seen: Seen) -> Decision:
    problem = Problem(
        component="job",
        reason="JobLost",
        message=f"the JobManager does not know job {job.id}: its journal is not in checkpoints.storage",
        fix="bring the storage back, or set restore.from to a savepoint to start from",
    )
    return Decision(memory=memory, phase="Failed", workload=settled_workload(memory, seen), stalled=problem)


def refused(desired: Desired, memory: Memory) -> Problem | None:
    """Why what is wanted is not tried again."""
    rejected = memory.rejected
    if rejected is None or (rejected.revision, rejected.parallelism, rejected.restore) != (
        desired.revision,
        desired.parallelism,
        desired.restore,
    ):
        return None
    return Problem(reason=rejected.reason, message=rejected.message)


def _own_live(desired: Desired, seen: Seen) -> list[EngineJob]:
    if seen.engine is None:
        return []
    return [job for job in seen.engine.jobs if not job.ended and is_own_engine_job(job.id, desired.name, desired.uid)]


def _runs(found: EngineJob | None) -> bool:
    return found is not None and found.state == "running"


def _no_origin(desired: Desired) -> str:
    return f"{desired.restore} is not complete yet, or does not exist"


def _phase_of(memory: Memory, seen: Seen) -> str:
    if memory.suspended:
        return "Suspended"
    if memory.job is None:
        return "Pending"
    found = seen.engine.job(memory.job.id) if seen.engine else None
    if found is None:
        return "Restarting"
    return {"running": "Running", "finished": "Finished", "failed": "Failed"}.get(found.state, "Restarting")
