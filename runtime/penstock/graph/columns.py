"""Column push-down: sources read, and exchanges carry, only what somebody downstream looks at.

One pass from sinks to sources collects which columns are needed, one back rebuilds the operators for the columns
that are left. Whoever takes whole rows (sinks, functions without named columns) needs everything.
"""

import io
from collections import defaultdict
from dataclasses import replace

import msgspec
import polars as pl

from penstock.graph._draft import Draft, Input, Node
from penstock.model import specs
from penstock.model.changes import CHANGE
from penstock.model.ids import Uid
from penstock.model.specs import Expression, Schema

_KEEP_ROWS = (specs.Join, specs.CoGroup, specs.Deduplicate, specs.TopN, specs.BufferedWindow)
"""Operators whose state is rows of their input."""


def push_down(draft: Draft) -> Draft:
    """The same graph with narrower rows."""
    draft = _without_unread_sides(draft)
    needed: dict[Uid, set[str]] = defaultdict(set)
    for uid, node in reversed(draft.nodes.items()):
        needed[uid] |= _change_columns(node.operator)
        for input_ in node.inputs:
            wanted = columns_needed(node.operator, draft.schema(input_), needed[uid], input_.port)
            if input_.output == specs.MAIN_OUTPUT:
                needed[input_.source] |= wanted | _routing_columns(input_)
    narrowed = Draft()
    for uid, node in draft.nodes.items():
        inputs = [narrowed.schema(input_) for input_ in node.inputs]
        operator = _narrowed(node.operator, inputs[0] if inputs else (), needed[uid])
        narrowed.nodes[uid] = replace(node, operator=operator)
    return narrowed


def _without_unread_sides(draft: Draft) -> Draft:
    """Nobody has to make, or read input for, a side output that nobody reads."""
    read = {(input_.source, input_.output) for node in draft.nodes.values() for input_ in node.inputs}
    nodes = dict(draft.nodes)
    for uid, node in draft.nodes.items():
        sides = node.operator.side_outputs
        kept = tuple(side for side in sides if (uid, side.name) in read)
        if len(kept) < len(sides):
            nodes[uid] = replace(node, operator=msgspec.structs.replace(node.operator, side_outputs=kept))
    return Draft(nodes)


def narrow_exchanges(draft: Draft) -> Draft:
    """Drop columns before an exchange that only operators on the sending side needed.

    And before an operator that keeps rows, also where there is no exchange: its state has the same columns at every
    parallelism.
    """
    nodes: dict[Uid, Node] = {}
    needed = {uid: {field.name for field in node.operator.output} for uid, node in draft.nodes.items()}
    for uid, node in draft.nodes.items():
        inputs = []
        for input_ in node.inputs:
            sender = draft.nodes[input_.source]
            given = draft.schema(input_)
            wanted = columns_needed(node.operator, given, needed[uid], input_.port)
            kept = _kept(given, wanted | _routing_columns(input_))
            crosses = isinstance(node.operator.spec, _KEEP_ROWS) or not draft.is_local(node, input_)
            if not crosses or len(kept) == len(given):
                inputs.append(input_)
                continue
            select = _selection(Uid(f"{uid}-columns-{input_.port}"), sender, input_.output, kept)
            nodes[select.operator.uid] = select
            inputs.append(replace(input_, source=select.operator.uid, output=specs.MAIN_OUTPUT))
        nodes[uid] = replace(node, inputs=tuple(inputs))
    return Draft(nodes)


def columns_needed(operator: specs.Operator, input_: Schema, needed: set[str], port: int = 0) -> set[str]:
    """Columns that an operator looks at of the input at `port`, when `needed` of its output are looked at."""
    everything = {field.name for field in input_}
    match operator.spec:
        case specs.Select(expressions=expressions):
            return _roots([made for made in expressions if made.name in needed] or expressions[:1], everything)
        case specs.WithColumns(expressions=expressions):
            # A column that is replaced is still needed: it gives the new one its place among the others.
            made = [expression for expression in expressions if expression.name in needed]
            return (needed & everything) | _roots(made, everything)
        case specs.Filter(predicate=predicate):
            return needed | _roots([predicate], everything)
        case specs.Explode(columns=columns):
            return needed | set(columns)
        case specs.Retract():
            return needed
        case specs.Deduplicate() as dedup:
            return needed | set(dedup.keys) | _time_column(dedup.event_time)
        case specs.TopN() as top:
            changes = {CHANGE} if top.updating else set()
            return changes | (needed & everything) | {*top.keys, *top.by} | _time_column(top.event_time)
        case specs.Lookup() as lookup:
            taken = {column.left for column in lookup.columns if column.left and column.name in needed}
            return taken | set(lookup.on)
        case specs.Join() as join:
            return _join_columns(join, needed, port)
        case specs.Union(columns=columns):
            return {column for column in columns if column in needed} or set(columns[:1])
        case (
            specs.Map(on_error="dead_letter")
            | specs.MapAsync(on_error="dead_letter")
            | specs.Process(on_error="dead_letter")
            | specs.CoProcess(on_error="dead_letter")
        ):
            return everything  # a dead letter holds the whole row
        case (
            specs.Map(function=specs.Function(columns=tuple(columns)))
            | specs.MapAsync(function=specs.Function(columns=tuple(columns)))
        ):
            return set(columns)
        case specs.WindowAggregate() | specs.SessionAggregate() if operator.side_outputs:
            return everything  # late rows leave as they came
        case specs.WindowAggregate(input_is_partial=False) | specs.Combine() | specs.SessionAggregate() as window:
            inputs = [value for each in window.aggregates for value in (each.input, each.by) if value is not None]
            inputs += [window.gap] if isinstance(window, specs.SessionAggregate) and window.gap is not None else []
            return set(window.keys) | _time_column(window.event_time) | _roots(inputs, everything)
        case specs.RunningAggregate() as running:
            inputs = [value for each in running.aggregates for value in (each.input, each.by) if value is not None]
            times = _time_column(running.event_time) | _time_column(running.ttl.event_time if running.ttl else None)
            changes = {CHANGE} if running.updating else set()
            return changes | set(running.keys) | times | _roots(inputs, everything)
        case specs.Process(function=specs.Function(columns=tuple(columns))) as process:
            return set(process.keys) | set(columns) | _time_column(process.event_time)
        case specs.CoProcess(inputs=sides) if (named := sides[port].columns) is not None:
            return {*sides[port].keys, *named} | _time_column(sides[port].event_time)
    return everything


def _narrowed(operator: specs.Operator, input_: Schema, needed: set[str]) -> specs.Operator:
    spec, output = operator.spec, operator.output
    match spec:
        case specs.Source(event_time=event_time, ingestion_column=added):
            read = tuple(field for field in output if field.name != added)
            wanted = needed | (_time_column(event_time) if added is None else set())
            wanted |= _watermark_columns(spec.watermarks, {field.name for field in read})
            kept = _kept(read, wanted)
            if len(kept) < len(read):
                spec = msgspec.structs.replace(spec, columns=tuple(field.name for field in kept))
            output = (*kept, *(field for field in output if field.name == added))
        case specs.Select():
            output = _kept(output, needed)
            spec = specs.Select(expressions=_made(spec.expressions, output))
        case specs.WithColumns():
            made = tuple(expression for expression in spec.expressions if expression.name in needed)
            spec = specs.WithColumns(expressions=made)
            passed_on = {field.name for field in input_} | {expression.name for expression in made}
            output = tuple(field for field in output if field.name in passed_on)
        case specs.Filter() | specs.Retract():
            output = input_
        case specs.Deduplicate():
            changes = tuple(field for field in output if field.name == CHANGE)
            output = (*changes, *input_)
        case specs.TopN():
            passed_on = {field.name for field in input_}
            passed_on |= {CHANGE, "window_start", "window_end", spec.rank or ""}
            output = tuple(field for field in output if field.name in passed_on)
            spec = msgspec.structs.replace(spec, output=output)
        case specs.Lookup():
            output = _kept(output, needed)
            names = {field.name for field in output}
            columns = tuple(column for column in spec.columns if column.name in names)
            spec = msgspec.structs.replace(spec, columns=columns, output=output)
        case specs.Join():
            output = _kept(output, needed)
            names = {field.name for field in output}
            columns = tuple(column for column in spec.columns if column.name in names)
            spec = msgspec.structs.replace(spec, columns=columns, output=output)
        case specs.Explode():
            output = _kept(output, {field.name for field in input_})
        case specs.Union():
            output = _kept(output, needed)
            spec = specs.Union(columns=tuple(field.name for field in output))
    return msgspec.structs.replace(operator, spec=spec, output=output)


def _kept(schema: Schema, needed: set[str]) -> Schema:
    """The needed columns in their order; at least one, since rows without columns cannot be counted."""
    return tuple(field for field in schema if field.name in needed) or schema[:1]


def _made(expressions: tuple[Expression, ...], output: Schema) -> tuple[Expression, ...]:
    names = {field.name for field in output}
    return tuple(expression for expression in expressions if expression.name in names)


def _roots(expressions: list[Expression] | tuple[Expression, ...], everything: set[str]) -> set[str]:
    roots: set[str] = set()
    for expression in expressions:
        expr = pl.Expr.deserialize(io.BytesIO(expression.polars))
        # An expression over a selection of columns does not say which: it may need all.
        roots |= everything if expr.meta.has_multiple_outputs() else set(expr.meta.root_names())
    return roots


def _join_columns(join: specs.Join, needed: set[str], port: int) -> set[str]:
    """Keys, time and what is needed of a side; what each row does where the side updates."""
    wanted = [column for column in join.columns if column.name in needed] or join.columns[:1]
    taken = {column.right if port else column.left for column in wanted} - {None}
    time = _time_column(join.right_time if port else join.left_time)
    changes = set()
    if isinstance(join.match, specs.EverMatch):
        ttl = join.match.right_ttl if port else join.match.left_ttl
        time |= _time_column(ttl.event_time if ttl else None)
        changes = {CHANGE} if (join.match.right_changes if port else join.match.left_changes) else set()
    return {*(join.right_on if port else join.left_on), *filter(None, taken), *time, *changes}


def _change_columns(operator: specs.Operator) -> set[str]:
    """Columns without which the rows of an updating operator mean nothing."""
    return {CHANGE, *(operator.changes.keys or ())} if operator.changes is not None else set()


def _time_column(event_time: specs.EventTime | None) -> set[str]:
    return {event_time.column} if event_time is not None else set()


def _watermark_columns(strategy: specs.WatermarkStrategy, everything: set[str]) -> set[str]:
    """Columns that tell a source how far time has come."""
    match strategy:
        case specs.BoundedDelay():
            return set()
        case specs.Punctuated(expression=expression):
            return _roots([expression], everything)
        case specs.Generated(generator=generator):
            return everything if generator.columns is None else set(generator.columns)


def _routing_columns(input_: Input) -> set[str]:
    """Columns that the exchange itself looks at."""
    return set(input_.partitioning.keys) if isinstance(input_.partitioning, specs.Hash) else set()


def _selection(uid: Uid, sender: Node, output: str, kept: Schema) -> Node:
    expressions = tuple(
        Expression(name=field.name, text=field.name, polars=pl.col(field.name).meta.serialize()) for field in kept
    )
    operator = specs.Operator(
        uid=uid,
        name="columns",
        spec=specs.Select(expressions=expressions),
        output=kept,
        place=sender.operator.place,
    )
    forward = Input(source=sender.operator.uid, port=0, partitioning=specs.Forward(), output=output)
    return Node(operator=operator, parallelism=sender.parallelism, inputs=(forward,))
