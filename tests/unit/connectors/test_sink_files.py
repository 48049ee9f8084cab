from collections.abc import Callable
from pathlib import Path

import polars as pl
import pytest
from polars.testing import assert_frame_equal

from penstock import connectors
from penstock.connectors import Endpoint
from penstock.connectors.base import PacedSink, Sink, SinkContext
from penstock.connectors.gathering import size_of
from penstock.model import schemas
from penstock.model.errors import UserError
from penstock.model.ids import Attempt, CheckpointId, JobId, SubtaskId, Uid, VertexId
from penstock.model.specs import Field

ROWS = pl.DataFrame({"n": range(6), "day": ["mon", "tue/wed", None, "mon", None, "mon"]})
OpenSink = Callable[..., Sink]


@pytest.fixture
def open_sink(clock: object) -> OpenSink:
    def make(endpoint: Endpoint, subtask: int = 0, uid: str = "out") -> Sink:
        context = SinkContext(
            job=JobId("job"),
            attempt=Attempt(1),
            uid=Uid(uid),
            subtask=SubtaskId(VertexId(uid), subtask),
            clock=clock,  # type: ignore[arg-type]
        )
        return connectors.make_sink(endpoint.as_sink().connector, schemas.fields(ROWS.schema), context)

    return make


def commit(sink: Sink, checkpoint: int) -> None:
    stage = sink.prepare(CheckpointId(checkpoint))
    assert stage is not None
    sink.commit(stage())


def test_partitions_are_folders_that_other_engines_understand(tmp_path: Path, open_sink: OpenSink) -> None:
    sink = open_sink(connectors.parquet(tmp_path, partition_by=["day"]))
    sink.write(ROWS)
    commit(sink, 1)
    folders = sorted(path.name for path in tmp_path.iterdir() if path.name != "_penstock")
    assert folders == ["day=__HIVE_DEFAULT_PARTITION__", "day=mon", "day=tue%2Fwed"]
    read = pl.read_parquet(tmp_path / "**/*.parquet", hive_partitioning=True).sort("n")
    assert_frame_equal(read, ROWS)


def test_what_was_written_can_be_read_as_a_source(tmp_path: Path, open_sink: OpenSink, read_rows: object) -> None:
    sink = open_sink(connectors.parquet(tmp_path, partition_by="day"))
    sink.write(ROWS)
    commit(sink, 1)
    sink.write(ROWS.with_columns(pl.col("n") + 100))
    stage = sink.prepare(CheckpointId(2))
    assert stage is not None
    stage()
    frame, _ = read_rows(connectors.parquet(tmp_path))  # type: ignore[operator]
    assert_frame_equal(frame.sort("n"), ROWS)


def test_a_file_is_rolled_when_it_is_large_enough(tmp_path: Path, open_sink: OpenSink) -> None:
    sink = open_sink(connectors.json_lines(tmp_path, roll_bytes=200))
    for _ in range(10):
        sink.write(ROWS)
    commit(sink, 1)
    parts = list(tmp_path.glob("part-*.jsonl"))
    assert 3 <= len(parts) <= 10
    assert sum(pl.read_ndjson(part).height for part in parts) == 60


def test_the_size_of_a_slice_is_that_of_its_own_rows() -> None:
    rows = pl.DataFrame({"s": ["a long text that is not kept inside of the view"] * 1000})
    assert size_of(rows.slice(0, 10)) < size_of(rows) / 50


def test_uids_with_any_letters_make_safe_file_names(tmp_path: Path, open_sink: OpenSink) -> None:
    sink = open_sink(connectors.csv(tmp_path / "out"), uid="../orders - €/x")
    sink.write(ROWS)
    commit(sink, 1)
    assert len(list((tmp_path / "out").glob("part-*.csv"))) == 1
    assert [path.name for path in tmp_path.iterdir()] == ["out"]


def test_collected_rows_are_read_back_by_checkpoint_and_subtask(tmp_path: Path, open_sink: OpenSink) -> None:
    for checkpoint in (9, 10):
        for subtask in (1, 0):
            sink = open_sink(connectors.collect(tmp_path), subtask=subtask, uid="a-b")
            sink.write(pl.DataFrame({"from": [f"{checkpoint}.{subtask}"]}))
            commit(sink, checkpoint)
    assert connectors.read_collected(tmp_path)["from"].to_list() == ["9.0", "9.1", "10.0", "10.1"]


def test_nothing_collected_is_an_empty_frame_with_the_right_columns(tmp_path: Path) -> None:
    assert connectors.read_collected(tmp_path, (Field("n", "Int64"),)).schema == {"n": pl.Int64}


def test_collect_without_a_directory_is_refused_when_it_runs(open_sink: OpenSink) -> None:
    with pytest.raises(UserError, match="P018"):
        open_sink(connectors.collect())


def test_print_writes_a_line_per_row_up_to_its_limit(capsys: pytest.CaptureFixture[str], open_sink: OpenSink) -> None:
    sink = open_sink(connectors.print(prefix="out> ", limit=3))
    sink.write(ROWS.head(2))
    sink.write(ROWS.tail(4))
    sink.write(ROWS)
    assert capsys.readouterr().out == (
        'out> {"n":0,"day":"mon"}\nout> {"n":1,"day":"tue/wed"}\nout> {"n":2,"day":null}\n'
    )


def test_a_slow_discard_says_how_long_it_is_busy(open_sink: OpenSink, clock: object) -> None:
    sink = open_sink(connectors.discard(rate=10))
    assert isinstance(sink, PacedSink)
    assert sink.ready_in_us() == 0
    sink.write(ROWS)
    assert sink.ready_in_us() == 600_000
    clock.seconds += 0.6  # type: ignore[attr-defined]
    assert sink.ready_in_us() == 0


def test_an_unknown_kind_lists_what_there_is() -> None:
    with pytest.raises(UserError, match=r"P018 no source of kind 'kafka'\n  fix: use one of csv, generate"):
        connectors.make_source(connectors.definitions.Connector(kind="kafka"))
