"""Files in buckets: read, watched, and written once, though processes are killed."""

import io
import itertools
import os
import signal
import sys
import time
from collections.abc import Callable
from pathlib import Path

import msgspec
import polars as pl
import pytest
from object_sink_promises import SinkPromises, read
from polars.testing import assert_frame_equal
from s3_servers import S3Server, s3_client

from penstock import connectors
from penstock.api.programs import build
from penstock.connectors.object_sink import STAGING
from penstock.local import LocalCluster
from penstock.model.settings import CheckpointSettings, JobSettings, SourceSettings
from penstock.storage import open_store

sys.path.insert(0, str(Path(__file__).parent))
import s3_programs

pytestmark = pytest.mark.timeout(400)

PATIENCE_SECONDS = 120.0
SERVERS = ["versitygw", "minio"]


class TestSinksOnS3(SinkPromises):
    @pytest.fixture(params=SERVERS)
    def place(self, request: pytest.FixtureRequest, new_bucket) -> str:
        server = request.getfixturevalue(request.param)
        return server.uri(new_bucket(server), "out")


@pytest.mark.parametrize("name", SERVERS)
def test_files_in_a_bucket_are_read_in_every_format(name: str, request: pytest.FixtureRequest, new_bucket) -> None:
    server = request.getfixturevalue(name)
    store = open_store(server.uri(new_bucket(server)))
    rows = pl.DataFrame({"n": range(50_000), "name": [f"user-{number % 7}" for number in range(50_000)]})
    for number, part in enumerate(rows.iter_slices(20_000)):
        store.put(f"a/x/{number}.csv", part.write_csv().encode())
        store.put(f"a/y/{number}.jsonl", part.write_ndjson().encode())
        buffer = io.BytesIO()
        part.write_parquet(buffer, row_group_size=3000)
        store.put(f"a/z/{number}.parquet", buffer.getvalue())
    place, mark, options = store.uri.partition("?")
    for endpoint in (
        connectors.csv(f"{place}/a/x{mark}{options}"),
        connectors.json_lines(f"{place}/a/**/*.jsonl{mark}{options}"),
        connectors.parquet(f"{place}/a/z{mark}{options}"),
        connectors.parquet(f"{place}/a/*/[0-9].parquet{mark}{options}"),
    ):
        assert_frame_equal(read(endpoint).sort("n"), rows)
    assert len(connectors.csv(f"{place}/a{mark}{options}").as_source().resolve(SourceSettings()).schema or ()) == 2


@pytest.mark.parametrize("name", SERVERS)
def test_a_job_from_files_to_files_is_exact_though_a_taskmanager_is_killed(
    name: str, request: pytest.FixtureRequest, new_bucket, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    server: S3Server = request.getfixturevalue(name)
    bucket = new_bucket(server)
    out = server.uri(bucket, "out")
    monkeypatch.setenv("IN", server.uri(bucket, "in"))
    monkeypatch.setenv("OUT", out)
    settings = JobSettings(
        checkpoint=CheckpointSettings(interval_us=200_000), source=SourceSettings(discovery_interval_us=200_000)
    )
    graph = build(s3_programs.copied, parallelism=2, settings=settings)
    arriving, numbers = open_store(server.uri(bucket, "in")), itertools.count()

    def arrive(files: int) -> None:
        for _ in range(files):
            first = next(numbers) * 100
            rows = pl.DataFrame({"n": range(first, first + 100), "day": [f"d{n % 3}" for n in range(100)]})
            arriving.put(f"{first:06d}.jsonl", rows.write_ndjson().encode())

    def wait(condition: Callable[[], bool]) -> None:
        deadline = time.monotonic() + PATIENCE_SECONDS
        while not condition():
            assert time.monotonic() < deadline, "it did not happen in time"
            time.sleep(0.05)

    with LocalCluster(server.uri(bucket, "jobs"), folder=tmp_path, task_managers=2) as cluster:
        client = cluster.client
        job = client.submit(msgspec.json.encode(graph)).id

        def wait_for_checkpoints(count: int) -> None:
            wait(lambda: client.job(job).state == "running")
            before = client.job(job).checkpoints_completed
            wait(lambda: client.job(job).checkpoints_completed >= before + count)

        arrive(10)
        wait(lambda: len(shown(out)) > 0)
        for _ in range(2):
            arrive(10)
            [pid, *_] = [each.pid for each in client.cluster().processes if each.role == "taskmanager"]
            before = client.job(job).restarts
            os.kill(pid, signal.SIGKILL)
            arrive(10)
            wait(lambda before=before: client.job(job).restarts > before)
            wait_for_checkpoints(2)
        wait(lambda: len(shown(out)) >= 5000)
        client.stop(job)
        wait(lambda: client.job(job).state == "stopped")
    assert shown(out) == list(range(5000))
    assert list(open_store(out).list(f"{STAGING}/")) == []
    client_of_server = s3_client(server.endpoint)
    try:
        paths = [each["Key"] for each in client_of_server.list_multipart_uploads(Bucket=bucket).get("Uploads", [])]
        assert paths == []
    finally:
        client_of_server.close()


def shown(out: str) -> list[int]:
    """The rows of all files that anybody sees."""
    if not any(info.path.endswith(".parquet") for info in open_store(out).list("")):
        return []
    return sorted(read(connectors.parquet(out))["n"].to_list())
