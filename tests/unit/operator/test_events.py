from penstock_operator.events import happened
from penstock_operator.spec.status import Failure, FlowJobStatus

SPEC = Failure(
    component="job", reason="InvalidSpec", message="M010 hostPath is not allowed", time="2026-01-01T00:00:00Z"
)
POD = Failure(
    component="taskmanager",
    pod="orders-taskmanager-0",
    reason="ImagePullBackOff",
    message="back-off 10s",
    time="2026-01-01T00:00:00Z",
)


def reasons(old: Failure | None, new: Failure | None) -> list[str]:
    return [event.reason for event in happened(FlowJobStatus(last_failure=old), FlowJobStatus(last_failure=new))]


def test_another_mistake_in_a_spec_is_another_event() -> None:
    other = SPEC.model_copy(update={"message": "M010 hostNetwork is not allowed"})
    assert reasons(None, SPEC) == reasons(SPEC, other) == ["InvalidSpec"]
    assert reasons(SPEC, SPEC) == []


def test_what_is_said_of_a_pod_changes_all_the_time_and_is_told_once() -> None:
    assert reasons(None, POD) == ["ImagePullBackOff"]
    assert reasons(POD, POD.model_copy(update={"message": "back-off 20s"})) == []
    assert reasons(POD, None) == []
