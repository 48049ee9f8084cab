"""`penstock jobmanager` and `penstock taskmanager` started by hand, and the commands that talk to them."""

import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import msgspec
import pytest

from penstock.jobmanager.state_dir import StateDir
from penstock.model.views import CheckpointView, ClusterView
from penstock.rpc import RestClient

PROGRAMS = Path(__file__).parent / "embedded_programs.py"
PENSTOCK = [sys.executable, "-m", "penstock.cli"]


def wait_until(condition: Callable[[], bool], *, seconds: float = 200) -> None:
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline, "it did not happen in time"
        time.sleep(0.02)


@pytest.fixture
def url(tmp_path) -> Iterator[str]:
    """A JobManager and a TaskManager with two slots."""
    with (tmp_path / "log").open("w") as log:
        words = ["jobmanager", "--port=0", "--rest-port=0", f"--state-dir={tmp_path}"]
        jobmanager = subprocess.Popen([*PENSTOCK, *words], stderr=log)
        wait_until(lambda: StateDir(tmp_path).addresses() is not None)
        addresses = StateDir(tmp_path).addresses()
        assert addresses is not None
        words = ["taskmanager", f"--jobmanager={addresses.grpc}", "--slots=2", "--id=hand"]
        taskmanager = subprocess.Popen([*PENSTOCK, *words], stderr=log, stdout=log)
        client = RestClient(addresses.rest)
        wait_until(lambda: client.cluster().slots_total == 2)
        yield addresses.rest
        for process in (taskmanager, jobmanager):
            process.send_signal(signal.SIGTERM)
            assert process.wait(200) == 0


def ask(*words: str) -> str:
    done = subprocess.run([*PENSTOCK, *words], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return done.stdout


@pytest.fixture
def running_job(url) -> Iterator["subprocess.Popen[str]"]:
    """`penstock run` that has submitted there and has its first checkpoint."""
    words = ["run", f"{PROGRAMS}:drip_for_ever", "-p2", "--checkpoint-interval=200ms", f"--jobmanager={url}"]
    with subprocess.Popen([*PENSTOCK, *words], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as process:
        client = RestClient(url)
        wait_until(lambda: any(job.checkpoints_completed for job in client.jobs()))
        yield process
        process.kill()


def test_a_job_is_watched_and_stopped_by_commands(url, running_job):
    at = f"--jobmanager={url}"
    view = msgspec.json.decode(ask("status", at, "--json"), type=ClusterView)
    [job] = view.jobs
    roles = [(process.role, process.attempt) for process in view.processes]
    assert roles == [("jobmanager", None), ("taskmanager", None), ("slot", 1), ("slot", 1)]
    assert len({process.pid for process in view.processes}) == 4
    assert job.id in ask("status", at)

    found = msgspec.json.decode(ask("checkpoints", job.id, at, "--json"), type=list[CheckpointView])
    assert any(checkpoint.status == "completed" for checkpoint in found)

    assert job.id in ask("stop", job.id, at)
    output, errors = running_job.communicate(timeout=200)
    assert running_job.returncode == 0, errors
    assert "drip-for-ever stopped after" in errors
    assert f"--jobmanager {url} --from {job.id}" in errors
    assert output == ""
    assert ask("cancel", job.id, at) == f"{job.id} is stopped\n"


def test_a_job_is_submitted_once_under_its_id_and_left_alone(url, tmp_path):
    program = tmp_path / "told.py"
    program.write_text(
        "import sys\nimport penstock as ps\n\n\ndef told(flow: ps.Flow) -> None:\n"
        '    words = ps.items([{"n": each} for each in sys.argv[1:]])\n'
        '    flow.read(words).write(ps.discard(), uid=f"out-{sys.argv[1]}")\n'
    )
    words = ["run", str(program), f"--jobmanager={url}", "--detach", "--id=orders-1", "--set=restart.budget=3"]
    words += ["--max-parallelism=64", "--", "left", "right"]
    assert ask(*words) == "orders-1\n"
    assert ask(*words) == "orders-1\n"
    client = RestClient(url)
    assert [job.id for job in client.jobs()] == ["orders-1"]
    graph = msgspec.json.decode(client.graph("orders-1"))
    assert (graph["max_parallelism"], graph["settings"]["restart"]["budget"]) == (64, 3)
    assert b"out-left" in client.graph("orders-1")
