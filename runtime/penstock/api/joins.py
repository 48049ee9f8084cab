"""Joins: what `left.join(right, ...)` asks for, checked and turned into the operator that does it."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import polars as pl

from penstock.api import changes as updating
from penstock.api import checks, functions, places, relations, row_types
from penstock.api.building import Options
from penstock.api.times import StreamTime
from penstock.api.windows import Duration, duration
from penstock.model import schemas, specs
from penstock.model.errors import UserError

if TYPE_CHECKING:
    from penstock.api.streams import DataStream

HOWS = ("inner", "left", "right", "full", "semi", "anti")
WINDOW_COLUMNS = ("window_start", "window_end")

On = str | Sequence[str]


def interval(lower: Duration, upper: Duration) -> specs.IntervalMatch:
    """Rows of the right side from `lower` to `upper` later than the left row; earlier ones are negative: `"-5s"`."""
    where = places.caller()
    bounds = [_signed(value, f"interval: {name}", where) for name, value in (("lower", lower), ("upper", upper))]
    if bounds[0] > bounds[1]:
        raise UserError(
            "P031",
            f'interval: lower "{lower}" is after upper "{upper}"',
            where=where,
            fix='interval("-5s", "5s"): from five seconds before to five seconds after',
        )
    return specs.IntervalMatch(lower_us=bounds[0], upper_us=bounds[1])


def as_of(*, max_age: Duration | None = None) -> specs.AsOfMatch:
    """The right row that was the latest at the time of the left one; with `max_age`, if it was not older than that."""
    where = places.caller()
    return specs.AsOfMatch(
        max_age_us=None if max_age is None else duration(max_age, what="as_of: max_age", where=where)
    )


@dataclass(frozen=True, slots=True)
class Keys:
    """Which columns must be equal: the same on both sides, or different ones."""

    on: On | None = None
    left_on: On | None = None
    right_on: On | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class JoinRequest:
    """What the user wrote."""

    keys: Keys
    how: str
    within: Any = None
    ttl: Duration | None = None
    suffix: str = "_right"


@dataclass(frozen=True, slots=True, kw_only=True)
class LookupTable:
    """What `ps.lookup` gives: a function that knows more about keys."""

    function: Callable[..., Any]
    output: Any
    per_batch: bool
    capacity: int
    cache_us: int | None
    cache_rows: int


def lookup(
    function: Callable[..., Any],
    *,
    output: Any = None,
    per: str = "key",
    capacity: int = 16,
    cache: Duration | None = None,
    cache_rows: int = 100_000,
) -> LookupTable:
    """Something to join with that answers when it is asked: `orders.join(ps.lookup(customer, output=...), on="id")`.

    The function gets the values of the key columns and gives a row of the columns of `output`, or None; it may be
    `async`. It is asked about up to `capacity` keys at once, and once for each key of a batch. With `per="batch"` it
    gets a frame of keys instead, and gives a frame of keys and columns. Answers are remembered for `cache` (for ever,
    if it is left out), `cache_rows` of them at most. Rows stay in order.
    """
    where = places.caller()
    if per not in ("key", "batch") or capacity < 1 or cache_rows < 1:
        raise UserError(
            "P031",
            f"lookup: per={per!r}, capacity={capacity}, cache_rows={cache_rows}",
            where=where,
            fix='per is "key" or "batch"; capacity and cache_rows are 1 or more',
        )
    cache_us = None if cache is None else duration(cache, what="lookup: cache", where=where)
    return LookupTable(
        function=function,
        output=output,
        per_batch=per == "batch",
        capacity=capacity,
        cache_us=cache_us,
        cache_rows=cache_rows,
    )


def join(
    left: "DataStream", right: "DataStream | LookupTable", request: JoinRequest, options: Options, *, where: str
) -> "DataStream":
    """The stream of the join's results."""
    _require_how(request.how, where)
    if isinstance(right, LookupTable):
        return _lookup_join(left, right, request, options, where)
    if left._builder is not right._builder:
        raise UserError(
            "P031", "join: the streams belong to different flows", where=where, fix="read both from the same flow"
        )
    left_on, right_on = _keys(left, right, request.keys, where)
    match = _match(left, right, request, where)
    if isinstance(match, specs.EverMatch):
        left, right = updating.retracted(left, where), updating.retracted(right, where)
    columns = _columns(left.schema, right.schema, left_on, right_on, request, where)
    schema = {column.name: _type_of(column, left.schema, right.schema) for column in columns}
    timed = isinstance(match, specs.WindowMatch | specs.IntervalMatch | specs.AsOfMatch)
    left_time = _time(left, "left", where) if timed else None
    right_time = _time(right, "right", where) if timed else None
    if isinstance(match, specs.WindowMatch) and left_time is not None:
        for name in WINDOW_COLUMNS:
            if name in schema:
                raise _taken(name, where)
            columns.append(specs.JoinColumn(name=name))
            schema[name] = left.schema[left_time.column]
    changes = specs.Changes(keys=None, updates=False) if getattr(match, "changes", False) else None
    spec = specs.Join(
        left_on=left_on,
        right_on=right_on,
        how=request.how,
        match=match,
        columns=tuple(columns),
        left_time=left_time,
        right_time=right_time,
        output=schemas.fields(updating.wire_schema(pl.Schema(schema), changes)),
    )
    sides = _spread(left, right, left_on, right_on, match)
    time = _time_of_results(left, right, columns, request.how, match, where)
    return sides[0]._add(
        "join",
        spec,
        pl.Schema(schema),
        options,
        where=where,
        time=time,
        others=(sides[1],),
        changes=changes,
        takes_changes=isinstance(match, specs.EverMatch),
    )


def _lookup_join(
    left: "DataStream", table: LookupTable, request: JoinRequest, options: Options, where: str
) -> "DataStream":
    _only(request.how, ("inner", "left"), "a join with a lookup", where)
    if request.within is not None or request.ttl is not None or request.keys.on is None:
        raise UserError(
            "P031",
            "join: a lookup is asked when a row comes; it has keys, and neither time nor columns of its own",
            where=where,
            fix='join(ps.lookup(...), on="id"), without within=, ttl=, left_on= and right_on=',
        )
    on = _names(request.keys.on)
    checks.require_columns(on, left.schema, what="join", where=where)
    checks.require_hashable(on, left.schema, where=where)
    name = left._builder.next_name("join", options)
    called = functions.per_batch(table.function, name=name, where=where)
    made = functions.output_schema(table.function, table.output, many=False, name=name, where=where)
    made = pl.Schema({column: kind for column, kind in made.items() if column not in on})
    right = pl.Schema({**{key: left.schema[key] for key in on}, **made})
    columns = _columns(left.schema, right, on, on, request, where)
    schema = pl.Schema({column.name: _type_of(column, left.schema, right) for column in columns})
    spec = specs.Lookup(
        on=on,
        how=request.how,
        columns=tuple(columns),
        function=called,
        per_batch=table.per_batch,
        made=schemas.fields(made),
        capacity=table.capacity,
        cache_rows=table.cache_rows,
        cache_us=table.cache_us,
        output=schemas.fields(schema),
    )
    return left._add("join", spec, schema, options, where=where, default_name=called.name)


def co_group(
    left: "DataStream",
    right: "DataStream",
    function: Callable[..., Any],
    output: Any,
    request: JoinRequest,
    options: Options,
    *,
    where: str,
) -> "DataStream":
    """A function over the rows of both sides of a key in a window."""
    if not isinstance(request.within, specs.Tumbling | specs.Sliding):
        raise UserError("P031", "co_group: within= is not a window", where=where, fix='within=ps.tumbling("10s")')
    left_on, right_on = _keys(left, right, request.keys, where)
    left_time, right_time = _time(left, "left", where), _time(right, "right", where)
    called = functions.per_batch(function, name=left._builder.next_name("co_group", options), where=where)
    made = row_types.schema_of(output, where=where)
    schema = dict(made)
    for name in WINDOW_COLUMNS:
        if name in schema:
            raise _taken(name, where)
        schema[name] = left.schema[left_time.column]
    join = specs.Join(
        left_on=left_on,
        right_on=right_on,
        how="full",
        match=specs.WindowMatch(assigner=request.within),
        columns=(),
        left_time=left_time,
        right_time=right_time,
        output=schemas.fields(schema),
    )
    spec = specs.CoGroup(
        join=join,
        left=schemas.fields(left.schema),
        right=schemas.fields(right.schema),
        function=called,
        made=schemas.fields(made),
        output=join.output,
    )
    sides = _spread(left, right, left_on, right_on, join.match)
    time = _time_of_results(left, right, (), "full", join.match, where)
    return sides[0]._add(
        "co_group",
        spec,
        pl.Schema(schema),
        options,
        where=where,
        time=time,
        others=(sides[1],),
        default_name=called.name,
    )


def _spread(
    left: "DataStream",
    right: "DataStream",
    left_on: tuple[str, ...],
    right_on: tuple[str, ...],
    match: object,
) -> "tuple[DataStream, DataStream]":
    if isinstance(match, specs.BroadcastMatch):
        return left, right
    return left._spread(specs.Hash(keys=left_on)), right._spread(specs.Hash(keys=right_on))


def _match(
    left: "DataStream", right: "DataStream", request: JoinRequest, where: str
) -> specs.WindowMatch | specs.IntervalMatch | specs.AsOfMatch | specs.EverMatch | specs.BroadcastMatch:
    within, how = request.within, request.how
    if within is not None and request.ttl is not None:
        raise UserError(
            "P031",
            "join: ttl= is for joins over all of time, and within= says which time",
            where=where,
            fix="leave out one of the two",
        )
    match within:
        case None if isinstance(right._partitioning, specs.Broadcast):
            _only(how, ("inner", "left", "semi", "anti"), "a join with broadcast rows", where)
            return specs.BroadcastMatch()
        case None:
            return _ever(left, right, request, where)
        case specs.Tumbling() | specs.Sliding():
            return specs.WindowMatch(assigner=within)
        case specs.IntervalMatch():
            return within
        case specs.AsOfMatch():
            _only(how, ("inner", "left"), "a join as of event time", where)
            return within
    raise UserError(
        "P031",
        f"join: within={within!r} is not a time",
        where=where,
        fix='within=ps.tumbling("10s"), ps.sliding(...), ps.interval("-5s", "5s") or ps.as_of()',
    )


def _ever(left: "DataStream", right: "DataStream", request: JoinRequest, where: str) -> specs.EverMatch:
    updates = (left.changes is not None, right.changes is not None)
    return specs.EverMatch(
        left_ttl=relations.time_to_live(left, request.ttl, what="join", where=where),
        right_ttl=relations.time_to_live(right, request.ttl, what="join", where=where),
        left_changes=updates[0],
        right_changes=updates[1],
        changes=any(updates) or request.how not in ("inner", "semi"),
    )


# ---------------------------------------------------------------- keys and columns


def _keys(left: "DataStream", right: "DataStream", keys: Keys, where: str) -> tuple[tuple[str, ...], tuple[str, ...]]:
    if keys.on is not None and (keys.left_on is not None or keys.right_on is not None):
        raise UserError("P031", "join: on= and left_on=, right_on= together", where=where, fix="give one or the other")
    left_on, right_on = _names(keys.on or keys.left_on), _names(keys.on or keys.right_on)
    if not left_on or len(left_on) != len(right_on):
        raise UserError(
            "P031",
            f"join: {len(left_on)} keys on the left and {len(right_on)} on the right",
            where=where,
            fix='on="id", or left_on="id" and right_on="person"',
        )
    checks.require_columns(left_on, left.schema, what="join: left side", where=where)
    checks.require_columns(right_on, right.schema, what="join: right side", where=where)
    checks.require_hashable(left_on, left.schema, where=where)
    for one, other in zip(left_on, right_on, strict=True):
        if left.schema[one] != right.schema[other]:
            raise UserError(
                "P031",
                f'join: key "{one}" is {left.schema[one]} on the left, and "{other}" is {right.schema[other]} on the '
                "right",
                where=where,
                fix=f'cast one of them: with_columns(col("{other}").cast(...))',
            )
    return left_on, right_on


def _columns(
    left: pl.Schema,
    right: pl.Schema,
    left_on: tuple[str, ...],
    right_on: tuple[str, ...],
    request: JoinRequest,
    where: str,
) -> list[specs.JoinColumn]:
    """All of the left side, then all of the right one; a key that both call the same comes once."""
    shared = {one for one, other in zip(left_on, right_on, strict=True) if one == other}
    one_sided = request.how in ("semi", "anti")
    made = [
        specs.JoinColumn(name=name, left=name, right=name if name in shared and not one_sided else None)
        for name in left
    ]
    if one_sided:
        return made
    taken = set(left)
    for name in right:
        if name in shared:
            continue
        given = f"{name}{request.suffix}" if name in taken else name
        if given in taken:
            raise _taken(given, where)
        taken.add(given)
        made.append(specs.JoinColumn(name=given, right=name))
    return made


def _type_of(column: specs.JoinColumn, left: pl.Schema, right: pl.Schema) -> pl.DataType:
    return left[column.left] if column.left is not None else right[column.right or ""]


def _names(on: On | None) -> tuple[str, ...]:
    if on is None:
        return ()
    return (on,) if isinstance(on, str) else tuple(on)


# ---------------------------------------------------------------- time


def _time(stream: "DataStream", side: str, where: str) -> specs.EventTime:
    if stream.event_time is None:
        why = stream._time.lost or "it was read without one"
        raise UserError(
            "P021",
            f"join: the {side} stream has no event time: {why}",
            where=where,
            fix=stream._time.keep or 'read it with event_time="column", or join over all of time without within=',
        )
    return stream.event_time


def _time_of_results(
    left: "DataStream",
    right: "DataStream",
    columns: Sequence[specs.JoinColumn],
    how: str,
    match: object,
    where: str,
) -> StreamTime:
    match match:
        case specs.WindowMatch() if left.event_time is not None:
            ended = specs.EventTime(column="window_end", unit=left.event_time.unit, offset_us=-1)
            return replace(left._time, event_time=ended)
        case specs.EverMatch():
            return StreamTime(
                kind="none",
                lost=f"join at {where} matches rows of any time",
                keep='join within a time: within=ps.interval("-1h", "0s")',
            )
        case specs.IntervalMatch() if how == "full":
            return StreamTime(
                kind="none",
                lost=f"full join at {where} has rows of either side alone",
                keep="join within a window, or as left or right join",
            )
        case specs.IntervalMatch() if how == "right" and right.event_time is not None:
            time = right.event_time
            name = next(column.name for column in columns if column.right == time.column)
            event_time = specs.EventTime(column=name, unit=time.unit, offset_us=time.offset_us)
            return replace(right._time, event_time=event_time)
    return left._time


def _signed(value: Duration, what: str, where: str) -> int:
    if isinstance(value, str) and value.strip().startswith(("-", "+")):
        text = value.strip()
        micros = duration(text[1:], what=what, where=where)
        return -micros if text[0] == "-" else micros
    return duration(value, what=what, where=where)


# ---------------------------------------------------------------- refusals


def _require_how(how: str, where: str) -> None:
    if how not in HOWS:
        guess = checks.nearest(str(how), HOWS)
        raise UserError(
            "P031",
            f"join: how={how!r} is none of {', '.join(HOWS)}",
            where=where,
            fix=f'did you mean "{guess}"?' if guess else 'how="inner"',
        )


def _only(how: str, possible: tuple[str, ...], what: str, where: str) -> None:
    if how not in possible:
        raise UserError(
            "P031",
            f'join: {what} cannot be how="{how}"',
            where=where,
            fix=f"how is one of {', '.join(possible)}; swap the sides for a right join",
        )


def _taken(name: str, where: str) -> UserError:
    return UserError(
        "P031",
        f'join: the result would have two columns "{name}"',
        where=where,
        fix='give another suffix="_other", or rename the column with select before the join',
    )
