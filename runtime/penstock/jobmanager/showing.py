"""What people see of jobs and slots, from what the core knows."""

from collections.abc import Iterable, Sequence

from penstock.graph import Vertex
from penstock.jobmanager.jobs import Job
from penstock.jobmanager.slots import SlotPool
from penstock.model import counters
from penstock.model.clocks import MIN_WATERMARK
from penstock.model.counters import OperatorMetrics
from penstock.model.ids import SubtaskId
from penstock.model.messages import TaskMetrics
from penstock.model.specs import Operator
from penstock.model.views import JobView, OperatorView, ProcessView, VertexView


def view_job(job: Job) -> JobView:
    """One job."""
    metrics = {subtask: found for run in job.regions.runs for subtask, found in run.metrics.items()}
    before = job.checkpointing.counted_before()
    checkpoints = job.checkpoints.views()
    completed = [view for view in checkpoints if view.status == "completed"]
    return JobView(
        id=job.id,
        name=job.graph.name,
        state=job.state.value,
        attempt=job.regions.last_attempt,
        restarts=job.restarts.count,
        parallelism=job.rescaling.size.parallelism or max((v.parallelism for v in job.graph.vertices), default=0),
        submitted_us=job.submitted_us,
        running_us=job.running_us,
        ended_us=job.ended_us,
        reason=job.reason,
        vertices=tuple(_view_vertex(vertex, _of(vertex, metrics), before) for vertex in job.graph.vertices),
        checkpoints_completed=job.checkpoints.completed_count,
        checkpoints_failed=job.checkpoints.failed_count,
        last_checkpoint=completed[-1] if completed else None,
        failures=job.failures.views(),
        warnings=job.graph.warnings,
        rescale=job.rescaling.under_way,
    )


def view_processes(pool: SlotPool, jobs: Iterable[Job]) -> tuple[ProcessView, ...]:
    """TaskManagers and their slots."""
    subtasks = {
        (job.id, run.attempt, slot): tuple(str(task.subtask) for task in tasks)
        for job in jobs
        for run in job.regions.runs
        for slot, tasks in run.placement.items()
    }
    views = []
    for task_manager in pool.task_managers():
        host = task_manager.registration.host
        registration = task_manager.registration
        views.append(
            ProcessView(
                role="taskmanager",
                id=registration.task_manager,
                pid=registration.pid,
                host=host,
                slots=len(task_manager.slots),
            )
        )
        for slot in task_manager.slots.values():
            usage = slot.usage if slot.deployed else None
            views.append(
                ProcessView(
                    role="slot",
                    id=str(slot.info.slot),
                    pid=slot.info.pid,
                    host=host,
                    job=usage.job if usage else None,
                    attempt=usage.attempt if usage else None,
                    subtasks=subtasks.get((usage.job, usage.attempt, slot.info.slot), ()) if usage else (),
                    rss_bytes=slot.rss_bytes,
                )
            )
    return tuple(views)


def _of(vertex: Vertex, metrics: dict[SubtaskId, TaskMetrics]) -> list[TaskMetrics]:
    subtasks = (SubtaskId(vertex.id, index) for index in range(vertex.parallelism))
    return [metrics[subtask] for subtask in subtasks if subtask in metrics]


def _view_vertex(
    vertex: Vertex, tasks: Sequence[TaskMetrics], counted_before: Iterable[OperatorMetrics]
) -> VertexView:
    watermark = min((task.watermark for task in tasks), default=MIN_WATERMARK)
    since = (operator for task in tasks for operator in task.operators)
    counted = counters.total((*counted_before, *since))
    return VertexView(
        id=vertex.id,
        parallelism=vertex.parallelism,
        operators=tuple(
            _view_operator(link.operator, counted.get(link.operator.uid, OperatorMetrics(uid=link.operator.uid)))
            for link in vertex.chain
        ),
        watermark_us=None if watermark == MIN_WATERMARK else watermark,
        busy=max((task.busy for task in tasks), default=0.0),
        backpressured=max((task.backpressured for task in tasks), default=0.0),
        held=sum(task.held for task in tasks),
        ended=len(tasks) == vertex.parallelism and all(task.ended for task in tasks),
    )


def _view_operator(operator: Operator, counted: OperatorMetrics) -> OperatorView:
    return OperatorView(
        uid=operator.uid,
        name=operator.name,
        rows_in=counted.rows_in,
        rows_out=counted.rows_out,
        late_rows=counted.late_rows,
        bad_rows=counted.bad_rows,
        state_rows=counted.state_rows,
        state_bytes=counted.state_bytes,
        cache_hits=counted.cache_hits,
        cache_misses=counted.cache_misses,
        user=counted.user,
    )
