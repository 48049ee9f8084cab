"""Functions with state, on one stream or two: from the user's object to the spec of its operator.

Owns: which kind of function goes with which streams, and which states it may declare there.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, TypeVar

import polars as pl

from penstock.api import checks, functions, pickling
from penstock.model import schemas, specs
from penstock.model.errors import UserError
from penstock.operators import user_functions
from penstock.operators.operator_states import BroadcastState

if TYPE_CHECKING:
    from penstock.api.streams import DataStream

F = TypeVar("F", bound=user_functions.StatefulFunction)


@dataclass(frozen=True, slots=True, kw_only=True)
class ProcessRequest:
    """What the user wrote."""

    function: Any
    output: Any = None
    side_outputs: Mapping[str, Any] | None = None
    on_error: str = "stop"
    name: str
    """How messages call the operator."""
    where: str

    @property
    def tags(self) -> tuple[str, ...]:
        """Names of the side outputs that the function may use."""
        return tuple(self.side_outputs or ())


def process_spec(
    request: ProcessRequest, function: user_functions.StatefulFunction, stream: "DataStream", keys: tuple[str, ...]
) -> tuple[specs.Process, pl.Schema]:
    """The operator for a function of one stream, and the columns that it gives."""
    broadcast = isinstance(stream._partitioning, specs.Broadcast)
    described = _described(request, function, (stream,), keyed=bool(keys), broadcast=broadcast)
    output = _output(request, function, described)
    spec = specs.Process(
        keys=keys,
        function=_pickled(request, function, described.columns),
        per_batch=described.per_batch,
        states=described.states,
        event_time=stream.event_time,
        output=schemas.fields(output),
        on_error=request.on_error,
        tags=request.tags,
        broadcast=broadcast,
    )
    return spec, output


def co_process_spec(
    request: ProcessRequest,
    function: user_functions.StatefulFunction,
    streams: "tuple[DataStream, DataStream]",
    keys: tuple[tuple[str, ...], tuple[str, ...]],
    *,
    broadcast: bool,
) -> tuple[specs.CoProcess, pl.Schema]:
    """The operator for a function of two streams, and the columns that it gives."""
    described = _described(request, function, streams, keyed=bool(keys[0]), broadcast=broadcast)
    output = _output(request, function, described)
    left, right = (
        specs.ProcessInput(
            method=each.method,
            per_batch=each.per_batch,
            keys=names,
            columns=each.columns,
            event_time=stream.event_time,
        )
        for each, stream, names in zip(described.inputs, streams, keys, strict=True)
    )
    spec = specs.CoProcess(
        inputs=(left, right),
        broadcast=broadcast,
        function=_pickled(request, function, None),
        states=described.states,
        output=schemas.fields(output),
        on_error=request.on_error,
        tags=request.tags,
    )
    return spec, output


def instance_of(kind: type[F], request: ProcessRequest, *, fix: str) -> F:
    """The function, made if its class was given; refused when it is of another kind."""
    given = request.function
    function = given() if isinstance(given, type) and issubclass(given, user_functions.StatefulFunction) else given
    if not isinstance(function, kind):
        shown = type(function).__name__ if isinstance(function, user_functions.StatefulFunction) else repr(function)
        raise UserError(
            "P016", f'operator "{request.name}": {shown} is not a {kind.__name__}', where=request.where, fix=fix
        )
    return function


def _described(
    request: ProcessRequest,
    function: user_functions.StatefulFunction,
    streams: "Sequence[DataStream]",
    *,
    keyed: bool,
    broadcast: bool,
) -> user_functions.FunctionDescription:
    where, what = request.where, f'operator "{request.name}": {type(function).__name__}'
    described = user_functions.describe(function, where=where)
    for method, stream in zip(described.inputs, streams, strict=True):
        asking = what if len(streams) == 1 else f"{what}.{method.method}"
        checks.require_columns(method.columns or (), stream.schema, what=asking, where=where)
    by_key = user_functions.declared_states(function)
    if by_key and not keyed:
        raise UserError(
            "P046",
            f'{what}: state "{next(iter(by_key))}" is kept by key, and the rows have none',
            where=where,
            fix="key_by(...) first, or declare state of the operator: ps.OperatorListState, ps.UnionListState",
        )
    for name, state in user_functions.declared_operator_states(function).items():
        if isinstance(state, BroadcastState) and not broadcast:
            raise UserError(
                "P046",
                f'{what}: state "{name}" is the same in every subtask, and no rows come that go to every one',
                where=where,
                fix="stream.connect(rules.broadcast()).process(...) with a ps.BroadcastProcessFunction",
            )
    expiring = [state.name for state in described.states if state.ttl_by_event_time]
    timed = streams[:1] if broadcast else streams
    if expiring and all(stream.event_time is None for stream in timed):
        raise UserError(
            "P021",
            f'{what}: state "{expiring[0]}" lives by event time, and the stream has none',
            where=where,
            fix='keep the event-time column, or let it live by the clock: ttl("...", time="processing")',
        )
    return described


def _output(
    request: ProcessRequest, function: user_functions.StatefulFunction, described: user_functions.FunctionDescription
) -> pl.Schema:
    """The columns that a function gives: as told, or as one of its methods is annotated."""
    methods = [getattr(function, each.method) for each in described.inputs]
    for method in methods[:-1]:
        if request.output is None and functions.tells_output(method):
            return functions.output_schema(method, None, many=True, name=request.name, where=request.where)
    return functions.output_schema(methods[-1], request.output, many=True, name=request.name, where=request.where)


def _pickled(
    request: ProcessRequest, function: user_functions.StatefulFunction, columns: tuple[str, ...] | None
) -> specs.Function:
    return specs.Function(
        name=type(function).__name__,
        pickled=pickling.dump(function, name=request.name, where=request.where),
        columns=columns,
    )
