"""Streams that are grouped by window: what `window(...)` gives, and how rows are made of it again."""

from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import polars as pl

from penstock.api import buffered, functions, places, row_types, triggers, window_results
from penstock.api import changes as updating
from penstock.api.aggregates import AggregateCall
from penstock.api.building import Options, options_or_columns
from penstock.api.evictors import EvictorCall
from penstock.api.other_words import Verbs
from penstock.api.times import SideStream, StreamTime
from penstock.api.triggers import Trigger, TriggerCall
from penstock.api.windows import Assigner, CountWindows, Duration, Sessions, duration
from penstock.model import schemas, specs
from penstock.model.errors import UserError

if TYPE_CHECKING:
    from penstock.api.streams import DataStream

WINDOW_COLUMNS = ("window_start", "window_end")


def window(
    stream: "DataStream",
    keys: tuple[str, ...],
    assigner: Assigner,
    allowed_lateness: Duration,
    late_to: str | None,
    *,
    where: str,
) -> "WindowedStream":
    """The stream grouped by window; refuses what is no window, and lateness where nothing is ever late."""
    if not isinstance(assigner, Assigner):
        raise UserError(
            "P011",
            f"window: {assigner!r} is not a window",
            where=where,
            fix='ps.tumbling("10s"), ps.sliding("10s", every="2s"), ps.session("30s"), ps.count_window(100), ...',
        )
    lateness_us = duration(allowed_lateness, what="window: allowed_lateness", where=where)
    timeless = isinstance(assigner, specs.GlobalWindow | CountWindows)
    event_time = stream.event_time if timeless else stream._time.for_window(where=where)
    if (event_time is None or timeless) and (lateness_us or late_to):
        raise UserError(
            "P021",
            "window: by the clock, and in windows without an end, no row is ever late: allowed_lateness and late_to "
            "have no meaning",
            where=where,
            fix='leave them out, or use windows of event time: event_time="column"',
        )
    if lateness_us < 0 or late_to == "":
        raise UserError(
            "P011",
            f"window: allowed_lateness={allowed_lateness!r}, late_to={late_to!r} cannot be",
            where=where,
            fix='window(..., allowed_lateness="1m", late_to="late")',
        )
    return WindowedStream(stream, keys, assigner, event_time, lateness_us, late_to or "")


class WindowedStream(Verbs):
    """Rows of a stream grouped by window, and by key if it has one. `agg`, `reduce`, `apply` make rows of it again."""

    def __init__(
        self,
        stream: "DataStream",
        keys: tuple[str, ...],
        assigner: Assigner,
        event_time: specs.EventTime | None,
        lateness_us: int = 0,
        late_to: str = "",
        trigger: TriggerCall | None = None,
        evictor: EvictorCall | None = None,
    ) -> None:
        self._stream, self._keys = stream, keys
        self._assigner, self._event_time = assigner, event_time
        self._lateness_us, self._late_to = lateness_us, late_to
        self._trigger, self._evictor = trigger, evictor

    def trigger(self, trigger: TriggerCall | Trigger) -> "WindowedStream":
        """When windows fire: `ps.trigger.count(1000)`, `ps.trigger.every("10s")`, or one of your own."""
        return self._with(triggers.as_call(trigger, where=places.caller()), self._evictor)

    def evict(self, evictor: EvictorCall) -> "WindowedStream":
        """Which rows a window keeps when it fires: `ps.evictor.count(100)`."""
        if not isinstance(evictor, EvictorCall):
            raise UserError(
                "P026", f"evict: {evictor!r} is not an evictor", where=places.caller(), fix="ps.evictor.count(100)"
            )
        return self._with(self._trigger, evictor)

    def _with(self, trigger: TriggerCall | None, evictor: EvictorCall | None) -> "WindowedStream":
        return WindowedStream(
            self._stream,
            self._keys,
            self._assigner,
            self._event_time,
            self._lateness_us,
            self._late_to,
            trigger,
            evictor,
        )

    def reduce(
        self,
        function: Callable[[dict[str, Any], dict[str, Any]], Mapping[str, Any]],
        *,
        uid: str | None = None,
        name: str | None = None,
        parallelism: int | None = None,
    ) -> "DataStream":
        """One row per key and window: `function` makes one row of two, as often as needed.

        Rows are dicts of the stream's columns; the result has the same columns, the keys in front, and the window's.
        """
        where = places.caller()
        options = Options(uid=uid, name=name, parallelism=parallelism)
        called = functions.per_batch(function, name=name or uid or "reduce", where=where)
        columns = {name: kind for name, kind in self._stream.schema.items() if name not in self._keys}
        return buffered.add(self, columns, options, where=where, verb="reduce", reduce=called)

    def apply(
        self,
        function: Callable[..., pl.DataFrame],
        *,
        output: Any,
        of: Mapping[str, AggregateCall] | None = None,
        uid: str | None = None,
        name: str | None = None,
        parallelism: int | None = None,
    ) -> "DataStream":
        """Any number of rows per key and window: `function` gets all rows of a window as a Polars DataFrame.

        With a second parameter it gets the window too: `window.key`, `window.start`, `window.end`. The result has the
        keys, `window_start`, `window_end` and the columns of `output`. A window that fires several times gives its
        rows each time.

        With `of={"bids": ps.count(), ...}` the window keeps partial results in place of rows, and the function gets
        one row: keys, `window_start`, `window_end` and these aggregates.
        """
        where = places.caller()
        options = Options(uid=uid, name=name, parallelism=parallelism)
        if of is not None:
            aggregated = self.agg(of, uid=uid, name=name, parallelism=parallelism)
            return window_results.add(self, aggregated, function, output, options, where=where)
        called = functions.per_batch(function, name=name or uid or "apply", where=where)
        columns = dict(row_types.schema_of(output, where=where))
        return buffered.add(self, columns, options, where=where, verb="apply", apply=called)

    def agg(
        self,
        aggregates: Mapping[str, AggregateCall] | None = None,
        /,
        *,
        uid: str | None = None,
        name: str | None = None,
        parallelism: int | None = None,
        **named: AggregateCall,
    ) -> "DataStream":
        """One row per key and window, when the window's time has passed.

        Columns: the keys, `window_start`, `window_end`, and one for each aggregate.
        """
        where = places.caller()
        options = options_or_columns(named, uid, name, parallelism)
        calls = {**(aggregates or {}), **named}
        if not calls:
            raise UserError("P020", "agg: no aggregate given", where=where, fix="agg(bids=ps.count())")
        schema = self._key_and_window_columns(where)
        resolved = []
        for column, call in calls.items():
            if not isinstance(call, AggregateCall):
                raise UserError(
                    "P020",
                    f"agg: {column}={call!r} is not an aggregate",
                    where=where,
                    fix='use ps.count(), ps.sum("price"), ps.max("price"), ...',
                )
            if column in schema:
                raise _taken(column, where)
            aggregate, schema[column] = call.resolve(column, self._stream.schema, where=where)
            resolved.append(aggregate)
        if self._keeps_rows:
            made = {column: schema[column] for column in calls}
            return buffered.add(self, made, options, where=where, verb="window", aggregates=tuple(resolved))
        if not self._keys:
            options = self._single(options, where)
        return self._stream._add(
            "window",
            self._aggregate_spec(tuple(resolved), updating.wire_schema(pl.Schema(schema), self._changes), where),
            pl.Schema(schema),
            options,
            where=where,
            time=self._time_of_results(schema),
            sides=self._sides,
            changes=self._changes,
        )

    @property
    def _keeps_rows(self) -> bool:
        """Whether partial results are not enough."""
        mergeable = isinstance(self._assigner, specs.Tumbling | specs.Sliding | Sessions)
        only_at_the_end = self._trigger is None or self._trigger.spec == specs.Trigger()
        return not mergeable or not only_at_the_end or self._evictor is not None

    def _aggregate_spec(
        self, aggregates: tuple[specs.Aggregate, ...], output: pl.Schema, where: str
    ) -> specs.WindowAggregate | specs.SessionAggregate:
        if isinstance(self._assigner, Sessions):
            return specs.SessionAggregate(
                keys=self._keys,
                gap_us=self._assigner.gap_us,
                gap=self._assigner.gap_in_us(self._stream.schema, where=where),
                aggregates=aggregates,
                event_time=self._event_time,
                allowed_lateness_us=self._lateness_us,
                late_to=self._late_to,
                output=schemas.fields(output),
            )
        assert isinstance(self._assigner, specs.Tumbling | specs.Sliding), "other windows keep their rows"
        return specs.WindowAggregate(
            keys=self._keys,
            assigner=self._assigner,
            aggregates=aggregates,
            event_time=self._event_time,
            allowed_lateness_us=self._lateness_us,
            late_to=self._late_to,
            output=schemas.fields(output),
        )

    @property
    def _changes(self) -> specs.Changes | None:
        """With allowed lateness a window may give another result for the same keys."""
        return specs.Changes(keys=(*self._keys, *WINDOW_COLUMNS)) if self._lateness_us else None

    @property
    def _sides(self) -> dict[str, SideStream]:
        return {self._late_to: SideStream(self._stream.schema, self._stream._time)} if self._late_to else {}

    def _key_and_window_columns(self, where: str) -> dict[str, pl.DataType]:
        columns = {key: self._stream.schema[key] for key in self._keys}
        if isinstance(self._assigner, specs.GlobalWindow | CountWindows):
            return columns
        time_type: pl.DataType = pl.Datetime("us")
        if self._event_time is not None:
            time_type = self._stream.schema[self._event_time.column]
        for column in WINDOW_COLUMNS:
            if column in columns:
                raise _taken(column, where)
            columns[column] = time_type
        return columns

    def _time_of_results(self, schema: Mapping[str, pl.DataType]) -> StreamTime:
        if isinstance(self._assigner, specs.GlobalWindow | CountWindows):
            return StreamTime(
                kind="none",
                lost="results of a window without an end have no time",
                keep="aggregate with ps.max of the event time, and write or read the results from there",
            )
        if self._event_time is None:
            return self._stream._time
        # A result belongs to its window, so its time is the last moment of it: with the end itself, a window of
        # the same size over the results would put each into the window after its own.
        event_time = specs.EventTime(column="window_end", unit=self._event_time.unit, offset_us=-1)
        return replace(self._stream._time, event_time=event_time)

    def _single(self, options: Options, where: str) -> Options:
        if options.parallelism not in (None, 1):
            raise UserError(
                "P013",
                f"a window without a key cannot have parallelism {options.parallelism}: its result is one row",
                where=where,
                fix="key_by first, or leave parallelism out; rows are pre-aggregated in parallel anyway",
            )
        return replace(options, parallelism=1)


def _taken(column: str, where: str) -> UserError:
    return UserError(
        "P020",
        f'agg: the result has a column "{column}" already',
        where=where,
        fix="results have the keys, window_start and window_end: choose another name",
    )
