"""The engine's own operators inside Python workers of Spark: for functions of the user, and for what Spark lacks.

A worker runs one operator over the rows of one partition. Keyed rows come by key group, in order of event time, and
the watermark follows them, so that windows, timers and joins see what a stream shows them when no row is late. Behind
the last row the input has ended.

What is made here is sent to workers: plain data and functions of this module.
"""

import asyncio
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from typing import Any

import msgspec
import numpy as np
import polars as pl
import pyarrow as pa
from pyspark import TaskContext

from penstock.batch.columns import from_arrow, to_arrow
from penstock.model import specs
from penstock.model.changes import CHANGE, DELETE
from penstock.model.clocks import MAX_WATERMARK, MIN_WATERMARK, SystemClock
from penstock.model.handles import Redistribution
from penstock.model.ids import Attempt, CheckpointId, JobId, SubtaskId, VertexId
from penstock.model.schemas import polars_schema
from penstock.model.settings import JobSettings
from penstock.operators.base import Call, Operator, OperatorContext, Section
from penstock.operators.factory import load_function, make_operator
from penstock.operators.user_functions import StatefulFunction
from penstock.savepoints.writing import write_tables
from penstock.storage import open_store

TIME, PORT, GROUP = "__time", "__port", "__group"
"""Columns that rows carry into a worker: event time in microseconds, the input, the key group."""

STATE = "__state"
"""The output by which a worker says where it has written state, in rows of these columns."""

HANDLE = {"handle": pl.String()}

OUTPUT = "__output"
"""Which output a row leaves by, where there are several; its columns are in the struct of that number."""

Batches = Iterator[pa.RecordBatch]
ArrowFunction = Callable[[Batches], Batches]


class Work(msgspec.Struct, frozen=True, kw_only=True):
    """What a worker is to do, as JSON."""

    job: JobId
    operator: specs.Operator
    settings: JobSettings
    max_parallelism: int
    side_outputs: tuple[str, ...] = ()
    """Those that somebody reads."""
    until: int | None = None
    """The watermark at which the input breaks off, to go on elsewhere; None: it ends."""
    savepoint: str = ""
    """Where the state is to be written then."""


@dataclass(slots=True)
class Collected:
    """Rows that an operator has put out. An `Output`."""

    rows: list[tuple[str, pl.DataFrame]] = field(default_factory=list)
    wanted: frozenset[str] = frozenset()

    def emit(self, frame: pl.DataFrame) -> None:
        """Rows of the main output."""
        if frame.height:
            self.rows.append((specs.MAIN_OUTPUT, frame))

    def emit_side(self, name: str, frame: pl.DataFrame) -> None:
        """Rows beside it."""
        if frame.height and name in self.wanted:
            self.rows.append((name, frame))

    def pass_watermark(self, time: int) -> None:
        """Nobody listens."""

    def taken(self) -> list[tuple[str, pl.DataFrame]]:
        """What came since the last time."""
        rows, self.rows = self.rows, []
        return rows


class _AtOnce:
    """Runs users' coroutines until all are done, on one event loop. `operators.base.Coroutines`."""

    def __init__(self) -> None:
        self._loop: asyncio.AbstractEventLoop | None = None

    def start(self, calls: Sequence[Call]) -> None:
        """Wait for them, then hand their results over."""

        async def outcome(call: Callable[[], Any]) -> Any:
            try:
                return await call()
            except (Exception, SystemExit, asyncio.CancelledError) as error:
                return error

        async def everything() -> list[Any]:
            return await asyncio.gather(*(outcome(call) for call, _ in calls))

        self._loop = self._loop or asyncio.new_event_loop()
        for (_, done), result in zip(calls, self._loop.run_until_complete(everything()), strict=True):
            done(result)


def context_of(work: Work, *, index: int = 0, parallelism: int = 1) -> OperatorContext:
    """Where an operator runs, as far as it may know."""
    uid = work.operator.uid
    return OperatorContext(
        job=work.job,
        attempt=Attempt(1),
        uid=uid,
        subtask=SubtaskId(VertexId(uid), index),
        parallelism=parallelism,
        max_parallelism=work.max_parallelism,
        clock=SystemClock(),
        settings=work.settings,
        coroutines=_AtOnce(),
    )


class Runner:
    """One operator and where its rows go."""

    def __init__(self, work: Work) -> None:
        description = work.operator
        self.output = Collected(wanted=frozenset(work.side_outputs))
        self.context = context_of(work)
        self._description = description
        self.operator: Operator = make_operator(description, self.context)
        self.operator.open(self.context, self.output)
        self.operator.on_restored()
        self._stepwise = steps_with_time(description, self.context)
        changes = description.changes if work.until is None else None
        self._compacted = _Compaction(changes) if changes is not None else None
        self._limit = MAX_WATERMARK if work.until is None else work.until
        self.watermark = MIN_WATERMARK

    def rows(self, frame: pl.DataFrame, port: int) -> None:
        """Rows of one input."""
        self.operator.on_batch(frame, port)
        self._wait()

    def time(self, watermark: int) -> None:
        """Event time has come so far."""
        watermark = min(watermark, self._limit)
        if watermark > self.watermark:
            self.watermark = watermark
            self.operator.on_watermark(watermark)

    def timed(self, frame: pl.DataFrame, times: pl.Series, ports: pl.Series | None, inputs: "Inputs") -> None:
        """Rows in order of their time, of one input or of two."""
        for part in self._pieces(times, ports):
            rows = frame[part.start : part.stop]
            if times[part.start] > MIN_WATERMARK + 1:
                self.time(int(times[part.start]) - 1)
            port = int(ports[part.start]) if ports is not None else 0
            self.rows(inputs.of(rows, port), port)

    def _pieces(self, times: pl.Series, ports: pl.Series | None) -> Iterator[range]:
        count = len(times)
        cut = np.zeros(max(count - 1, 0), np.bool_)
        if self._stepwise:
            cut |= np.diff(times.to_numpy()) != 0
        if ports is not None:
            cut |= np.diff(ports.to_numpy()) != 0
        borders = [0, *(np.flatnonzero(cut) + 1).tolist(), count]
        for start, stop in pairwise(borders):
            if stop > start:
                yield range(start, stop)

    def end(self) -> None:
        """The input has ended."""
        self._wait()
        self.time(MAX_WATERMARK)
        if self._limit == MAX_WATERMARK:
            self.operator.on_end()
        else:
            self.operator.on_barrier()

    def _wait(self) -> None:
        """Calls that are under way come back; each time the operator is asked it starts the next ones."""
        while self.operator.in_flight:
            self.operator.on_processing_time(self.context.clock.now_us())

    def results(self) -> Iterator[tuple[str, pl.DataFrame]]:
        """Rows that have come out."""
        for name, frame in self.output.taken():
            if name == specs.MAIN_OUTPUT and self._compacted is not None:
                self._compacted.add(frame)
            else:
                yield name, frame

    def last_results(self) -> Iterator[tuple[str, pl.DataFrame]]:
        """Rows that have come out in the end; of a stream that updates earlier rows, what is left of them."""
        yield from self.results()
        if self._compacted is not None:
            yield from ((specs.MAIN_OUTPUT, frame) for frame in self._compacted.rows())

    def close(self) -> None:
        """Release what is open."""
        self.operator.close()


class _Compaction:
    """What a changelog comes to."""

    def __init__(self, changes: specs.Changes) -> None:
        self._keys = changes.keys
        self._frames: list[pl.DataFrame] = []

    def add(self, frame: pl.DataFrame) -> None:
        """More changes."""
        self._frames.append(frame)

    def rows(self) -> Iterator[pl.DataFrame]:
        """The rows that are left."""
        if not self._frames:
            return
        every = pl.concat(self._frames)
        columns = [name for name in every.columns if name != CHANGE]
        if self._keys is not None:
            last = every.unique(list(self._keys), keep="last", maintain_order=True) if self._keys else every.tail(1)
            yield last.filter(pl.col(CHANGE) != DELETE).select(columns)
            return
        count = pl.when(pl.col(CHANGE) == DELETE).then(-1).otherwise(1).sum()
        left = every.group_by(columns, maintain_order=True).agg(count.alias(CHANGE)).filter(pl.col(CHANGE) > 0)
        yield left.select(pl.col(columns).repeat_by(CHANGE)).explode(columns)


@dataclass(frozen=True, slots=True)
class Inputs:
    """The columns of each input among those of the rows: as they are, or, of several, in a struct for each."""

    schemas: tuple[dict[str, pl.DataType], ...]

    @property
    def columns(self) -> dict[str, pl.DataType]:
        """What rows carry, without time and port."""
        if len(self.schemas) == 1:
            return self.schemas[0]
        return {self.name(port): pl.Struct(schema) for port, schema in enumerate(self.schemas)}

    @staticmethod
    def name(port: int) -> str:
        """The struct of an input."""
        return f"__input{port}"

    def of(self, rows: pl.DataFrame, port: int) -> pl.DataFrame:
        """The rows of one input."""
        if len(self.schemas) == 1:
            return rows.select(list(self.schemas[0]))
        return rows.get_column(self.name(port)).struct.unnest()


@dataclass(frozen=True, slots=True)
class Outputs:
    """The columns of each output among those of the rows that leave."""

    schemas: tuple[tuple[str, dict[str, pl.DataType]], ...]

    @property
    def columns(self) -> dict[str, pl.DataType]:
        """What rows carry."""
        if len(self.schemas) == 1:
            return self.schemas[0][1]
        structs = {self.name(number): pl.Struct(schema) for number, (_, schema) in enumerate(self.schemas)}
        return {OUTPUT: pl.Int32(), **structs}

    @staticmethod
    def name(number: int) -> str:
        """The struct of an output."""
        return f"{OUTPUT}{number}"

    def packed(self, name: str, frame: pl.DataFrame) -> pa.RecordBatch:
        """Rows of one output."""
        if len(self.schemas) == 1:
            return to_arrow(frame, self.columns)
        made: list[pl.Series] = []
        for number, (output, schema) in enumerate(self.schemas):
            column = self.name(number)
            if output == name:
                made.insert(0, pl.Series(OUTPUT, [number], pl.Int32()).new_from_index(0, frame.height))
                made.append(frame.select(list(schema)).to_struct(column))
            else:
                made.append(pl.Series(column, [None], pl.Struct(schema)).new_from_index(0, frame.height))
        return to_arrow(pl.DataFrame(made), self.columns)


def steps_with_time(description: specs.Operator, context: OperatorContext) -> bool:
    """Whether it matters to the operator how far time has come between two rows: it has timers of its own."""
    match description.spec:
        case specs.Process(function=function) | specs.CoProcess(function=function):
            loaded = load_function(function, context)
            return type(loaded).on_timer is not StatefulFunction.on_timer
        case specs.BufferedWindow(trigger=trigger):
            return trigger.kind not in ("event_time", "count")
    return False


def unkeyed(work: Work, inputs: Inputs, outputs: Outputs) -> ArrowFunction:
    """An operator that takes rows as they come: for `mapInArrow`."""
    text = msgspec.json.encode(work)

    def run(batches: Batches) -> Batches:
        runner = Runner(msgspec.json.decode(text, type=Work))
        try:
            for batch in batches:
                if batch.num_rows:
                    runner.rows(from_arrow(batch, inputs.columns), 0)
                    yield from (outputs.packed(name, frame) for name, frame in runner.results())
            runner.end()
            yield from (outputs.packed(name, frame) for name, frame in runner.last_results())
        finally:
            runner.close()

    return run


def in_time(work: Work, inputs: Inputs, outputs: Outputs, beforehand: bytes | None = None) -> ArrowFunction:
    """An operator that takes rows in order of event time; `beforehand` are rows of the second input, as Arrow IPC."""
    text = msgspec.json.encode(work)
    several = len(inputs.schemas) > 1 and beforehand is None
    taken = Inputs(inputs.schemas[:1]) if beforehand is not None else inputs
    carried = {**taken.columns, TIME: pl.Int64(), **({PORT: pl.Int32()} if several else {})}

    def run(batches: Batches) -> Batches:
        runner = Runner(msgspec.json.decode(text, type=Work))
        try:
            if beforehand is not None:
                rows = pl.read_ipc(beforehand)
                if rows.height:
                    runner.rows(rows, 1)
            for batch in batches:
                if batch.num_rows:
                    frame = from_arrow(batch, carried)
                    ports = frame.get_column(PORT) if several else None
                    runner.timed(frame, frame.get_column(TIME), ports, taken)
                    yield from (outputs.packed(name, frame) for name, frame in runner.results())
            runner.end()
            yield from (outputs.packed(name, frame) for name, frame in runner.last_results())
            if work.savepoint:
                yield outputs.packed(STATE, _state_handles(runner, work))
        finally:
            runner.close()

    return run


def _state_handles(runner: Runner, work: Work) -> pl.DataFrame:
    """Write the operator's state as tables of a savepoint, and say where they are."""
    operator, task = work.operator, _task()
    sections = [
        (operator.uid, section)
        for section in runner.operator.snapshot(CheckpointId(1))()
        # What belongs to no key is the same in every worker, and is written by the first.
        if not isinstance(section, Section)
        or section.redistribution is Redistribution.KEYED
        or task.partitionId() == 0
    ]
    store = open_store(work.savepoint)
    handles = write_tables(
        store,
        store,
        checkpoint=CheckpointId(1),
        attempt=Attempt(task.taskAttemptId() + 1),
        subtask=SubtaskId(VertexId(operator.uid), task.partitionId()),
        operators={operator.uid: operator.spec},
        sections=sections,
        max_parallelism=work.max_parallelism,
    )
    texts = [msgspec.json.encode(handle).decode() for handle in handles]
    return pl.DataFrame({"handle": texts}, schema=HANDLE)


def _task() -> Any:
    return TaskContext.get()


def schema_of(operator: specs.Operator, output: str, *, changes: bool = False) -> dict[str, pl.DataType]:
    """Columns of an output as rows of a table: without what they do to earlier ones, unless that is asked for."""
    columns = polars_schema(operator.schema_of(output))
    return {name: kind for name, kind in columns.items() if changes or name != CHANGE}


def outputs_of(operator: specs.Operator, wanted: Sequence[str], *, changes: bool = False) -> Outputs:
    """The main output and those side outputs that are read."""
    names = (specs.MAIN_OUTPUT, *wanted)
    return Outputs(tuple((name, schema_of(operator, name, changes=changes)) for name in names))


def inputs_of(schemas: Sequence[Mapping[str, pl.DataType]]) -> Inputs:
    """Columns of each input."""
    return Inputs(tuple(dict(schema) for schema in schemas))
