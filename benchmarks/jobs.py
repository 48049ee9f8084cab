"""Jobs on an embedded cluster, as the benchmarks run them: submitted, waited for, timed by the JobManager's clock."""

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import msgspec

import penstock as ps
from benchmarks import data
from penstock.api.programs import build
from penstock.config import LinkSettings
from penstock.local import LocalCluster
from penstock.model.settings import CheckpointSettings, JobSettings
from penstock.model.views import JobView

ENDED = frozenset({"finished", "stopped", "cancelled", "failed"})
EVERY_SECOND = JobSettings(checkpoint=CheckpointSettings(interval_us=1_000_000))
_POLL_SECONDS = 0.1
"""Times are the JobManager's own; a client that asks more often takes a tenth of a core from the job."""
_SETTLE_SECONDS = 0.7
"""Fresh processes start behind the slots that were used: a job that follows at once shares its cores with them."""


@contextmanager
def cluster(
    name: str, *, task_managers: int, slots: int = 1, patience_seconds: float | None = None
) -> Iterator[LocalCluster]:
    """One JobManager and so many TaskManagers, with all their slots up.

    With `patience_seconds` nobody is given up before: a process that is stopped for a while, or gets no core on a
    machine that others use too, must not be taken for one that hangs.
    """
    link = None
    if patience_seconds is not None:
        link = LinkSettings(
            call_seconds=60.0, lost_after_seconds=patience_seconds, given_up_after_seconds=2 * patience_seconds
        )
    with LocalCluster(
        data.scratch(f"state-{name}"),
        task_managers=task_managers,
        slots_per_task_manager=slots,
        link=link,
        stuck_after_seconds=patience_seconds,
    ) as running:
        wait_until(lambda: running.client.cluster().slots_free == task_managers * slots, "free slots")
        yield running


def submit(
    running: LocalCluster, program: Callable[[ps.Flow], None], *, parallelism: int, settings: JobSettings
) -> JobView:
    """Build the program and hand it to the cluster."""
    graph = build(program, parallelism=parallelism, settings=settings)
    return running.client.submit(msgspec.json.encode(graph))


def finish(running: LocalCluster, job: str) -> JobView:
    """Wait until the job has ended and its slots are fresh again; an error unless it is finished."""
    view = running.client.job(job)
    while view.state not in ENDED:
        time.sleep(_POLL_SECONDS)
        running.check()
        view = running.client.job(job)
    if view.state != "finished":
        raise RuntimeError(f"job {view.name} is {view.state}: {view.reason}")
    total = running.client.cluster().slots_total
    wait_until(lambda: running.client.cluster().slots_free == total, "free slots")
    time.sleep(_SETTLE_SECONDS)
    return view


def seconds_running(view: JobView) -> float:
    """From the moment that all tasks ran to the last commit."""
    assert view.running_us is not None
    assert view.ended_us is not None
    return (view.ended_us - view.running_us) / 1_000_000


def seconds_in_all(view: JobView) -> float:
    """With deployment: from the submission to the last commit."""
    assert view.ended_us is not None
    return (view.ended_us - view.submitted_us) / 1_000_000


def wait_until(condition: Callable[[], bool], what: str, *, seconds: float = 60.0) -> None:
    """Ask until it is true."""
    deadline = time.monotonic() + seconds
    while not condition():
        if time.monotonic() > deadline:
            raise TimeoutError(f"no {what} within {seconds:.0f} s")
        time.sleep(_POLL_SECONDS)
