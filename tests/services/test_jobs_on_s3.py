"""Whole jobs with their state on S3: processes are killed, the store misbehaves, and the output is exact."""

import contextlib
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TypeVar

import msgspec
import polars as pl
import pytest
from fault_proxy import running_proxy
from object_sink_promises import read
from polars.testing import assert_frame_equal
from s3_servers import S3Server, s3_client

import penstock as ps
from penstock.api.programs import build
from penstock.checkpoint import journal
from penstock.garbage import Rules, find_all
from penstock.jobmanager.state_dir import StateDir
from penstock.local import LocalCluster
from penstock.model.clocks import SystemClock
from penstock.model.errors import RetryableError
from penstock.model.ids import JobId
from penstock.model.settings import CheckpointSettings, JobSettings
from penstock.rpc import RestClient
from penstock.storage import open_store

sys.path.insert(0, str(Path(__file__).parent))
import s3_programs

pytestmark = pytest.mark.timeout(1500)

T = TypeVar("T")

PROGRAM = Path(__file__).with_name("s3_programs.py")
PATIENCE_SECONDS = 120.0


class Run:
    """`penstock run` of the window job, in a process group of its own."""

    def __init__(self, uri: str, home: Path, *more: str) -> None:
        self.state_dir = StateDir(uri)
        self.log = (home / "run.log").open("a+")
        words = ["run", f"{PROGRAM}:per_bidder", "-p", "2", "--task-managers", "2", "--checkpoint-interval", "200ms"]
        self.process = subprocess.Popen(
            [sys.executable, "-m", "penstock.cli", *words, "--state-dir", uri, *more],
            env={**os.environ, "OUT": str(home / "out"), "HOME": str(home), "XDG_STATE_HOME": str(home / "state")},
            stdout=self.log,
            stderr=self.log,
        )

    def wait_for_checkpoints(self, count: int) -> None:
        """Until the job runs, and then until it has so many more."""
        before = self._wait(self._checkpoints)
        self._wait(lambda: found if (found := self._checkpoints() or 0) >= before + count else None)

    def pid_of(self, role: str) -> int:
        def find() -> int | None:
            processes = [process for process in self._client().cluster().processes if process.role == role]
            return processes[0].pid if processes else None

        return self._wait(lambda: self._ask(find))

    def end(self) -> str:
        """Its output, when it has ended well."""
        code = self.process.wait(PATIENCE_SECONDS)
        self.log.seek(0)
        text = self.log.read()
        assert code == 0, text
        return text

    def close(self) -> None:
        if self.process.poll() is None:
            self.process.kill()
            self.process.wait()
        self.log.close()

    def _client(self) -> RestClient:
        addresses = self.state_dir.addresses()
        if addresses is None:
            raise RetryableError("C002", "no JobManager yet")
        return RestClient(addresses.rest)

    def _checkpoints(self) -> int | None:
        def count() -> int | None:
            jobs = self._client().jobs()
            return jobs[0].checkpoints_completed if jobs and jobs[0].state == "running" else None

        return self._ask(count)

    def _ask(self, question: Callable[[], T | None]) -> T | None:
        with contextlib.suppress(RetryableError):
            return question()
        return None

    def _wait(self, question: Callable[[], T | None]) -> T:
        deadline = time.monotonic() + PATIENCE_SECONDS
        while (answer := question()) is None:
            assert self.process.poll() is None, "it ended too early"
            assert time.monotonic() < deadline, "it did not happen in time"
            time.sleep(0.05)
        return answer


@pytest.fixture
def start(tmp_path: Path) -> Iterator[Callable[..., Run]]:
    runs: list[Run] = []

    def one(uri: str, *more: str) -> Run:
        runs.append(Run(uri, tmp_path, *more))
        return runs[-1]

    yield one
    for run in runs:
        run.close()


def test_a_job_on_s3_is_exact_though_its_processes_are_killed(
    start, versitygw: S3Server, new_bucket, tmp_path
) -> None:
    uri = versitygw.uri(new_bucket(versitygw), "jobs")
    run = start(uri)
    run.wait_for_checkpoints(2)
    os.kill(run.pid_of("taskmanager"), signal.SIGKILL)
    run.wait_for_checkpoints(2)
    os.kill(run.pid_of("jobmanager"), signal.SIGKILL)
    run.end()
    assert_output(tmp_path / "out")
    [job] = StateDir(uri).job_ids()
    found = entries(uri, job)
    causes = [entry.cause for entry in found if isinstance(entry, journal.AttemptStarted)]
    assert any("C020" in cause or "C009" in cause for cause in causes), causes
    assert any(isinstance(entry, journal.TakenOver) for entry in found)
    assert StateDir(uri).addresses() is None


def test_a_run_that_is_gone_goes_on_from_s3(start, versitygw: S3Server, new_bucket, tmp_path: Path) -> None:
    uri = versitygw.uri(new_bucket(versitygw), "jobs")
    first = start(uri)
    first.wait_for_checkpoints(2)
    first.close()
    [job] = StateDir(uri).job_ids()
    done = entries(uri, job)[-1].sequence
    second = start(uri, "--from", "latest")
    assert "it goes on as it was submitted" in second.end()
    assert_output(tmp_path / "out")
    assert entries(uri, job)[-1].sequence > done
    assert isinstance(entries(uri, job)[-1], journal.Ended)


def test_a_store_that_misbehaves_restarts_no_job(
    versitygw: S3Server, new_bucket, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, request: pytest.FixtureRequest
) -> None:
    """State and output: a third of all requests refused, answers lost, no connections for a while, then slow answers.

    `--outage 120`: no connections for two minutes, then ten seconds for each request.
    """
    outage = request.config.getoption("--outage", default=5.0)
    latency = 10.0 if outage >= 120 else 2.0
    bucket = new_bucket(versitygw)
    monkeypatch.setenv(
        "RATE", str(int(s3_programs.BIDS / (90 + outage + 30 * latency)))
    )  # longer than all that happens
    settings = JobSettings(checkpoint=CheckpointSettings(interval_us=200_000))
    patience = PATIENCE_SECONDS + outage + 30 * latency
    with running_proxy(versitygw.port, seed=4) as proxy:
        monkeypatch.setenv("OUT", proxy.uri(bucket, "out"))
        graph = build(s3_programs.per_bidder, parallelism=2, settings=settings)
        with LocalCluster(proxy.uri(bucket, "jobs"), folder=tmp_path, task_managers=2) as cluster:
            job = cluster.client.submit(msgspec.json.encode(graph)).id

            def wait_for_checkpoints(count: int) -> None:
                deadline = time.monotonic() + patience
                before = cluster.client.job(job).checkpoints_completed
                while cluster.client.job(job).checkpoints_completed < before + count:
                    assert time.monotonic() < deadline, "no checkpoint"
                    time.sleep(0.05)

            wait_for_checkpoints(2)
            with proxy.under(busy=0.3, lost_after=0.1):
                wait_for_checkpoints(3)
                while proxy.met["busy"] <= 10 or proxy.met["lost after"] == 0:
                    wait_for_checkpoints(1)
            proxy.refuse()
            time.sleep(outage)  # not for something to happen: this long there is no store
            proxy.accept()
            wait_for_checkpoints(1)
            with proxy.under(latency=lambda: latency):
                wait_for_checkpoints(1)
            assert cluster.client.job(job).state == "running"
            deadline = time.monotonic() + patience
            while (view := cluster.client.job(job)).state != "finished":
                assert time.monotonic() < deadline, view
                time.sleep(0.05)
        assert view.failures == ()
        collect_garbage(StateDir(proxy.uri(bucket, "jobs")))
    direct = StateDir(versitygw.uri(bucket, "jobs"))
    found = entries(direct.root, job)
    assert sum(isinstance(entry, journal.AttemptStarted) for entry in found) == 1
    sequences = [entry.sequence for entry in found]
    assert sequences == sorted(set(sequences))
    assert_rows(read(ps.parquet(versitygw.uri(bucket, "out"))))
    assert_no_orphans(versitygw, bucket, JobId(job))


def collect_garbage(state_dir: StateDir) -> None:
    """Whatever its age: nobody works any more."""
    later = SystemClock().now_us() + 60_000_000
    for garbage in list(find_all(state_dir, Rules(grace_us=0), later)):
        assert garbage.remove() == len(garbage.items)


def assert_no_orphans(server: S3Server, bucket: str, job: JobId) -> None:
    """Whatever is in the bucket is named by something; there is no upload that is not complete, and no note of one."""
    store = StateDir(server.uri(bucket, "jobs")).store(job)
    manifests = [entry.manifest for entry in entries(server.uri(bucket, "jobs"), job) if hasattr(entry, "manifest")]
    named = {path for manifest in manifests for handle in manifest.handles for path in handle.paths}
    there = {info.path for info in store.list("") if not info.path.startswith("journal/")}
    assert there == named | {"graph.json"}
    out = [info.path for info in open_store(server.uri(bucket, "out")).list("")]
    assert out
    assert all(path.startswith("part-") for path in out), out
    client = s3_client(server.endpoint)
    try:
        assert client.list_multipart_uploads(Bucket=bucket).get("Uploads", []) == []
    finally:
        client.close()


def entries(uri: str, job: str) -> list[journal.JournalEntry]:
    return [recorded.entry for recorded in journal.read_journal(StateDir(uri).store(JobId(job)))]


def assert_output(folder: Path) -> None:
    assert_rows(pl.read_parquet(folder / "*.parquet"))


def assert_rows(rows: pl.DataFrame) -> None:
    expected = s3_programs.expected_per_bidder()
    found = rows.select(expected.columns).sort("window_start", "bidder")
    assert_frame_equal(found, expected, check_dtypes=False)
