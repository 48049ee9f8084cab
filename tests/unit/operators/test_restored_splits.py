"""A file that a checkpoint knows keeps the cut it had, whatever the settings say when the job goes on."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec
import polars as pl
import pytest

from penstock import connectors
from penstock.model import specs
from penstock.model.ids import Attempt, CheckpointId, JobId, SubtaskId, Uid, VertexId
from penstock.model.settings import JobSettings, SourceSettings
from penstock.operators.base import OperatorContext
from penstock.operators.factory import load_function
from penstock.operators.sources import SPLITS, SourceOperator

ROWS = 60
FILES = {
    "parquet": lambda path, frame: frame.write_parquet(path / "a.parquet", row_group_size=5),
    "json_lines": lambda path, frame: frame.write_ndjson(path / "a.jsonl"),
    "csv": lambda path, frame: frame.write_csv(path / "a.csv"),
}


class Run:
    """All subtasks of one source, in one life of a job."""

    def __init__(self, path: Path, name: str, *, split_bytes: int, parallelism: int, clock: Any, watch: bool) -> None:
        settings = SourceSettings(batch_rows=3, split_bytes=split_bytes)
        endpoint = getattr(connectors, name)(path, watch=watch, schema={"n": int})
        connector = endpoint.as_source().resolve(settings).connector
        self.read: list[int] = []
        spec = specs.Source(connector=connector)
        self.subtasks = [
            SourceOperator(spec, connectors.make_source(connector), load_function) for _ in range(parallelism)
        ]
        for index, operator in enumerate(self.subtasks):
            context = OperatorContext(
                job=JobId("job"),
                attempt=Attempt(1),
                uid=Uid("rows"),
                subtask=SubtaskId(VertexId("rows"), index),
                parallelism=parallelism,
                max_parallelism=8,
                clock=clock,
                settings=JobSettings(source=settings),
            )
            operator.open(context, self)

    def emit(self, frame: pl.DataFrame) -> None:
        self.read += frame["n"].to_list()

    def poll(self, times: int) -> None:
        for _ in range(times):
            for operator in self.subtasks:
                operator.poll()

    def snapshot(self) -> list[pl.DataFrame]:
        sections = [section for each in self.subtasks for section in each.snapshot(CheckpointId(1))()]
        return [section.frame for section in sections]

    def restore(self, frames: list[pl.DataFrame]) -> "Run":
        for operator in self.subtasks:
            operator.restore({SPLITS: frames})
        return self


@pytest.fixture
def run(tmp_path: Path, clock: Any) -> Callable[..., Run]:
    def start(name: str, *, split_bytes: int, parallelism: int = 1, watch: bool = False) -> Run:
        return Run(tmp_path, name, split_bytes=split_bytes, parallelism=parallelism, clock=clock, watch=watch)

    return start


@pytest.mark.parametrize("watch", [False, True], ids=["listed", "watched"])
@pytest.mark.parametrize("parallelism", [1, 2])
@pytest.mark.parametrize(("before", "after"), [(100, 1_000_000), (1_000_000, 100), (100, 150)])
@pytest.mark.parametrize("name", FILES)
def test_another_split_size_reads_no_row_twice_and_leaves_none_out(
    run: Callable[..., Run], tmp_path: Path, name: str, before: int, after: int, parallelism: int, watch: bool
) -> None:
    FILES[name](tmp_path, pl.DataFrame({"n": range(ROWS)}))
    first = run(name, split_bytes=before, watch=watch)
    first.poll(7)
    assert 0 < len(first.read) < ROWS
    again = run(name, split_bytes=after, parallelism=parallelism, watch=watch).restore(first.snapshot())
    again.poll(100)
    assert sorted(first.read + again.read) == list(range(ROWS))


def test_a_file_that_is_new_is_cut_as_the_settings_say(run: Callable[..., Run], tmp_path: Path) -> None:
    pl.DataFrame({"n": range(30)}).write_ndjson(tmp_path / "a.jsonl")
    first = run("json_lines", split_bytes=100)
    first.poll(2)
    pl.DataFrame({"n": range(30, ROWS)}).write_ndjson(tmp_path / "b.jsonl")
    again = run("json_lines", split_bytes=60).restore(first.snapshot())
    again.poll(100)
    assert sorted(first.read + again.read) == list(range(ROWS))
    lengths = {Path(split["path"]).name: split["length"] for split in options(again.snapshot()) if not split["start"]}
    assert lengths == {"a.jsonl": 100, "b.jsonl": 60}


def options(frames: list[pl.DataFrame]) -> list[dict[str, Any]]:
    return [msgspec.json.decode(text) for frame in frames for text in frame["options"]]


def test_the_parts_of_a_file_are_still_read_in_its_order(run: Callable[..., Run], tmp_path: Path) -> None:
    pl.DataFrame({"n": range(ROWS)}).write_ndjson(tmp_path / "a.jsonl")
    first = run("json_lines", split_bytes=40, parallelism=2)
    first.poll(1)
    again = run("json_lines", split_bytes=1_000_000).restore(first.snapshot())
    again.poll(100)
    assert again.read == sorted(again.read)
