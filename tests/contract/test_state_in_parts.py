"""Operators in parts do what the same operators do whole, wherever their state is, whatever is uploaded when.

The oracle is the operator itself, whole, in one subtask that never stops. Rows, watermarks, barriers, uploads that
finish late, and restores on another backend, with another budget and at another parallelism are drawn.
"""

import shutil
import tempfile
from collections import Counter
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import polars as pl
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from penstock.checkpoint import state_objects
from penstock.model import schemas, specs
from penstock.model.changes import CHANGE, DELETE
from penstock.model.clocks import MAX_WATERMARK
from penstock.model.handles import StateHandle
from penstock.model.ids import Attempt, CheckpointId, JobId, SubtaskId, Uid, VertexId
from penstock.model.settings import JobSettings
from penstock.operators.base import Operator, OperatorContext, StateHome
from penstock.operators.factory import make_operator
from penstock.operators.parts import InParts
from penstock.state.key_groups import group_range, key_groups
from penstock.storage import MemoryStore

UID = Uid("the-operator")
M = 16
TIME = specs.EventTime(column="at", unit="us")


def expression(text: str) -> specs.Expression:
    return specs.Expression(name=text, text=text, polars=pl.col(text).meta.serialize())


AGGREGATES = (
    specs.Aggregate(name="rows", function="count", output_type="Int64"),
    specs.Aggregate(name="total", function="sum", input=expression("value"), output_type="Int64"),
    specs.Aggregate(name="last", function="last", input=expression("value"), output_type="Int64"),
)
RESULTS = {"key": pl.String(), "rows": pl.Int64(), "total": pl.Int64(), "last": pl.Int64()}
WINDOWED = schemas.fields({**RESULTS, "window_start": pl.Int64(), "window_end": pl.Int64()})
TTL = specs.TimeToLive(us=15, event_time=TIME)


def join(how: str, match: Any) -> specs.Join:
    columns = [specs.JoinColumn(name="key", left="key", right="key")]
    columns += [specs.JoinColumn(name="left", left="value"), specs.JoinColumn(name="at", left="at")]
    columns += [specs.JoinColumn(name="right", right="value")]
    types = {"key": pl.String(), "left": pl.Int64(), "at": pl.Int64(), "right": pl.Int64()}
    return specs.Join(
        left_on=("key",),
        right_on=("key",),
        how=how,
        match=match,
        columns=tuple(columns),
        left_time=TIME,
        right_time=TIME,
        output=schemas.fields(types),
    )


window = partial(specs.WindowAggregate, keys=("key",), aggregates=AGGREGATES, event_time=TIME, output=WINDOWED)
SPECS: dict[str, specs.OperatorSpec] = {
    "tumbling": window(assigner=specs.Tumbling(size_us=10)),
    "sliding": window(assigner=specs.Sliding(size_us=12, slide_us=4)),
    "late rows": window(assigner=specs.Tumbling(size_us=10), allowed_lateness_us=6, late_to="late"),
    "sessions": specs.SessionAggregate(
        keys=("key",), gap_us=4, aggregates=AGGREGATES, event_time=TIME, allowed_lateness_us=5, output=WINDOWED
    ),
    "running": specs.RunningAggregate(keys=("key",), aggregates=AGGREGATES, output=schemas.fields(RESULTS)),
    "running, TTL": specs.RunningAggregate(
        keys=("key",), aggregates=AGGREGATES, ttl=TTL, output=schemas.fields(RESULTS)
    ),
    "first by time": specs.Deduplicate(keys=("key", "value"), keep="first", by_event_time=True, event_time=TIME),
    "last": specs.Deduplicate(keys=("key", "value"), keep="last", by_event_time=True, event_time=TIME),
    "top": specs.TopN(
        keys=("key",),
        n=2,
        by=("value",),
        descending=(True,),
        output=schemas.fields({"key": pl.String(), "value": pl.Int64(), "at": pl.Int64()}),
    ),
    "window join": join("full", specs.WindowMatch(assigner=specs.Sliding(size_us=12, slide_us=6))),
    "interval join": join("left", specs.IntervalMatch(lower_us=-3, upper_us=5)),
    "as of": join("left", specs.AsOfMatch()),
    "regular join": join("full", specs.EverMatch(changes=True)),
    "regular join, TTL": join("inner", specs.EverMatch(left_ttl=TTL, right_ttl=TTL)),
}
IDENTITY = {
    "tumbling": ("key", "window_start"),
    "sliding": ("key", "window_start"),
    "late rows": ("key", "window_start"),
    "running": ("key",),
    "running, TTL": ("key",),
    "last": ("key", "value"),
}
"""Where one row replaces another with the same of these columns; elsewhere rows are put in and taken out."""


class Clock:
    now = 0

    def now_us(self) -> int:
        return self.now

    def monotonic(self) -> float:
        return self.now / 1e6


class Output:
    """What came out; nothing may come behind a watermark that promised otherwise, so order is kept too."""

    def __init__(self) -> None:
        self.frames: list[pl.DataFrame] = []
        self.late: list[pl.DataFrame] = []
        self.passed: list[int] = []

    def emit(self, frame: pl.DataFrame) -> None:
        self.frames.append(frame)

    def emit_side(self, name: str, frame: pl.DataFrame) -> None:
        self.late.append(frame)

    def pass_watermark(self, time: int) -> None:
        self.passed.append(time)


class Subtasks:
    """All subtasks of one operator, with a store."""

    def __init__(self, spec: specs.OperatorSpec, folder: Path) -> None:
        self._spec, self._folder = spec, folder
        self._keys = (spec.left_on, spec.right_on) if isinstance(spec, specs.Join) else (spec.keys,) * 2  # type: ignore[union-attr]
        self._store, self._clock = MemoryStore("state"), Clock()
        self._handles: tuple[StateHandle, ...] = ()
        self._attempt = self._checkpoint = 0
        self._upload: Callable[[], None] | None = None
        self._mark = 0
        self._before = self._at_barrier = 0
        self.operators: list[Operator] = []
        self.output = Output()
        self.late_rows = 0

    def start(self, home: Callable[[Path], StateHome], parallelism: int) -> None:
        """From the last checkpoint, if there is one."""
        self.close()
        self._attempt += 1
        description = specs.Operator(uid=UID, name="x", spec=self._spec)
        for index in range(parallelism):
            context = OperatorContext(
                job=JobId("job"),
                attempt=Attempt(self._attempt),
                uid=UID,
                subtask=SubtaskId(VertexId("v"), index),
                parallelism=parallelism,
                max_parallelism=M,
                clock=self._clock,
                settings=JobSettings(),
                state=home(self._folder / f"{self._attempt}-{index}"),
            )
            operator = make_operator(description, context)
            operator.open(context, self.output)
            restored = state_objects.read(
                self._store,
                self._handles,
                groups=group_range(index, parallelism, M),
                index=index,
                parallelism=parallelism,
                uids=[UID],
            )
            if sections := restored.get(UID):
                operator.restore(sections)
            operator.on_restored()
            self.operators.append(operator)

    def rows(self, port: int, frame: pl.DataFrame) -> None:
        """Each row to the owner of its key."""
        groups = key_groups(frame, self._keys[port], M)
        for index, operator in enumerate(self.operators):
            owned = group_range(index, len(self.operators), M)
            mine = frame.filter(pl.Series([int(group) in owned for group in groups], dtype=pl.Boolean()))
            if mine.height:
                operator.on_batch(mine, port)

    def watermark(self, time: int) -> None:
        """To all."""
        for operator in self.operators:
            operator.on_watermark(time)

    def later(self, seconds: int) -> None:
        """The clock goes on; whoever waited for it is called."""
        self._clock.now += seconds * 1_000_000
        for operator in self.operators:
            due = operator.next_processing_time()
            if due is not None and due <= self._clock.now:
                operator.on_processing_time(self._clock.now)

    def barrier(self) -> None:
        """The fast half of a checkpoint now; the slow half when `upload` is called."""
        self.upload()
        self._checkpoint += 1
        for operator in self.operators:
            operator.on_barrier()
            assert not operator.in_flight
        snapshots = [operator.snapshot(CheckpointId(self._checkpoint)) for operator in self.operators]
        attempt, checkpoint = Attempt(self._attempt), CheckpointId(self._checkpoint)

        def upload() -> None:
            made = ([(UID, section) for section in snapshot()] for snapshot in snapshots)
            self._handles = tuple(
                state_objects.write(self._store, checkpoint, attempt, SubtaskId(VertexId("v"), index), sections)
                for index, sections in enumerate(made)
            )

        self._upload = upload

    def upload(self) -> None:
        """Finish the checkpoint that is under way."""
        if self._upload is not None:
            self._upload()
            self._upload = None

    @property
    def put_away(self) -> int:
        """Blocks that were written into databases by the subtasks that run."""
        parts = [operator for operator in self.operators if isinstance(operator, InParts)]
        return sum(operator.blocks_written for operator in parts)

    @property
    def uploaded(self) -> int:
        """Bytes that the last checkpoint added."""
        return sum(handle.uploaded_size for handle in self._handles)

    def end(self) -> None:
        """Time is over."""
        self.watermark(MAX_WATERMARK)
        for operator in self.operators:
            assert not operator.in_flight
            operator.on_end()
        self.close()

    def close(self) -> None:
        for operator in self.operators:
            self.late_rows += operator.context.counters.late_rows
            operator.close()
        self.operators = []


def whole(folder: Path) -> StateHome:
    return StateHome("memory", folder)


ROWS = st.lists(
    st.tuples(st.sampled_from("abcdefghijk"), st.integers(0, 9), st.integers(-12, 5)), min_size=1, max_size=8
)
HOMES = st.builds(
    lambda backend, budget, rows: lambda folder: StateHome(backend, folder, budget, rows),
    st.sampled_from(["memory", "rocksdb", "rocksdb", "auto"]),
    st.sampled_from([1, 1_500, 6_000, 40_000, 1 << 26]),
    st.sampled_from([1, 64, 1 << 20]),
)
STEPS = st.lists(
    st.tuples(st.just("rows"), st.integers(0, 1), ROWS)
    | st.tuples(st.just("rows"), st.integers(0, 1), ROWS)
    | st.tuples(st.just("watermark"), st.integers(0, 12))
    | st.tuples(st.just("barrier"))
    | st.tuples(st.just("upload"))
    | st.tuples(st.just("later"), st.integers(0, 2))
    | st.tuples(st.just("restore"), HOMES, st.integers(1, 3)),
    max_size=25,
)


def play(subtasks: Subtasks, steps: Sequence[tuple[Any, ...]], *, ports: int, restores: bool) -> None:
    now = 0
    for step in steps:
        match step:
            case ("rows", port, rows):
                values = [(key, value, now + at) for key, value, at in rows]
                frame = pl.DataFrame(values, schema={"key": str, "value": pl.Int64, "at": pl.Int64}, orient="row")
                subtasks.rows(port % ports, frame)
            case ("watermark", ahead):
                now += ahead
                subtasks.watermark(now - 3)
            case ("later", seconds):
                subtasks.later(seconds)
            case ("barrier",) if restores:
                subtasks.barrier()
            case ("upload",) if restores:
                subtasks.upload()
            case ("restore", home, parallelism) if restores:
                subtasks.barrier()
                subtasks.upload()
                subtasks.start(home, parallelism)
                if now:
                    subtasks.watermark(now - 3)
    subtasks.end()


def outcome(name: str, output: Output) -> Any:
    """What is left of the changes; all rows where there are none."""
    table: Counter[tuple[Any, ...]] = Counter()
    latest: dict[tuple[Any, ...], tuple[Any, ...]] = {}
    for frame in output.frames:
        changes = frame.get_column(CHANGE).to_list() if CHANGE in frame.columns else [0] * frame.height
        rows = frame.drop(CHANGE, strict=False)
        for change, row in zip(changes, rows.rows(), strict=True):
            if name in IDENTITY:
                latest[tuple(row[rows.columns.index(column)] for column in IDENTITY[name])] = row
            else:
                table[row] += -1 if change == DELETE else 1
    return latest, {row: count for row, count in table.items() if count}


@pytest.mark.parametrize("name", SPECS)
def test_parts_do_what_the_whole_does(name: str) -> None:
    spec = SPECS[name]
    ports = 2 if isinstance(spec, specs.Join) else 1

    @settings(max_examples=15, database=None, deadline=None)
    @given(STEPS, HOMES, st.integers(1, 3))
    def hold(steps: list[tuple[Any, ...]], home: Callable[[Path], StateHome], parallelism: int) -> None:
        folder = Path(tempfile.mkdtemp())
        try:
            expected, found = Subtasks(spec, folder / "whole"), Subtasks(spec, folder / "parts")
            expected.start(whole, 1)
            play(expected, steps, ports=ports, restores=False)
            found.start(home, parallelism)
            play(found, steps, ports=ports, restores=True)
            assert outcome(name, found.output) == outcome(name, expected.output)
            late = [Counter(row for frame in each.output.late for row in frame.rows()) for each in (found, expected)]
            assert late[0] == late[1]
        finally:
            shutil.rmtree(folder, ignore_errors=True)

    hold()


@pytest.mark.parametrize("name", SPECS)
def test_what_does_not_fit_is_put_away(name: str, tmp_path: Path) -> None:
    subtasks = Subtasks(SPECS[name], tmp_path)
    subtasks.start(lambda folder: StateHome("rocksdb", folder, 1), 2)
    subtasks.rows(0, pl.DataFrame({"key": list("abcdef"), "value": range(6), "at": [5] * 6}))
    assert subtasks.put_away > 0
    subtasks.end()


def test_a_checkpoint_uploads_what_is_new(tmp_path: Path) -> None:
    """On both backends: blocks that the checkpoint before has are named, not written."""
    for number, backend in enumerate(("memory", "rocksdb")):
        subtasks = Subtasks(SPECS["tumbling"], tmp_path / str(number))
        subtasks.start(lambda folder, backend=backend: StateHome(backend, folder, 1 << 20, 1_000), 1)  # type: ignore[misc]
        uploaded = []
        for batch in range(6):
            keys = [f"{batch}-{key}" for key in range(20_000)]
            subtasks.rows(0, pl.DataFrame({"key": keys, "value": range(20_000), "at": [5] * 20_000}))
            subtasks.barrier()
            subtasks.upload()
            uploaded.append(subtasks.uploaded)
        assert max(uploaded) < 1.3 * min(uploaded), uploaded
        subtasks.end()
        assert sum(frame.height for frame in subtasks.output.frames) == 6 * 20_000
