"""What every two-phase sink promises, checked on each of them.

Staged rows are invisible; a commit makes them visible and can be repeated; a new attempt commits what the
checkpoint holds and removes what older attempts left, and nothing else.
"""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec
import polars as pl
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from penstock import connectors
from penstock.connectors import Endpoint
from penstock.connectors.base import Sink, SinkContext
from penstock.model import schemas
from penstock.model.clocks import SystemClock
from penstock.model.errors import FatalJobError, UserError
from penstock.model.ids import Attempt, CheckpointId, JobId, SubtaskId, Uid, VertexId
from penstock.model.specs import Connector

ROWS = pl.DataFrame({"n": range(100), "day": [f"day {number % 3}" for number in range(100)]})


class Format:
    """How a format is written and how an outside reader sees it."""

    def __init__(self, suffix: str, make: Callable[..., Endpoint], read: Callable[[Path], pl.DataFrame]) -> None:
        self.suffix, self.make, self._read = suffix, make, read

    def visible(self, out: Path) -> list[int]:
        """The rows that anybody sees who reads all files of the format, hidden or not."""
        parts = [self._read(path)["n"].to_list() for path in out.rglob(f"*{self.suffix}")]
        return sorted(number for part in parts for number in part)


FORMATS = {
    "parquet": Format(".parquet", connectors.parquet, pl.read_parquet),
    "csv": Format(".csv", connectors.csv, pl.read_csv),
    "json lines": Format(".jsonl", connectors.json_lines, pl.read_ndjson),
    "collect": Format(".arrow", connectors.collect, pl.read_ipc),
}


@pytest.fixture(params=FORMATS, ids=str)
def form(request: pytest.FixtureRequest) -> Format:
    return FORMATS[request.param]


def open_sink(endpoint: Endpoint, *, attempt: int = 1, subtask: int = 0, uid: str = "out", job: str = "job") -> Sink:
    """As a task gets it: through JSON."""
    connector = msgspec.json.decode(msgspec.json.encode(endpoint.as_sink().connector), type=Connector)
    context = SinkContext(
        job=JobId(job),
        attempt=Attempt(attempt),
        uid=Uid(uid),
        subtask=SubtaskId(VertexId(uid), subtask),
        clock=SystemClock(),
    )
    return connectors.make_sink(connector, schemas.fields(ROWS.schema), context)


def prepare(sink: Sink, checkpoint: int) -> list[dict[str, Any]]:
    """Committables as a checkpoint carries them."""
    stage = sink.prepare(CheckpointId(checkpoint))
    decoded: list[dict[str, Any]] = msgspec.json.decode(msgspec.json.encode(stage() if stage else []))
    return decoded


@pytest.mark.parametrize("there", ["a file", "a folder that is closed"])
def test_a_place_that_cannot_be_written_to_is_refused_before_the_first_row(
    there: str, form: Format, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    if there == "a file":
        (tmp_path / "out").write_text("")
    else:
        monkeypatch.setattr("os.access", lambda *_: False)  # root may write anywhere
    with pytest.raises(UserError, match=r"(?s)S011 .*cannot write to .*out/rows"):
        open_sink(form.make(tmp_path / "out" / "rows")).recover([])


def test_rows_are_invisible_until_they_are_committed(form: Format, tmp_path: Path) -> None:
    sink = open_sink(form.make(tmp_path))
    sink.recover([])
    sink.write(ROWS.head(40))
    sink.write(ROWS.slice(40, 60))
    assert form.visible(tmp_path) == []
    committables = prepare(sink, 1)
    assert form.visible(tmp_path) == []
    sink.commit(committables)
    assert form.visible(tmp_path) == list(range(100))


def test_at_a_barrier_nothing_is_written_and_later_rows_do_not_mix_with_earlier(form: Format, tmp_path: Path) -> None:
    sink = open_sink(form.make(tmp_path))
    sink.recover([])
    sink.write(ROWS.head(40))
    first = sink.prepare(CheckpointId(1))
    assert list(tmp_path.iterdir()) == []
    sink.write(ROWS.slice(40, 60))
    second = sink.prepare(CheckpointId(2))
    assert first is not None
    assert second is not None
    later, earlier = second(), first()
    sink.commit(earlier)
    assert form.visible(tmp_path) == list(range(40))
    sink.commit(later)
    assert form.visible(tmp_path) == list(range(100))


def test_a_commit_can_be_repeated_by_anybody(form: Format, tmp_path: Path) -> None:
    sink = open_sink(form.make(tmp_path))
    sink.write(ROWS)
    committables = prepare(sink, 1)
    for _ in range(3):
        sink.commit(committables)
    open_sink(form.make(tmp_path), attempt=2).recover(committables)
    open_sink(form.make(tmp_path), attempt=2, subtask=1).recover(committables)
    assert form.visible(tmp_path) == list(range(100))


def test_a_restore_commits_the_checkpoint_and_drops_what_came_after_it(form: Format, tmp_path: Path) -> None:
    first = open_sink(form.make(tmp_path), attempt=1)
    first.write(ROWS.head(10))
    kept = prepare(first, 1)
    first.write(ROWS.slice(10, 10))
    prepare(first, 2)
    first.write(ROWS.slice(20, 10))
    second = open_sink(form.make(tmp_path), attempt=2)
    second.recover(kept)
    assert form.visible(tmp_path) == list(range(10))
    assert list(tmp_path.rglob("*.staged")) == []
    second.write(ROWS.slice(10, 90))
    second.commit(prepare(second, 2))
    assert form.visible(tmp_path) == list(range(100))


def test_only_older_attempts_of_the_same_subtask_are_removed(form: Format, tmp_path: Path) -> None:
    others = [
        open_sink(form.make(tmp_path), attempt=3),
        open_sink(form.make(tmp_path), attempt=1, subtask=1),
        open_sink(form.make(tmp_path), attempt=1, uid="other"),
        open_sink(form.make(tmp_path), attempt=1, job="another job"),
    ]
    staged = []
    for sink in others:
        sink.write(ROWS)
        staged.append(prepare(sink, 1))
    older = open_sink(form.make(tmp_path), attempt=1)
    older.write(ROWS)
    prepare(older, 1)
    assert len(list(tmp_path.rglob("*.staged"))) == 5
    open_sink(form.make(tmp_path), attempt=2).recover([])
    assert len(list(tmp_path.rglob("*.staged"))) == 4
    for sink, committables in zip(others, staged, strict=True):
        sink.commit(committables)
    assert form.visible(tmp_path) == sorted(list(range(100)) * 4)


def test_a_staged_file_that_was_lost_is_a_loud_error(form: Format, tmp_path: Path) -> None:
    sink = open_sink(form.make(tmp_path))
    sink.write(ROWS)
    committables = prepare(sink, 1)
    for staged in tmp_path.rglob("*.staged"):
        staged.unlink()
    with pytest.raises(FatalJobError, match="S010"):
        sink.commit(committables)


def test_nothing_written_means_nothing_to_commit(form: Format, tmp_path: Path) -> None:
    sink = open_sink(form.make(tmp_path))
    sink.recover([])
    assert prepare(sink, 1) == []
    sink.commit([])
    sink.close()
    assert list(tmp_path.iterdir()) == []


def test_subtasks_and_checkpoints_never_write_the_same_file(form: Format, tmp_path: Path) -> None:
    for attempt in (1, 2):
        for subtask in (0, 1):
            sink = open_sink(form.make(tmp_path), attempt=attempt, subtask=subtask)
            for checkpoint in (1, 2):
                sink.write(ROWS)
                sink.commit(prepare(sink, checkpoint))
    assert form.visible(tmp_path) == sorted(list(range(100)) * 8)


STEPS = st.lists(st.sampled_from(["write", "checkpoint", "commit", "crash", "crash and lose"]), max_size=25)


@pytest.mark.parametrize("name", ["parquet", "csv"])
@settings(deadline=None, max_examples=60)
@given(steps=STEPS)
def test_whatever_fails_readers_see_each_row_of_completed_checkpoints_once(
    name: str, steps: list[str], tmp_path_factory: pytest.TempPathFactory
) -> None:
    """A source that replays from the last checkpoint, a sink, and crashes at any point between steps."""
    form, out = FORMATS[name], tmp_path_factory.mktemp("out")
    attempt, checkpoint, produced = 1, 0, 0
    completed: tuple[int, list[dict[str, Any]]] = (0, [])
    sink = open_sink(form.make(out), attempt=attempt)
    sink.recover([])
    for step in [*steps, "checkpoint", "commit"]:
        if step == "write":
            sink.write(pl.DataFrame({"n": range(produced, produced + 3), "day": ["x", "y", "x"]}))
            produced += 3
        elif step == "checkpoint":
            # Committables of a checkpoint that was not yet committed stay in the state until they are.
            checkpoint += 1
            completed = (produced, [*completed[1], *prepare(sink, checkpoint)])
        elif step == "commit":
            sink.commit(completed[1])
            completed = (completed[0], [])
        else:
            if step == "crash and lose":
                prepare(sink, checkpoint + 1)
            attempt += 1
            produced = completed[0]
            sink = open_sink(form.make(out), attempt=attempt)
            sink.recover(completed[1])
        seen = form.visible(out)
        assert len(set(seen)) == len(seen)
        assert set(seen) <= set(range(completed[0]))
    assert form.visible(out) == list(range(completed[0]))
