"""Streams that are grouped by window: what `window(...)` gives, and how rows are made of it again."""

from collections.abc import Mapping
from dataclasses import replace
from typing import TYPE_CHECKING

import polars as pl

from penstock.api import places
from penstock.api.aggregates import AggregateCall
from penstock.api.building import Options, options_or_columns
from penstock.api.times import StreamTime
from penstock.model import schemas, specs
from penstock.model.errors import UserError

if TYPE_CHECKING:
    from penstock.api.streams import DataStream

WINDOW_COLUMNS = ("window_start", "window_end")


class WindowedStream:
    """Rows of a stream grouped by window, and by key if it has one. `agg` makes rows of it again."""

    def __init__(
        self,
        stream: "DataStream",
        keys: tuple[str, ...],
        assigner: specs.Tumbling | specs.Sliding,
        event_time: specs.EventTime | None,
    ) -> None:
        self._stream, self._keys = stream, keys
        self._assigner, self._event_time = assigner, event_time

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
        if not self._keys:
            options = self._single(options, where)
        spec = specs.WindowAggregate(
            keys=self._keys,
            assigner=self._assigner,
            aggregates=tuple(resolved),
            event_time=self._event_time,
            output=schemas.fields(schema),
        )
        return self._stream._add(
            "window", spec, pl.Schema(schema), options, where=where, time=self._time_of_results(schema)
        )

    def _key_and_window_columns(self, where: str) -> dict[str, pl.DataType]:
        columns = {key: self._stream.schema[key] for key in self._keys}
        time_type: pl.DataType = pl.Datetime("us")
        if self._event_time is not None:
            time_type = self._stream.schema[self._event_time.column]
        for column in WINDOW_COLUMNS:
            if column in columns:
                raise _taken(column, where)
            columns[column] = time_type
        return columns

    def _time_of_results(self, schema: Mapping[str, pl.DataType]) -> StreamTime:
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
