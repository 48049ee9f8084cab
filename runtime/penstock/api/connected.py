"""Two streams that one function takes: `left.connect(right).process(Function())`."""

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, Unpack

from penstock.api import changes as updating
from penstock.api import function_verbs, places, processing
from penstock.api.building import OperatorOptions, Options
from penstock.model import specs
from penstock.model.errors import UserError
from penstock.operators.user_functions import BroadcastProcessFunction, CoProcessFunction

if TYPE_CHECKING:
    from penstock.api.streams import DataStream


class ConnectedStreams:
    """Two streams with their own columns; what is done with them can share state."""

    def __init__(self, left: "DataStream", right: "DataStream", *, where: str) -> None:
        if left._builder is not right._builder:
            raise _refused("the streams belong to different flows", where, fix="read both from the same flow")
        if isinstance(left._partitioning, specs.Broadcast):
            raise _refused(
                "rows of the first stream would go to every subtask", where, fix="stream.connect(rules.broadcast())"
            )
        for stream in (left, right):
            if stream.changes is not None:
                raise updating.refused("connect", stream.changes, where)
        self.broadcast = isinstance(right._partitioning, specs.Broadcast)
        """Rows of the second stream go to every subtask."""
        self._left, self._right = left, right
        self._keys = (_keys(left), ()) if self.broadcast else _matching_keys(left, right, where)

    def process(
        self,
        function: Any,
        *,
        output: Any = None,
        side_outputs: Mapping[str, Any] | None = None,
        on_error: str = "stop",
        **options: Unpack[OperatorOptions],
    ) -> "DataStream":
        """Call a `CoProcessFunction` with the rows of both, or a `BroadcastProcessFunction` when one is broadcast.

        When both streams are keyed, rows with equal keys share state and timers. A broadcast stream has no time of its
        own; else event time is the earlier one of both, or that of the stream that has one. See `DataStream.process`
        for the rest.
        """
        where = places.caller()
        chosen = Options(**options)
        left, right = self._left, self._right
        request = processing.ProcessRequest(
            function=function,
            output=output,
            side_outputs=side_outputs,
            on_error=on_error,
            name=left._builder.next_name("process", chosen),
            where=where,
        )
        if self.broadcast:
            fix = "class Judge(ps.BroadcastProcessFunction): with process and process_broadcast"
            called: Any = processing.instance_of(BroadcastProcessFunction, request, fix=fix)
            right = function_verbs.in_one_order(right, where=where)
        else:
            fix = "class Pair(ps.CoProcessFunction): with process_left and process_right; or broadcast() one stream"
            called = processing.instance_of(CoProcessFunction, request, fix=fix)
        spec, schema = processing.co_process_spec(request, called, (left, right), self._keys, broadcast=self.broadcast)
        timed = left if left.event_time is not None or self.broadcast else right
        return left._add(
            "process",
            spec,
            schema,
            chosen,
            where=where,
            time=timed._time_if_in(schema, "process", where),
            others=(right,),
            default_name=spec.function.name,
            sides=function_verbs.sides_of(timed, side_outputs, on_error, name=request.name, where=where),
        )


def _keys(stream: "DataStream") -> tuple[str, ...]:
    return stream._partitioning.keys if isinstance(stream._partitioning, specs.Hash) else ()


def _matching_keys(left: "DataStream", right: "DataStream", where: str) -> tuple[tuple[str, ...], tuple[str, ...]]:
    keys = _keys(left), _keys(right)
    if bool(keys[0]) != bool(keys[1]):
        raise _refused(
            f"the {'first' if keys[0] else 'second'} stream has keys, and the other has none",
            where,
            fix="key_by both by what belongs together; or broadcast() the second one",
        )
    types = [[stream.schema[key] for key in names] for stream, names in zip((left, right), keys, strict=True)]
    if types[0] != types[1]:
        shown = [", ".join(f"{key} {stream.schema[key]}" for key in _keys(stream)) for stream in (left, right)]
        raise _refused(
            f"the streams have different keys: {shown[0]}, and {shown[1]}",
            where,
            fix="as many keys on both sides, of the same types: with_columns(col(...).cast(...))",
        )
    return keys


def _refused(what: str, where: str, *, fix: str) -> UserError:
    return UserError("P045", f"connect: {what}", where=where, fix=fix)
