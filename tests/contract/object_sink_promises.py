"""What sinks promise whose files lie in an object store, whichever one that is."""

from typing import Any

import msgspec
import polars as pl
import pytest

from penstock import connectors
from penstock.checkpoint.journal import AttemptStarted
from penstock.connectors import Endpoint
from penstock.connectors.base import Sink, SinkContext
from penstock.connectors.object_sink import STAGING
from penstock.garbage.jobs import JobFacts
from penstock.garbage.rules import HOUR_US, Rules
from penstock.garbage.staged import find_staged
from penstock.model import schemas
from penstock.model.clocks import SystemClock
from penstock.model.errors import FatalJobError
from penstock.model.ids import Attempt, CheckpointId, JobId, SubtaskId, Uid, VertexId
from penstock.model.settings import SourceSettings
from penstock.model.specs import Connector
from penstock.storage import open_store, open_uploads

ROWS = pl.DataFrame({"n": range(100), "day": [f"day {number % 3}" for number in range(100)]})

MAKERS = {"parquet": connectors.parquet, "csv": connectors.csv, "json lines": connectors.json_lines}


class SinkPromises:
    """Subclasses have a fixture `place`: the address of an empty folder."""

    @pytest.mark.parametrize("form", MAKERS)
    def test_rows_are_invisible_until_they_are_committed(self, form: str, place: str) -> None:
        sink = open_sink(MAKERS[form](place))
        sink.recover([])
        sink.write(ROWS.head(40))
        sink.write(ROWS.slice(40, 60))
        committables = prepare(sink, 1)
        assert visible(place) == []
        sink.commit(committables)
        assert visible(place, MAKERS[form]) == list(range(100))
        assert notes(place) == []

    def test_folders_are_made_of_columns(self, place: str) -> None:
        sink = open_sink(connectors.parquet(place, partition_by="day"))
        sink.write(ROWS)
        sink.commit(prepare(sink, 1))
        found = {info.path.partition("/")[0] for info in open_store(place).list("")}
        assert found == {"day=day 0", "day=day 1", "day=day 2"}
        assert visible(place) == list(range(100))

    def test_what_is_rolled_before_a_barrier_is_part_of_it(self, place: str) -> None:
        sink = open_sink(connectors.parquet(place, roll_bytes=100))
        for start in range(0, 100, 20):
            sink.write(ROWS.slice(start, 20))
        assert visible(place) == []
        sink.commit(prepare(sink, 1))
        assert visible(place) == list(range(100))
        assert len(list(open_store(place).list(""))) == 5

    def test_a_commit_can_be_repeated_by_anybody(self, place: str) -> None:
        sink = open_sink(connectors.parquet(place))
        sink.write(ROWS)
        committables = prepare(sink, 1)
        for _ in range(3):
            sink.commit(committables)
        open_sink(connectors.parquet(place), attempt=2).recover(committables)
        open_sink(connectors.parquet(place), attempt=2, subtask=1).recover(committables)
        assert visible(place) == list(range(100))

    def test_a_restore_commits_the_checkpoint_and_drops_what_came_after_it(self, place: str) -> None:
        first = open_sink(connectors.parquet(place), attempt=1)
        first.write(ROWS.head(10))
        kept = prepare(first, 1)
        first.write(ROWS.slice(10, 10))
        later = prepare(first, 2)
        second = open_sink(connectors.parquet(place), attempt=2)
        second.recover(kept)
        assert visible(place) == list(range(10))
        assert notes(place) == []
        assert unfinished(place, [*kept, *later]) == 0
        second.write(ROWS.slice(10, 90))
        second.commit(prepare(second, 2))
        assert visible(place) == list(range(100))

    def test_subtasks_that_come_one_after_the_other_write_files_of_their_own(self, place: str) -> None:
        """After a rescale of a running job: the same number, the same attempt."""
        for start in (0, 50):
            sink = open_sink(connectors.parquet(place))
            sink.recover([])
            sink.write(ROWS.slice(start, 50))
            sink.commit(prepare(sink, 1 + start))
        assert visible(place) == list(range(100))

    def test_only_older_attempts_of_the_same_subtask_are_discarded(self, place: str) -> None:
        others = [
            open_sink(connectors.parquet(place), attempt=3),
            open_sink(connectors.parquet(place), attempt=1, subtask=1),
            open_sink(connectors.parquet(place), attempt=1, uid="other"),
            open_sink(connectors.parquet(place), attempt=1, job="another job"),
        ]
        staged = []
        for sink in others:
            sink.write(ROWS)
            staged.append(prepare(sink, 1))
        older = open_sink(connectors.parquet(place), attempt=1)
        older.write(ROWS)
        dropped = prepare(older, 1)
        open_sink(connectors.parquet(place), attempt=2).recover([])
        assert unfinished(place, dropped) == 0
        for sink, committables in zip(others, staged, strict=True):
            sink.commit(committables)
        assert visible(place) == sorted(list(range(100)) * 4)

    def test_garbage_collection_finds_what_an_attempt_that_was_replaced_has_staged(self, place: str) -> None:
        sinks = [open_sink(connectors.parquet(place), attempt=attempt) for attempt in (1, 2)]
        staged = []
        for sink in sinks:
            sink.write(ROWS)
            staged.append(prepare(sink, 1))
        facts = JobFacts(
            [AttemptStarted(sequence=0, parent="", writer="w", time_us=0, attempt=Attempt(2), region=0, restored=None)]
        )
        later = SystemClock().now_us() + 24 * HOUR_US
        store = open_uploads(place)
        for promised in ({staged[0][0]["target"]}, set[str]()):
            finds = list(find_staged(store, JobId("job"), "out", facts, promised, Rules(), later))
            assert sum(find.remove() for find in finds) == (0 if promised else 1)
        assert (unfinished(place, staged[0]), unfinished(place, staged[1])) == (0, 1)
        sinks[1].commit(staged[1])
        assert visible(place) == list(range(100))
        assert notes(place) == []

    def test_rows_that_the_store_has_no_more_are_a_loud_error(self, place: str) -> None:
        sink = open_sink(connectors.parquet(place))
        sink.write(ROWS)
        committables = prepare(sink, 1)
        store = open_uploads(place)
        for each in committables:
            for upload in store.unfinished(each["target"]):
                store.discard(upload)
        with pytest.raises(FatalJobError, match="S010"):
            sink.commit(committables)


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


def visible(place: str, make: Any = connectors.parquet) -> list[int]:
    """What the source of the same files reads there."""
    if not any(not info.path.startswith(STAGING) for info in open_store(place).list("")):
        return []
    return sorted(read(make(place))["n"].to_list())


def read(endpoint: Endpoint) -> pl.DataFrame:
    """All rows of a source, as one subtask reads them."""
    definition = endpoint.as_source().resolve(SourceSettings())
    source = connectors.make_source(definition.connector)
    context = connectors.base.SourceContext(
        subtask_index=0, parallelism=1, columns=None, settings=SourceSettings(), clock=SystemClock(), place="test"
    )
    frames = []
    for split in source.splits():
        reader, ended = source.open(split, None, context), False
        while not ended:
            result = reader.read(1000)
            ended = result.ended
            frames += [result.frame] if result.frame is not None else []
        reader.close()
    return pl.concat(frames)


def notes(place: str) -> list[str]:
    return [info.path for info in open_store(place).list(f"{STAGING}/")]


def unfinished(place: str, committables: list[dict[str, Any]]) -> int:
    store = open_uploads(place)
    return sum(upload.path == each["target"] for each in committables for upload in store.unfinished(each["target"]))
