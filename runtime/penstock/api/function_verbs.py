"""The verbs that take a user's function: `map`, `flat_map`, `map_batches`, `map_async`, `process`.

Owns: from the function and its options to an operator of the graph, with its side outputs and its policy for rows
that fail.
"""

import inspect
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any

import polars as pl

from penstock.api import functions, processing, row_types
from penstock.api.building import Options
from penstock.api.times import SideStream, StreamTime
from penstock.api.windows import Duration
from penstock.model import schemas, specs
from penstock.model.durations import parse_duration
from penstock.model.errors import UserError
from penstock.operators import failures, user_functions
from penstock.operators.operator_states import BroadcastState

if TYPE_CHECKING:
    from penstock.api.streams import DataStream


def map_rows(
    stream: "DataStream",
    verb: str,
    function: Callable[..., Any],
    output: Any,
    options: Options,
    *,
    on_error: str,
    where: str,
) -> "DataStream":
    """`map` and `flat_map`."""
    flat = verb == "flat_map"
    name = stream._builder.next_name(verb, options)
    called = functions.per_record(function, stream.schema, name=name, where=where)
    schema = functions.output_schema(function, output, many=flat, name=name, where=where)
    sides = sides_of(stream, None, on_error, name=name, where=where)
    spec = specs.Map(function=called, flat=flat, output=schemas.fields(schema), on_error=on_error)
    time = stream._time_if_in(schema, verb, where)
    return stream._add(verb, spec, schema, options, where=where, time=time, default_name=called.name, sides=sides)


def map_batches(
    stream: "DataStream",
    function: Callable[[pl.DataFrame], pl.DataFrame],
    output: Any,
    options: Options,
    *,
    on_error: str,
    where: str,
) -> "DataStream":
    """`map_batches`."""
    name = stream._builder.next_name("map_batches", options)
    called = functions.per_batch(function, name=name, where=where)
    if output is None:
        raise UserError(
            "P016",
            f'operator "{name}": which columns {called.name} gives is not known',
            where=where,
            fix="give output=: a schema, or the stream's own .schema if they stay as they are",
        )
    schema = row_types.schema_of(output, where=where)
    sides = sides_of(stream, None, on_error, name=name, where=where)
    spec = specs.MapBatches(function=called, output=schemas.fields(schema), on_error=on_error)
    time = stream._time_if_in(schema, "map_batches", where)
    return stream._add(
        "map_batches", spec, schema, options, where=where, time=time, default_name=called.name, sides=sides
    )


def map_async(
    stream: "DataStream",
    function: Callable[..., Any],
    output: Any,
    options: Options,
    *,
    capacity: int,
    timeout: Duration,
    ordered: bool,
    retries: int,
    backoff: Duration,
    on_error: str,
    where: str,
) -> "DataStream":
    """`map_async`."""
    name = stream._builder.next_name("map_async", options)
    called = functions.per_record(function, stream.schema, name=name, where=where)
    if not any(map(inspect.iscoroutinefunction, (function, getattr(type(function), "__call__", None)))):  # noqa: B004
        raise UserError(
            "P016",
            f'operator "{name}": {called.name} is not asynchronous',
            where=where,
            fix="write `async def`; a call that blocks goes into a thread: `await asyncio.to_thread(call, ...)`",
        )
    timeout_us, backoff_us = (parse_duration(text, what="map_async") for text in (timeout, backoff))
    if capacity < 1 or retries < 0 or timeout_us <= 0 or backoff_us < 0:
        raise UserError(
            "P016",
            f'operator "{name}": capacity={capacity}, timeout={timeout}, retries={retries}, backoff={backoff}',
            where=where,
            fix="capacity is at least 1, timeout more than 0, retries and backoff not less than 0",
        )
    schema = functions.output_schema(function, output, many=True, name=name, where=where)
    sides = sides_of(stream, None, on_error, name=name, where=where)
    spec = specs.MapAsync(
        function=called,
        output=schemas.fields(schema),
        capacity=capacity,
        timeout_us=timeout_us,
        ordered=ordered,
        retries=retries,
        backoff_us=backoff_us,
        on_error=on_error,
    )
    time = stream._time_if_in(schema, "map_async", where)
    return stream._add(
        "map_async", spec, schema, options, where=where, time=time, default_name=called.name, sides=sides
    )


def process(
    stream: "DataStream",
    function: Any,
    output: Any,
    options: Options,
    *,
    side_outputs: Mapping[str, Any] | None,
    on_error: str,
    where: str,
) -> "DataStream":
    """`process` of one stream, with keys or without."""
    request = processing.ProcessRequest(
        function=function,
        output=output,
        side_outputs=side_outputs,
        on_error=on_error,
        name=stream._builder.next_name("process", options),
        where=where,
    )
    sides = sides_of(stream, side_outputs, on_error, name=request.name, where=where)
    called: user_functions.StatefulFunction
    if isinstance(stream._partitioning, specs.Hash):
        keys = stream._partitioning.keys
        fix = "class Total(ps.KeyedProcessFunction): def process(self, ctx, price): ..."
        called = processing.instance_of(user_functions.KeyedProcessFunction, request, fix=fix)
    else:
        keys = ()
        _require_no_key(function, where)
        fix = "class Numbered(ps.ProcessFunction): def process(self, ctx, price): ..."
        called = processing.instance_of(user_functions.ProcessFunction, request, fix=fix)
    spec, schema = processing.process_spec(request, called, stream, keys)
    if any(state.kind == BroadcastState.kind for state in spec.states):
        stream = in_one_order(stream, where=where)
    time = stream._time_if_in(schema, "process", where)
    return stream._add(
        "process", spec, schema, options, where=where, time=time, default_name=spec.function.name, sides=sides
    )


def in_one_order(stream: "DataStream", *, where: str) -> "DataStream":
    """The same rows for every subtask, through one: all subtasks get them in the same order."""
    spec = specs.Union(columns=tuple(stream.schema))
    options = Options(name="in one order", parallelism=1)
    gathered = stream._spread(specs.Forward())._add("gather", spec, stream.schema, options, where=where)
    return gathered.broadcast()


def _require_no_key(function: Any, where: str) -> None:
    kind = function if isinstance(function, type) else type(function)
    if issubclass(kind, user_functions.KeyedProcessFunction):
        raise UserError(
            "P005",
            "process: state is kept by key, and this stream has none",
            where=where,
            fix='key_by("column") first; or, for rows without keys, a ps.ProcessFunction',
        )


def sides_of(
    stream: "DataStream", declared: Mapping[str, Any] | None, on_error: str, *, name: str, where: str
) -> dict[str, SideStream]:
    """The side outputs of an operator: those that its function was given, and its dead letters."""
    if on_error not in failures.POLICIES:
        raise UserError(
            "P016",
            f'operator "{name}": on_error={on_error!r} is not a policy',
            where=where,
            fix='on_error="stop", "dead_letter" or "drop"',
        )
    sides = {}
    for tag, columns in (declared or {}).items():
        if not tag or tag == failures.DEAD_LETTERS:
            raise UserError(
                "P024",
                f'operator "{name}": a side output cannot be called "{tag}"',
                where=where,
                fix="use another name",
            )
        schema = row_types.schema_of(columns, where=where)
        sides[tag] = SideStream(schema, stream._time_if_in(schema, "side_output", where))
    if on_error == failures.DEAD_LETTER:
        time = StreamTime(kind="none", lost=f"dead letters of {name} have no event time")
        sides[failures.DEAD_LETTERS] = SideStream(failures.DEAD_LETTER_SCHEMA, time)
    return sides


def require_dead_letters(stream: "DataStream", *, where: str) -> None:
    """The operator before was told to put failed rows aside."""
    if failures.DEAD_LETTERS not in stream._sides:
        raise UserError(
            "P024",
            "dead_letters: the operator puts no failed rows aside",
            where=where,
            fix='tell it to: on_error="dead_letter"',
        )
