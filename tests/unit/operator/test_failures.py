"""From the status of a pod to words that say what is wrong, the same ones as long as it is wrong."""

from typing import Any

import pytest

from penstock_operator.failures import pod_problem

CRASHED = {"terminated": {"exitCode": 2, "reason": "Error", "message": "S081 there is no bucket\n"}}
FULL = {"terminated": {"exitCode": 137, "reason": "OOMKilled"}}
RUNS: dict[str, Any] = {"running": {}}


def pod(
    state: dict[str, Any], last: dict[str, Any] | None = None, *, ready: bool = False, **more: Any
) -> dict[str, Any]:
    container = {"name": "main", "ready": ready, "state": state, "lastState": last or {}}
    meta = {"name": "orders-jobmanager-0", "labels": {"app.kubernetes.io/component": "jobmanager"}}
    return {"metadata": meta, "spec": more, "status": {"phase": "Running", "containerStatuses": [container]}}


def waits(reason: str) -> dict[str, Any]:
    return {"waiting": {"reason": reason, "message": "because"}}


@pytest.mark.parametrize(
    ("states", "reason", "fix"),
    [
        ([(waits("ErrImagePull"), None), (waits("ImagePullBackOff"), None)], "ImagePullBackOff", "spec.image"),
        ([(waits("CreateContainerConfigError"), None)], "CreateContainerConfigError", "create the Secret"),
        ([(CRASHED, None), (waits("CrashLoopBackOff"), CRASHED), (RUNS, CRASHED)], "CrashLoopBackOff", "--previous"),
        ([(FULL, None), (waits("CrashLoopBackOff"), FULL), (RUNS, FULL)], "OOMKilled", "limits.memory"),
    ],
)
def test_what_keeps_a_container_from_working_has_one_name_through_all_its_states(
    states: list[tuple[Any, Any]], reason: str, fix: str
) -> None:
    for state, last in states:
        problem = pod_problem(pod(state, last))
        assert problem is not None, state
        assert (problem.reason, problem.component, problem.pod) == (reason, "jobmanager", "orders-jobmanager-0")
        assert fix in problem.fix


def test_the_last_words_of_a_process_are_told() -> None:
    problem = pod_problem(pod(waits("CrashLoopBackOff"), CRASHED))
    assert problem is not None
    assert problem.message == "CrashLoopBackOff: exit code 2: S081 there is no bucket"


def test_what_has_come_back_is_no_problem() -> None:
    assert pod_problem(pod(RUNS, CRASHED, ready=True)) is None
    assert pod_problem(pod(RUNS)) is None
    assert pod_problem(pod(waits("ContainerCreating"))) is None


def test_a_short_lived_pod_ends_once() -> None:
    problem = pod_problem(pod(CRASHED, restartPolicy="Never"))
    assert problem is not None
    assert problem.reason == "Error"
    assert pod_problem(pod({"terminated": {"exitCode": 0, "reason": "Completed"}}, restartPolicy="Never")) is None


def test_a_pod_that_has_no_place_says_what_it_lacks() -> None:
    made = pod(waits("x"))
    lacks = {"type": "PodScheduled", "status": "False", "reason": "Unschedulable", "message": "Insufficient cpu"}
    made["status"] = {"phase": "Pending", "conditions": [lacks]}
    problem = pod_problem(made)
    assert problem is not None
    assert (problem.reason, problem.message) == ("Unschedulable", "Unschedulable: Insufficient cpu")
