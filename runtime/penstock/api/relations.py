"""Relations over a whole stream, not a window: running aggregates. Their results update earlier ones."""

from collections.abc import Mapping
from dataclasses import replace
from typing import TYPE_CHECKING

import polars as pl

from penstock.api.aggregates import AggregateCall
from penstock.api.building import Options
from penstock.api.times import StreamTime
from penstock.api.windows import Duration, duration
from penstock.model import schemas, specs
from penstock.model.errors import UserError

if TYPE_CHECKING:
    from penstock.api.streams import DataStream


def running(
    stream: "DataStream",
    calls: Mapping[str, AggregateCall],
    ttl: Duration | None,
    options: Options,
    *,
    where: str,
) -> "DataStream":
    """One result per key over all rows so far."""
    if not calls:
        raise UserError("P020", "agg: no aggregate given", where=where, fix="agg(bids=ps.count())")
    keys = key_columns(stream)
    schema = {key: stream.schema[key] for key in keys}
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
            raise UserError(
                "P020",
                f'agg: the result has a column "{column}" already',
                where=where,
                fix="results have the keys: choose another name",
            )
        aggregate, schema[column] = call.resolve(column, stream.schema, where=where)
        resolved.append(aggregate)
    if not keys:
        options = single(options, "a running aggregate without a key", where)
    spec = specs.RunningAggregate(
        keys=keys,
        aggregates=tuple(resolved),
        event_time=stream.event_time,
        ttl=time_to_live(stream, ttl, what="agg", where=where),
        output=schemas.fields(schema),
    )
    if stream.changes is not None:
        raise UserError(
            "P030",
            "agg: the stream updates earlier rows, and a running aggregate cannot take rows back",
            where=where,
            fix="aggregate the rows before they are updated, or as_changelog() to aggregate the changes themselves",
        )
    time = StreamTime(
        kind="none",
        lost=f"agg at {where} has one result for all of time",
        keep="aggregate in a window: key_by(...).window(ps.tumbling(...)).agg(...)",
    )
    changes = specs.Changes(keys=keys)
    return stream._add("agg", spec, pl.Schema(schema), options, where=where, time=time, changes=changes)


def key_columns(stream: "DataStream") -> tuple[str, ...]:
    """Of a keyed stream its keys; none of others."""
    keys: tuple[str, ...] = getattr(stream, "keys", ())
    return keys


def time_to_live(stream: "DataStream", ttl: Duration | None, *, what: str, where: str) -> specs.TimeToLive | None:
    """How long state lives: in event time if the stream has it, else by the clock."""
    if ttl is None:
        return None
    micros = duration(ttl, what=f"{what}: ttl", where=where)
    if micros <= 0:
        raise UserError("P011", f'{what}: ttl must be longer than nothing; got "{ttl}"', where=where, fix='"1h"')
    return specs.TimeToLive(us=micros, event_time=stream.event_time)


def single(options: Options, what: str, where: str) -> Options:
    """One subtask: there is nothing to spread by."""
    if options.parallelism not in (None, 1):
        raise UserError(
            "P013",
            f"{what} cannot have parallelism {options.parallelism}",
            where=where,
            fix="key_by first, or leave parallelism out",
        )
    return replace(options, parallelism=1)
