import msgspec
import pytest
from typer.testing import CliRunner

from penstock.cli.app import app, run_command
from penstock.cli.discovery import DEFAULT_URL, find_jobmanager
from penstock.cli.running import _go_on_command
from penstock.jobmanager.leases import Beat, new_claim
from penstock.jobmanager.state_dir import StateDir
from penstock.model.errors import UserError
from penstock.model.views import JobView


def invoke(*words: str):
    return CliRunner().invoke(app, list(words))


def test_the_version_is_printed():
    assert invoke("--version").output.startswith("penstock ")


@pytest.mark.parametrize(
    "command", ["run", "graph", "status", "checkpoints", "stop", "cancel", "jobmanager", "taskmanager"]
)
def test_every_command_explains_itself(command):
    result = invoke(command, "--help")
    assert result.exit_code == 0
    assert len(result.output) > 300


def test_a_missing_jobmanager_is_told_without_a_traceback_and_exits_with_2(capsys, monkeypatch):
    monkeypatch.setattr("sys.argv", ["penstock", "status", "--jobmanager", "http://127.0.0.1:9"])
    with pytest.raises(SystemExit) as ended:
        run_command()
    assert ended.value.code == 2
    text = capsys.readouterr().err
    assert text.startswith("C002 no JobManager answers at http://127.0.0.1:9")
    assert "Traceback" not in text


def test_a_jobmanager_is_found_by_option_directory_environment_and_default(tmp_path, monkeypatch):
    monkeypatch.delenv("PENSTOCK_JOBMANAGER", raising=False)
    assert find_jobmanager(None).url == DEFAULT_URL
    monkeypatch.setenv("PENSTOCK_JOBMANAGER", "http://there:1")
    assert find_jobmanager(None).url == "http://there:1"
    claim = new_claim(1, holder="jm", grpc="g", rest="http://here:2")
    assert StateDir(tmp_path).lease.claim(claim)
    StateDir(tmp_path).lease.beat(claim, Beat(count=1, answers=True))
    assert find_jobmanager(None, tmp_path).url == "http://here:2"
    assert find_jobmanager("host:3", tmp_path).url == "http://host:3"
    with pytest.raises(UserError, match="no JobManager works on"):
        find_jobmanager(None, tmp_path / "empty")


def stopped(state: str, checkpoints: int) -> JobView:
    return JobView(
        id="j-1", name="j", state=state, attempt=1, restarts=0, parallelism=1, submitted_us=0,
        checkpoints_completed=checkpoints,
    )  # fmt: skip


def test_the_command_to_go_on_repeats_what_was_given(tmp_path):
    command = _go_on_command("a b.py:fn", stopped("stopped", 1), str(tmp_path), 2, 1, "1s", None)
    assert command == (
        f"penstock run 'a b.py:fn' --parallelism 2 --checkpoint-interval 1s --state-dir {tmp_path} --from latest"
    )
    there = _go_on_command("p.py:fn", stopped("failed", 3), None, 1, 1, None, "http://x")
    assert there == "penstock run p.py:fn --jobmanager http://x --from j-1"


@pytest.mark.parametrize(("state", "checkpoints"), [("finished", 3), ("failed", 0)])
def test_there_is_no_such_command_when_there_is_nothing_to_go_on_from(tmp_path, state, checkpoints):
    assert _go_on_command("p.py:fn", stopped(state, checkpoints), str(tmp_path), 1, 1, None, None) is None


def test_json_is_printed_whole(capsys):
    from penstock.cli.tables import print_json

    print_json(stopped("stopped", 1))
    assert msgspec.json.decode(capsys.readouterr().out, type=JobView) == stopped("stopped", 1)
