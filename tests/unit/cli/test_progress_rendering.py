import io

from rich.console import Console

from penstock.cli import commands
from penstock.cli.rescaling import rescales_table
from penstock.local.figures import Rates
from penstock.local.progress import LineProgress, progress_line, progress_table, summary
from penstock.model.views import (
    CheckpointView,
    ClusterView,
    JobView,
    OperatorView,
    ProcessView,
    RescaleView,
    VertexView,
)

NOW = 100_000_000


def job(state: str = "running", **changes: object) -> JobView:
    facts = {
        "id": "hot-items-1",
        "name": "hot-items",
        "state": state,
        "attempt": 2,
        "restarts": 1,
        "parallelism": 2,
        "submitted_us": NOW - 12_000_000,
        "vertices": (
            VertexView(
                id="read",
                parallelism=2,
                operators=(
                    OperatorView(uid="read", name="read [bids]", rows_out=1_500_000),
                    OperatorView(uid="filter", name="filter", rows_in=1_500_000, rows_out=20_000),
                ),
                watermark_us=NOW - 3_000_000,
                busy=0.5,
                backpressured=0.25,
            ),
        ),
        "checkpoints_completed": 11,
        "checkpoints_failed": 1,
        "last_checkpoint": CheckpointView(
            id=12, kind="checkpoint", status="completed", triggered_us=0, duration_us=42_000, size=1_500_000
        ),
    }
    return JobView(**{**facts, **changes})


def rendered(renderable: object) -> str:
    console = Console(file=io.StringIO(), width=140)
    console.print(renderable)
    return console.file.getvalue()


def test_the_table_shows_each_operator_with_its_rows_and_its_vertex_with_its_load():
    text = rendered(progress_table(job(), Rates(), NOW))
    assert "hot-items  running  12.0 s  attempt 2, 1 restart" in text
    assert "checkpoints 11 done, 1 failed (last 42 ms, 1.5 MB)" in text
    assert "read [bids]" in text
    assert "1.5M" in text
    assert "3.0 s behind" in text
    assert "██░░░  50%" in text
    assert "█░░░░  25%" in text


def test_the_reason_for_a_state_is_shown():
    waiting = job("waiting-for-slots", reason="2 slots are missing; start a TaskManager")
    assert "2 slots are missing" in rendered(progress_table(waiting, Rates(), NOW))
    assert progress_line(waiting, 0, NOW).endswith("2 slots are missing; start a TaskManager")


def test_lines_come_every_two_seconds_and_at_each_change_of_state():
    stream = io.StringIO()
    progress = LineProgress(stream)
    for seconds in (0, 0.5, 1, 1.5, 2, 2.5):
        progress.update(job(), NOW + round(seconds * 1e6))
    progress.update(job("finished"), NOW + 2_600_000)
    lines = stream.getvalue().splitlines()
    assert len(lines) == 3
    assert lines[0].startswith("hot-items running | 12.0 s | 1.5M rows read")
    assert lines[-1].startswith("hot-items finished")


def test_the_summary_says_how_it_ended_and_why():
    assert summary(job("finished", ended_us=NOW), NOW + 1).startswith(
        "hot-items finished after 12.0 s: 1,500,000 rows read (125K/s), checkpoints 11 done"
    )
    assert "P007 map: boom" in summary(job("failed", reason="P007 map: boom"), NOW)
    assert "warning: no uid" in summary(job("finished", warnings=("no uid",)), NOW)


def test_status_lists_every_process():
    view = ClusterView(
        processes=(
            ProcessView(role="jobmanager", id="jm-1", pid=11, host="h"),
            ProcessView(
                role="slot", id="tm-1#0", pid=13, host="h", job="hot-items-1", attempt=2, subtasks=("read/0",)
            ),
        ),
        slots_total=2,
        slots_free=1,
        jobs=(job(),),
    )
    text = rendered(commands.processes_table(view))
    assert "jm-1" in text
    assert "read/0" in text
    assert "hot-items-1" in rendered(commands.jobs_table(view, NOW))


def test_checkpoints_are_a_table():
    found = [CheckpointView(id=3, kind="stop", status="failed", triggered_us=0, reason="tm-1 was lost", subtasks=4)]
    text = rendered(commands.checkpoints_table(found, NOW))
    assert "tm-1 was lost" in text
    assert "0/4" in text


def test_a_failure_is_shown_in_full_once_while_the_job_tries_again(capsys):
    progress = LineProgress(io.StringIO())
    reason = "P007 halve[0]: halve raised ZeroDivisionError\n  with n=5"
    for state, why in [("restarting", reason), ("running", ""), ("restarting", reason), ("running", "")]:
        progress.update(job(state, reason=why), NOW)
    assert progress._stream.getvalue().count(reason + "\n") == 1


def test_rescales_are_a_table():
    moved = RescaleView(
        id=1, kind="live", status="completed", started_us=0, ended_us=300_000, parallelism_before=2,
        parallelism_after=4, groups_moved=96, bytes_moved=1_400_000, pause_us_p50=20_000, pause_us_p99=90_000,
        pause_us_max=102_000,
    )  # fmt: skip
    failed = RescaleView(
        id=2, kind="restart", status="failed", reason="needs 6 slots", started_us=0, ended_us=1_000_000,
        parallelism_before=4, parallelism_after=6,
    )  # fmt: skip
    shown = rendered(rescales_table([moved, failed], 5_000_000))
    for text in (
        "2 -> 4",
        "live",
        "completed",
        "96",
        "1.4 MB",
        "20 ms",
        "102 ms",
        "4 -> 6",
        "failed",
        "needs 6 slots",
    ):
        assert text in shown
