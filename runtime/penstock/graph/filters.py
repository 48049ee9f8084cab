"""Filters right behind a source are shown to it, so that it can leave rows out while it decodes them.

The filters stay where they are: what a source does with them is its own affair, and a source that ignores them, or
cannot evaluate one, changes nothing but speed. Sources with event time are not told: rows that a filter drops still
say how far time has come.
"""

import msgspec

from penstock.graph._draft import Draft, Node
from penstock.model import specs
from penstock.model.ids import Uid


def show_filters(draft: Draft) -> Draft:
    """Every source with the conditions that all of its rows must meet further on."""
    consumers = draft.consumers()
    nodes = dict(draft.nodes)
    for uid, node in draft.nodes.items():
        spec = node.operator.spec
        if isinstance(spec, specs.Source) and spec.event_time is None:
            predicates = tuple(_conditions(draft, consumers, uid))
            nodes[uid] = _with_spec(node, msgspec.structs.replace(spec, predicates=predicates))
    return Draft(nodes)


def _conditions(draft: Draft, consumers: dict[Uid, list[Uid]], uid: Uid) -> list[specs.Expression]:
    found = []
    while len(readers := consumers.get(uid, [])) == 1:
        (uid,) = readers
        spec, inputs = draft.nodes[uid].operator.spec, draft.nodes[uid].inputs
        if not isinstance(spec, specs.Filter) or any(input_.output for input_ in inputs):
            break
        found.append(spec.predicate)
    return found


def _with_spec(node: Node, spec: specs.Source) -> Node:
    operator = msgspec.structs.replace(node.operator, spec=spec)
    return Node(operator=operator, parallelism=node.parallelism, inputs=node.inputs)
