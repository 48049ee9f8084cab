"""`/metrics`: the views of the jobs in Prometheus' text format."""

from collections.abc import Iterator

from penstock.model.counters import UserMetric
from penstock.model.views import ClusterView, JobView

_HELP = {
    "penstock_slots": ("gauge", "Slots of all TaskManagers."),
    "penstock_slots_free": ("gauge", "Slots without a deployment."),
    "penstock_process_resident_bytes": ("gauge", "Resident memory of a process."),
    "penstock_job_info": ("gauge", "1 for the state that the job is in."),
    "penstock_job_restarts_total": ("counter", "Restarts after failures."),
    "penstock_job_checkpoints_completed_total": ("counter", "Checkpoints in the journal."),
    "penstock_job_checkpoints_failed_total": ("counter", "Checkpoints that were given up."),
    "penstock_job_last_checkpoint_bytes": ("gauge", "State of the last completed checkpoint."),
    "penstock_job_last_checkpoint_seconds": ("gauge", "Time that the last completed checkpoint took."),
    "penstock_vertex_watermark_seconds": ("gauge", "Lowest watermark of the vertex, since 1970."),
    "penstock_vertex_busy_ratio": ("gauge", "Share of the time that the busiest subtask works."),
    "penstock_vertex_backpressured_ratio": ("gauge", "Share of the time that a subtask waits for its outputs."),
    "penstock_vertex_held_subtasks": ("gauge", "Subtasks whose source waits for slower ones (align_within)."),
    "penstock_operator_rows_in_total": ("counter", "Rows that came in, since the deployment."),
    "penstock_operator_rows_out_total": ("counter", "Rows that went out, since the deployment."),
    "penstock_operator_late_rows_total": ("counter", "Rows that came after their windows."),
    "penstock_operator_bad_rows_total": ("counter", "Rows that could not be read."),
    "penstock_operator_state_rows": ("gauge", "Rows of state."),
    "penstock_operator_state_bytes": ("gauge", "Bytes of state, about."),
    "penstock_operator_state_cache_hits_total": ("counter", "Rows of state in RocksDB that were at hand."),
    "penstock_operator_state_cache_misses_total": ("counter", "Rows of state that were fetched from RocksDB."),
    "penstock_user_counter_total": ("counter", "Counters that functions keep themselves."),
    "penstock_user_gauge": ("gauge", "Gauges that functions set themselves, over all subtasks."),
    "penstock_user_histogram": ("histogram", "Values that functions observed."),
}
_HISTOGRAM = "penstock_user_histogram"
Sample = tuple[str, dict[str, str], float]


def render(cluster: ClusterView) -> str:
    """All samples, those of one metric together, as the format demands."""
    samples = sorted(_samples(cluster), key=lambda sample: list(_HELP).index(_family(sample[0])))
    lines, last = [], ""
    for name, labels, value in samples:
        family = _family(name)
        if family != last:
            kind, text = _HELP[family]
            lines += [f"# HELP {family} {text}", f"# TYPE {family} {kind}"]
            last = family
        inner = ",".join(f'{key}="{_escape(text)}"' for key, text in labels.items())
        lines.append(f"{name}{{{inner}}} {value:.15g}" if inner else f"{name} {value:.15g}")
    return "\n".join(lines) + "\n"


def _samples(cluster: ClusterView) -> Iterator[Sample]:
    yield "penstock_slots", {}, cluster.slots_total
    yield "penstock_slots_free", {}, cluster.slots_free
    for process in cluster.processes:
        if process.rss_bytes:
            yield "penstock_process_resident_bytes", {"role": process.role, "id": process.id}, process.rss_bytes
    for job in cluster.jobs:
        yield from _job_samples(job)


def _job_samples(job: JobView) -> Iterator[Sample]:
    of_job = {"job": job.id}
    yield "penstock_job_info", {**of_job, "name": job.name, "state": job.state}, 1
    yield "penstock_job_restarts_total", of_job, job.restarts
    yield "penstock_job_checkpoints_completed_total", of_job, job.checkpoints_completed
    yield "penstock_job_checkpoints_failed_total", of_job, job.checkpoints_failed
    if (last := job.last_checkpoint) is not None:
        yield "penstock_job_last_checkpoint_bytes", of_job, last.size
        yield "penstock_job_last_checkpoint_seconds", of_job, (last.duration_us or 0) / 1e6
    for vertex in job.vertices:
        of_vertex = {**of_job, "vertex": vertex.id}
        if vertex.watermark_us is not None:
            yield "penstock_vertex_watermark_seconds", of_vertex, vertex.watermark_us / 1e6
        yield "penstock_vertex_busy_ratio", of_vertex, vertex.busy
        yield "penstock_vertex_backpressured_ratio", of_vertex, vertex.backpressured
        yield "penstock_vertex_held_subtasks", of_vertex, vertex.held
        for operator in vertex.operators:
            of_operator = {**of_vertex, "operator": operator.uid}
            yield "penstock_operator_rows_in_total", of_operator, operator.rows_in
            yield "penstock_operator_rows_out_total", of_operator, operator.rows_out
            yield "penstock_operator_late_rows_total", of_operator, operator.late_rows
            yield "penstock_operator_bad_rows_total", of_operator, operator.bad_rows
            yield "penstock_operator_state_rows", of_operator, operator.state_rows
            yield "penstock_operator_state_bytes", of_operator, operator.state_bytes
            yield "penstock_operator_state_cache_hits_total", of_operator, operator.cache_hits
            yield "penstock_operator_state_cache_misses_total", of_operator, operator.cache_misses
            for metric in operator.user:
                yield from _user_samples(metric, {**of_operator, "name": metric.name})


def _user_samples(metric: UserMetric, labels: dict[str, str]) -> Iterator[Sample]:
    match metric.kind:
        case "counter":
            yield "penstock_user_counter_total", labels, metric.value
        case "gauge":
            yield "penstock_user_gauge", labels, metric.value
        case "histogram":
            bounds = [*(f"{bound:.15g}" for bound in metric.bounds), "+Inf"]
            for bound, count in zip(bounds, metric.counts, strict=True):
                yield f"{_HISTOGRAM}_bucket", {**labels, "le": bound}, count
            yield f"{_HISTOGRAM}_sum", labels, metric.value
            yield f"{_HISTOGRAM}_count", labels, metric.counts[-1]


def _family(name: str) -> str:
    """The samples of a histogram have several names, and are one metric."""
    return _HISTOGRAM if name.startswith(_HISTOGRAM) else name


def _escape(text: str) -> str:
    return text.replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n")
