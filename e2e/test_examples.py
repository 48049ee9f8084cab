"""The manifests in examples/kubernetes: each works, but for the address of the store; a second time is no change."""

import re

import pytest

from harness.clusters import TREE
from harness.flowjobs import FlowJobs
from harness.kubectl import Kubectl
from harness.s3 import ACCESS_KEY, ENDPOINT, SECRET_KEY, S3Server
from harness.waiting import wait_until

EXAMPLES = TREE / "examples" / "kubernetes"
FOLDERS = sorted(path.parent.name for path in EXAMPLES.glob("*/kustomization.yaml"))


@pytest.fixture
def credentials(kubectl: Kubectl) -> None:
    keys = {"AWS_ACCESS_KEY_ID": ACCESS_KEY, "AWS_SECRET_ACCESS_KEY": SECRET_KEY}
    kubectl.apply({"apiVersion": "v1", "kind": "Secret", "metadata": {"name": "object-store"}, "stringData": keys})


def test_the_stream_runs_and_goes_on_as_each_of_its_variants(
    credentials: None, jobs: FlowJobs, kubectl: Kubectl, s3: S3Server, bucket: str
) -> None:
    apply_twice(kubectl, "stream", bucket)
    status = jobs.wait_settled("hot-items")
    first = status["job"]["id"]
    pods = kubectl.items("pods", labels="penstock.dev/job=hot-items,app.kubernetes.io/component=taskmanager")
    wait_until(
        "the first rows are printed",
        lambda: any('"auction"' in kubectl("logs", pod["metadata"]["name"]) for pod in pods),
        seconds=60,
    )
    print(kubectl("get", "fj"))

    apply_twice(kubectl, "scheduled-savepoints", bucket)
    assert jobs.wait_settled("hot-items")["job"]["id"] == first, "a schedule is no reason to start again"

    # The autoscaler asks for at least two; it is the one that knows from here on.
    apply_twice(kubectl, "autoscaled", bucket)
    jobs.wait_for("hot-items", "the autoscaler has set it", lambda status: status["parallelism"]["desired"] == 2)
    status = jobs.wait_settled("hot-items", seconds=240)
    assert status["parallelism"]["summary"] == "2/2"
    assert status["job"]["id"] == first
    kubectl("patch", "hpa/hot-items", "--type=merge", '--patch={"spec": {"minReplicas": 3}}')
    jobs.wait_for("hot-items", "the autoscaler has raised it", lambda status: status["parallelism"]["desired"] == 3)
    assert jobs.wait_settled("hot-items", seconds=240)["parallelism"]["summary"] == "3/3"
    before = jobs.get("hot-items")["metadata"]["generation"]
    kubectl("patch", "hpa/hot-items", "--type=merge", '--patch={"spec": {"minReplicas": 2}}')
    apply_twice(kubectl, "autoscaled", bucket)
    assert jobs.get("hot-items")["metadata"]["generation"] == before, "applying leaves the autoscaler's field alone"


def test_the_batch_job_ends(credentials: None, jobs: FlowJobs, kubectl: Kubectl, s3: S3Server, bucket: str) -> None:
    apply_twice(kubectl, "batch", bucket)
    status = jobs.wait_settled("best-seller")
    assert status["phase"] == "Finished"


@pytest.mark.parametrize("folder", FOLDERS)
def test_applying_twice_is_no_change(credentials: None, definitions: None, kubectl: Kubectl, folder: str) -> None:
    apply_twice(kubectl, folder, "bucket")


def apply_twice(kubectl: Kubectl, folder: str, bucket: str) -> None:
    manifests = localised(kubectl, folder, bucket)
    words = ("--server-side", "--field-manager=examples", "--filename=-")
    kubectl("apply", *words, stdin=manifests)
    kubectl("apply", *words, stdin=manifests)

    def same() -> bool:
        """The status may move while kubectl looks; a difference in what was applied would stay."""
        return kubectl.attempt("diff", *words, stdin=manifests).returncode == 0

    wait_until(f"there is no difference to {folder}", same, seconds=60)


def localised(kubectl: Kubectl, folder: str, bucket: str) -> str:
    """With the store of these tests."""
    text = kubectl("kustomize", str(EXAMPLES / folder))
    return re.sub(r"s3://lake(/[\w/-]+)", rf"s3://{bucket}\1?endpoint={ENDPOINT}", text)
