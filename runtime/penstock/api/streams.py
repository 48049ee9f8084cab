"""Streams: what a program is written with. Each verb checks, adds an operator to the graph, and runs nothing."""

from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Unpack

import polars as pl

from penstock.api import changes as updating
from penstock.api import checks, connections, expressions, function_verbs, joins, looping, places, relations, windowed
from penstock.api.aggregates import AggregateCall
from penstock.api.building import GraphBuilder, Input, OperatorOptions, Options, options_or_columns
from penstock.api.connected import ConnectedStreams
from penstock.api.expressions import IntoExpression
from penstock.api.other_words import Verbs
from penstock.api.times import SideStream, StreamTime
from penstock.api.windowed import WindowedStream
from penstock.api.windows import Assigner, Duration
from penstock.model import specs
from penstock.model.errors import UserError
from penstock.model.ids import Uid
from penstock.operators import failures

if TYPE_CHECKING:
    from penstock.api.keyed_streams import KeyedStream


class DataStream(Verbs):
    """Rows with known columns. Immutable: every verb gives a new stream, and a stream may be read by several."""

    def __init__(
        self,
        builder: GraphBuilder,
        uid: Uid,
        schema: pl.Schema,
        time: StreamTime,
        partitioning: specs.Partitioning | None = None,
        *,
        output: str = specs.MAIN_OUTPUT,
        sides: Mapping[str, SideStream] | None = None,
        changes: specs.Changes | None = None,
    ) -> None:
        self._builder, self._uid, self._time = builder, uid, time
        self._partitioning = partitioning or specs.Forward()
        self._output = output
        self._sides = sides or {}
        self.schema = schema
        self.changes = changes
        """How its rows change earlier ones; None: they only insert."""

    @property
    def event_time(self) -> specs.EventTime | None:
        """Which column is the time of a row, if any."""
        return self._time.event_time

    @property
    def columns(self) -> list[str]:
        """Names of the columns."""
        return self.schema.names()

    def side_output(self, name: str) -> "DataStream":
        """Rows that left the operator before by its side output `name`: late rows, failed rows, a function's own."""
        where = places.caller()
        side = self._sides.get(name)
        if side is None:
            raise checks.unknown_side_output(name, self._sides, where=where)
        return DataStream(self._builder, side.source or self._uid, side.schema, side.time, output=name)

    def dead_letters(self) -> "DataStream":
        """Rows for which the function before failed, when it was told `on_error="dead_letter"`.

        Columns: `time`, `operator`, `function`, `error` (its type), `message`, and `row`, the whole row as JSON. They
        are the same for all operators: `a.dead_letters().union(b.dead_letters())` may go to one sink.
        """
        function_verbs.require_dead_letters(self, where=places.caller())
        return self.side_output(failures.DEAD_LETTERS)

    def __repr__(self) -> str:
        shown = ", ".join(f"{name}: {kind}" for name, kind in self.schema.items())
        return f"{type(self).__name__}({shown})"

    # ------------------------------------------------------------ columns and rows

    def select(
        self,
        *columns: IntoExpression,
        uid: str | None = None,
        name: str | None = None,
        parallelism: int | None = None,
        **named: IntoExpression,
    ) -> "DataStream":
        """Only these columns: names or expressions, the latter named by keyword or `.alias`."""
        where = places.caller()
        options = options_or_columns(named, uid, name, parallelism)
        made, schema = expressions.resolve(columns, named, self.schema, what="select", where=where)
        if not made:
            raise UserError("P020", "select: no column given", where=where, fix='select("auction", "price")')
        renamed = {made_.name: expressions.renamed_column(made_) for made_ in made}
        time = self._time.through_select(renamed, where=where)
        stream, changes, more = updating.through_select(self, made, where)
        spec = specs.Select(expressions=(*more, *expressions.with_rows(made)))
        return stream._add("select", spec, schema, options, where=where, time=time, changes=changes)

    def with_columns(
        self,
        *columns: IntoExpression,
        uid: str | None = None,
        name: str | None = None,
        parallelism: int | None = None,
        **named: IntoExpression,
    ) -> "DataStream":
        """Add columns, or replace those of the same name."""
        where = places.caller()
        options = options_or_columns(named, uid, name, parallelism)
        made, types = expressions.resolve(columns, named, self.schema, what="with_columns", where=where)
        if not made:
            raise UserError(
                "P020", "with_columns: no column given", where=where, fix='with_columns(euros=col("price") * 0.9)'
            )
        time = self._time
        if time.event_time is not None and time.event_time.column in types:
            time = time.through(False, verb="with_columns", where=where)
        schema = pl.Schema({**self.schema, **types})
        spec = specs.WithColumns(expressions=made)
        stream, changes = updating.through_with_columns(self, made, where)
        return stream._add("with_columns", spec, schema, options, where=where, time=time, changes=changes)

    def filter(
        self,
        *conditions: IntoExpression,
        uid: str | None = None,
        name: str | None = None,
        parallelism: int | None = None,
    ) -> "DataStream":
        """Only the rows for which all conditions are true."""
        where = places.caller()
        spec = specs.Filter(predicate=expressions.predicate(conditions, self.schema, where=where))
        options = Options(uid=uid, name=name, parallelism=parallelism)
        stream = updating.through_filter(self, spec.predicate, where)
        return stream._add("filter", spec, self.schema, options, where=where, changes=stream.changes)

    def explode(
        self,
        *columns: str,
        uid: str | None = None,
        name: str | None = None,
        parallelism: int | None = None,
    ) -> "DataStream":
        """One row for each element of these list columns."""
        where = places.caller()
        checks.require_columns(columns, self.schema, what="explode", where=where)
        for column in columns:
            if not isinstance(self.schema[column], pl.List):
                raise UserError(
                    "P020",
                    f'explode: column "{column}" is {self.schema[column]}, not a List',
                    where=where,
                    fix='make a list of it first, for example with col("line").str.split(" ")',
                )
        if not columns:
            raise UserError("P020", "explode: no column given", where=where, fix='explode("words")')
        schema = self.schema.to_frame(eager=False).explode(*columns).collect_schema()
        options = Options(uid=uid, name=name, parallelism=parallelism)
        return self._add("explode", specs.Explode(columns=columns), schema, options, where=where)

    def union(
        self,
        *others: "DataStream",
        source: str | None = None,
        uid: str | None = None,
        name: str | None = None,
        parallelism: int | None = None,
    ) -> "DataStream":
        """Rows of this stream and of the others, which have the same columns.

        `source` names a column for the number of the stream that a row is from, 0 for this one. Streams that update
        need it: it becomes one of the keys, so that equal keys of two streams stay apart.
        """
        options = Options(uid=uid, name=name, parallelism=parallelism)
        return relations.union(self, others, source, options, where=places.caller())

    # ------------------------------------------------------------ how rows are spread

    def key_by(self, *columns: IntoExpression, **named: IntoExpression) -> "KeyedStream":
        """Rows with equal keys go to the same subtask. Keys are columns, or expressions named by keyword."""
        where = places.caller()
        keys = [_key_name(column, where) for column in columns]
        checks.require_columns(keys, self.schema, what="key_by", where=where)
        stream = self.with_columns(**named) if named else self
        keys += named
        if not keys:
            raise UserError("P020", "key_by: no key given", where=where, fix='key_by("auction")')
        checks.require_hashable(keys, stream.schema, where=where)
        partitioning = specs.Hash(keys=tuple(dict.fromkeys(keys)))
        from penstock.api.keyed_streams import KeyedStream

        return KeyedStream(
            stream._builder,
            stream._uid,
            stream.schema,
            stream._time,
            partitioning,
            output=stream._output,
            changes=stream.changes,
        )

    def rebalance(self) -> "DataStream":
        """Spread batches evenly over the subtasks of the next operator."""
        return self._spread(specs.Rebalance())

    def broadcast(self) -> "DataStream":
        """Every row to every subtask of the next operator."""
        return self._spread(specs.Broadcast())

    # ------------------------------------------------------------ relations

    def join(
        self,
        other: "DataStream | joins.LookupTable",
        *,
        on: joins.On | None = None,
        left_on: joins.On | None = None,
        right_on: joins.On | None = None,
        how: str = "inner",
        within: Any = None,
        ttl: Duration | None = None,
        suffix: str = "_right",
        **options: Unpack[OperatorOptions],
    ) -> "DataStream":
        """Rows of this stream beside rows of the other that have equal keys.

        `how`: inner, left, right, full, semi (rows with a match) or anti (rows without). `within` says which rows
        match in time: `ps.tumbling("10s")` those of the same window, `ps.interval("-5s", "5s")` those that are near,
        `ps.as_of()` the version that was valid. Without it rows match whenever they come, and are remembered for
        `ttl`, or for ever. `left.join(right.broadcast(), ...)` keeps all of the right side in every subtask;
        `left.join(ps.lookup(function, ...), ...)` asks a function.

        A null key equals nothing. Columns that both sides have get the `suffix` on the right; a key that both call the
        same comes once.
        """
        keys = joins.Keys(on, left_on, right_on)
        request = joins.JoinRequest(keys=keys, how=how, within=within, ttl=ttl, suffix=suffix)
        return joins.join(self, other, request, Options(**options), where=places.caller())

    def interval_join(
        self,
        other: "DataStream",
        *,
        lower: Duration,
        upper: Duration,
        on: joins.On | None = None,
        left_on: joins.On | None = None,
        right_on: joins.On | None = None,
        how: str = "inner",
        suffix: str = "_right",
        **options: Unpack[OperatorOptions],
    ) -> "DataStream":
        """Rows of the other stream with equal keys, from `lower` to `upper` later than the row of this one."""
        keys, within = joins.Keys(on, left_on, right_on), joins.interval(lower, upper)
        request = joins.JoinRequest(keys=keys, how=how, within=within, suffix=suffix)
        return joins.join(self, other, request, Options(**options), where=places.caller())

    def co_group(
        self,
        other: "DataStream",
        function: Callable[[pl.DataFrame, pl.DataFrame], pl.DataFrame],
        *,
        within: specs.Tumbling | specs.Sliding,
        output: Any,
        on: joins.On | None = None,
        left_on: joins.On | None = None,
        right_on: joins.On | None = None,
        **options: Unpack[OperatorOptions],
    ) -> "DataStream":
        """Call a function with all rows of a key in a window: a frame of this stream's and one of the other's.

        Either may be empty. Columns of the result: those of `output`, `window_start` and `window_end`.
        """
        keys = joins.Keys(on, left_on, right_on)
        request = joins.JoinRequest(keys=keys, how="full", within=within)
        return joins.co_group(self, other, function, output, request, Options(**options), where=places.caller())

    def deduplicate(
        self,
        *columns: str,
        keep: str = "first",
        by: str = "arrival",
        ttl: Duration | None = None,
        **options: Unpack[OperatorOptions],
    ) -> "DataStream":
        """Of the rows with equal `columns` (after `key_by`: equal keys) the first, or the last.

        `keep="first"` lets a row pass when its key is new; with `by="event_time"` the earliest one passes, when the
        watermark says that none before it can come. `keep="last"` updates: each row replaces the one before of its
        key, with `by="event_time"` unless that is later. A key is remembered for `ttl` after the row, or for ever.
        """
        return relations.deduplicate(self, columns, keep, by, ttl, Options(**options), where=places.caller())

    def distinct(self, *columns: str, ttl: Duration | None = None, **options: Unpack[OperatorOptions]) -> "DataStream":
        """Rows that did not come before: only these columns, or all."""
        return relations.distinct(self, columns, ttl, Options(**options), where=places.caller())

    def top_n(
        self,
        n: int,
        *,
        by: str | Sequence[str],
        descending: bool | Sequence[bool] = True,
        rank: str | None = None,
        within: specs.Tumbling | specs.Sliding | None = None,
        ttl: Duration | None = None,
        **options: Unpack[OperatorOptions],
    ) -> "DataStream":
        """The first `n` rows (of each key, after `key_by`) in the order of `by`; of equal rows the earlier one.

        `within=ps.tumbling("10s")`: of each window, once, with `window_start` and `window_end`. Without, of all rows
        so far: the stream updates, and takes back rows that are pushed out. `rank` names a column for a row's place,
        from 1 on; then the row of a place is replaced.
        """
        request = relations.TopNRequest(n, by, descending, rank, within, ttl)
        return relations.top_n(self, request, Options(**options), where=places.caller())

    # ------------------------------------------------------------ streams that update

    def agg(
        self,
        aggregates: Mapping[str, AggregateCall] | None = None,
        /,
        *,
        ttl: Duration | None = None,
        uid: str | None = None,
        name: str | None = None,
        parallelism: int | None = None,
        **named: AggregateCall,
    ) -> "DataStream":
        """One result over all rows so far (by key, after `key_by`), updated with every batch.

        With `ttl` a key without rows for so long is forgotten, and begins anew when it comes again.
        """
        where = places.caller()
        options = options_or_columns(named, uid, name, parallelism)
        return relations.running(self, {**(aggregates or {}), **named}, ttl, options, where=where)

    def as_changelog(self, column: str = "change") -> "DataStream":
        """Every change as a row that stays: `column` says whether it was an `insert`, `update` or `delete`.

        A delete has the last values of its row. What follows takes the rows as they are, and knows of no keys.
        """
        return updating.changelog(self, column, where=places.caller())

    def iterate(self, body: looping.Body, **options: Unpack[OperatorOptions]) -> "DataStream":
        """Let rows go round: `body(stream)` returns `(feedback, result)`, streams made from its argument.

        Rows of `feedback` have the columns of this stream and enter the body again; rows of `result` leave. Rows
        that are under way in the loop are part of every checkpoint. The loop is over when the input has ended and no
        row is under way; there is no event time inside it or behind it.
        """
        return looping.iterate(self, body, Options(**options), where=places.caller())

    # ------------------------------------------------------------ functions

    def map(
        self,
        function: Callable[..., Any],
        *,
        output: Any = None,
        on_error: str = "stop",
        uid: str | None = None,
        name: str | None = None,
        parallelism: int | None = None,
    ) -> "DataStream":
        """Call a function for each row; its parameters are named like the columns it needs. One row out each.

        `on_error` says what happens to a row for which it raises: `stop` the job (it restarts), `dead_letter`
        (see `dead_letters`), or `drop`; the last two count it.
        """
        options = Options(uid=uid, name=name, parallelism=parallelism)
        return function_verbs.map_rows(
            self, "map", function, output, options, on_error=on_error, where=places.caller()
        )

    def flat_map(
        self,
        function: Callable[..., Any],
        *,
        output: Any = None,
        on_error: str = "stop",
        uid: str | None = None,
        name: str | None = None,
        parallelism: int | None = None,
    ) -> "DataStream":
        """Call a function for each row; it yields any number of rows, all or, when it raises, none."""
        options = Options(uid=uid, name=name, parallelism=parallelism)
        return function_verbs.map_rows(
            self, "flat_map", function, output, options, on_error=on_error, where=places.caller()
        )

    def map_batches(
        self,
        function: Callable[[pl.DataFrame], pl.DataFrame],
        *,
        output: Any = None,
        on_error: str = "stop",
        uid: str | None = None,
        name: str | None = None,
        parallelism: int | None = None,
    ) -> "DataStream":
        """Call a function for each batch: a Polars DataFrame in, one with the columns of `output` out.

        With `on_error` other than `stop`, a batch for which it raises is tried again in halves, down to the rows
        that fail alone.
        """
        options = Options(uid=uid, name=name, parallelism=parallelism)
        return function_verbs.map_batches(self, function, output, options, on_error=on_error, where=places.caller())

    def map_async(
        self,
        function: Callable[..., Any],
        *,
        output: Any = None,
        capacity: int = 100,
        timeout: Duration = "5s",
        ordered: bool = True,
        retries: int = 0,
        backoff: Duration = "100ms",
        on_error: str = "stop",
        uid: str | None = None,
        name: str | None = None,
        parallelism: int | None = None,
    ) -> "DataStream":
        """Await an `async def` function for each row, up to `capacity` of them at once in each subtask.

        It returns a row, a list of rows, or None. One that raises, or takes longer than `timeout`, is called again up
        to `retries` times, after `backoff` and twice as long each time; then `on_error` decides. `ordered=False` lets
        rows leave as their results come; watermarks never overtake rows in either case. Rows whose calls are under way
        are part of a checkpoint and are called again after a restore, so calls happen at least once.

        A function may be an object with `async def __call__`, and with `async def open(self, ctx)` and `close(self)`
        for clients and connection pools; all run on one event loop per slot.
        """
        return function_verbs.map_async(
            self,
            function,
            output,
            Options(uid=uid, name=name, parallelism=parallelism),
            capacity=capacity,
            timeout=timeout,
            ordered=ordered,
            retries=retries,
            backoff=backoff,
            on_error=on_error,
            where=places.caller(),
        )

    def process(
        self,
        function: Any,
        *,
        output: Any = None,
        side_outputs: Mapping[str, Any] | None = None,
        on_error: str = "stop",
        uid: str | None = None,
        name: str | None = None,
        parallelism: int | None = None,
    ) -> "DataStream":
        """Call a function with state and timers for each row or batch: a `KeyedProcessFunction` after `key_by`.

        Without keys it is a `ProcessFunction`, with operator state. `side_outputs={"tag": schema}` declares what the
        function puts out by `ctx.output("tag", row)`; read it with `side_output("tag")`. `on_error`: see `map`; what a
        row had changed before it raised stays changed, so raise first, and change state then.
        """
        given, where = Options(uid=uid, name=name, parallelism=parallelism), places.caller()
        return function_verbs.process(
            self, function, output, given, side_outputs=side_outputs, on_error=on_error, where=where
        )

    def connect(self, other: "DataStream") -> ConnectedStreams:
        """Both streams for one function: `a.key_by("id").connect(b.key_by("user")).process(...)`.

        Keyed on both sides, rows with equal keys share state and timers. `a.connect(b.broadcast())` gives every row of
        `b` to every subtask.
        """
        return ConnectedStreams(self, other, where=places.caller())

    def window(
        self, assigner: Assigner, *, allowed_lateness: Duration = 0, late_to: str | None = None
    ) -> "WindowedStream":
        """All rows of the stream by time: `ps.tumbling("10s")`, `ps.sliding("10s", every="2s")`, `ps.session("30s")`.

        See `KeyedStream.window` for `allowed_lateness` and `late_to`.
        """
        return windowed.window(self, (), assigner, allowed_lateness, late_to, where=places.caller())

    # ------------------------------------------------------------ the end

    def write(
        self,
        sink: Any,
        *,
        uid: str | None = None,
        name: str | None = None,
        parallelism: int | None = None,
    ) -> None:
        """Write the rows out; a program without a sink does nothing."""
        where = places.caller()
        stream = connections.writable(self, sink, where=where)
        definition = connections.checked_sink(sink, stream.schema, where=where)
        self._builder.add(
            "write",
            specs.Sink(connector=definition.connector),
            (stream._input,),
            stream.schema,
            Options(uid=uid, name=name, parallelism=parallelism),
            where=where,
            default_name=definition.connector.kind,
            identity=definition.connector.kind,
        )

    # ------------------------------------------------------------ inside

    @property
    def _input(self) -> Input:
        return Input(uid=self._uid, partitioning=self._partitioning, output=self._output)

    def _spread(self, partitioning: specs.Partitioning) -> "DataStream":
        return DataStream(
            self._builder, self._uid, self.schema, self._time, partitioning, output=self._output, changes=self.changes
        )

    def _add(
        self,
        verb: str,
        spec: specs.OperatorSpec,
        schema: pl.Schema,
        options: Options,
        *,
        where: str,
        time: StreamTime | None = None,
        others: "tuple[DataStream, ...]" = (),
        default_name: str = "",
        sides: Mapping[str, SideStream] | None = None,
        changes: specs.Changes | None = None,
        takes_changes: bool = False,
    ) -> "DataStream":
        """A verb that neither gives changes nor says that it takes them is refused on an updating stream."""
        given = next((stream.changes for stream in (self, *others) if stream.changes is not None), None)
        if given is not None and changes is None and not takes_changes:
            raise updating.refused(verb, given, where)
        inputs = [self._input, *(other._input for other in others)]
        uid = self._builder.add(
            verb,
            spec,
            inputs,
            updating.wire_schema(schema, changes),
            options,
            where=where,
            default_name=default_name,
            sides={name: side.schema for name, side in (sides or {}).items() if side.source is None},
            changes=changes,
        )
        return DataStream(self._builder, uid, schema, time or self._time, sides=sides, changes=changes)

    def _time_if_in(self, schema: pl.Schema, verb: str, where: str) -> StreamTime:
        """A function keeps event time when its output has the column, with the same type."""
        time = self._time.event_time
        if time is None:
            return self._time
        kept = schema.get(time.column) == self.schema[time.column]
        return self._time.through(kept, verb=verb, where=where)


def _key_name(column: IntoExpression, where: str) -> str:
    if isinstance(column, str):
        return column
    expr = expressions.native(column)
    if not expr.meta.is_column():
        raise UserError(
            "P020",
            f'key_by: "{expressions.text(expr)}" has no name of its own',
            where=where,
            fix='name it: key_by(bucket=col("price") // 100)',
        )
    return expr.meta.output_name()
