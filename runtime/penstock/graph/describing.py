"""Operators and edges in a few words, for drawings of a graph."""

from penstock.model import specs
from penstock.model.durations import format_duration
from penstock.model.specs import Expression, Schema

_MAX_WIDTH = 96
"""Longer descriptions are cut: a drawing shows what an operator does, not all of it."""


def describe(operator: specs.Operator) -> list[str]:
    """What the operator does, a line per step."""
    return [_cut(line) for line in _lines(operator.spec)]


def own_name(operator: specs.Operator) -> str:
    """The operator's name when it says more than what it does anyway."""
    verbs = [line.partition(" ")[0] for line in _lines(operator.spec)]
    return "" if operator.name.split(", ") == verbs else operator.name


def partitioning(how: specs.Partitioning) -> str:
    """How rows are spread over the receiving subtasks."""
    match how:
        case specs.Hash(keys=keys):
            return f"hash({', '.join(keys)})"
        case _:
            return type(how).__name__.lower()


def output(name: str) -> str:
    """Which output of an operator an edge reads; nothing to say for the main one."""
    return f' side output "{name}"' if name else ""


def columns(schema: Schema) -> str:
    """Names and types."""
    return _cut(", ".join(f"{field.name}: {field.type}" for field in schema))


def _lines(spec: specs.OperatorSpec) -> list[str]:
    match spec:
        case specs.Source():
            return [f"read {_connector(spec.connector)}{_source_time(spec)}"]
        case specs.Sink():
            return [f"write {_connector(spec.connector)}"]
        case specs.Fused(steps=steps):
            return [line for step in steps for line in _lines(step)]
        case specs.Select(expressions=expressions):
            return [f"select {', '.join(map(_expression, expressions))}"]
        case specs.WithColumns(expressions=expressions):
            return [f"with_columns {', '.join(map(_expression, expressions))}"]
        case specs.Filter(predicate=predicate):
            return [f"filter {predicate.text}"]
        case specs.Explode(columns=names):
            return [f"explode {', '.join(names)}"]
        case specs.Union():
            return ["union"]
        case specs.LoopHead():
            return ["iterate"]
        case specs.LoopTail(head=head):
            return [f"feedback to {head}"]
        case specs.Map(function=function, flat=flat):
            return [f"{'flat_map' if flat else 'map'} {_function(function)}"]
        case specs.MapAsync(function=function):
            return [f"map_async {_function(function)}"]
        case specs.MapBatches(function=function):
            return [f"map_batches {function.name}"]
        case specs.Process(function=function, keys=keys):
            return [f"process {_function(function)}{_by(keys)}"]
        case specs.CoProcess():
            return [f"process {_two_inputs(spec)}{_by(spec.keys)}"]
        case specs.Join():
            return [f"join {_join(spec)}"]
        case specs.CoGroup(join=join, function=function):
            return [f"co_group {function.name} {_join(join)}"]
        case specs.Lookup(function=function, on=on, how=how):
            return [f"join {how} with {function.name}({', '.join(on)})"]
        case specs.Deduplicate(keys=keys, keep=keep):
            return [f"deduplicate {keep} by {', '.join(keys)}"]
        case specs.TopN(keys=keys, n=n, by=by):
            each = f" of each {', '.join(keys)}" if keys else ""
            return [f"top_n {n} by {', '.join(by)}{each}"]
        case specs.Retract(keys=keys):
            return [f"retract by {', '.join(keys)}" if keys else "retract"]
        case specs.RunningAggregate(keys=keys, aggregates=aggregates):
            of_each = f" by {', '.join(keys)}" if keys else ""
            return [f"aggregate {', '.join(map(_aggregate, aggregates))}{of_each}"]
        case specs.Combine():
            return [f"combine {_window(spec)}"]
        case specs.WindowAggregate():
            return [f"{'merge' if spec.input_is_partial else 'aggregate'} {_window(spec)}{_lateness(spec)}"]
        case specs.BufferedWindow():
            return [_buffered(spec)]
        case specs.ApplyResults(function=function):
            return [f"apply {function.name}"]
        case specs.SessionAggregate():
            return [f"aggregate {_window(spec)}{_lateness(spec)}"]


def _two_inputs(spec: specs.CoProcess) -> str:
    left, right = (", ".join(input_.columns if input_.columns is not None else ("row",)) for input_ in spec.inputs)
    return f"{spec.function.name}({left} {'with broadcast' if spec.broadcast else 'and'} {right})"


def _by(keys: tuple[str, ...]) -> str:
    return f" by {', '.join(keys)}" if keys else ""


def _lateness(spec: specs.WindowAggregate | specs.SessionAggregate) -> str:
    return f", {format_duration(spec.allowed_lateness_us)} late" if spec.allowed_lateness_us else ""


def _window(spec: specs.WindowAggregate | specs.Combine | specs.SessionAggregate) -> str:
    match spec:
        case specs.SessionAggregate(gap=None, gap_us=gap):
            shape = f"sessions {format_duration(gap)} apart"
        case specs.SessionAggregate(gap=specs.Expression(text=text)):
            shape = f"sessions {text} apart"
        case specs.WindowAggregate(assigner=assigner) | specs.Combine(assigner=assigner):
            shape = _shape(assigner)
    keys = f" by {', '.join(spec.keys)}" if spec.keys else ""
    return f"{', '.join(map(_aggregate, spec.aggregates))} in {shape}{keys}"


def _buffered(spec: specs.BufferedWindow) -> str:
    function = spec.reduce or spec.apply
    verb = "reduce" if spec.reduce else "apply"
    what = f"{verb} {function.name}" if function else f"aggregate {', '.join(map(_aggregate, spec.aggregates))}"
    keys = f" by {', '.join(spec.keys)}" if spec.keys else ""
    evicted = f", evicting by {spec.evictor.kind}" if spec.evictor else ""
    return f"{what} in {_shape(spec.assigner)}{keys}, fired by {spec.trigger.kind}{evicted}"


def _shape(
    assigner: specs.Tumbling | specs.Sliding | specs.GlobalWindow | specs.SessionWindow | specs.CustomWindow,
) -> str:
    match assigner:
        case specs.GlobalWindow():
            return "one window"
        case specs.SessionWindow(gap=gap, gap_us=gap_us):
            return f"sessions {gap.text if gap else format_duration(gap_us)} apart"
        case specs.CustomWindow(function=function):
            return f"windows of {function.name}"
        case specs.Tumbling(size_us=size):
            return f"tumbling {format_duration(size)}"
        case specs.Sliding(size_us=size, slide_us=slide):
            return f"sliding {format_duration(size)} every {format_duration(slide)}"


def _join(spec: specs.Join) -> str:
    pairs = zip(spec.left_on, spec.right_on, strict=True)
    on = ", ".join(left if left == right else f"{left} = {right}" for left, right in pairs)
    match spec.match:
        case specs.WindowMatch(assigner=specs.Tumbling(size_us=size)):
            when = f" in tumbling {format_duration(size)}"
        case specs.WindowMatch(assigner=specs.Sliding(size_us=size, slide_us=slide)):
            when = f" in sliding {format_duration(size)} every {format_duration(slide)}"
        case specs.IntervalMatch(lower_us=lower, upper_us=upper):
            when = f" from {_signed(lower)} to {_signed(upper)}"
        case specs.AsOfMatch():
            when = " as of event time"
        case specs.BroadcastMatch():
            when = " with broadcast rows"
        case _:
            when = ""
    return f"{spec.how} on {on}{when}"


def _signed(micros: int) -> str:
    return f"-{format_duration(-micros)}" if micros < 0 else format_duration(micros)


def _aggregate(aggregate: specs.Aggregate) -> str:
    inputs = [value.text for value in (aggregate.input, aggregate.by) if value is not None]
    return f"{aggregate.name}={aggregate.function}({', '.join(inputs)})"


def _expression(expression: Expression) -> str:
    same = expression.text == expression.name
    return expression.name if same else f"{expression.name}={expression.text}"


def _function(function: specs.Function) -> str:
    return f"{function.name}({', '.join(function.columns or ('row',))})"


def _connector(connector: specs.Connector) -> str:
    if {"host", "port"} <= connector.options.keys():
        return f"{connector.kind} {connector.options['host']}:{connector.options['port']}"
    for option in ("path", "paths", "pattern", "topic", "address"):
        if isinstance(value := connector.options.get(option), str):
            return f"{connector.kind} {value}"
    return connector.kind


def _source_time(spec: specs.Source) -> str:
    if spec.event_time is None:
        return ", processing time" if spec.time_kind == "processing" else ""
    kind = "ingestion time" if spec.time_kind == "ingestion" else "event time"
    return f", {kind} {spec.event_time.column}{_watermarks(spec.watermarks)}"


def _watermarks(strategy: specs.WatermarkStrategy) -> str:
    match strategy:
        case specs.BoundedDelay(delay_us=delay_us):
            return f" + {format_duration(delay_us)}" if delay_us else ""
        case specs.Punctuated(expression=expression):
            return f", watermark {expression.text}"
        case specs.Generated(generator=generator):
            return f", watermark {generator.name}"


def _cut(text: str) -> str:
    return text if len(text) <= _MAX_WIDTH else f"{text[: _MAX_WIDTH - 1]}…"
