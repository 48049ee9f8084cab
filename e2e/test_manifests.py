"""Wrong manifests: refused by the API server where it can see it, else told in the status; nothing changes."""

import json
from typing import Any

import pytest

from harness.flowjobs import FlowJobs
from harness.kubectl import Kubectl, Object, condition
from harness.s3 import S3Server
from harness.waiting import wait_until

MEMORY = {"resources": {"limits": {"memory": "2 gigs"}}}
BELOW = {"resources": {"requests": {"memory": "2Gi"}, "limits": {"memory": "1Gi"}}}
MILLI = {"resources": {"limits": {"memory": "2048m"}}}
SAVEPOINT = {"from": {"savepointRef": "a", "path": "s3://b/c"}}


def manifest(name: str = "wrong", **spec: Any) -> Object:
    made = {"entrypoint": "a:b", "checkpoints": {"storage": "s3://bucket/folder"}, **spec}
    kept = {key: value for key, value in made.items() if value is not None}
    return {"apiVersion": "penstock.dev/v1alpha1", "kind": "FlowJob", "metadata": {"name": name}, "spec": kept}


WRONG = [
    ("M1", manifest(paralelism=2), 'unknown field "spec.paralelism"'),
    ("M2 zero", manifest(parallelism=0), "M002 spec.parallelism must be 1 or more"),
    ("M2 negative", manifest(parallelism=-1), "M002 spec.parallelism must be 1 or more"),
    ("M2 word", manifest(parallelism="four"), "spec.parallelism"),
    ("M2 too large", manifest(parallelism=1_000_000_000), "M003 spec.parallelism is above spec.maxParallelism"),
    ("M2 groups", manifest(maxParallelism=0), "M002 spec.maxParallelism must be from 1 to 32768"),
    ("M3", manifest(parallelism=9, maxParallelism=8), "M003 spec.parallelism is above spec.maxParallelism"),
    ("M5 long", manifest("a" * 41), "M005 metadata.name is longer than 40 characters"),
    ("M5 digit", manifest("1st"), "M005 metadata.name must be lower-case letters"),
    ("M5 case", manifest("Wrong"), "lower case"),
    ("M6 unit", manifest(taskManager=MEMORY), "M006 not a quantity"),
    ("M6 below", manifest(taskManager=BELOW), "M006 limits.memory is below requests.memory"),
    ("M6 milli", manifest(jobManager=MILLI), "M006 memory ends in m"),
    ("M7", manifest(checkpoints={"interval": "5s"}), "M007 spec.checkpoints.storage is needed"),
    ("M8 place", manifest(checkpoints={"storage": "gs://bucket"}), "M008 not a place for state"),
    ("M9 scheme", manifest(checkpoints={"storage": "http://169.254.169.254/x"}), "M008 not a place for state"),
    ("M11", manifest(program={"configMap": {"name": "x", "namespace": "other"}}), "unknown field"),
    ("M15 duration", manifest(checkpoints={"storage": "s3://b/c", "interval": "5 minuts"}), "M015 not a duration"),
    ("M15 schedule", manifest(savepoints={"schedule": "hourly"}), "M015 not a schedule"),
    ("M16", manifest(restore=SAVEPOINT), "M016 restore.from needs exactly one"),
    ("M17", manifest(batch={"retries": 1}), "M017 spec.batch is for mode batch"),
]


@pytest.mark.parametrize(("wrong", "says"), [case[1:] for case in WRONG], ids=[case[0] for case in WRONG])
def test_the_api_server_refuses(definitions: None, kubectl: Kubectl, wrong: Object, says: str) -> None:
    done = kubectl.attempt("create", "--filename=-", stdin=json.dumps(wrong))
    assert done.returncode
    assert says in done.stderr, done.stderr
    assert not kubectl.items("flowjobs")


def test_texts_that_are_no_manifests_are_refused(definitions: None, kubectl: Kubectl) -> None:
    for wrong, says in (
        ("kind: FlowJob\n  spec: [", "error parsing"),
        (json.dumps(manifest(args=["x" * 10_000_000])), "limit is 3145728"),
    ):
        done = kubectl.attempt("apply", "--server-side", "--filename=-", stdin=wrong)
        assert done.returncode
        assert says in done.stderr, done.stderr[:500]
    assert not kubectl.items("flowjobs")


def test_a_job_keeps_what_cannot_change(definitions: None, kubectl: Kubectl) -> None:
    kubectl.apply(manifest("fixed", maxParallelism=64, state="suspended"))
    for patch, says in (
        ({"maxParallelism": 128}, "M004 spec.maxParallelism cannot change"),
        ({"mode": "batch"}, "M017 spec.mode cannot change"),
        ({"parallelism": 65}, "M003 spec.parallelism is above"),
    ):
        done = kubectl.attempt("patch", "fj/fixed", "--type=merge", f"--patch={json.dumps({'spec': patch})}")
        assert done.returncode
        assert says in done.stderr, done.stderr


def test_what_only_the_controller_sees_is_told_and_the_job_runs_on(
    jobs: FlowJobs, kubectl: Kubectl, s3: S3Server, bucket: str
) -> None:
    storage = s3.uri(bucket, "state")
    good = jobs.manifest("totals", storage)
    kubectl.apply(good)
    jobs.wait_settled("totals")
    job, pods = jobs.status("totals")["job"]["id"], jobs.pids("totals")
    host_path = {"podTemplate": {"spec": {"volumes": [{"name": "x", "hostPath": {"path": "/etc"}}]}}}
    wrongs: list[tuple[str, Object]] = [
        ("M010 spec.taskManager.podTemplate.spec.volumes[0].hostPath", {"taskManager": host_path}),
        ("M010 spec.jobManager.podTemplate.spec.hostNetwork", {"jobManager": _template(hostNetwork=True)}),
        (
            "M010 spec.jobManager.podTemplate.spec.serviceAccountName",
            {"jobManager": _template(serviceAccountName="x")},
        ),
        ("M015 spec.savepoints.schedule", {"savepoints": {"schedule": "99 * * * *"}}),
        ("M015 spec.savepoints.timeZone", {"savepoints": {"schedule": "9 * * * *", "timeZone": "Middle/Earth"}}),
    ]
    for says, spec in wrongs:
        kubectl.apply({**good, "spec": {**good["spec"], **spec}})
        told(jobs, "totals", says)
        assert jobs.status("totals")["engine"]["state"] == "running"
        wait_until(f"an event says {says}", lambda says=says: warned(kubectl, says), seconds=30)  # type: ignore[misc]
    kubectl.apply(jobs.manifest("second", storage))
    told(jobs, "second", "M014 spec.checkpoints.storage")
    assert not kubectl.items("pods", labels="penstock.dev/job=second")
    kubectl.apply(good)
    status = jobs.wait_settled("totals")
    assert (status["job"]["id"], jobs.pids("totals")) == (job, pods), "nothing of it was touched"


def warned(kubectl: Kubectl, says: str) -> bool:
    return any(says in event["message"] for event in kubectl.items("events") if event["type"] == "Warning")


def told(jobs: FlowJobs, name: str, says: str) -> None:
    def so() -> bool:
        found = jobs.get(name)
        ready, stalled = condition(found, "Ready"), condition(found, "Stalled")
        if ready is None or stalled is None or ready["observedGeneration"] != found["metadata"]["generation"]:
            return False
        return says in ready["message"] and (ready["status"], stalled["status"]) == ("False", "True")

    wait_until(f"{name}: {says}", so, seconds=60)


def _template(**spec: Any) -> Object:
    return {"podTemplate": {"spec": spec}}
