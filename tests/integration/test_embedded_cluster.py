"""Real jobs on real processes: results, kills, stops and what is left behind."""

import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import msgspec
import polars as pl
import pytest

from penstock.api.programs import build
from penstock.jobmanager.state_dir import StateDir
from penstock.local import run_graph
from penstock.local.progress import SilentProgress
from penstock.local.running import RunResult, with_settings
from penstock.model.views import ClusterView, JobView
from penstock.rpc import RestClient

PROGRAMS = Path(__file__).parent / "embedded_programs.py"


def wait_until(condition: Callable[[], bool], *, seconds: float = 200) -> None:
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline, "it did not happen in time"
        time.sleep(0.02)


def client_of(state_dir: Path) -> RestClient:
    wait_until(lambda: StateDir(state_dir).addresses() is not None)
    addresses = StateDir(state_dir).addresses()
    assert addresses is not None
    return RestClient(addresses.rest)


def gone(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return True
    return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] == "Z"


class Background:
    """A run in a thread of its own, so that the test can do something to it meanwhile."""

    def __init__(self, state_dir: Path, function: str, *, parallelism: int = 1, task_managers: int = 1) -> None:
        self.state_dir = state_dir
        self.result: RunResult | None = None
        graph = build(f"{PROGRAMS}:{function}", parallelism=parallelism)
        graph = with_settings(graph, checkpoint_interval="200ms")

        def run() -> None:
            self.result = run_graph(
                graph, progress=SilentProgress(sys.stderr), state_dir=state_dir, task_managers=task_managers
            )

        self._thread = threading.Thread(target=run)
        self._thread.start()

    def cluster(self) -> ClusterView:
        return client_of(self.state_dir).cluster()

    def job(self) -> JobView | None:
        jobs = client_of(self.state_dir).jobs()
        return jobs[0] if jobs else None

    def wait_for_checkpoints(self, count: int) -> None:
        def enough() -> bool:
            job = self.job()
            return job is not None and job.state == "running" and job.checkpoints_completed >= count

        wait_until(enough)

    def join(self) -> RunResult:
        self._thread.join()
        assert self.result is not None
        return self.result


@pytest.fixture
def run_in_background(tmp_path) -> Iterator[Callable[..., Background]]:
    started: list[Background] = []

    def start(function: str, **options: int) -> Background:
        started.append(Background(tmp_path / "state", function, **options))
        return started[-1]

    yield start
    for run in started:
        run._thread.join()


def run(state_dir: Path | None, function: str, **options: object) -> RunResult:
    return run_graph(
        build(f"{PROGRAMS}:{function}"), progress=SilentProgress(sys.stdout), state_dir=state_dir, **options
    )


def test_a_job_runs_to_its_end_and_its_rows_are_collected(tmp_path):
    result = run(tmp_path, "evens")
    assert result.job.state == "finished"
    assert result.collected()["n"].to_list() == list(range(0, 100, 2))
    assert not client_is_up(tmp_path)


def client_is_up(state_dir: Path) -> bool:
    return StateDir(state_dir).addresses() is not None


def test_the_state_of_a_finished_job_is_removed_unless_it_was_asked_for():
    result = run(None, "evens")
    assert not result.kept
    assert not result.folder.exists()


def test_what_slots_print_reaches_the_standard_output(tmp_path, capsys):
    run(tmp_path, "printing")
    assert '{"word":"hello"}' in capsys.readouterr().out


def test_a_killed_taskmanager_is_replaced_and_no_row_is_lost_or_doubled(run_in_background):
    running = run_in_background("drip", parallelism=2, task_managers=2)
    running.wait_for_checkpoints(2)
    victim = next(process for process in running.cluster().processes if process.role == "taskmanager")
    slots = [process.pid for process in running.cluster().processes if process.id.startswith(f"{victim.id}#")]
    os.kill(victim.pid, signal.SIGKILL)
    wait_until(lambda: all(gone(pid) for pid in slots))
    result = running.join()
    assert result.job.state == "finished"
    assert result.job.restarts >= 1
    cause = result.job.failures[0]
    assert (cause.code, f"TaskManager {victim.id} is lost" in cause.reason) == ("C020", True), cause
    assert result.collected()["n"].sort().to_list() == list(range(2_000))
    source = result.job.vertices[0].operators[0]
    assert source.rows_out == 2_000, "rows are counted over restarts, each once"


def test_a_killed_jobmanager_takes_the_job_up_again(run_in_background):
    running = run_in_background("drip")
    running.wait_for_checkpoints(2)
    [jobmanager] = [process for process in running.cluster().processes if process.role == "jobmanager"]
    os.kill(jobmanager.pid, signal.SIGKILL)
    result = running.join()
    assert result.job.state == "finished"
    assert result.collected()["n"].sort().to_list() == list(range(2_000))


def test_a_killed_slot_is_named_as_the_cause(run_in_background):
    running = run_in_background("drip")
    running.wait_for_checkpoints(1)
    slot = next(process for process in running.cluster().processes if process.role == "slot")
    os.kill(slot.pid, signal.SIGKILL)
    result = running.join()
    assert result.job.state == "finished"
    assert any("SIGKILL" in failure.reason for failure in result.job.failures)
    assert result.collected()["n"].sort().to_list() == list(range(2_000))


def command(*words: str) -> list[str]:
    return [sys.executable, "-m", "penstock.cli", *words]


def test_ctrl_c_stops_with_a_checkpoint_and_the_command_it_prints_goes_on_from_there(tmp_path):
    words = command(
        "run", f"{PROGRAMS}:endless", "--state-dir", str(tmp_path), "--checkpoint-interval", "200ms", "--json"
    )
    counts: list[int] = []
    for resume in ([], ["--from", "latest"]):
        first = subprocess.Popen([*words, *resume], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
        wait_until(lambda: client_is_up(tmp_path))
        client = client_of(tmp_path)

        def advanced(client: RestClient = client) -> bool:
            jobs = [job for job in client.jobs() if job.state == "running"]
            return bool(jobs) and jobs[0].checkpoints_completed >= 2

        wait_until(advanced)
        first.send_signal(signal.SIGINT)
        output, errors = first.communicate(timeout=200)
        assert first.returncode == 0, errors
        answer = msgspec.json.decode(output)
        assert answer["job"]["state"] == "stopped"
        assert answer["go_on"].endswith(f"--state-dir {tmp_path} --from latest")
        rows = pl.DataFrame(answer["collected"]["out"])["n"].sort().to_list()
        assert len(set(rows)) == len(rows)
        counts.append(len(rows))
    assert counts[1] > counts[0] > 0


def test_a_failing_job_exits_with_1_and_says_why(tmp_path):
    done = subprocess.run(
        command("run", f"{PROGRAMS}:suicidal", "--restarts", "1", "--state-dir", str(tmp_path)),
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 1, done.stderr
    assert "exited with code 3" in done.stderr


def test_a_mistake_in_the_program_exits_with_2_and_names_the_line(tmp_path):
    done = subprocess.run(command("run", f"{PROGRAMS}:mistaken"), capture_output=True, text=True, check=False)
    assert done.returncode == 2
    assert "embedded_programs.py:" in done.stderr
    assert "prize" in done.stderr
    assert "price" in done.stderr
    assert "Traceback" not in done.stderr


@pytest.mark.parametrize("function", ["endless", "spinning"])
def test_nothing_is_left_when_the_command_itself_is_killed(tmp_path, function):
    parent = subprocess.Popen(
        command("run", f"{PROGRAMS}:{function}", "--state-dir", str(tmp_path)),
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )
    client = client_of(tmp_path)
    wait_until(lambda: any(job.state == "running" for job in client.jobs()))
    pids = [process.pid for process in client.cluster().processes]
    assert len(pids) == 3
    parent.kill()
    parent.wait()
    wait_until(lambda: all(gone(pid) for pid in pids))
