"""From a program to DataFrames: operator by operator, natively where Spark has what means the same.

What Spark lacks, and functions of the user, run as the engine's own operators in Python workers (`batch.workers`):
rows come by key group and in order of event time. What makes no sense without a stream is refused here, before
anything runs, with the user's file and line.
"""

from collections import Counter, defaultdict
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import msgspec
import polars as pl
from pyspark import StorageLevel
from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F  # noqa: N812 - as everybody calls it

from penstock.batch import joins, sources, windows, workers
from penstock.batch.columns import key_group, spark_schema
from penstock.batch.expressions import NotNative
from penstock.batch.sinks import collected
from penstock.batch.tables import Table, named, quoted
from penstock.graph import LogicalEdge, LogicalGraph
from penstock.model import specs
from penstock.model.changes import CHANGE
from penstock.model.clocks import MIN_WATERMARK
from penstock.model.errors import UserError
from penstock.model.ids import JobId, Uid
from penstock.model.settings import JobSettings

NATIVE = "native"

_AS_THEY_COME = (
    specs.Select, specs.WithColumns, specs.Filter, specs.Explode, specs.Map, specs.MapBatches, specs.MapAsync,
    specs.ApplyResults, specs.Lookup,
)  # fmt: skip
"""Each row by itself, whatever its order."""


@dataclass(slots=True)
class Translated:
    """A program on Spark."""

    sinks: list[tuple[specs.Operator, Table]] = field(default_factory=list)
    how: dict[Uid, str] = field(default_factory=dict)
    """For each operator: native, or why it runs in Python."""
    tables: dict[tuple[Uid, str], Table] = field(default_factory=dict)
    """Rows by operator and output."""
    kept: list[DataFrame] = field(default_factory=list)
    """Computed once for several readers."""

    def release(self) -> None:
        """Give back what was kept; what others keep in the same Spark stays."""
        for frame in self.kept:
            frame.unpersist()
        self.kept.clear()


def translate(
    spark: Any,
    program: LogicalGraph,
    *,
    job: JobId,
    settings: JobSettings,
    max_parallelism: int,
) -> Translated:
    """The whole program. Nothing is read yet."""
    refuse(program)
    return Translator(spark, program, job, settings, max_parallelism).run()


def refuse(program: LogicalGraph) -> None:
    """A UserError for what cannot run as a batch."""
    for node in program.nodes:
        if (problem := _problem(node.operator)) is not None:
            what, fix = problem
            operator = node.operator
            raise UserError("P081", f'"{operator.uid}": {what}', where=operator.place, fix=fix)


def _problem(operator: specs.Operator) -> tuple[str, str] | None:
    """Why an operator has no meaning in a batch, and the way out."""
    match operator.spec:
        case specs.LoopHead() | specs.LoopTail():
            return "a loop over a stream does not run on Spark", "run it as a stream: without --engine spark"
        case specs.WindowAggregate(event_time=None) | specs.SessionAggregate(event_time=None):
            return (
                "a window by the clock has no meaning over history, which is read all at once",
                'give the source an event time: flow.read(..., event_time="column")',
            )
        case specs.BufferedWindow(event_time=None, assigner=assigner) if not isinstance(assigner, specs.GlobalWindow):
            return (
                "a window by the clock has no meaning over history, which is read all at once",
                'give the source an event time: flow.read(..., event_time="column")',
            )
        case specs.BufferedWindow(trigger=specs.Trigger(kind=kind, clock=clock)) if clock or kind == "processing_time":
            return (
                "a trigger by the clock has no meaning over history, which is read all at once",
                "trigger by event time or by count",
            )
    return None


class Translator:
    """Goes through a program, inputs first. A bootstrap goes through it in another way."""

    changes = False
    """Rows say what they do to earlier ones; else those that are replaced are not there."""

    def __init__(
        self, spark: Any, program: LogicalGraph, job: JobId, settings: JobSettings, max_parallelism: int
    ) -> None:
        self._spark, self._program, self._job = spark, program, job
        self._settings, self._max_parallelism = settings, max_parallelism
        self._inputs: dict[Uid, list[LogicalEdge]] = defaultdict(list)
        for edge in sorted(program.edges, key=lambda edge: edge.port):
            self._inputs[edge.target].append(edge)
        self._readers = Counter((edge.source, edge.output) for edge in program.edges)
        self._read_sides: dict[Uid, list[str]] = {node.operator.uid: [] for node in program.nodes}
        for edge in program.edges:
            if edge.output != specs.MAIN_OUTPUT and edge.output not in self._read_sides[edge.source]:
                self._read_sides[edge.source].append(edge.output)
        self.made = Translated()

    def run(self) -> Translated:
        """All of it."""
        for node in self._program.nodes:
            operator = node.operator if self.changes else _over_tables(node.operator)
            inputs = [self.made.tables[edge.source, edge.output] for edge in self._inputs[operator.uid]]
            if isinstance(operator.spec, specs.Sink):
                self.made.sinks.append((operator, inputs[0]))
                continue
            for output, table in self.outputs(operator, inputs).items():
                self.made.tables[operator.uid, output] = self._shared(operator, output, table)
        return self.made

    def outputs(self, operator: specs.Operator, inputs: Sequence[Table]) -> dict[str, Table]:
        """Rows of each output of an operator."""
        output = pl.Schema(workers.schema_of(operator, specs.MAIN_OUTPUT, changes=self.changes))
        if not self._read_sides[operator.uid] or _sides_stay_empty(operator.spec):
            try:
                table = self._native(operator, inputs, output)
                self.made.how.setdefault(operator.uid, NATIVE)
                sides = {name: self._no_rows(operator, name) for name in self._read_sides[operator.uid]}
                return {specs.MAIN_OUTPUT: table, **sides}
            except NotNative as reason:
                self.made.how[operator.uid] = f"in Python: {reason}"
        else:
            self.made.how[operator.uid] = "in Python: its side outputs are read"
        return self._in_python(operator, inputs)

    def _no_rows(self, operator: specs.Operator, output: str) -> Table:
        schema = pl.Schema(workers.schema_of(operator, output))
        return Table(self._spark.createDataFrame([], spark_schema(schema)), schema)

    def _shared(self, operator: specs.Operator, output: str, table: Table) -> Table:
        """What several read is computed once."""
        if self._readers[operator.uid, output] < 2 or isinstance(operator.spec, specs.Source):
            return table
        return Table(self._keep(table.frame), table.schema)

    def _keep(self, frame: DataFrame) -> DataFrame:
        kept: DataFrame = frame.persist(StorageLevel.MEMORY_AND_DISK)
        self.made.kept.append(kept)
        return kept

    # ------------------------------------------------------------ native

    def _native(self, operator: specs.Operator, inputs: Sequence[Table], output: pl.Schema) -> Table:
        match operator.spec:
            case specs.Source() as spec:
                if not sources.is_native(operator):
                    self.made.how[operator.uid] = "in Python: read by the engine's own readers"
                return sources.read(self._spark, self._work(operator), spec)
            case specs.Select(expressions=expressions):
                return _selected(inputs[0], [each for each in expressions if each.name in output], output)
            case specs.WithColumns(expressions=expressions):
                return _with_columns(inputs[0], expressions, output)
            case specs.Filter(predicate=predicate):
                kept = inputs[0].frame.where(inputs[0].native(predicate))
                return Table(kept.select(*quoted(list(output))), output)
            case specs.Explode(columns=columns):
                return _exploded(inputs[0], columns, output)
            case specs.Union():
                return _union(inputs, output)
            case specs.Retract():
                return Table(inputs[0].frame.select(*quoted(list(output))), output)
            case specs.WindowAggregate() as spec:
                return windows.window_aggregate(inputs[0], spec, output)
            case specs.SessionAggregate() as spec:
                return windows.session_aggregate(inputs[0], spec, output)
            case specs.RunningAggregate() as spec:
                return windows.running_aggregate(inputs[0], spec, output)
            case specs.Deduplicate() as spec:
                return windows.deduplicate(inputs[0], spec, output)
            case specs.TopN() as spec:
                return windows.top_n(inputs[0], spec, output)
            case specs.Join() as spec:
                return joins.join(inputs[0], inputs[1], spec, output)
            case specs.BufferedWindow():
                raise NotNative("Spark has no such trigger, evictor or function")
        raise NotNative("the function is the program's own")

    # ------------------------------------------------------------ in Python

    def _work(self, operator: specs.Operator) -> workers.Work:
        return workers.Work(
            job=self._job,
            operator=operator,
            settings=self._settings,
            max_parallelism=self._max_parallelism,
            side_outputs=tuple(self._read_sides[operator.uid]),
        )

    def _in_python(self, operator: specs.Operator, inputs: Sequence[Table]) -> dict[str, Table]:
        spec = operator.spec
        outputs = workers.outputs_of(operator, self._read_sides[operator.uid], changes=self.changes)
        schemas = [_sent(table.schema, spec) for table in inputs]
        taken = workers.inputs_of(schemas)
        if isinstance(spec, _AS_THEY_COME):
            rows = _with_changes(inputs[0], schemas[0])
            function = workers.unkeyed(self._work(operator), taken, outputs)
            return self._unpacked(rows.mapInArrow(function, spark_schema(outputs.columns)), outputs)
        beforehand = self.rows_for_all(spec, inputs)
        rows = self.in_time(spec, inputs, broadcast=beforehand is not None)
        function = workers.in_time(self._work(operator), taken, outputs, beforehand)
        return self._unpacked(rows.mapInArrow(function, spark_schema(outputs.columns)), outputs)

    def rows_for_all(self, spec: specs.OperatorSpec, inputs: Sequence[Table]) -> bytes | None:
        """Rows that every worker gets, as Arrow IPC; None: there are none."""
        if isinstance(spec, specs.CoProcess) and spec.broadcast:
            return _ipc(inputs[1], spec.inputs[1].event_time)
        return None

    def in_time(self, spec: specs.OperatorSpec, inputs: Sequence[Table], *, broadcast: bool) -> DataFrame:
        """Rows of all inputs by key group, in each partition in order of event time."""
        ports = _ports(spec)
        frames = []
        several = len(inputs) > 1 and not broadcast
        for port, table in enumerate(inputs[:1] if broadcast else inputs):
            keys, event_time = ports[port]
            group = key_group(table.frame, {name: table.schema[name] for name in keys}, self._max_parallelism)
            time = table.optional_time_us(event_time) if event_time is not None else F.lit(MIN_WATERMARK + 1)
            columns = quoted(list(table.schema))
            made = columns if not several else [F.struct(*columns).alias(workers.Inputs.name(port))]
            timed = F.coalesce(time, F.lit(MIN_WATERMARK + 1)).cast("bigint")
            extra = [F.lit(port).cast("int").alias(workers.PORT)] if several else []
            frames.append(table.frame.select(*made, timed.alias(workers.TIME), *extra, group.alias(workers.GROUP)))
        rows = frames[0]
        for frame in frames[1:]:
            rows = rows.unionByName(frame, allowMissingColumns=True)
        keyed = any(keys for keys, _ in ports)
        spread = self.spread(rows, F.col(workers.GROUP)) if keyed else rows.coalesce(1)
        order = [workers.TIME, *([workers.PORT] if several else [])]
        structs = [workers.Inputs.name(port) for port in range(len(inputs))] if several else list(inputs[0].schema)
        return spread.sortWithinPartitions(*order).select(*quoted([*structs, *order]))

    def spread(self, rows: DataFrame, group: Column) -> DataFrame:
        """All rows of a key group in one partition."""
        return rows.repartition(group)

    def _unpacked(self, frame: DataFrame, outputs: workers.Outputs) -> dict[str, Table]:
        if len(outputs.schemas) == 1:
            name, schema = outputs.schemas[0]
            return {name: Table(frame, pl.Schema(schema))}
        kept = self._keep(frame)
        tables = {}
        for number, (name, schema) in enumerate(outputs.schemas):
            struct = workers.Outputs.name(number)
            rows = kept.where(F.col(workers.OUTPUT) == number)
            columns = [F.col(struct).getField(column).alias(column) for column in schema]
            tables[name] = Table(rows.select(*columns), pl.Schema(schema))
        return tables


def _over_tables(operator: specs.Operator) -> specs.Operator:
    """The same operator over rows that stay: of those that were replaced, only the last is there."""
    spec = operator.spec
    match spec:
        case specs.RunningAggregate(updating=True) | specs.TopN(updating=True):
            return msgspec.structs.replace(operator, spec=msgspec.structs.replace(spec, updating=False))
        case specs.Join(match=specs.EverMatch() as match):
            quiet = msgspec.structs.replace(match, left_changes=False, right_changes=False)
            return msgspec.structs.replace(operator, spec=msgspec.structs.replace(spec, match=quiet))
    return operator


def _sides_stay_empty(spec: specs.OperatorSpec) -> bool:
    """Over all rows in order of time, none is late."""
    return isinstance(spec, specs.WindowAggregate | specs.SessionAggregate | specs.BufferedWindow)


def _sent(schema: pl.Schema, spec: specs.OperatorSpec) -> dict[str, pl.DataType]:
    """Columns that go into a worker: expressions may ask what a row does to earlier ones."""
    if isinstance(spec, specs.Select | specs.WithColumns | specs.Filter):
        return {**schema, CHANGE: pl.Int8()}
    return dict(schema)


def _with_changes(table: Table, sent: dict[str, pl.DataType]) -> DataFrame:
    columns = table.columns()
    return table.frame.select(*(columns[name].alias(name) for name in sent))


def _ipc(table: Table, event_time: specs.EventTime | None) -> bytes:
    rows = collected(table)
    if event_time is not None:
        rows = rows.sort(event_time.column, maintain_order=True)
    buffer = rows.write_ipc(None)
    return buffer.getvalue()


def _ports(spec: specs.OperatorSpec) -> list[tuple[tuple[str, ...], specs.EventTime | None]]:
    """Keys and event time of each input."""
    match spec:
        case specs.CoProcess(inputs=inputs):
            return [(each.keys, each.event_time) for each in inputs]
        case specs.Join() as join:
            return [(join.left_on, join.left_time), (join.right_on, join.right_time)]
        case specs.CoGroup(join=join):
            return [(join.left_on, join.left_time), (join.right_on, join.right_time)]
    keys: tuple[str, ...] = getattr(spec, "keys", ())
    return [(keys, getattr(spec, "event_time", None))]


def _selected(table: Table, expressions: Sequence[specs.Expression], output: pl.Schema) -> Table:
    made = _translated(table, expressions)
    return Table(table.frame.select(*(made[name].alias(name) for name in output)), output)


def _with_columns(table: Table, expressions: Sequence[specs.Expression], output: pl.Schema) -> Table:
    made = {name: named(name) for name in table.schema} | _translated(table, expressions)
    return Table(table.frame.select(*(made[name].alias(name) for name in output)), output)


def _translated(table: Table, expressions: Sequence[specs.Expression]) -> dict[str, Column]:
    translation = table.translation()
    made = {}
    for expression in expressions:
        try:
            made[expression.name] = translation.native(expression)
        except NotNative as reason:
            raise NotNative(f"{expression.text}: {reason}") from None
    return made


def _exploded(table: Table, columns: Sequence[str], output: pl.Schema) -> Table:
    if len(columns) != 1:
        raise NotNative("several lists side by side")
    (column,) = columns
    made = [F.explode_outer(named(name)).alias(name) if name == column else named(name) for name in output]
    return Table(table.frame.select(*made), output)


def _union(inputs: Sequence[Table], output: pl.Schema) -> Table:
    frames = [table.frame.select(*quoted(list(output))) for table in inputs]
    rows = frames[0]
    for frame in frames[1:]:
        rows = rows.unionByName(frame)
    return Table(rows, output)
