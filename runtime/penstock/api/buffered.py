"""Windows that keep their rows, from what a user wrote: which trigger, which evictor, and whether results change."""

from typing import TYPE_CHECKING, Any

import polars as pl

from penstock.api import changes as updating
from penstock.api import functions
from penstock.api.building import Options
from penstock.api.windows import CountWindows, Sessions, WindowAssigner
from penstock.model import schemas, specs
from penstock.model.errors import UserError

if TYPE_CHECKING:
    from penstock.api.streams import DataStream
    from penstock.api.windowed import WindowedStream

Specified = specs.Tumbling | specs.Sliding | specs.GlobalWindow | specs.SessionWindow | specs.CustomWindow


def add(
    window: "WindowedStream",
    made: dict[str, pl.DataType],
    options: Options,
    *,
    where: str,
    verb: str,
    **function: Any,
) -> "DataStream":
    """Add the operator; `made` are the columns of the function's results."""
    schema = window._key_and_window_columns(where)
    for column in made:
        if column in schema:
            raise UserError(
                "P020",
                f'{verb}: the result has a column "{column}" already',
                where=where,
                fix="results have the keys and the window's start and end in front: choose other names",
            )
    schema |= made
    if not window._keys:
        options = window._single(options, where)
    trigger, evictor = _trigger(window, options, where), _evictor(window, where)
    changes = None
    if verb != "apply" and _fires_again(window, trigger):
        changes = specs.Changes(keys=(*window._keys, "window_start", "window_end"))
    output = updating.wire_schema(pl.Schema(schema), changes)
    spec = specs.BufferedWindow(
        keys=window._keys,
        assigner=_assigner(window, options, where),
        trigger=trigger,
        evictor=evictor,
        event_time=window._event_time,
        allowed_lateness_us=window._lateness_us,
        late_to=window._late_to,
        updating=changes is not None,
        output=schemas.fields(output),
        **function,
    )
    return window._stream._add(
        "window",
        spec,
        pl.Schema(schema),
        options,
        where=where,
        time=window._time_of_results(schema),
        sides=window._sides,
        changes=changes,
    )


def _assigner(window: "WindowedStream", options: Options, where: str) -> Specified:
    match window._assigner:
        case CountWindows():
            return specs.GlobalWindow()
        case Sessions() as sessions:
            gap = sessions.gap_in_us(window._stream.schema, where=where)
            return specs.SessionWindow(gap_us=sessions.gap_us, gap=gap)
        case WindowAssigner() as own:
            name = options.name or options.uid or type(own).__name__
            return specs.CustomWindow(function=functions.instance(own, name=name, where=where))
        case assigner:
            return assigner


def _trigger(window: "WindowedStream", options: Options, where: str) -> specs.Trigger:
    call = window._trigger
    if isinstance(window._assigner, CountWindows):
        if call is not None or window._evictor is not None:
            raise UserError(
                "P026",
                "count_window: has a trigger and an evictor of its own",
                where=where,
                fix="window(ps.global_window()).trigger(...).evict(...)",
            )
        counted = window._assigner
        return specs.Trigger(kind="count", count=counted.every or counted.rows, purging=counted.every is None)
    if isinstance(window._assigner, specs.GlobalWindow) and (call is None or call.spec.kind == "processing_time"):
        raise UserError(
            "P026",
            "global_window: the window never ends, so without a trigger it never fires",
            where=where,
            fix=".trigger(ps.trigger.count(1000))",
        )
    if call is None:
        return specs.Trigger()
    return call.resolve(window._stream.schema, name=options.name or options.uid or "trigger", where=where)


def _evictor(window: "WindowedStream", where: str) -> specs.Evictor | None:
    match window._assigner:
        case CountWindows(every=int(), rows=rows):
            return specs.Evictor(kind="count", count=rows)
    return None if window._evictor is None else window._evictor.resolve(window._stream.schema, where=where)


def _fires_again(window: "WindowedStream", trigger: specs.Trigger) -> bool:
    """Whether a window of time may give a result for the second time."""
    if isinstance(window._assigner, specs.GlobalWindow | CountWindows) or trigger.purging:
        return False
    return trigger.kind != "event_time" or window._lateness_us > 0
