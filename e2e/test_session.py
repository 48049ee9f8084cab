"""Pods without the operator: the engine's own promises hold for processes that are pods."""

import json
import time
from collections.abc import Callable
from typing import Any

import pytest

from harness import faults, sessions
from harness.images import Images
from harness.kubectl import Kubectl, is_ready
from harness.s3 import S3Server
from harness.totals import PROGRAM, assert_exact
from harness.waiting import wait_until

AT = "--jobmanager=http://127.0.0.1:8081"
S3_AWAY_SECONDS = 60.0


@pytest.fixture
def running_job(kubectl: Kubectl, s3: S3Server, bucket: str, images: Images) -> None:
    """`totals`, on two TaskManagers, with two checkpoints."""
    sessions.start_session(kubectl, images.penstock, s3.uri(bucket, "state"), {"totals.py": PROGRAM})
    words = ("--checkpoint-interval=500ms", "--parallelism=2", "--restarts=20", "--id=totals", "--detach")
    sessions.penstock(kubectl, "run", "/opt/programs/totals.py:totals", AT, *words)
    wait_for_checkpoints(kubectl, 2)


def test_a_job_is_exact_though_a_taskmanager_pod_is_killed(
    running_job: None, kubectl: Kubectl, s3: S3Server, bucket: str
) -> None:
    replaced = pod_is_another(kubectl, "session-taskmanager-1")
    faults.kill_pod(kubectl, "session-taskmanager-1")
    wait_until("another pod", replaced, seconds=90)
    wait_until("the job has restarted", lambda: job(kubectl)["restarts"] >= 1, seconds=60)
    wait_for_checkpoints(kubectl, 2)
    stop_with_savepoint(kubectl, s3, bucket)
    assert assert_exact(s3, bucket, "savepoints") > 0


def test_a_job_is_exact_though_a_taskmanager_pod_runs_out_of_memory(
    running_job: None, kubectl: Kubectl, s3: S3Server, bucket: str
) -> None:
    faults.fill_memory(kubectl, "session-taskmanager-0")
    wait_until("the job has restarted", lambda: job(kubectl)["restarts"] >= 1, seconds=60)
    # The kernel takes a slot, which its TaskManager tells, or the TaskManager, which the kubelet tells.
    told = [failure["reason"] for failure in job(kubectl)["failures"]]
    ended = kubectl.get("pod", "session-taskmanager-0")["status"]["containerStatuses"][0]["lastState"]
    assert "out of memory" in str(told) or ended["terminated"]["reason"] == "OOMKilled"
    wait_for_checkpoints(kubectl, 2)
    stop_with_savepoint(kubectl, s3, bucket)
    assert assert_exact(s3, bucket, "savepoints") > 0


def test_a_job_is_exact_though_its_jobmanager_pod_is_killed_and_s3_is_away_for_a_minute(
    running_job: None, kubectl: Kubectl, s3: S3Server, bucket: str
) -> None:
    replaced = pod_is_another(kubectl, "session-jobmanager-0")
    faults.kill_pod(kubectl, "session-jobmanager-0")
    wait_until("another pod", replaced, seconds=90)
    wait_until("the job runs again", lambda: job(kubectl)["state"] == "running", seconds=60)
    wait_for_checkpoints(kubectl, 2)
    attempt = job(kubectl)["attempt"]
    with faults.without_s3(s3):
        time.sleep(S3_AWAY_SECONDS)  # not for something to happen: this long there is no store
    wait_for_checkpoints(kubectl, 2)
    assert job(kubectl)["attempt"] == attempt, "a store that is away is no reason to start again"
    stop_with_savepoint(kubectl, s3, bucket)
    assert assert_exact(s3, bucket, "savepoints") > 0


def job(kubectl: Kubectl) -> dict[str, Any]:
    view = json.loads(sessions.penstock(kubectl, "status", AT, "--json"))
    found: dict[str, Any] = view["jobs"][0]
    return found


def wait_for_checkpoints(kubectl: Kubectl, more: int) -> None:
    """Than there are."""
    before = job(kubectl)["checkpoints_completed"]

    def enough() -> bool:
        return bool(job(kubectl)["checkpoints_completed"] >= before + more)

    wait_until(f"{more} more checkpoints", enough, seconds=120)


def stop_with_savepoint(kubectl: Kubectl, s3: S3Server, bucket: str) -> None:
    sessions.penstock(kubectl, "stop", "totals", "--savepoint", "--to", s3.uri(bucket, "savepoints"), AT)


def pod_is_another(kubectl: Kubectl, pod: str) -> Callable[[], bool]:
    """Whether the pod of this name is not the one that it is now, and ready."""
    before = kubectl.get("pod", pod)["metadata"]["uid"]

    def replaced() -> bool:
        found = kubectl.find("pod", pod)
        return found is not None and found["metadata"]["uid"] != before and is_ready(found)

    return replaced
