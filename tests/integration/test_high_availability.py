"""Several JobManagers on one state directory: one leads, and when it is killed or stands still, another one does."""

import contextlib
import os
import signal
import socket
import subprocess
import sys
import time
import urllib.request
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import TypeVar

import msgspec
import pytest

from penstock.api.programs import build
from penstock.checkpoint import journal
from penstock.config import JobManagerSettings
from penstock.jobmanager.leases import Claim
from penstock.jobmanager.state_dir import StateDir
from penstock.model.errors import RetryableError
from penstock.model.ids import JobId
from penstock.model.settings import CheckpointSettings, JobSettings, RestartSettings
from penstock.rpc import RestClient
from penstock.storage import open_store

sys.path.insert(0, str(Path(__file__).parents[1] / "torture"))
import torture_programs
from outside_reader import OutsideReader

T = TypeVar("T")

PATIENCE_SECONDS = 200.0
PENSTOCK = [sys.executable, "-m", "penstock.cli"]
SEED = 7
STANDSTILL_SECONDS = 30.0
SETTINGS = JobSettings(
    checkpoint=CheckpointSettings(interval_us=200_000), restart=RestartSettings(max_delay_us=500_000, budget=1_000)
)


def wait_for(ask: Callable[[], T | None], *, seconds: float = PATIENCE_SECONDS) -> T:
    deadline = time.monotonic() + seconds
    while True:
        with contextlib.suppress(RetryableError):
            if answer := ask():
                return answer
        assert time.monotonic() < deadline, "it did not happen in time"
        time.sleep(0.02)


class Process:
    """A JobManager or TaskManager, with its log."""

    def __init__(self, folder: Path, name: str, command: list[str]) -> None:
        self.name, self._log = name, (folder / f"{name}.log").open("a+")
        self.process = subprocess.Popen(command, stderr=self._log, stdout=self._log)

    @property
    def log(self) -> str:
        return Path(self._log.name).read_text()

    def signal(self, number: int) -> None:
        self.process.send_signal(number)

    def close(self) -> None:
        if self.process.poll() is None:
            self.process.kill()
            self.process.wait()
        self._log.close()


class Cluster:
    """JobManagers and TaskManagers on one directory."""

    def __init__(self, folder: Path) -> None:
        self.folder, self.state = folder, StateDir(folder / "state")
        self.processes: list[Process] = []
        self.ports = [_free_port() for _ in range(4)]
        (self.grpc_a, self.rest_a), (self.grpc_b, self.rest_b) = zip(self.ports[::2], self.ports[1::2], strict=True)
        self.client = RestClient(f"127.0.0.1:{self.rest_a},127.0.0.1:{self.rest_b}")

    def jobmanager(self, name: str) -> Process:
        grpc, rest = (self.grpc_a, self.rest_a) if name == "a" else (self.grpc_b, self.rest_b)
        return self._start(
            f"jm-{name}", "jobmanager", f"--port={grpc}", f"--rest-port={rest}", f"--state-dir={self.state.root}"
        )

    def dying_jobmanager(self, moment: str) -> Process:
        """As `jobmanager("a")`, but it kills itself then."""
        settings = JobManagerSettings(state_dir=self.state.root, port=self.grpc_a, rest_port=self.rest_a)
        script = Path(__file__).parent / "dying_jobmanager.py"
        self.processes.append(
            Process(self.folder, "jm-a", [sys.executable, str(script), moment, msgspec.json.encode(settings).decode()])
        )
        return self.processes[-1]

    def taskmanager(self, name: str, slots: int = 1) -> Process:
        addresses = f"127.0.0.1:{self.grpc_b},127.0.0.1:{self.grpc_a}"
        return self._start(name, "taskmanager", f"--jobmanager={addresses}", f"--slots={slots}", f"--id={name}")

    def led_by(self, process: Process) -> Claim:
        """Wait until it leads and answers."""

        def find() -> Claim | None:
            claim = self.state.addresses()
            return claim if claim is not None and claim.pid == process.process.pid else None

        return wait_for(find)

    def submit(self, program: Callable[..., None]) -> JobId:
        wait_for(lambda: self.client.cluster().slots_free == 2)
        graph = build(partial(program, out=str(self.folder / "out"), seed=SEED), parallelism=2, settings=SETTINGS)
        return JobId(self.client.submit(msgspec.json.encode(graph)).id)

    def checkpoints(self, job: JobId) -> int:
        return self.client.job(job).checkpoints_completed

    def entries(self, job: JobId) -> list[journal.JournalEntry]:
        return [each.entry for each in journal.read_journal(self.state.store(job))]

    def _start(self, name: str, *words: str) -> Process:
        self.processes.append(Process(self.folder, name, [*PENSTOCK, *words]))
        return self.processes[-1]


def _free_port() -> int:
    with socket.socket() as holder:
        holder.bind(("127.0.0.1", 0))
        port: int = holder.getsockname()[1]
        return port


@pytest.fixture
def cluster(tmp_path: Path) -> Iterator[Cluster]:
    made = Cluster(tmp_path)
    yield made
    for process in reversed(made.processes):
        process.close()


def test_a_standby_waits_says_so_and_sends_everybody_to_the_leader(cluster: Cluster) -> None:
    first = cluster.jobmanager("a")
    led = cluster.led_by(first)
    second = cluster.jobmanager("b")
    wait_for(lambda: "jobmanager stands by" in second.log)
    standby = RestClient(f"127.0.0.1:{cluster.rest_b}")
    assert standby.health()["role"] == "standby"
    assert wait_for(lambda: standby.health()["leader"]) == led.rest
    assert standby.cluster().processes[0].pid == first.process.pid
    request = urllib.request.Request(f"http://127.0.0.1:{cluster.rest_b}/jobs?x=1", method="GET")
    with urllib.request.urlopen(request, timeout=20) as response:
        assert response.url == f"{led.rest}/jobs?x=1"
    # A TaskManager that only knows the standby is sent on, too.
    cluster.taskmanager("tm-1")
    wait_for(lambda: cluster.client.cluster().slots_total == 1)
    # Whoever leaves in order is followed at once, without a silence to be waited for.
    first.signal(signal.SIGTERM)
    assert first.process.wait(PATIENCE_SECONDS) == 0
    assert cluster.led_by(second).epoch == 2
    wait_for(lambda: cluster.client.cluster().slots_total == 1)


def test_a_killed_leader_is_followed_within_seconds_and_the_output_is_exact(cluster: Cluster) -> None:
    leader = cluster.jobmanager("a")
    cluster.led_by(leader)
    standby = cluster.jobmanager("b")
    for name in ("tm-1", "tm-2"):
        cluster.taskmanager(name)
    job = cluster.submit(torture_programs.keyed_windows)
    oracle = torture_programs.expected_of_keyed_windows(SEED)
    reader = OutsideReader(cluster.folder / "out", Path(cluster.state.root) / "jobs" / job, oracle)
    with reader.watching():
        wait_for(lambda: cluster.checkpoints(job) >= 2)
        wait_for(lambda: "jobmanager stands by" in standby.log)
        leader.signal(signal.SIGKILL)
        killed = time.monotonic()
        claim = cluster.led_by(standby)
        took = time.monotonic() - killed
        assert claim.epoch == 2
        wait_for(lambda: cluster.client.job(job).state == "finished")
    reader.look_at_the_end()
    assert not reader.complaints, "\n".join(reader.complaints)
    entries = cluster.entries(job)
    assert [entry.epoch for entry in entries] == sorted(entry.epoch for entry in entries)
    assert any(isinstance(entry, journal.TakenOver) and entry.epoch == 2 for entry in entries)
    attempts = [entry for entry in entries if isinstance(entry, journal.AttemptStarted)]
    print(f"led by the standby {took:.2f} s after the kill, {len(attempts)} attempts")


@pytest.mark.parametrize(
    "moment", ["before the last acknowledgement", "before the manifest", "after the manifest", "in mid-commit"]
)
def test_a_leader_may_be_killed_at_any_moment_of_a_checkpoint(cluster: Cluster, moment: str) -> None:
    leader = cluster.dying_jobmanager(moment)
    cluster.led_by(leader)
    standby = cluster.jobmanager("b")
    wait_for(lambda: "jobmanager stands by" in standby.log)
    for name in ("tm-1", "tm-2"):
        cluster.taskmanager(name)
    job = cluster.submit(torture_programs.keyed_process)
    oracle = torture_programs.expected_of_keyed_process(SEED)
    reader = OutsideReader(cluster.folder / "out", Path(cluster.state.root) / "jobs" / job, oracle)
    with reader.watching():
        assert leader.process.wait(PATIENCE_SECONDS) == -signal.SIGKILL
        killed = time.monotonic()
        assert cluster.led_by(standby).epoch == 2
        took = time.monotonic() - killed
        wait_for(lambda: cluster.client.job(job).state == "finished")
    reader.look_at_the_end()
    assert not reader.complaints, "\n".join(reader.complaints)
    attempts = [entry for entry in cluster.entries(job) if isinstance(entry, journal.AttemptStarted)]
    print(f"killed {moment}: led by the standby {took:.2f} s after the kill, {len(attempts)} attempts")


def test_a_leader_that_stood_still_finds_itself_replaced_and_ends_without_effect(cluster: Cluster) -> None:
    leader = cluster.jobmanager("a")
    cluster.led_by(leader)
    standby = cluster.jobmanager("b")
    for name in ("tm-1", "tm-2"):
        cluster.taskmanager(name)
    job = cluster.submit(torture_programs.keyed_process)
    oracle = torture_programs.expected_of_keyed_process(SEED)
    reader = OutsideReader(cluster.folder / "out", Path(cluster.state.root) / "jobs" / job, oracle)
    with reader.watching():
        wait_for(lambda: cluster.checkpoints(job) >= 2)
        leader.signal(signal.SIGSTOP)
        stopped = time.monotonic()
        assert cluster.led_by(standby).epoch == 2
        wait_for(lambda: cluster.client.job(job).state == "finished")
        time.sleep(max(0.0, stopped + STANDSTILL_SECONDS - time.monotonic()))  # the length is what is tested
        before = audit(cluster)
        leader.signal(signal.SIGCONT)
        assert leader.process.wait(PATIENCE_SECONDS) == 3
        assert "jobmanager ends: it leads no more" in leader.log
    reader.look_at_the_end()
    assert not reader.complaints, "\n".join(reader.complaints)
    after = audit(cluster)
    assert {path for path in before.keys() | after.keys() if before.get(path) != after.get(path)} <= {
        "leader/beats/000000000002.json"
    }
    entries = cluster.entries(job)
    taken = next(index for index, each in enumerate(entries) if isinstance(each, journal.TakenOver))
    assert {entry.epoch for entry in entries[taken:]} == {2}


def audit(cluster: Cluster) -> dict[str, bytes]:
    """Every object in the store."""
    store = open_store(cluster.state.root)
    return {info.path: store.get(info.path) or b"" for info in store.list("")}


def test_a_leader_that_is_started_again_on_its_machine_waits_for_nobody(cluster: Cluster) -> None:
    leader = cluster.jobmanager("a")
    assert cluster.led_by(leader).pid == leader.process.pid
    os.kill(leader.process.pid, signal.SIGKILL)
    assert leader.process.wait(PATIENCE_SECONDS) == -signal.SIGKILL
    again = cluster.jobmanager("a")
    assert cluster.led_by(again).epoch == 2
