"""Pre-aggregation: partial results are made before the exchange, so that few rows travel instead of many."""

from dataclasses import replace

import msgspec

from penstock.graph._draft import Draft, Input, Node
from penstock.model import schemas, specs
from penstock.model.ids import Uid


def insert_combines(draft: Draft) -> Draft:
    """Put a Combine on the sending side of every event-time window that gains from one.

    A window in one subtask aggregates just as well itself when its rows come from there too. One without a key gets
    a Combine as soon as several subtasks send: it would otherwise see every row of theirs. Windows by the clock
    cannot be cut before the exchange: their time is when a row arrives.
    """
    nodes: dict[Uid, Node] = {}
    for uid, node in draft.nodes.items():
        spec = node.operator.spec
        # Late rows leave as they came, so they must come as they are.
        late_rows = bool(node.operator.side_outputs)
        if isinstance(spec, specs.WindowAggregate) and spec.event_time is not None and not late_rows:
            (input_,) = node.inputs
            if not _gains(node, nodes[input_.source]):
                nodes[uid] = node
                continue
            combine = _combine(node, spec, spec.event_time, nodes[input_.source], input_.output)
            nodes[combine.operator.uid] = combine
            operator = msgspec.structs.replace(
                node.operator, spec=msgspec.structs.replace(spec, input_is_partial=True)
            )
            node = replace(node, operator=operator, inputs=(_reading(input_, combine),))
        nodes[uid] = node
    return Draft(nodes)


def _gains(window: Node, sender: Node) -> bool:
    return window.parallelism > 1 or sender.parallelism > 1


def _reading(input_: Input, combine: Node) -> Input:
    return replace(input_, source=combine.operator.uid, output=specs.MAIN_OUTPUT)


def _combine(
    window: Node, spec: specs.WindowAggregate, event_time: specs.EventTime, sender: Node, output: str
) -> Node:
    # Imported here: the kernels of aggregates are heavy, and whoever only reads graphs needs none of them.
    from penstock.operators.aggregates import partial_schema

    given = schemas.polars_schema(sender.operator.schema_of(output))
    partial = partial_schema(spec.keys, spec.aggregates, given, event_time)
    operator = specs.Operator(
        uid=Uid(f"{window.operator.uid}-combine"),
        name=f"{window.operator.name} (combine)",
        spec=specs.Combine(keys=spec.keys, assigner=spec.assigner, aggregates=spec.aggregates, event_time=event_time),
        output=schemas.fields(partial),
        place=window.operator.place,
    )
    forward = Input(source=sender.operator.uid, port=0, partitioning=specs.Forward(), output=output)
    return Node(operator=operator, parallelism=sender.parallelism, inputs=(forward,))
