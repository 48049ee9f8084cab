"""What the state of an operator depends on, as plain data that two versions of a program can be compared by.

Code is no part of it: a function may change, what it declares may not, or only by the rules of `evolution`.
"""

from collections.abc import Iterator, Mapping
from typing import Any, Final

import msgspec

from penstock.graph import JobGraph
from penstock.model import specs
from penstock.model.ids import Uid

_STATELESS: Final = (
    specs.Select | specs.WithColumns | specs.Filter | specs.Explode | specs.Fused | specs.Union | specs.Map
    | specs.MapBatches | specs.Combine | specs.ApplyResults | specs.LoopHead | specs.LoopTail | specs.Lookup
)  # fmt: skip

_NOT_STATE: Final = frozenset(
    {
        "pickled", "polars", "output", "allowed_lateness_us", "late_to", "updating", "capacity", "cache_rows",
        "cache_us", "timeout_us", "retries", "backoff_us", "on_error", "made", "columns", "ttl", "left_ttl",
        "right_ttl", "input_is_partial", "rank", "ordered",
    }
)  # fmt: skip
"""Fields of descriptions that may change while the state stays."""


_LOOKED_AT: Final = "columns of its input"
"""Of operators that keep values, not rows: what else comes with these depends on the exchange in front of them."""


def operators_of(graph: JobGraph) -> Iterator[tuple[specs.Operator, int]]:
    """All operators of a job, with their parallelism."""
    for vertex in graph.vertices:
        for link in vertex.chain:
            yield link.operator, vertex.parallelism


def shapes(graph: JobGraph) -> dict[Uid, dict[str, Any]]:
    """The shape of each operator."""
    inputs = inputs_of(graph)
    return {operator.uid: _shape(operator.spec, inputs[operator.uid]) for operator, _ in operators_of(graph)}


def without_code(value: Any) -> Any:
    """Plain data without the bytes that only slots open."""
    match value:
        case dict():
            return {key: "" if key in ("pickled", "polars") else without_code(held) for key, held in value.items()}
        case list() | tuple():
            return [without_code(held) for held in value]
    return value


def differences(old: Any, new: Any, place: str = "") -> Iterator[str]:
    """What is not the same, each on a line for people."""
    match old, new:
        case dict(), dict():
            in_both = place.startswith(_LOOKED_AT)
            for key in sorted(old.keys() & new.keys() if in_both else old.keys() | new.keys()):
                yield from differences(old.get(key), new.get(key), f"{place}.{key}" if place else key)
        case list(), list() if len(old) == len(new):
            for number, (one, other) in enumerate(zip(old, new, strict=True)):
                yield from differences(one, other, f"{place}[{number}]")
        case _ if old != new:
            yield f"{place}: {_shown(old)} -> {_shown(new)}"


def _shape(spec: specs.OperatorSpec, inputs: Mapping[str, Any]) -> dict[str, Any]:
    match spec:
        case specs.Source(connector=connector) | specs.Sink(connector=connector):
            return {"connector": connector.kind}
        case specs.Process(keys=keys):
            return {"keys": [inputs["0"].get(key, "") for key in keys]}
        case specs.CoProcess(inputs=both):
            return {"keys": [inputs["0"].get(key, "") for key in both[0].keys]}
        case _ if isinstance(spec, _STATELESS):
            return {}
    plain = msgspec.to_builtins(spec)
    columns = _LOOKED_AT if isinstance(spec, specs.RunningAggregate) else "inputs"
    return {**_reduced(plain), columns: {port: dict(schema) for port, schema in inputs.items()}}


def _reduced(value: Any) -> Any:
    match value:
        case dict():
            return {key: _reduced(held) for key, held in value.items() if key not in _NOT_STATE}
        case list() | tuple():
            return [_reduced(held) for held in value]
    return value


def inputs_of(graph: JobGraph) -> dict[Uid, dict[str, dict[str, str]]]:
    """Columns of each input of each operator. A pre-aggregation passes for what is in front of it."""
    found: dict[Uid, dict[str, dict[str, str]]] = {}
    seen: dict[Uid, dict[str, str]] = {}
    heads = {vertex.id: vertex.chain[0].operator.uid for vertex in graph.vertices}
    by_id = {vertex.id: vertex for vertex in graph.vertices}

    def passed_on(operator: specs.Operator, output: str) -> dict[str, str]:
        if isinstance(operator.spec, specs.Combine):
            return seen.get(operator.uid, {})
        return {field.name: field.type for field in operator.schema_of(output)}

    for _ in graph.vertices:
        for vertex in graph.vertices:
            for edge in graph.edges:
                if edge.target == vertex.id:
                    source = by_id[edge.source].chain[edge.producer].operator
                    found.setdefault(heads[vertex.id], {})[str(edge.port)] = passed_on(source, edge.output)
            for link in vertex.chain:
                ports = found.setdefault(link.operator.uid, {})
                if link.parent is not None:
                    ports["0"] = passed_on(vertex.chain[link.parent].operator, link.output)
                seen[link.operator.uid] = ports.setdefault("0", {})
    return found


def _shown(value: Any) -> str:
    return "nothing" if value is None else msgspec.json.encode(value).decode()
