"""History on Spark, the rest as a stream: state of the rows so far, as a savepoint that the stream starts from.

Every split of a source is read up to its first row that is later than `until`. Those rows go through the program on
Spark; operators with state run as they do in a stream (`batch.workers`), stop at the watermark that the sources have
reached, and write their state by key group. The savepoint has the positions of the splits, so each row is counted
once: in the state, or by the stream. What the program puts out on the way goes to its sinks.

A row that was read and is later than the watermark waits in the state, as it would in a stream.
"""

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import msgspec
import polars as pl
import pyarrow as pa
from pyspark.errors import PySparkException
from pyspark.sql import Column, DataFrame

from penstock.batch import workers
from penstock.batch.columns import spark_schema, to_arrow
from penstock.batch.running import failure
from penstock.batch.savepoints import by_ranges_of_groups
from penstock.batch.session import prepared
from penstock.batch.sinks import Sinks
from penstock.batch.tables import Table
from penstock.batch.translating import Translator, refuse
from penstock.batch.workers import ArrowFunction, Batches, Work, context_of
from penstock.connectors import make_source
from penstock.connectors.base import SourceContext, Split, SplitReader
from penstock.graph import JobGraph, LogicalGraph, narrowed
from penstock.model import specs
from penstock.model.clocks import MAX_WATERMARK, MIN_WATERMARK, Clock, SystemClock
from penstock.model.errors import UserError
from penstock.model.handles import Redistribution, SectionHandle
from penstock.model.ids import JobId, Uid
from penstock.model.schemas import polars_schema
from penstock.operators.base import Section
from penstock.operators.event_times import event_times_us
from penstock.operators.sources import SPLITS
from penstock.savepoints.completing import Taken, complete
from penstock.savepoints.manifest import MANIFEST
from penstock.savepoints.writing import write_table
from penstock.storage import open_store

_STATEFUL = (
    specs.WindowAggregate, specs.SessionAggregate, specs.BufferedWindow, specs.RunningAggregate, specs.Retract,
    specs.Join, specs.CoGroup, specs.Deduplicate, specs.TopN, specs.Process, specs.CoProcess,
)  # fmt: skip
_PLACES = {"place": pl.String()}


class _Place(msgspec.Struct, frozen=True, kw_only=True):
    """How far a split is read."""

    split: Split
    position: str | None
    watermark: int
    ended: bool
    rows: int


def bootstrap(
    graph: JobGraph, spark: Any, *, until_us: int, to: str, clock: Clock | None = None
) -> dict[str, pl.DataFrame]:
    """Run history, up to and with `until_us`, and write the savepoint `to`. Gives the rows of collect sinks."""
    clock = clock or SystemClock()
    spark = prepared(spark)
    program = _program(graph)
    refuse(program)
    _refuse(program)
    store = open_store(to)
    if store.get(MANIFEST) is not None:
        raise UserError("S021", "another savepoint lies there already", where=store.uri, fix="name another folder")
    triggered_us = clock.now_us()
    job = JobId(f"{graph.name}-history")
    translator = _Bootstrap(spark, program, job, graph, store.uri, until_us)
    sinks = Sinks(JobId(f"{job}-{triggered_us}"))
    try:
        made = translator.run()
        tables = [*translator.state_tables(), *translator.split_tables()]
        for operator, table in made.sinks:
            sinks.stage(translator.work(operator), table)
        complete(
            store,
            Taken(
                uri=store.uri,
                job=job,
                graph=graph,
                checkpoint=None,
                stops=False,
                triggered_us=triggered_us,
                now_us=clock.now_us(),
                restored_from="",
                tables=tables,
            ),
        )
        sinks.commit()
    except PySparkException as error:
        raise failure(error) from error
    finally:
        sinks.clean()
        translator.made.release()
    return sinks.frames


def _program(graph: JobGraph) -> LogicalGraph:
    """As it was written, with the sources as the stream reads them: positions depend on what a reader leaves out."""
    if graph.program is None:
        raise UserError("P081", f'the graph "{graph.name}" does not hold the program', fix="build it anew")
    planned = {link.operator.uid: link.operator for vertex in graph.vertices for link in vertex.chain}
    program = narrowed(graph.program)
    nodes = tuple(
        msgspec.structs.replace(node, operator=planned[node.operator.uid])
        if isinstance(node.operator.spec, specs.Source)
        else node
        for node in program.nodes
    )
    return msgspec.structs.replace(program, nodes=nodes)


def _refuse(program: LogicalGraph) -> None:
    operators = {node.operator.uid: node.operator for node in program.nodes}
    for edge in program.edges:
        source, target = operators[edge.source], operators[edge.target]
        if source.changes is not None and isinstance(target.spec, _STATEFUL):
            raise UserError(
                "P082",
                f'"{target.uid}" keeps state of a stream that updates earlier rows, whose order Spark loses',
                where=target.place,
                fix="let the stream read history itself, or aggregate in windows in front of it",
            )
    for operator in operators.values():
        spec = operator.spec
        if isinstance(spec, specs.MapAsync | specs.LoopHead):
            continue
        if isinstance(spec, specs.Source):
            _refuse_source(operator, spec)


def _refuse_source(operator: specs.Operator, spec: specs.Source) -> None:
    source = make_source(spec.connector)
    where, fix = operator.place, ""
    if source.discovers:
        what, fix = "waits for new files", "read what is there, without watch=True, for history"
    elif spec.event_time is not None and not isinstance(spec.watermarks, specs.BoundedDelay):
        what, fix = "has a watermark strategy of its own", 'give it max_delay="..." instead'
    elif spec.connector.kind == "socket-lines":
        what, fix = "cannot be read again", "read from what can be replayed"
    else:
        return
    raise UserError("P082", f'source "{operator.uid}" {what}: it has no history', where=where, fix=fix)


class _Bootstrap(Translator):
    """Operators with state run in Python, up to a watermark, and write their state."""

    changes = True

    def __init__(
        self, spark: Any, program: LogicalGraph, job: JobId, graph: JobGraph, uri: str, until_us: int
    ) -> None:
        super().__init__(spark, program, job, graph.settings, graph.max_parallelism)
        self._graph, self._uri, self._until_us = graph, uri, until_us
        self._places: dict[Uid, list[_Place]] = {}
        self._operators = {node.operator.uid: node.operator for node in program.nodes}
        self._states: list[DataFrame] = []
        for uid, operator in self._operators.items():
            if isinstance(operator.spec, specs.Source):
                self._places[uid] = self._find_places(operator)
        self._watermark = self._reached()

    def work(self, operator: specs.Operator) -> Work:
        """What a worker is to do."""
        return self._work(operator)

    def outputs(self, operator: specs.Operator, inputs: Sequence[Table]) -> dict[str, Table]:
        """Rows of each output."""
        if isinstance(operator.spec, specs.Source):
            return {specs.MAIN_OUTPUT: self._read(operator)}
        if not isinstance(operator.spec, _STATEFUL):
            return super().outputs(operator, inputs)
        return self._with_state(operator, inputs)

    def spread(self, rows: DataFrame, group: Column) -> DataFrame:
        """Each partition has a range of key groups, as each table of a state has."""
        return by_ranges_of_groups(rows, group, self._max_parallelism)

    # ------------------------------------------------------------ state

    def _with_state(self, operator: specs.Operator, inputs: Sequence[Table]) -> dict[str, Table]:
        work = msgspec.structs.replace(self._work(operator), until=self._watermark, savepoint=self._uri)
        main = workers.outputs_of(operator, work.side_outputs, changes=True)
        outputs = workers.Outputs((*main.schemas, (workers.STATE, dict(workers.HANDLE))))
        taken = workers.inputs_of([table.schema for table in inputs])
        beforehand = self.rows_for_all(operator.spec, inputs)
        rows = self.in_time(operator.spec, inputs, broadcast=beforehand is not None)
        function = workers.in_time(work, taken, outputs, beforehand)
        tables = self._unpacked(rows.mapInArrow(function, spark_schema(outputs.columns)), outputs)
        self._states.append(tables.pop(workers.STATE).frame)
        self.made.how[operator.uid] = "in Python: it writes its state"
        return tables

    def state_tables(self) -> Iterator[SectionHandle]:
        """Have all of them written."""
        for frame in self._states:
            for row in frame.collect():
                yield msgspec.json.decode(row.handle, type=SectionHandle)

    # ------------------------------------------------------------ sources

    def split_tables(self) -> Iterator[SectionHandle]:
        """Where every split is."""
        store = open_store(self._uri)
        for uid, places in self._places.items():
            rows = [
                (
                    each.split.id,
                    each.split.whole,
                    each.split.place,
                    msgspec.json.encode(each.split.options).decode(),
                    each.position,
                    each.watermark,
                    each.ended,
                )
                for each in places
            ]
            schema = {
                "split": pl.String, "whole": pl.String, "place": pl.Int64, "options": pl.String, "position": pl.String,
                "watermark": pl.Int64, "ended": pl.Boolean,
            }  # fmt: skip
            if rows:
                section = Section(SPLITS, Redistribution.UNION, pl.DataFrame(rows, schema=schema, orient="row"))
                yield write_table(store, uid, self._operators[uid].spec, section, "splits-0-1-1-0")

    def _find_places(self, operator: specs.Operator) -> list[_Place]:
        """One pass over the times."""
        numbers = self._numbers(operator)
        function = _finding(self._work(operator), self._until_us)
        found = numbers.mapInArrow(function, spark_schema(_PLACES)).collect()
        return [msgspec.json.decode(row.place, type=_Place) for row in found]

    def _read(self, operator: specs.Operator) -> Table:
        schema = polars_schema(operator.output)
        function = _reading(self._work(operator), self._places[operator.uid], dict(schema))
        return Table(self._numbers(operator).mapInArrow(function, spark_schema(schema)), schema)

    def _numbers(self, operator: specs.Operator) -> DataFrame:
        spec = operator.spec
        assert isinstance(spec, specs.Source)
        count = len(make_source(spec.connector).splits())
        numbers: DataFrame = self._spark.range(0, count, 1, max(1, count))
        return numbers

    def _reached(self) -> int:
        """How far event time has come for all: what is ahead of it waits."""
        reached = []
        for uid, places in self._places.items():
            spec = self._operators[uid].spec
            if isinstance(spec, specs.Source) and spec.event_time is not None:
                reached += [each.watermark for each in places if not each.ended]
        return min(reached, default=self._latest())

    def _latest(self) -> int:
        times = [each.watermark for places in self._places.values() for each in places]
        return max((time for time in times if time < MAX_WATERMARK), default=MIN_WATERMARK)


def _finding(work: Work, until_us: int) -> ArrowFunction:
    text = msgspec.json.encode(work)

    def run(batches: Batches) -> Batches:
        for batch in batches:
            for number in batch.column(0).to_pylist():
                place = _place(_Splits(msgspec.json.decode(text, type=Work)), number, until_us)
                rows = [msgspec.json.encode(place).decode()]
                yield pa.RecordBatch.from_pydict({"place": pa.array(rows, pa.string())})

    return run


def _reading(work: Work, places: Sequence[_Place], schema: Mapping[str, pl.DataType]) -> ArrowFunction:
    text, counts = msgspec.json.encode(work), {place.split.id: place.rows for place in places}

    def run(batches: Batches) -> Batches:
        for batch in batches:
            for number in batch.column(0).to_pylist():
                splits = _Splits(msgspec.json.decode(text, type=Work))
                split = splits.all[number]
                reader = splits.open(split, None)
                for frame in _rows(reader, counts[split.id], splits.batch_rows):
                    yield to_arrow(frame, schema)
                reader.close()

    return run


class _Splits:
    """The splits of a source, in a worker."""

    def __init__(self, work: Work) -> None:
        spec = work.operator.spec
        assert isinstance(spec, specs.Source)
        context = context_of(work)
        self.source, self.spec, self.batch_rows = make_source(spec.connector), spec, work.settings.source.batch_rows
        self.all = self.source.splits()
        self._context = SourceContext(
            subtask_index=0,
            parallelism=1,
            columns=spec.columns,
            predicates=tuple(predicate.polars for predicate in spec.predicates),
            settings=work.settings.source,
            clock=context.clock,
            place=f"{work.job}/{work.operator.uid}",
        )

    def open(self, split: Split, position: Any) -> SplitReader:
        """A reader."""
        return self.source.open(split, position, self._context)


def _place(splits: _Splits, number: int, until_us: int) -> _Place:
    """Read until the first row that is later, and say what is in front of it."""
    split, event_time = splits.all[number], splits.spec.event_time
    reader, count, latest, ended = splits.open(split, None), 0, MIN_WATERMARK, False
    position: Any = None
    while not ended:
        result = reader.read(splits.batch_rows)
        frame = result.frame
        if frame is not None and frame.height:
            taken = frame.height
            if event_time is not None:
                times = event_times_us(frame, event_time)
                later = (times > until_us).arg_true()
                taken = int(later[0]) if len(later) else taken
                if taken:
                    latest = max(latest, int(times[:taken].max()))  # type: ignore[arg-type]
            if taken < frame.height:
                position = _position_after(splits, split, position, taken)
                count += taken
                break
            count += taken
        position, ended = reader.position(), result.ended
    reader.close()
    delay = splits.spec.watermarks.delay_us if isinstance(splits.spec.watermarks, specs.BoundedDelay) else 0
    return _Place(
        split=split,
        position=None if position is None else msgspec.json.encode(position).decode(),
        watermark=MIN_WATERMARK if latest == MIN_WATERMARK else latest - delay - 1,
        ended=ended,
        rows=count,
    )


def _position_after(splits: _Splits, split: Split, position: Any, rows: int) -> Any:
    if not rows:
        return position
    reader = splits.open(split, position)
    for _ in _rows(reader, rows, splits.batch_rows):
        pass
    found = reader.position()
    reader.close()
    return found


def _rows(reader: SplitReader, count: int, batch_rows: int) -> Iterator[pl.DataFrame]:
    """The next `count` rows."""
    left = count
    while left > 0:
        result = reader.read(min(left, batch_rows))
        if result.frame is not None and result.frame.height:
            left -= result.frame.height
            yield result.frame
        if result.ended and left:
            raise UserError("R010", "a split has fewer rows than when it was looked at", fix="run it again")
