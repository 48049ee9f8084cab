"""`kubectl flow`: its help, its errors, and what it asks of the API server, by a kubectl that only notes it."""

import json
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from kubectl_flow.app import app
from kubectl_flow.changes import _back
from kubectl_flow.importing import name_of
from penstock.model.errors import RetryableError, UserError

KUBECTL = """#!{python}
import json, pathlib, sys
words = sys.argv[1:]
folder = pathlib.Path({folder!r})
with (folder / "asked").open("a") as file:
    file.write(json.dumps([words, "" if sys.stdin.isatty() else sys.stdin.read()]) + "\\n")
for answer in json.loads((folder / "answers").read_text()):
    if all(part in words for part in answer["when"]):
        print(answer["says"], file=sys.stderr if answer.get("fails") else sys.stdout)
        sys.exit(1 if answer.get("fails") else 0)
print("{{}}")
"""


class Noted:
    """What kubectl was asked, and what it is to answer."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.answers: list[dict[str, Any]] = []

    def answer(self, *when: str, says: Any = "", fails: bool = False) -> None:
        text = says if isinstance(says, str) else json.dumps(says)
        self.answers.append({"when": when, "says": text, "fails": fails})
        (self.folder / "answers").write_text(json.dumps(self.answers))

    def asked(self, *words: str) -> list[list[Any]]:
        lines = [json.loads(line) for line in (self.folder / "asked").read_text().splitlines()]
        return [line for line in lines if all(word in line[0] for word in words)]


@pytest.fixture
def kubectl(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Noted:
    import sys

    program = tmp_path / "bin" / "kubectl"
    program.parent.mkdir()
    program.write_text(KUBECTL.format(python=sys.executable, folder=str(tmp_path)))
    program.chmod(0o755)
    monkeypatch.setenv("PATH", str(program.parent))
    noted = Noted(tmp_path)
    (tmp_path / "answers").write_text("[]")
    return noted


def ask(*words: str) -> Any:
    return CliRunner().invoke(app, list(words))


JOB = {
    "metadata": {"name": "orders", "namespace": "shop", "generation": 4, "creationTimestamp": "2026-01-01T00:00:00Z"},
    "spec": {"image": "shop:2", "entrypoint": "orders:main", "settings": {"a": "1"}},
    "status": {
        "observedGeneration": 4,
        "phase": "Running",
        "job": {"id": "orders-1", "revision": "r2", "generation": 4, "parallelism": 2},
        "engine": {"state": "running", "restarts": 1},
        "parallelism": {"desired": 2, "current": 2, "ready": 2, "summary": "2/2"},
        "lastCheckpoint": {"id": 9, "time": "2026-01-01T00:00:00Z", "bytes": 2000, "durationMs": 40},
        "lastFailure": {
            "component": "taskmanager",
            "pod": "orders-taskmanager-0",
            "reason": "OOMKilled",
            "message": "exit code 137",
            "fix": "raise resources.limits.memory",
            "time": "2026-01-01T00:00:00Z",
        },
        "conditions": [
            {"type": "Ready", "status": "True", "reason": "Running"},
            {"type": "Reconciling", "status": "False", "reason": "Settled"},
            {"type": "Stalled", "status": "False", "reason": "Progressing"},
        ],
    },
}
POD = {
    "metadata": {"name": "orders-taskmanager-0", "labels": {"app.kubernetes.io/component": "taskmanager"}},
    "spec": {"nodeName": "node1"},
    "status": {"phase": "Running", "containerStatuses": [{"ready": True, "restartCount": 2}]},
}


@pytest.mark.parametrize(
    "command",
    ["status", "plan", "logs", "events", "report", "savepoint", "rescale", "suspend", "resume", "rollback"],
)
def test_every_command_explains_itself_with_an_example(command: str) -> None:
    shown = ask(command, "--help")
    assert shown.exit_code == 0
    assert f"kubectl flow {command}" in shown.output
    assert "--namespace" in shown.output


def test_status_shows_what_somebody_has_to_know(kubectl: Noted) -> None:
    kubectl.answer("flowjob", "orders", says=JOB)
    kubectl.answer("pods", says={"items": [POD]})
    kubectl.answer("flowsavepoints", says={"items": []})
    shown = ask("status", "orders", "-n", "shop")
    assert shown.exit_code == 0, shown.output
    for words in (
        "orders  Running, parallelism 2/2",
        "job orders-1: running, 1 restart, revision r2, from the beginning",
        "OOMKilled, taskmanager orders-taskmanager-0",
        "to do: raise resources.limits.memory",
        "checkpoint 9",
        "orders-taskmanager-0  Running, node1, 2 restarts",
        "savepoints: 0",
    ):
        assert words in shown.output, shown.output
    assert kubectl.asked("--namespace=shop", "get", "flowjob", "orders")


def test_a_job_that_is_not_there_is_an_error_with_those_that_are(kubectl: Noted) -> None:
    kubectl.answer("flowjob", says='Error from server (NotFound): flowjobs "x" not found', fails=True)
    kubectl.answer("flowjobs", says={"items": [JOB]})
    shown = ask("status", "x")
    assert isinstance(shown.exception, UserError)
    assert shown.exception.render() == 'K003 there is no FlowJob "x"\n  fix: there are orders'


@pytest.mark.parametrize(
    ("said", "code"),
    [
        ("The connection to the server 127.0.0.1:1 was refused - connection refused", "K002"),
        ('Error from server (Forbidden): flowjobs is forbidden: User "eve" cannot list', "K004"),
        ('error: the server doesn\'t have a resource type "flowjobs"', "K005"),
        ("Error from server (Invalid): M003 spec.parallelism is above spec.maxParallelism", "K006"),
    ],
)
def test_what_the_api_server_says_becomes_an_error_with_a_fix(kubectl: Noted, said: str, code: str) -> None:
    kubectl.answer("flowjobs", says=said, fails=True)
    shown = ask("status")
    assert isinstance(shown.exception, UserError | RetryableError)
    assert shown.exception.code == code


def test_kubectl_that_is_missing_is_said(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    shown = ask("status")
    assert isinstance(shown.exception, UserError)
    assert shown.exception.code == "K001"


def test_rescale_sets_the_scale_and_suspend_the_state(kubectl: Noted) -> None:
    kubectl.answer("flowjob", "orders", says=JOB)
    assert ask("rescale", "orders", "-p", "3", "--no-wait").exit_code == 0
    assert kubectl.asked("scale", "flowjob/orders", "--replicas=3")
    assert ask("suspend", "orders", "--no-wait").exit_code == 0
    patch = [{"op": "add", "path": "/spec/state", "value": "suspended"}]
    assert kubectl.asked("patch", f"--patch={json.dumps(patch)}")


def test_a_change_that_was_refused_is_an_error(kubectl: Noted) -> None:
    stalled = {"type": "Stalled", "status": "True", "reason": "RestoreRefused", "message": "S004 no"}
    conditions = [each for each in JOB["status"]["conditions"] if each["type"] != "Stalled"]  # type: ignore[index]
    kubectl.answer("flowjob", says={**JOB, "status": {**JOB["status"], "conditions": [*conditions, stalled]}})  # type: ignore[dict-item]
    shown = ask("suspend", "orders")
    assert isinstance(shown.exception, UserError)
    assert "RestoreRefused: S004 no" in shown.exception.render()


def test_a_savepoint_is_an_object_that_is_waited_for(kubectl: Noted) -> None:
    kubectl.answer("flowjob", says=JOB)
    kubectl.answer("create", says={"metadata": {"name": "before"}})
    kubectl.answer(
        "flowsavepoint", says={"status": {"phase": "Completed", "location": "s3://b/x", "sizeText": "1 KiB"}}
    )
    shown = ask("savepoint", "orders", "--name", "before", "--to", "s3://b")
    assert "flowsavepoint/before: 1 KiB at s3://b/x" in shown.output
    [[_, text]] = kubectl.asked("create")
    assert json.loads(text)["spec"] == {"jobRef": {"name": "orders"}, "timeout": "10m", "location": "s3://b"}


def test_a_rollback_puts_back_all_that_a_revision_is_made_of() -> None:
    then = {"image": "shop:1", "entrypoint": "orders:main", "args": ["x"], "parallelism": 9}
    assert _back(JOB["spec"], then) == [  # type: ignore[arg-type]
        {"op": "add", "path": "/spec/image", "value": "shop:1"},
        {"op": "add", "path": "/spec/args", "value": ["x"]},
        {"op": "remove", "path": "/spec/settings"},
    ]


def test_a_plan_of_a_file_that_has_no_job_says_so(kubectl: Noted, tmp_path: Path) -> None:
    path = tmp_path / "none.yaml"
    path.write_text("kind: ConfigMap\n")
    twice = tmp_path / "twice.yaml"
    twice.write_text("kind: FlowJob\nspec:\n  image: one\n  image: two\n")
    for name, what in (
        (str(path), "there is no FlowJob in it"),
        (str(tmp_path / "nowhere"), "cannot be read"),
        (str(twice), '"image" stands here twice in "<unicode string>", line 4, column 3'),
    ):
        shown = ask("plan", "-f", name)
        assert isinstance(shown.exception, UserError)
        assert what in shown.exception.render()


@pytest.mark.parametrize(
    ("uri", "name"),
    [
        ("s3://b/orders/savepoints/orders-abcde-1-5d1e?endpoint=http://s3:7070", "orders-abcde-1-5d1e"),
        ("s3://b/Old_Savepoint.1/", "old-savepoint.1"),
        ("s3://b/___", "orders"),
    ],
)
def test_an_entry_of_the_catalogue_is_named_after_its_folder(uri: str, name: str) -> None:
    assert name_of(uri, "orders") == name
