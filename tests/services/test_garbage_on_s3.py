"""`penstock gc` on a bucket: objects, an upload that nobody completes, a savepoint that nobody does."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
from s3_servers import S3Server, s3_client

from penstock.storage import open_store

pytestmark = pytest.mark.timeout(300)

PROGRAM = Path(__file__).with_name("s3_programs.py")


def penstock(*words: str, home: Path) -> "subprocess.CompletedProcess[str]":
    return subprocess.run(
        [sys.executable, "-m", "penstock.cli", *words],
        env={**os.environ, "HOME": str(home), "XDG_STATE_HOME": str(home / "state")},
        capture_output=True,
        text=True,
        timeout=200,
        check=False,
    )


@pytest.mark.parametrize("name", ["versitygw", "minio"])
def test_garbage_in_a_bucket_is_listed_then_gone(
    name: str, request: pytest.FixtureRequest, new_bucket, tmp_path: Path
) -> None:
    server: S3Server = request.getfixturevalue(name)
    bucket = new_bucket(server)
    uri = server.uri(bucket, "state")
    ran = penstock("run", f"{PROGRAM}:numbers", "--state-dir", uri, home=tmp_path)
    assert ran.returncode == 0, ran.stderr
    store = open_store(uri)
    [job] = store.folders("jobs/")
    garbage = {
        f"jobs/{job}/checkpoints/99/1-numbers-0.state",
        f"jobs/{job}/shared/1-numbers-0/abcd",
        "savepoints/never/states/numbers.splits/x-0-1-1-0.parquet",
    }
    needed = {info.path for info in store.list("")}
    for path in garbage:
        store.put(path, b"x" * 100)
    client = s3_client(server.endpoint)
    try:
        key = f"state/jobs/{job}/shared/1-numbers-0/large"
        client.create_multipart_upload(Bucket=bucket, Key=key, ChecksumAlgorithm="SHA256")

        def uploads() -> int:
            return len(client.list_multipart_uploads(Bucket=bucket, Prefix=key).get("Uploads", []))

        assert uploads() == 1
        young = penstock("gc", "--state-dir", uri, "--dry-run", home=tmp_path)
        assert young.stdout == "no garbage\n", young.stderr
        dry = penstock("gc", "--state-dir", uri, "--grace", "0s", "--dry-run", "--json", home=tmp_path)
        found = {each["where"].removeprefix(f"s3://{bucket}/state/") for each in json.loads(dry.stdout)}
        # MinIO names uploads of whole paths only.
        assert found - {f"jobs/{job}/shared/1-numbers-0/large"} == garbage
        assert {info.path for info in store.list("")} == needed | garbage
        done = penstock("gc", "--state-dir", uri, "--grace", "0s", home=tmp_path)
        assert done.returncode == 0, done.stderr
        assert {info.path for info in store.list("")} == needed
        assert uploads() == (1 if name == "minio" else 0)
    finally:
        client.close()
    went_on = penstock("run", f"{PROGRAM}:numbers", "--state-dir", uri, "--from", job, home=tmp_path)
    assert went_on.returncode == 0, went_on.stderr
