"""`status` of a FlowJob: the only place that makes one. A function of what was read, seen and decided.

As kstatus reads it: Reconciling or Stalled tell why something is not done yet; they are there from the first status
on. Ready says whether what is wanted is served: a job that is suspended or finished as wanted is Ready.
"""

from datetime import datetime
from typing import Final

from penstock_operator import __version__, names
from penstock_operator.border import Read
from penstock_operator.deciding.facts import EngineJob, Problem, Seen
from penstock_operator.deciding.steps import Decision
from penstock_operator.moments import elapsed, from_us, text_of
from penstock_operator.names import engine_job
from penstock_operator.spec.status import (
    CheckpointStatus,
    Condition,
    EngineStatus,
    Failure,
    FlowJobStatus,
    Memory,
    ParallelismStatus,
)

_QUIET_SECONDS: Final = 60
"""A newer checkpoint is told at most this often: each status that is written wakes every tool that watches."""
_AT_REST: Final = frozenset({"Running", "Suspended", "Finished"})
_STILL_SERVING: Final = frozenset({"Checking", "ScalingOut", "Rescaling", "ScalingIn"})


def report(read: Read, decision: Decision, seen: Seen, now: datetime) -> FlowJobStatus:
    """The status to write, or the one that is there when nothing has changed."""
    old, desired, memory = read.status, read.desired, decision.memory
    job = _engine_job(read, memory, seen)
    status = FlowJobStatus(
        **{name: getattr(memory, name) for name in Memory.model_fields},
        observed_generation=desired.generation,
        phase=decision.phase,
        replicas=(memory.job.parallelism if memory.job else 0) if decision.phase != "Suspended" else 0,
        selector=names.as_text(names.selector(desired.name, names.TASKMANAGER)),
        parallelism=_parallelism(read, decision, seen),
        engine=_engine(job) or (old.engine if memory.job is not None else None),
        last_checkpoint=_checkpoint(job, old, decision.phase),
        last_failure=_failure(decision, seen, old, now),
        operator_version=__version__,
    )
    conditions = _conditions(read, decision, seen, job, status)
    return status.model_copy(update={"conditions": _dated(conditions, old, now)})


def changed(old: FlowJobStatus, new: FlowJobStatus) -> bool:
    """Whether it is worth a write."""
    return old.model_dump(exclude_none=True) != new.model_dump(exclude_none=True)


def _engine_job(read: Read, memory: Memory, seen: Seen) -> EngineJob | None:
    if seen.engine is None:
        return None
    if memory.change is not None and memory.change.step == "Starting":
        return seen.engine.job(engine_job(read.desired.name, read.desired.uid, memory.serial))
    return seen.engine.job(memory.job.id) if memory.job is not None else None


def _conditions(
    read: Read, decision: Decision, seen: Seen, job: EngineJob | None, status: FlowJobStatus
) -> list[Condition]:
    desired, memory = read.desired, decision.memory
    serving = job is not None and job.state == "running"
    conditions = [
        _ready(decision, serving=serving),
        _reconciling(decision),
        _condition("Stalled", decision.stalled, "Progressing"),
        _job_running(decision, seen, job),
        _durable(status, memory),
        _condition("ScalingLimited", decision.scaling_limited, "NotLimited"),
        Condition(
            type="Paused",
            status="True" if desired.paused else "False",
            reason="Annotation" if desired.paused else "NotPaused",
            message=f"annotation {names.PAUSE_ANNOTATION}: the controller leaves this job alone"
            if desired.paused
            else "",
        ),
    ]
    if decision.warning:
        conditions.append(Condition(type="Warning", status="True", reason="RolledBack", message=decision.warning))
    return [condition.model_copy(update={"observed_generation": desired.generation}) for condition in conditions]


def _ready(decision: Decision, *, serving: bool) -> Condition:
    change = decision.memory.change
    if decision.phase == "Pending" and decision.memory.job is None and change is None and decision.stalled is None:
        return Condition(type="Ready", status="Unknown", reason="New", message="not looked at yet")
    if decision.stalled is not None and not (serving and decision.phase == "Running"):
        return Condition(
            type="Ready", status="False", reason=decision.stalled.reason, message=decision.stalled.text[:1000]
        )
    if decision.stalled is not None:
        message = f"the job runs as before; {decision.stalled.text}"[:1000]
        return Condition(type="Ready", status="False", reason=decision.stalled.reason, message=message)
    if change is not None and not (serving and change.step in _STILL_SERVING):
        return Condition(type="Ready", status="False", reason=decision.phase, message=decision.waiting[:1000])
    if decision.phase in {"Suspended", "Finished"}:
        return Condition(type="Ready", status="True", reason=decision.phase, message="as wanted")
    if serving:
        message = decision.waiting[:1000] or "the job runs"
        return Condition(type="Ready", status="True", reason="Running", message=message)
    return Condition(type="Ready", status="False", reason=decision.phase, message=decision.waiting[:1000])


def _reconciling(decision: Decision) -> Condition:
    at_rest = decision.phase in _AT_REST and decision.memory.change is None and not decision.seconds < 2
    if decision.stalled is not None or at_rest:
        return Condition(type="Reconciling", status="False", reason="Settled")
    return Condition(
        type="Reconciling", status="True", reason=decision.phase, message=(decision.waiting or decision.phase)[:1000]
    )


def _condition(name: str, problem: Problem | None, otherwise: str) -> Condition:
    if problem is None:
        return Condition(type=name, status="False", reason=otherwise)
    return Condition(type=name, status="True", reason=problem.reason, message=problem.text[:1000])


def _job_running(decision: Decision, seen: Seen, job: EngineJob | None) -> Condition:
    if seen.engine is None:
        known = decision.phase in {"Suspended", "Finished", "Pending", "Deploying", "Resuming"}
        return Condition(
            type="JobRunning",
            status="False" if known else "Unknown",
            reason="NoJobManager",
            message="no JobManager answers",
        )
    if job is None:
        return Condition(type="JobRunning", status="False", reason="NoJob", message="no job was submitted yet")
    words = job.reason.partition("\n")[0][:500]
    reason = "".join(part.capitalize() for part in job.state.split("-"))
    return Condition(
        type="JobRunning", status="True" if job.state == "running" else "False", reason=reason, message=words
    )


def _durable(status: FlowJobStatus, memory: Memory) -> Condition:
    if status.last_checkpoint is not None:
        return Condition(type="StateDurable", status="True", reason="Checkpoint", message="the state can be restored")
    if memory.origin or (memory.job is not None and memory.job.origin):
        return Condition(type="StateDurable", status="True", reason="Savepoint", message="the state can be restored")
    return Condition(
        type="StateDurable", status="False", reason="NoCheckpoint", message="no checkpoint was completed yet"
    )


def _dated(conditions: list[Condition], old: FlowJobStatus, now: datetime) -> tuple[Condition, ...]:
    before = {condition.type: condition for condition in old.conditions}
    dated = []
    for condition in conditions:
        same = before.get(condition.type)
        kept = same.last_transition_time if same is not None and same.status == condition.status else None
        dated.append(condition.model_copy(update={"last_transition_time": kept or text_of(now)}))
    return tuple(dated)


def _parallelism(read: Read, decision: Decision, seen: Seen) -> ParallelismStatus:
    desired = read.desired.parallelism
    job = decision.memory.job
    current = job.parallelism if job is not None and decision.phase not in {"Suspended", "Finished"} else 0
    ready = seen.engine.slots if seen.engine is not None else 0
    return ParallelismStatus(desired=desired, current=current, ready=ready, summary=f"{current}/{desired}")


def _engine(job: EngineJob | None) -> EngineStatus | None:
    if job is None:
        return None
    return EngineStatus(
        state=job.state,
        attempt=job.attempt,
        restarts=job.restarts,
        reason=job.reason.partition("\n")[0][:500],
        started_at=text_of(from_us(job.submitted_us)) if job.submitted_us else None,
    )


def _checkpoint(job: EngineJob | None, old: FlowJobStatus, phase: str) -> CheckpointStatus | None:
    if job is None or job.checkpoint_id is None:
        return old.last_checkpoint
    taken = from_us(job.checkpoint_us)
    told = old.last_checkpoint
    if told is not None and old.phase == phase and 0 <= elapsed(told.time, taken) < _QUIET_SECONDS:
        return told
    return CheckpointStatus(
        id=job.checkpoint_id,
        time=text_of(taken),
        bytes=job.checkpoint_bytes,
        duration_ms=job.checkpoint_duration_us // 1000,
    )


def _failure(decision: Decision, seen: Seen, old: FlowJobStatus, now: datetime) -> Failure | None:
    problem = seen.problem or decision.stalled or decision.scaling_limited
    if problem is None:
        return None
    before = old.last_failure
    same = before is not None and (before.pod, before.reason) == (problem.pod, problem.reason)
    return Failure(
        component=problem.component or "job",
        pod=problem.pod,
        reason=problem.reason,
        message=problem.message[:1000],
        fix=problem.fix,
        time=before.time if same and before is not None else text_of(now),
    )
