"""FlowJobs from `kubectl apply` on: what people do, and what must come of it."""

import hashlib
import json
import time

from harness import faults, kstatus
from harness.flowjobs import FlowJobs
from harness.kubectl import Kubectl, Object, condition
from harness.s3 import S3Server
from harness.totals import PROGRAM, assert_exact
from harness.waiting import wait_until


def test_a_job_is_applied_scaled_saved_deleted_and_made_again_from_its_savepoint(
    jobs: FlowJobs, kubectl: Kubectl, s3: S3Server, bucket: str
) -> None:
    with kstatus.watched(kubectl, "flowjobs", "hot-items") as life:
        taken = live_through_scales_and_a_savepoint(jobs, kubectl, s3, bucket)
    readings = life.check()
    assert readings[:2] == [kstatus.IN_PROGRESS, kstatus.CURRENT]
    assert readings[-1] == kstatus.TERMINATING
    assert kstatus.FAILED not in readings

    second = jobs.manifest(
        "again",
        s3.uri(bucket, "second"),
        restore={"from": {"savepointRef": "saved"}, "allowForeign": True},
        savepoints={"onDelete": "Take", "location": s3.uri(bucket, "final")},
    )
    kubectl.apply(second)
    status = jobs.wait_settled("again")
    assert status["job"]["origin"] == taken["location"]
    kubectl("delete", "fj/again", "--timeout=180s", seconds=190)
    assert assert_exact(s3, bucket, "final") > 0


def live_through_scales_and_a_savepoint(jobs: FlowJobs, kubectl: Kubectl, s3: S3Server, bucket: str) -> Object:
    """The status of the savepoint that outlives the job."""
    began = time.monotonic()
    first = jobs.manifest("hot-items", s3.uri(bucket, "first"))
    kubectl.apply(first)
    jobs.wait_settled("hot-items", seconds=60)
    assert time.monotonic() - began < 60
    [header, row] = kubectl("get", "fj").splitlines()
    assert header.split() == ["NAME", "PHASE", "READY", "PARALLELISM", "RESTARTS", "LAST-CHECKPOINT", "AGE"]
    assert row.split()[:5] == ["hot-items", "Running", "True", "1/1", "0"]

    before = jobs.get("hot-items")["metadata"]["generation"]
    kubectl.apply(first)
    assert jobs.get("hot-items")["metadata"]["generation"] == before, "the same manifest again is no change"

    stays = jobs.pids("hot-items")["hot-items-taskmanager-0"]
    for size in (3, 1):
        kubectl("scale", "fj/hot-items", f"--replicas={size}")
        status = jobs.wait_settled("hot-items", seconds=240)
        assert status["parallelism"]["summary"] == f"{size}/{size}"
        assert status["lastChange"]["kind"] == "Rescale"
        assert status["lastChange"]["class"] == "rescale", status["lastChange"]
        assert len(jobs.pids("hot-items")) == size
        assert jobs.pids("hot-items")["hot-items-taskmanager-0"] == stays, "the pod that stays was left alone"

    taken = jobs.take_savepoint("saved", "hot-items", s3.uri(bucket, "saved"))
    assert taken["keyGroups"] == 128
    assert taken["size"] > 0
    manifests = [data for path, data in s3.read_all(bucket, "saved").items() if path.endswith("/manifest.json")]
    assert [hashlib.sha256(data).hexdigest() for data in manifests] == [taken["checksum"]]
    kubectl("delete", "fj/hot-items", "--timeout=120s", seconds=130)
    wait_until("its pods are gone", lambda: not jobs.pids("hot-items"), seconds=60)
    assert assert_exact(s3, bucket, "saved") > 0
    return taken


def test_an_upgrade_keeps_the_state_and_a_broken_one_leaves_the_old_job_running(
    jobs: FlowJobs, kubectl: Kubectl, s3: S3Server, bucket: str
) -> None:
    storage = s3.uri(bucket, "state")
    kubectl.apply(jobs.manifest("totals", storage))
    old = jobs.wait_settled("totals")["job"]

    jobs.add_program("faster", PROGRAM.replace("rate=2_000", "rate=3_000"))
    kubectl.apply(jobs.manifest("totals", storage, program="faster"))
    status = jobs.wait_settled("totals", seconds=240)
    new = status["job"]
    assert new["id"] != old["id"]
    assert new["origin"] == status["lastSavepoint"]["location"]
    assert status["lastChange"]["class"] == "rollout"
    assert 0 < status["lastChange"]["pauseSeconds"] < 120

    jobs.add_program("renamed", PROGRAM.replace('uid="totals"', 'uid="sums"'))
    kubectl.apply(jobs.manifest("totals", storage, program="renamed"))
    status = jobs.wait_settled("totals", seconds=240, ready="False")
    assert status["job"]["id"] == new["id"], "the old job was not touched"
    assert status["rejected"]["reason"] == "RestoreRefused"
    assert "totals.total" in status["rejected"]["message"]
    assert status["engine"]["state"] == "running"

    kubectl.apply(jobs.manifest("totals", storage, program="faster", image="nowhere.invalid/penstock:none"))
    status = jobs.wait_for("totals", "the broken image is told", lambda status: status.get("lastFailure"), seconds=90)
    assert status["lastFailure"]["reason"] in {"ErrImagePull", "ImagePullBackOff"}
    status = jobs.wait_settled("totals", seconds=240, ready="False")
    assert status["job"]["id"] == new["id"]

    kubectl.apply(jobs.manifest("totals", storage, program="faster"))
    jobs.wait_settled("totals")
    jobs.take_savepoint("end", "totals", s3.uri(bucket, "end"))
    assert assert_exact(s3, bucket, "end") > 0


def test_a_job_is_exact_though_pods_are_killed_and_it_is_suspended(
    jobs: FlowJobs, kubectl: Kubectl, s3: S3Server, bucket: str
) -> None:
    kubectl.apply(jobs.manifest("totals", s3.uri(bucket, "state"), parallelism=2))
    jobs.wait_settled("totals")
    faults.kill_pod(kubectl, "totals-taskmanager-1")
    jobs.wait_for("totals", "it has restarted", lambda status: status["engine"]["restarts"] >= 1)
    jobs.wait_settled("totals")
    faults.kill_pod(kubectl, "totals-jobmanager-0")
    jobs.wait_for("totals", "its JobManager is missed", lambda status: status["phase"] != "Running")
    jobs.wait_settled("totals")
    kubectl("patch", "fj/totals", "--type=merge", "--patch", json.dumps({"spec": {"state": "suspended"}}))
    status = jobs.wait_settled("totals")
    assert status["phase"] == "Suspended"
    assert not kubectl.items("pods", labels="penstock.dev/job=totals,app.kubernetes.io/component=taskmanager")
    kubectl("patch", "fj/totals", "--type=merge", "--patch", json.dumps({"spec": {"state": "running"}}))
    jobs.wait_settled("totals")
    # What somebody deletes or changes by hand is put back.
    kubectl("delete", "service", "totals-jobmanager")
    kubectl("scale", "statefulset/totals-taskmanager", "--replicas=1")
    wait_until("the service is back", lambda: kubectl.find("service", "totals-jobmanager"), seconds=30)
    sets = lambda: kubectl.get("statefulset", "totals-taskmanager")["spec"]["replicas"] == 2  # noqa: E731
    wait_until("both TaskManagers are wanted again", sets, seconds=30)
    jobs.wait_settled("totals")
    jobs.take_savepoint("end", "totals", s3.uri(bucket, "end"))
    assert assert_exact(s3, bucket, "end") > 0


def test_a_batch_job_runs_to_its_end_and_goes(jobs: FlowJobs, kubectl: Kubectl, s3: S3Server, bucket: str) -> None:
    jobs.add_program("short", PROGRAM.replace("100_000_000", "20_000").replace("rate=2_000", "rate=20_000"))
    kubectl.apply(
        jobs.manifest(
            "short", s3.uri(bucket, "state"), program="short", mode="batch", batch={"ttlSecondsAfterFinished": 5}
        )
    )
    jobs.wait_for("short", "it has finished", lambda status: status.get("phase") == "Finished")
    ready = condition(jobs.get("short"), "Ready")
    assert ready is not None
    assert (ready["status"], ready["reason"]) == ("True", "Finished")
    wait_until("it is gone", lambda: kubectl.find("flowjob", "short") is None, seconds=60)
