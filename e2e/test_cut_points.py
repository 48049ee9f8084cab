"""A controller that is killed after each of its changes: one job, one savepoint, nothing lost, nothing left behind."""

from collections.abc import Callable
from pathlib import Path

import pytest

from harness import faults
from harness.clusters import Own
from harness.flowjobs import FlowJobs
from harness.images import Images
from harness.kubectl import Kubectl, Object, schedulable_nodes
from harness.operators import NAME, POD_LABELS, local_operator, mortal_operator
from harness.s3 import S3Server
from harness.totals import PROGRAM, assert_exact
from harness.waiting import wait_until

SECONDS = 480.0
UPGRADE = '{"spec": {"program": {"configMap": {"name": "faster"}}}}'


@pytest.fixture
def unattended(definitions: None, kubectl: Kubectl, images: Images) -> FlowJobs:
    """FlowJobs, and nobody yet who looks at them."""
    found = FlowJobs(kubectl, images.penstock)
    found.add_program("totals")
    found.add_program("faster", PROGRAM.replace("rate=2_000", "rate=3_000"))
    return found


@pytest.mark.timeout(2400, func_only=True)
def test_the_controller_is_killed_after_every_change_that_it_makes(
    unattended: FlowJobs, own_cluster: Own, kubectl: Kubectl, s3: S3Server, bucket: str, tmp_path: Path
) -> None:
    jobs, cuts = unattended, tmp_path / "cuts"
    cuts.touch()
    manifest = jobs.manifest(
        "totals",
        s3.uri(bucket, "state"),
        savepoints={"onDelete": "Take", "location": s3.uri(bucket, "final")},
        upgrade={"mode": "savepoint"},
    )

    def create() -> Object:
        kubectl.apply(manifest)
        return jobs.wait_settled("totals", seconds=SECONDS)

    def rescale() -> Object:
        kubectl("scale", "fj/totals", "--replicas=2")
        status = jobs.wait_settled("totals", seconds=SECONDS)
        assert status["parallelism"]["summary"] == "2/2"
        assert status["lastChange"]["class"] == "rescale"
        return status

    def savepoint() -> Object:
        jobs.take_savepoint("saved", "totals", s3.uri(bucket, "saved"), seconds=SECONDS)
        assert assert_exact(s3, bucket, "saved") > 0
        return jobs.status("totals")

    def upgrade() -> Object:
        kubectl("patch", "fj/totals", "--type=merge", f"--patch={UPGRADE}")
        status = jobs.wait_settled("totals", seconds=SECONDS)
        assert status["lastChange"]["class"] == "rollout"
        assert status["lastChange"]["outcome"] == "Done"
        return status

    counted: dict[str, list[str]] = {}

    def under_fire(step: Callable[[], Object]) -> Object:
        before = len(cuts.read_text().splitlines())
        status = step()
        counted[step.__name__] = cuts.read_text().splitlines()[before:]
        return status

    def delete() -> Object:
        kubectl("delete", "fj/totals", f"--timeout={SECONDS:.0f}s", seconds=SECONDS + 10)
        return {}

    with mortal_operator(kubectl, tmp_path / "operator.log", cuts):
        first = under_fire(create)
        scaled = under_fire(rescale)
        saved = under_fire(savepoint)
        second = under_fire(upgrade)
        under_fire(delete)
    for name, points in counted.items():
        print(f"{name}: killed {len(points)} times", *points, sep="\n    ")

    assert first["serial"] == 1, "one job, however often it was submitted"
    assert scaled["job"]["id"] == saved["job"]["id"] == first["job"]["id"]
    assert second["serial"] == 2
    assert second["job"]["id"] != first["job"]["id"]
    taken = sorted({key.partition("/")[0] for key in s3.keys(bucket, "final")})
    assert len(taken) == 2, f"those that it stopped with for the upgrade and for the end, and none of checks: {taken}"
    assert assert_exact(s3, bucket, "final", taken[-1]) > 0
    for kind in ("statefulsets", "services", "jobs", "poddisruptionbudgets", "controllerrevisions"):
        wait_until(f"no {kind} are left", lambda kind=kind: not owned(kubectl, kind), seconds=90)  # type: ignore[misc]
    least = {"create": 8, "rescale": 3, "savepoint": 2, "upgrade": 6, "delete": 3}
    assert {name for name, points in counted.items() if len(points) < least[name]} == set(), counted


def owned(kubectl: Kubectl, kind: str) -> list[str]:
    """Names of what the controller has made."""
    return [
        each["metadata"]["name"]
        for each in kubectl.items(kind, labels="app.kubernetes.io/managed-by=penstock-operator")
    ]


def test_two_controllers_at_once_do_no_harm(
    unattended: FlowJobs, own_cluster: Own, kubectl: Kubectl, s3: S3Server, bucket: str, tmp_path: Path
) -> None:
    """Neither waits for the other's Lease, as when both believe that they lead."""
    jobs = unattended
    with (
        local_operator(kubectl, tmp_path / "one.log", "--no-leader-election") as one,
        local_operator(kubectl, tmp_path / "other.log", "--no-leader-election") as other,
    ):
        kubectl.apply(jobs.manifest("totals", s3.uri(bucket, "state")))
        first = jobs.wait_settled("totals", seconds=SECONDS)
        assert first["serial"] == 1
        kubectl("scale", "fj/totals", "--replicas=2")
        jobs.wait_settled("totals", seconds=SECONDS)
        kubectl("patch", "fj/totals", "--type=merge", f"--patch={UPGRADE}")
        second = jobs.wait_settled("totals", seconds=SECONDS)
        assert second["serial"] == 2
        assert second["lastChange"]["class"] == "rollout"
        jobs.take_savepoint("end", "totals", s3.uri(bucket, "end"))
        assert assert_exact(s3, bucket, "end") > 0
        assert (one.poll(), other.poll()) == (None, None), "both went on"
        kubectl("delete", "fj/totals", "--timeout=120s", seconds=130)


def test_a_job_is_exact_though_a_node_is_drained_the_api_server_restarts_and_the_leader_goes(
    jobs: FlowJobs, own_cluster: Own, admin: Kubectl, kubectl: Kubectl, s3: S3Server, bucket: str
) -> None:
    kubectl.apply(jobs.manifest("totals", s3.uri(bucket, "state"), parallelism=2))
    jobs.wait_settled("totals")
    faults.restart_api_server(own_cluster)
    node = schedulable_nodes(admin)[-1]  # The S3 server is on the first one.
    assert pods_on(kubectl, node), "something of this test runs there"
    with faults.cordoned(admin, node):
        faults.drain(admin, node)
        assert not pods_on(kubectl, node)
        jobs.wait_settled("totals", seconds=300)
    leader = leading_pod(kubectl)
    faults.kill_pod(kubectl, leader)
    kubectl("scale", "fj/totals", "--replicas=1")
    wait_until("another one leads", lambda: leading_pod(kubectl) not in {"", leader}, seconds=90)
    status = jobs.wait_settled("totals", seconds=300)
    assert status["parallelism"]["summary"] == "1/1"
    jobs.take_savepoint("end", "totals", s3.uri(bucket, "end"))
    assert assert_exact(s3, bucket, "end") > 0


def pods_on(kubectl: Kubectl, node: str) -> list[str]:
    """Names, in the namespace of the test."""
    return [pod["metadata"]["name"] for pod in kubectl.items("pods") if pod["spec"].get("nodeName") == node]


def leading_pod(kubectl: Kubectl) -> str:
    """Of the controllers; empty: none."""
    holder: str = kubectl.get("lease", NAME)["spec"].get("holderIdentity") or ""
    pods = {pod["metadata"]["name"] for pod in kubectl.items("pods", labels=POD_LABELS)}
    return next((pod for pod in pods if holder.startswith(pod)), "")
