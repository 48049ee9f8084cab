"""`iterate`: a part of the program whose rows may go round again."""

from collections.abc import Callable
from dataclasses import replace
from typing import TYPE_CHECKING

from penstock.api import checks
from penstock.api.building import Options
from penstock.api.times import StreamTime
from penstock.model import specs
from penstock.model.errors import UserError

if TYPE_CHECKING:
    from penstock.api.streams import DataStream

Body = Callable[["DataStream"], "tuple[DataStream, DataStream]"]


def iterate(stream: "DataStream", body: Body, options: Options, *, where: str) -> "DataStream":
    """Head, what the body makes of its rows, tail; goes on with what leaves the loop."""
    if isinstance(stream._partitioning, specs.Broadcast):
        raise _mistake("every subtask would send every row round", where, "broadcast inside the loop, or behind it")
    columns = tuple(stream.schema.names())
    inside = stream._add(
        "iterate",
        specs.LoopHead(columns=columns),
        stream.schema,
        options,
        where=where,
        time=StreamTime(
            kind="processing" if stream._time.kind == "processing" else "none",
            lost=f"in the loop at {where} a row may come round at any time",
            keep='take the window before the loop, or read with time="processing" to go by the clock',
        ),
    )
    made: object = body(inside)
    if not (isinstance(made, tuple) and len(made) == 2 and all(isinstance(each, type(inside)) for each in made)):
        raise _mistake(
            f"the body returned {made!r}, not two streams",
            where,
            "return feedback, result: the rows that go round again, and those that leave",
        )
    feedback: DataStream = made[0]
    result: DataStream = made[1]
    builder = stream._builder
    if not builder.leads_to(inside._uid, feedback._uid):
        raise _mistake("the feedback does not come from the loop", where, "derive it from the body's argument")
    checks.require_same_columns(inside.schema, feedback.schema, "the feedback", verb="iterate", where=where)
    tail = specs.LoopTail(head=inside._uid, columns=columns)
    named = replace(options, uid=f"{inside._uid}-tail", name=None)
    feedback._add("feedback", tail, inside.schema, named, where=where)
    return result


def _mistake(what: str, where: str, fix: str) -> UserError:
    return UserError("P025", f"iterate: {what}", where=where, fix=fix)
