"""What two engines made of one program, row by row: equal as multisets, or the rows that only one of them has."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import msgspec
import polars as pl

from penstock.graph import JobGraph, LogicalGraph
from penstock.model import specs
from penstock.model.changes import CHANGE, DELETE, NAMES
from penstock.model.ids import Uid
from penstock.state.key_groups import KEY_GROUP, key_groups

TOLERANCE = 1e-9
"""Relative: sums of floats depend on the order in which rows were added."""

_SIDE = "__side"


@dataclass(frozen=True, slots=True)
class Difference:
    """Rows of a sink that only one engine has; equal when there are none."""

    uid: Uid
    rows: int
    """Of the stream."""
    only_on_stream: pl.DataFrame
    only_on_spark: pl.DataFrame
    remark: str = ""

    @property
    def count(self) -> int:
        """Rows that have no like."""
        return self.only_on_stream.height + self.only_on_spark.height


@dataclass(frozen=True, slots=True)
class Shape:
    """How the rows of a sink are to be read."""

    uid: Uid
    change: str | None = None
    """The column that says what a row does to earlier ones."""
    keys: tuple[str, ...] | None = None
    """With it: the columns whose row is replaced; None: a delete takes back an equal row."""
    group_keys: tuple[str, ...] = ()
    """The key columns of the last operator with keys, as far as they are there."""
    single_changes: bool = False
    """Operators behind a changelog have seen single changes, which a batch has not."""


def compare(shape: Shape, stream: pl.DataFrame, spark: pl.DataFrame, max_parallelism: int) -> Difference:
    """All rows of both; floats may differ in their last digits."""
    left, right = compacted(stream, shape), compacted(spark, shape)
    both = right.select(left.columns).cast(left.schema)
    missing, extra = _unlike(left, both)
    missing, extra = _without_close(missing, extra)
    return Difference(
        shape.uid,
        left.height,
        _with_groups(missing, shape, max_parallelism),
        _with_groups(extra, shape, max_parallelism),
    )


def compacted(rows: pl.DataFrame, shape: Shape) -> pl.DataFrame:
    """What a changelog comes to; other rows as they are."""
    if shape.change is None or shape.change not in rows.columns:
        return rows
    columns = [name for name in rows.columns if name != shape.change]
    deletes = pl.col(shape.change).is_in([NAMES[DELETE]] if rows.schema[shape.change] == pl.String else [DELETE])
    if shape.keys is not None:
        last = rows.unique(list(shape.keys), keep="last", maintain_order=True) if shape.keys else rows.tail(1)
        return last.filter(~deletes).select(columns)
    count = pl.when(deletes).then(-1).otherwise(1).sum()
    left = rows.group_by(columns, maintain_order=True).agg(count.alias(_SIDE)).filter(pl.col(_SIDE) > 0)
    return left.select(pl.col(columns).repeat_by(_SIDE)).explode(columns)


def _unlike(left: pl.DataFrame, right: pl.DataFrame) -> tuple[pl.DataFrame, pl.DataFrame]:
    columns = left.columns
    both = pl.concat([left.with_columns(pl.lit(1).alias(_SIDE)), right.with_columns(pl.lit(-1).alias(_SIDE))])
    counted = both.group_by(columns, maintain_order=True).agg(pl.col(_SIDE).sum()).filter(pl.col(_SIDE) != 0)
    return _repeated(counted.filter(pl.col(_SIDE) > 0), columns), _repeated(counted.filter(pl.col(_SIDE) < 0), columns)


def _repeated(counted: pl.DataFrame, columns: Sequence[str]) -> pl.DataFrame:
    rows = counted.get_column(_SIDE).abs().to_list()
    positions = [number for number, times in enumerate(rows) for _ in range(times)]
    return counted.select(columns)[positions]


def _without_close(missing: pl.DataFrame, extra: pl.DataFrame) -> tuple[pl.DataFrame, pl.DataFrame]:
    """Rows that differ in nothing but the last digits of floats are alike."""
    floats = [name for name, kind in missing.schema.items() if kind.is_float()]
    if not floats or missing.is_empty() or extra.is_empty():
        return missing, extra
    plain = [name for name in missing.columns if name not in floats]
    waiting: dict[str, list[tuple[int, tuple[float | None, ...]]]] = {}
    for number, row in enumerate(extra.select(*plain, *floats).rows()):
        waiting.setdefault(repr(row[: len(plain)]), []).append((number, row[len(plain) :]))
    left_over: list[int] = []
    matched: set[int] = set()
    for number, row in enumerate(missing.select(*plain, *floats).rows()):
        candidates = waiting.get(repr(row[: len(plain)]), [])
        found = next((each for each in candidates if _all_close(each[1], row[len(plain) :])), None)
        if found is None:
            left_over.append(number)
        else:
            candidates.remove(found)
            matched.add(found[0])
    return missing[left_over], extra[[number for number in range(extra.height) if number not in matched]]


def _all_close(one: Sequence[float | None], other: Sequence[float | None]) -> bool:
    return all(
        a == b or (a is not None and b is not None and (math.isclose(a, b, rel_tol=TOLERANCE) or (a != a and b != b)))
        for a, b in zip(one, other, strict=True)
    )


def _with_groups(rows: pl.DataFrame, shape: Shape, max_parallelism: int) -> pl.DataFrame:
    if not shape.group_keys or rows.is_empty():
        return rows
    groups = pl.Series(KEY_GROUP, key_groups(rows, shape.group_keys, max_parallelism))
    return rows if KEY_GROUP in rows.columns else rows.insert_column(0, groups)


# ---------------------------------------------------------------- programs


@dataclass(slots=True)
class _Walk:
    """From a sink towards the sources."""

    program: LogicalGraph
    nodes: dict[Uid, specs.Operator] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.nodes = {node.operator.uid: node.operator for node in self.program.nodes}

    def before(self, uid: Uid) -> list[specs.Operator]:
        """What it reads."""
        return [self.nodes[edge.source] for edge in self.program.edges if edge.target == uid]


def shapes(program: LogicalGraph) -> list[Shape]:
    """How to read the rows of each sink."""
    walk = _Walk(program)
    return [_shape(walk, node.operator) for node in program.nodes if isinstance(node.operator.spec, specs.Sink)]


def _shape(walk: _Walk, sink: specs.Operator) -> Shape:
    columns = [field.name for field in sink.output]
    (source,) = walk.before(sink.uid)
    group_keys = _group_keys(walk, source, columns)
    if CHANGE in columns and source.changes is not None:
        return Shape(sink.uid, CHANGE, source.changes.keys, group_keys)
    named = _changelog_column(source)
    if named is not None:
        (updating,) = walk.before(source.uid)
        keys = updating.changes.keys if updating.changes is not None else None
        return Shape(sink.uid, named, keys, group_keys)
    return Shape(sink.uid, group_keys=group_keys, single_changes=_behind_changelog(walk, source))


def _changelog_column(operator: specs.Operator) -> str | None:
    """What `as_changelog` calls the column, if it made this operator."""
    if isinstance(operator.spec, specs.Select) and operator.changes is None:
        for expression in operator.spec.expressions:
            expr = pl.Expr.deserialize(expression.polars)
            if not expr.meta.has_multiple_outputs() and CHANGE in expr.meta.root_names():
                return expression.name
    return None


def _behind_changelog(walk: _Walk, operator: specs.Operator) -> bool:
    before = walk.before(operator.uid)
    return any(_changelog_column(each) is not None or _behind_changelog(walk, each) for each in before)


def _group_keys(walk: _Walk, operator: specs.Operator, columns: Sequence[str]) -> tuple[str, ...]:
    spec = operator.spec
    keys: tuple[str, ...] = spec.left_on if isinstance(spec, specs.Join) else getattr(spec, "keys", ())
    if keys:
        return keys if all(key in columns for key in keys) else ()
    before = walk.before(operator.uid)
    return _group_keys(walk, before[0], columns) if before else ()


def collecting(graph: JobGraph, folders: Mapping[Uid, str]) -> JobGraph:
    """The same program with its rows collected in these folders, in place of where its sinks would write them."""

    def placed(operator: specs.Operator) -> specs.Operator:
        if not isinstance(operator.spec, specs.Sink):
            return operator
        connector = specs.Connector(kind="collect", options={"directory": folders[operator.uid]})
        return msgspec.structs.replace(operator, spec=specs.Sink(connector=connector))

    vertices = tuple(
        msgspec.structs.replace(
            vertex,
            chain=tuple(msgspec.structs.replace(link, operator=placed(link.operator)) for link in vertex.chain),
        )
        for vertex in graph.vertices
    )
    program = graph.program
    if program is not None:
        nodes = tuple(msgspec.structs.replace(node, operator=placed(node.operator)) for node in program.nodes)
        program = msgspec.structs.replace(program, nodes=nodes)
    return msgspec.structs.replace(graph, vertices=vertices, program=program)
