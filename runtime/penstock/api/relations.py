"""Relations of a stream's rows: running aggregates, unions, deduplication, the first rows in an order."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import polars as pl

from penstock.api import changes as updating
from penstock.api import checks, expressions
from penstock.api.aggregates import AggregateCall
from penstock.api.building import Options
from penstock.api.times import StreamTime
from penstock.api.windows import Duration, duration
from penstock.model import schemas, specs
from penstock.model.errors import UserError
from penstock.state.key_index import can_hash

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
    stream = _taking_back(stream, keys, "agg", ttl, where)
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
        if stream.changes is not None:
            _require_taken_back(aggregate, stream, where)
        resolved.append(aggregate)
    if not keys:
        options = single(options, "a running aggregate without a key", where)
    spec = specs.RunningAggregate(
        keys=keys,
        aggregates=tuple(resolved),
        event_time=stream.event_time,
        ttl=time_to_live(stream, ttl, what="agg", where=where),
        updating=stream.changes is not None,
        output=schemas.fields(schema),
    )
    time = StreamTime(
        kind="none",
        lost=f"agg at {where} has one result for all of time",
        keep="aggregate in a window: key_by(...).window(ps.tumbling(...)).agg(...)",
    )
    changes = specs.Changes(keys=keys)
    return stream._add(
        "agg", spec, pl.Schema(schema), options, where=where, time=time, changes=changes, takes_changes=True
    )


def _taking_back(
    stream: "DataStream", keys: tuple[str, ...], verb: str, ttl: Duration | None, where: str
) -> "DataStream":
    """The same rows by the same keys, with every update as a delete and an insert."""
    if stream.changes is None:
        return stream
    if ttl is not None:
        raise UserError(
            "P065",
            f"{verb}: the stream updates earlier rows, and with ttl= a row could be taken back that was forgotten",
            where=where,
            fix=f"give the ttl= to the verbs in front of {verb}, or as_changelog() to take each change as a row",
        )
    once = updating.retracted(stream, where)
    return once._spread(specs.Hash(keys=keys)) if keys else once


def _require_taken_back(aggregate: specs.Aggregate, stream: "DataStream", where: str) -> None:
    """Rows of the aggregate can be found again, and have an order if it asks for one."""
    if aggregate.function in specs.SUBTRACTED:
        return
    if aggregate.function in ("first", "last", "collect_list") and stream.event_time is None:
        raise UserError(
            "P066",
            f'agg: "{aggregate.name}" goes by the order of rows, and the stream updates earlier rows and has no event '
            f"time: {stream._time.lost or 'it was read without one'}",
            where=where,
            fix="ps.min_by or ps.max_by with a column that says which row is first",
        )
    for expression in (aggregate.input, aggregate.by):
        if expression is None:
            continue
        kind = pl.DataFrame(schema=stream.schema).select(expressions.deserialize(expression)).dtypes[0]
        if not can_hash(kind):
            raise _not_found_again("agg", f'"{aggregate.name}"', kind, where)


def _not_found_again(verb: str, what: str, kind: pl.DataType, where: str) -> UserError:
    return UserError(
        "P067",
        f"{verb}: the stream updates earlier rows, and {what} is of type {kind}, by which no row is found again",
        where=where,
        fix=f"select the parts that are needed before {verb}",
    )


def deduplicate(
    stream: "DataStream",
    columns: Sequence[str],
    keep: str,
    by: str,
    ttl: Duration | None,
    options: Options,
    *,
    where: str,
) -> "DataStream":
    """One row per key."""
    keys = tuple(dict.fromkeys(columns)) or key_columns(stream)
    if keep not in ("first", "last") or by not in ("arrival", "event_time") or not keys:
        raise UserError(
            "P020",
            f"deduplicate: columns={list(keys)}, keep={keep!r}, by={by!r}",
            where=where,
            fix='deduplicate("id", keep="first" or "last", by="arrival" or "event_time")',
        )
    checks.require_columns(keys, stream.schema, what="deduplicate", where=where)
    checks.require_hashable(keys, stream.schema, where=where)
    if by == "event_time" and stream.event_time is None:
        raise UserError(
            "P021",
            f"deduplicate: the stream has no event time: {stream._time.lost or 'it was read without one'}",
            where=where,
            fix=stream._time.keep or 'read it with event_time="column", or deduplicate by="arrival"',
        )
    spec = specs.Deduplicate(
        keys=keys,
        keep=keep,
        by_event_time=by == "event_time",
        event_time=stream.event_time,
        ttl=time_to_live(stream, ttl, what="deduplicate", where=where),
    )
    if stream.changes is not None:
        raise updating.refused("deduplicate", stream.changes, where)
    changes = specs.Changes(keys=keys) if keep == "last" else None
    keyed = stream._spread(specs.Hash(keys=keys))
    return keyed._add("deduplicate", spec, stream.schema, options, where=where, changes=changes)


def distinct(
    stream: "DataStream", columns: Sequence[str], ttl: Duration | None, options: Options, *, where: str
) -> "DataStream":
    """Rows that did not come before."""
    checks.require_columns(columns, stream.schema, what="distinct", where=where)
    chosen = stream.select(*columns) if columns else stream
    return deduplicate(chosen, chosen.columns, "first", "arrival", ttl, options, where=where)


@dataclass(frozen=True, slots=True)
class TopNRequest:
    """What the user wrote."""

    n: int
    by: str | Sequence[str]
    descending: bool | Sequence[bool]
    rank: str | None
    within: specs.Tumbling | specs.Sliding | None
    ttl: Duration | None


def top_n(stream: "DataStream", request: TopNRequest, options: Options, *, where: str) -> "DataStream":
    """The first rows of each key."""
    by = (request.by,) if isinstance(request.by, str) else tuple(request.by)
    falling = request.descending
    descending = (falling,) * len(by) if isinstance(falling, bool) else tuple(falling)
    if not isinstance(request.n, int) or request.n < 1 or not by or len(by) != len(descending):
        raise UserError(
            "P020",
            f"top_n: n={request.n!r}, by={list(by)}, descending={list(descending)}",
            where=where,
            fix='top_n(10, by="price"): n from 1 on, and descending for each column of by',
        )
    checks.require_columns(by, stream.schema, what="top_n", where=where)
    keys, schema, time = key_columns(stream), dict(stream.schema), stream._time
    window = request.within
    if window is not None:
        if not isinstance(window, specs.Tumbling | specs.Sliding) or request.ttl is not None:
            raise UserError(
                "P020",
                "top_n: within= is a tumbling or sliding window, and has no ttl=",
                where=where,
                fix='top_n(10, by="price", within=ps.tumbling("10s"))',
            )
        if stream.event_time is None:
            raise UserError(
                "P021",
                f"top_n: the stream has no event time: {stream._time.lost or 'it was read without one'}",
                where=where,
                fix=stream._time.keep or 'read it with event_time="column"',
            )
    added: dict[str, pl.DataType] = {}
    if window is not None and stream.event_time is not None:
        added |= dict.fromkeys(("window_start", "window_end"), schema[stream.event_time.column])
        ended = specs.EventTime(column="window_end", unit=stream.event_time.unit, offset_us=-1)
        time = replace(stream._time, event_time=ended)
    if request.rank is not None:
        added[request.rank] = pl.Int64()
    for column in added:
        if column in schema:
            raise UserError(
                "P020",
                f'top_n: there is a column "{column}" already',
                where=where,
                fix="rename it with select before, or give the rank another name",
            )
    schema |= added
    changes = None
    if window is None:
        by_rank = specs.Changes(keys=(*keys, request.rank)) if request.rank is not None else None
        changes = by_rank or specs.Changes(keys=None, updates=False)
    if stream.changes is not None and window is not None:
        raise updating.refused("top_n in windows", stream.changes, where)
    stream = _taking_back(stream, keys, "top_n", request.ttl, where)
    if stream.changes is not None:
        for column, kind in stream.schema.items():
            if not can_hash(kind):
                raise _not_found_again("top_n", f'the column "{column}"', kind, where)
    if not keys:
        options = single(options, "top_n without a key", where)
    spec = specs.TopN(
        keys=keys,
        n=request.n,
        by=by,
        descending=descending,
        rank=request.rank,
        within=window,
        event_time=stream.event_time if window is not None else None,
        ttl=time_to_live(stream, request.ttl, what="top_n", where=where),
        updating=stream.changes is not None,
        output=schemas.fields(updating.wire_schema(pl.Schema(schema), changes)),
    )
    return stream._add(
        "top_n", spec, pl.Schema(schema), options, where=where, time=time, changes=changes, takes_changes=True
    )


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


def union(
    stream: "DataStream",
    others: "tuple[DataStream, ...]",
    source: str | None,
    options: Options,
    *,
    where: str,
) -> "DataStream":
    """Rows of several streams with the same columns."""
    for number, other in enumerate(others, start=1):
        checks.require_same_columns(stream.schema, other.schema, f"stream {number}", where=where)
        if other._builder is not stream._builder:
            raise UserError(
                "P002", "union: the streams belong to two flows", where=where, fix="read both from one flow"
            )
    changes = _changes_of_union((stream, *others), source, where)
    if source is not None:
        if source in stream.schema:
            raise UserError(
                "P020", f'union: there is a column "{source}" already', where=where, fix='source="from_stream"'
            )
        stream, *numbered = (
            each.with_columns(pl.lit(number, pl.Int32).alias(source)) for number, each in enumerate((stream, *others))
        )
        others = tuple(numbered)
    time = stream._time
    if any((other._time.event_time, other._time.kind) != (time.event_time, time.kind) for other in others):
        time = StreamTime(
            kind="none",
            lost=f"union at {where} is of streams whose event time differs",
            keep="read the streams with the same event_time, unit and time",
        )
    wire = updating.wire_schema(stream.schema, changes)
    spec = specs.Union(columns=tuple(wire))
    return stream._add("union", spec, stream.schema, options, where=where, time=time, others=others, changes=changes)


def _changes_of_union(streams: "Sequence[DataStream]", source: str | None, where: str) -> specs.Changes | None:
    """Equal keys of two streams are two rows: the stream's number has to be one of the keys."""
    given = [stream.changes for stream in streams]
    first = next((changes for changes in given if changes is not None), None)
    if first is None:
        return None
    if any(changes is None or changes.keys != first.keys for changes in given):
        raise UserError(
            "P030",
            "union: some of the streams update earlier rows, and not all do so by the same keys",
            where=where,
            fix="as_changelog() each of them, or aggregate them by the same keys",
        )
    updates = any(changes is not None and changes.updates for changes in given)
    if first.keys is None:
        return specs.Changes(keys=None, updates=updates)
    if source is None:
        raise UserError(
            "P030",
            f"union: the streams update earlier rows by {', '.join(first.keys) or 'nothing'}, and both may have a row "
            "with the same",
            where=where,
            fix='union(other, source="origin") adds the number of the stream to the keys',
        )
    return specs.Changes(keys=(source, *first.keys), updates=updates)
