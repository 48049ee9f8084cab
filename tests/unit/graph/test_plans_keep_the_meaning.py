"""Whatever planning drops, fuses and moves: the rows at the sinks are those of the program as written."""

import io

import polars as pl
from hypothesis import given
from hypothesis import strategies as st

from penstock.graph import JobGraph, LogicalGraph, plan
from penstock.model import specs
from penstock.model.settings import JobSettings

ROWS = pl.DataFrame({"a": [1, 2, 3, 4], "b": [4, 3, 2, 1], "c": [0, 1, 0, 1], "l": [[1], [2, 3], [4], [5, 6]]})
TYPES = {"a": "Int64", "b": "Int64", "c": "Int64", "l": "List(Int64)"}


def opened(expression: specs.Expression) -> pl.Expr:
    return pl.Expr.deserialize(io.BytesIO(expression.polars))


def run(spec: specs.OperatorSpec, inputs: list[pl.DataFrame]) -> pl.DataFrame:
    match spec:
        case specs.Source(columns=columns):
            return ROWS if columns is None else ROWS.select(columns)
        case specs.Select(expressions=made):
            return inputs[0].select(map(opened, made))
        case specs.WithColumns(expressions=made):
            return inputs[0].with_columns(map(opened, made))
        case specs.Filter(predicate=predicate):
            return inputs[0].filter(opened(predicate))
        case specs.Explode(columns=columns):
            return inputs[0].explode(columns)
        case specs.Fused(steps=steps):
            frame = inputs[0]
            for step in steps:
                frame = run(step, [frame])
            return frame
        case specs.Union(columns=columns):
            return pl.concat([frame.select(columns) for frame in inputs])
        case specs.Sink():
            return inputs[0]
    raise AssertionError(spec)


def rows_as_written(graph: LogicalGraph) -> dict[str, list[tuple[object, ...]]]:
    frames: dict[str, pl.DataFrame] = {}
    for node in graph.nodes:
        inputs = [frames[edge.source] for edge in graph.edges if edge.target == node.operator.uid]
        frames[node.operator.uid] = run(node.operator.spec, inputs)
    return at_sinks(frames, [node.operator for node in graph.nodes])


def rows_as_planned(graph: JobGraph) -> dict[str, list[tuple[object, ...]]]:
    frames: dict[str, pl.DataFrame] = {}
    operators = []
    for vertex in graph.vertices:
        sources = {each.id: each for each in graph.vertices}
        for link in vertex.chain:
            if link.parent is not None:
                inputs = [frames[vertex.chain[link.parent].operator.uid]]
            else:
                edges = sorted((e for e in graph.edges if e.target == vertex.id), key=lambda edge: edge.port)
                inputs = [frames[sources[e.source].chain[e.producer].operator.uid] for e in edges]
            frame = frames[link.operator.uid] = run(link.operator.spec, inputs)
            assert frame.columns == [field.name for field in link.operator.output]
            operators.append(link.operator)
    return at_sinks(frames, operators)


def at_sinks(frames: dict[str, pl.DataFrame], operators: list[specs.Operator]) -> dict[str, list[tuple[object, ...]]]:
    return {each.uid: frames[each.uid].rows() for each in operators if isinstance(each.spec, specs.Sink)}


NUMBERS = ("a", "b", "c")
PARTITIONINGS = st.sampled_from(["forward", "rebalance", "hash"])


@st.composite
def programs(draw, program_type) -> object:
    program = program_type()
    program.add("in", specs.Source(connector=specs.Connector(kind="rows")), output=_fields(TYPES))
    streams = ["in"]
    for number in range(draw(st.integers(1, 8))):
        source = draw(st.sampled_from(streams))
        columns = [field.name for field in program.outputs[source]]
        numbers = [field.name for field in program.outputs[source] if field.type == "Int64"]
        lists = [field.name for field in program.outputs[source] if field.type == "List(Int64)"]
        verb = draw(st.sampled_from(["select", "with_columns", "filter", "explode", "union"]))
        uid = f"{verb}-{number}"
        if verb == "explode" and lists:
            types = {field.name: field.type for field in program.outputs[source]} | {lists[0]: "Int64"}
            program.add(uid, specs.Explode(columns=(lists[0],)), source, output=_fields(types))
        elif verb == "union":
            program.add(uid, specs.Union(columns=tuple(columns)), source, source)
        elif verb == "select":
            kept = draw(st.lists(st.sampled_from(columns), min_size=1, unique=True))
            program.select(uid, source, *kept)
        elif verb == "with_columns" and numbers:
            left, right = draw(st.sampled_from(numbers)), draw(st.sampled_from(numbers))
            name = draw(st.sampled_from([*NUMBERS, "d", "e"]))
            program.with_columns(uid, source, **{name: pl.col(left) + pl.col(right)})
        elif numbers:
            by = {"rebalance": specs.Rebalance(), "hash": specs.Hash(keys=(numbers[0],))}.get(draw(PARTITIONINGS))
            program.filter(uid, source, pl.col(draw(st.sampled_from(numbers))) > draw(st.integers(0, 3)), by=by)
        else:
            continue
        streams.append(uid)
    read = {edge.source for edge in program.edges}
    for stream in [uid for uid in streams if uid not in read]:
        program.sink(f"out-{stream}", stream)
    return program


def _fields(types: dict[str, str]) -> specs.Schema:
    return tuple(specs.Field(name, kind) for name, kind in types.items())


@given(st.data(), st.integers(1, 3))
def test_the_rows_at_the_sinks_are_the_same(program_type, data, parallelism):
    program = data.draw(programs(program_type))
    logical = program.logical()
    planned = plan(
        logical, parallelism=parallelism, max_parallelism=128, settings=JobSettings(), bounded=True, versions={}
    )
    assert rows_as_planned(planned) == rows_as_written(logical)
