"""Stores that cannot be used are refused at the start: by name, with what to do, and without a traceback."""

import os
import random
import subprocess
import sys
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest
from botocore.auth import S3SigV4Auth
from botocore.awsrequest import AWSRequest
from botocore.credentials import Credentials
from fault_proxy import FaultProxy, Request, running_proxy
from s3_servers import ACCESS_KEY, SECRET_KEY, S3Server, free_port

from penstock.jobmanager.state_dir import StateDir
from penstock.model.errors import RetryableError, UserError
from penstock.storage import check_conditional_writes, open_store

pytestmark = pytest.mark.timeout(300)

PROGRAM = Path(__file__).with_name("s3_programs.py")


@pytest.fixture
def careless(versitygw: S3Server) -> Iterator[FaultProxy]:
    """A real server that never hears of conditions: it takes each write."""
    with running_proxy(versitygw.port) as proxy, proxy.under(rewrite=unconditional):
        yield proxy


def unconditional(request: Request) -> Request:
    """Without the conditions, and signed again."""
    dropped = {"if-none-match", "if-match", "authorization", "x-amz-date", "x-amz-content-sha256"}
    headers = {name: value for name, value in request.headers if name.lower() not in dropped}
    unsigned = {name: value for name, value in headers.items() if not name.lower().startswith(("content-", "expect"))}
    asked = AWSRequest(
        request.method, f"http://{headers['Host']}{request.target}", headers=unsigned, data=request.body
    )
    S3SigV4Auth(Credentials(ACCESS_KEY, SECRET_KEY), "s3", "us-east-1").add_auth(asked)
    return replace(request, headers=tuple({**headers, **dict(asked.headers.items())}.items()))


@pytest.mark.parametrize("name", ["versitygw", "minio"])
def test_a_store_that_honours_conditions_passes_the_probe_every_time(name: str, request, new_bucket) -> None:
    server = request.getfixturevalue(name)
    bucket = new_bucket(server)
    store = open_store(server.uri(bucket))
    for seed in range(10):
        check_conditional_writes(store, random.Random(seed))
    assert list(store.list("")) == []


def test_a_store_that_ignores_conditions_is_refused_by_name(careless: FaultProxy, versitygw, new_bucket) -> None:
    bucket = new_bucket(versitygw)
    uri = careless.uri(bucket, "jobs")
    with pytest.raises(
        UserError, match=r"S080.*16 writers created the same object at once, and 16 were told yes"
    ) as it:
        StateDir(uri).check()
    assert str(it.value.where).startswith(uri)
    assert list(open_store(versitygw.uri(bucket)).list("")) == []


@pytest.mark.parametrize(
    "command",
    [["run", f"{PROGRAM}:numbers"], ["jobmanager", "--port=0", "--rest-port=0"]],
    ids=["run", "jobmanager"],
)
def test_no_job_is_started_on_such_a_store(
    command: list[str], careless: FaultProxy, versitygw: S3Server, new_bucket, tmp_path: Path
) -> None:
    bucket = new_bucket(versitygw)
    ended = penstock(*command, "--state-dir", careless.uri(bucket, "jobs"), home=tmp_path)
    assert ended.returncode == 2, ended.stderr
    assert "S080" in ended.stderr
    assert careless.endpoint in ended.stderr
    assert "Traceback" not in ended.stderr
    assert list(open_store(versitygw.uri(bucket)).list("")) == []


@pytest.mark.parametrize("name", ["versitygw", "minio"])
def test_a_bucket_that_is_not_there_is_named(name: str, request: pytest.FixtureRequest) -> None:
    server = request.getfixturevalue(name)
    store = open_store(server.uri("never-made"))
    for operation in (
        lambda: store.create("a", b"1"),
        lambda: store.put("a", b"1"),
        lambda: store.get("a"),
        lambda: list(store.list("")),
        lambda: StateDir(server.uri("never-made")).check(),
    ):
        with pytest.raises(RetryableError, match=rf'S081.*there is no bucket "never-made" at {server.endpoint}') as it:
            operation()
        assert it.value.fix is not None


@pytest.mark.parametrize("name", ["versitygw", "minio"])
def test_wrong_credentials_are_told_as_such(name: str, request, new_bucket, monkeypatch) -> None:
    server = request.getfixturevalue(name)
    bucket = new_bucket(server)
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "wrong")
    store = open_store(server.uri(bucket, connect_timeout="4s"))  # a client of its own: others have signed in
    for operation in (lambda: store.create("a", b"1"), lambda: store.get("a"), lambda: list(store.list(""))):
        with pytest.raises(RetryableError, match=r"S082.*403 SignatureDoesNotMatch.*\n.*check the credentials"):
            operation()


def test_no_credentials_at_all_are_told_as_such(versitygw: S3Server, new_bucket, tmp_path: Path) -> None:
    uri = versitygw.uri(new_bucket(versitygw))
    nobody = {name: value for name, value in os.environ.items() if not name.startswith("AWS_")}
    ended = penstock("jobmanager", "--state-dir", uri, home=tmp_path, environment=nobody)
    assert ended.returncode == 2, ended.stderr
    assert "S082" in ended.stderr
    assert "AWS_ACCESS_KEY_ID" in ended.stderr
    assert "Traceback" not in ended.stderr


def test_an_endpoint_where_nobody_listens_is_told_soon(tmp_path: Path) -> None:
    endpoint = f"http://127.0.0.1:{free_port()}"
    started = time.monotonic()
    ended = penstock("run", f"{PROGRAM}:numbers", "--state-dir", f"s3://b-1/x?endpoint={endpoint}", home=tmp_path)
    assert ended.returncode == 2, ended.stderr
    assert "S083" in ended.stderr
    assert f"{endpoint} does not answer" in ended.stderr
    assert "Traceback" not in ended.stderr
    assert time.monotonic() - started < 120


def test_the_endpoint_may_be_in_the_environment(versitygw: S3Server, new_bucket, tmp_path: Path) -> None:
    environment = {**os.environ, "AWS_ENDPOINT_URL": versitygw.endpoint}
    bucket = new_bucket(versitygw)
    ended = penstock(
        "run", f"{PROGRAM}:numbers", "--state-dir", f"s3://{bucket}/x", home=tmp_path, environment=environment
    )
    assert ended.returncode == 0, ended.stderr
    assert any(info.path.endswith("/graph.json") for info in open_store(versitygw.uri(bucket)).list("x/jobs/"))


def penstock(*words: str, home: Path, environment: dict[str, str] | None = None) -> "subprocess.CompletedProcess[str]":
    """The command, in a home of its own."""
    return subprocess.run(
        [sys.executable, "-m", "penstock.cli", *words],
        env={**(environment or os.environ), "HOME": str(home), "XDG_STATE_HOME": str(home / "state")},
        capture_output=True,
        text=True,
        timeout=250,
        check=False,
    )
