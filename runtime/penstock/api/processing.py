"""Keyed process functions: from the user's object to the spec of its operator."""

from typing import Any

import polars as pl

from penstock.api import checks, functions, pickling
from penstock.model import schemas, specs
from penstock.model.errors import UserError
from penstock.operators import user_functions


def process_spec(
    function: Any,
    output: Any,
    *,
    keys: tuple[str, ...],
    schema: pl.Schema,
    event_time: specs.EventTime | None,
    on_error: str,
    tags: tuple[str, ...],
    name: str,
    where: str,
) -> tuple[specs.Process, pl.Schema]:
    """The operator for a `KeyedProcessFunction`, and the columns that it gives."""
    if isinstance(function, type):
        function = function()
    if not isinstance(function, user_functions.KeyedProcessFunction):
        raise UserError(
            "P016",
            f'operator "{name}": {function!r} is not a KeyedProcessFunction',
            where=where,
            fix="class Total(ps.KeyedProcessFunction): def process(self, ctx, price): ...",
        )
    description = user_functions.describe(function, where=where)
    what = f'operator "{name}": {type(function).__name__}'
    checks.require_columns(description.columns or (), schema, what=what, where=where)
    expiring = [state.name for state in description.states if state.ttl_by_event_time]
    if expiring and event_time is None:
        raise UserError(
            "P021",
            f'{what}: state "{expiring[0]}" lives by event time, and the stream has none',
            where=where,
            fix='keep the event-time column, or let it live by the clock: ttl("...", time="processing")',
        )
    method = function.process_batch if description.per_batch else function.process
    output_columns = functions.output_schema(method, output, many=True, name=name, where=where)
    spec = specs.Process(
        keys=keys,
        function=specs.Function(
            name=type(function).__name__,
            pickled=pickling.dump(function, name=name, where=where),
            columns=description.columns,
        ),
        per_batch=description.per_batch,
        states=description.states,
        event_time=event_time,
        output=schemas.fields(output_columns),
        on_error=on_error,
        tags=tags,
    )
    return spec, output_columns
