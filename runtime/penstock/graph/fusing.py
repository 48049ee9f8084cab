"""Fusing: neighbouring expressions become one operator, which runs them on a batch without going round the task."""

from dataclasses import replace

from penstock.graph._draft import Draft, Node
from penstock.model import specs
from penstock.model.ids import Uid

Step = specs.Select | specs.WithColumns | specs.Filter | specs.Explode


def fuse(draft: Draft) -> Draft:
    """Merge each expression into the one before it, when nobody else reads that one."""
    consumers = draft.consumers()
    nodes: dict[Uid, Node] = {}
    merged_into: dict[Uid, Uid] = {}
    for uid, node in draft.nodes.items():
        inputs = tuple(replace(input_, source=merged_into.get(input_.source, input_.source)) for input_ in node.inputs)
        before = nodes[inputs[0].source] if len(inputs) == 1 else None
        if (
            before is not None
            and _steps(node)
            and _steps(before)
            and draft.is_local(node, node.inputs[0])
            and not node.inputs[0].output
            and len(consumers[node.inputs[0].source]) == 1
        ):
            nodes[before.operator.uid] = replace(before, operator=_fused(before, node))
            merged_into[uid] = before.operator.uid
        else:
            nodes[uid] = replace(node, inputs=inputs)
    return Draft(nodes)


def _steps(node: Node) -> tuple[Step, ...]:
    match node.operator.spec:
        case specs.Fused(steps=steps):
            return steps
        case specs.Select() | specs.WithColumns() | specs.Filter() | specs.Explode() as step:
            return (step,)
    return ()


def _fused(before: Node, after: Node) -> specs.Operator:
    return specs.Operator(
        uid=before.operator.uid,
        name=f"{before.operator.name}, {after.operator.name}",
        spec=specs.Fused(steps=(*_steps(before), *_steps(after))),
        output=after.operator.output,
        place=before.operator.place,
    )
