"""`kubectl flow` beside a controller that works."""

import json
import os
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest
import yaml

from harness.flowjobs import FlowJobs
from harness.kubectl import Kubectl
from harness.s3 import SECRET_KEY, S3Server
from harness.totals import PROGRAM, assert_exact
from harness.waiting import wait_until


@pytest.fixture
def flow(kubectl: Kubectl):  # type: ignore[no-untyped-def]
    """`kubectl flow WORDS -n NAMESPACE`: exit code and all that it prints."""

    def run(*words: str, code: int = 0, seconds: float = 300) -> str:
        folder = Path(sys.executable).parent
        done = subprocess.run(
            ["kubectl", "flow", *words, f"--namespace={kubectl.namespace}"],
            env={**kubectl.environment, "PATH": f"{folder}{os.pathsep}{kubectl.environment['PATH']}"},
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=seconds,
            check=False,
        )
        assert done.returncode == code, (words, done.returncode, done.stdout, done.stderr)
        return done.stdout + done.stderr

    return run


def test_a_job_is_looked_at_planned_changed_and_reported(  # type: ignore[no-untyped-def]
    flow, jobs: FlowJobs, kubectl: Kubectl, s3: S3Server, bucket: str, tmp_path: Path
) -> None:
    assert "there are no FlowJobs here" in flow("status")
    first = jobs.manifest("totals", s3.uri(bucket, "state"), env=[{"name": "MY_TOKEN", "value": "c4n4ry"}])
    path = tmp_path / "job.yaml"
    path.write_text(yaml.safe_dump(first))
    assert "totals: create" in flow("plan", "-f", str(path))
    kubectl.apply(first)
    jobs.wait_settled("totals")

    shown = flow("status", "totals")
    for words in ("totals  Running, parallelism 1/1", "totals-taskmanager-0  Running", "completed", "savepoints: 0"):
        assert words in shown, shown
    assert "totals" in flow("status")
    assert 'there is no FlowJob "total"' in flow("status", "total", code=2)
    print(shown)

    done = flow("rescale", "totals", "--parallelism", "2")
    assert "totals is Running: Rescale (rescale) 1 -> 2" in done, done
    taken = flow("savepoint", "totals", "--name", "before", "--to", s3.uri(bucket, "before"))
    assert "flowsavepoint/before:" in taken
    assert assert_exact(s3, bucket, "before") > 0

    jobs.add_program("renamed", PROGRAM.replace('uid="totals"', 'uid="sums"'))
    jobs.add_program("faster", PROGRAM.replace("rate=2_000", "rate=3_000"))
    second = {**first, "spec": {**first["spec"], "program": {"configMap": {"name": "faster"}}, "parallelism": 2}}
    wrong = {**second, "spec": {**second["spec"], "program": {"configMap": {"name": "renamed"}}}}
    path.write_text(yaml.safe_dump(wrong))
    refused = flow("plan", "-f", str(path), "--check", code=1)
    assert "totals: rollout" in refused
    assert "totals.total" in refused, "the state that cannot be restored is named"
    path.write_text(yaml.safe_dump(second))
    print(flow("plan", "-f", str(path), "--check"))
    labels = "app.kubernetes.io/managed-by=kubectl-flow"
    assert not kubectl.items("jobs", labels=labels), "the pods of a plan are gone"
    kubectl.apply(second)
    status = jobs.wait_settled("totals", seconds=240)

    listed = flow("rollback", "totals", "--list")
    assert f"* {status['job']['revision']}" in listed, listed
    assert "totals is Running: Rollout (rollout)" in flow("rollback", "totals")
    program = jobs.get("totals")["spec"]["program"]["configMap"]["name"]
    assert program == "totals", "the program of the revision before"

    assert "totals is Suspended" in flow("suspend", "totals")
    assert "totals is Running" in flow("resume", "totals")

    assert "totals-taskmanager-0" in flow("logs", "totals", "-c", "taskmanager", "--since=10m")
    events = flow("events", "totals")
    for reason in ("RescaleDone", "RolloutDone", "SavepointTaken"):
        assert reason in events, events

    report = tmp_path / "report.zip"
    flow("report", "totals", "-o", str(report))
    with zipfile.ZipFile(report) as archive:
        content = {name: archive.read(name).decode() for name in archive.namelist()}
    assert "totals-report/logs/totals-taskmanager-0.log" in content
    cluster = json.loads(content["totals-report/engine/totals-jobmanager-0/cluster.json"])
    assert cluster["jobs"]
    for secret in ("c4n4ry", SECRET_KEY):
        assert all(secret not in text for text in content.values())

    kubectl("delete", "fsp/before")
    words = ("savepoints", "import", "totals", "--from", s3.uri(bucket, "before"))
    imported = flow(*words)
    assert "1 savepoints in" in imported
    [entry] = [each for each in kubectl.items("flowsavepoints") if each["spec"].get("existing")]
    name = entry["metadata"]["name"]

    def verified() -> bool:
        return bool(kubectl.get("flowsavepoint", name).get("status", {}).get("phase") == "Completed")

    wait_until("what was imported is verified", verified, seconds=90)
    assert "1 were in the catalogue already" in flow(
        "savepoints", "import", "totals", "--from", s3.uri(bucket, "before")
    )
