"""Logical graphs in a few words: a chain of operators, with branches where they are asked for."""

from dataclasses import dataclass, field

import polars as pl
import pytest

from penstock.graph import JobGraph, LogicalEdge, LogicalGraph, LogicalNode, plan
from penstock.model import specs
from penstock.model.ids import Uid
from penstock.model.settings import JobSettings
from penstock.model.specs import Expression, Field

TYPES = {"auction": "Int64", "bidder": "Int64", "price": "Int64", "channel": "String", "ts": "Datetime(us)"}


def fields(*names: str, **types: str) -> specs.Schema:
    return (*(Field(name, TYPES.get(name, "Int64")) for name in names), *(Field(n, t) for n, t in types.items()))


def expression(name: str, expr: pl.Expr) -> Expression:
    return Expression(name=name, text=name, polars=expr.alias(name).meta.serialize())


@dataclass
class Program:
    """Builds a logical graph by hand."""

    nodes: list[LogicalNode] = field(default_factory=list)
    edges: list[LogicalEdge] = field(default_factory=list)
    outputs: dict[str, specs.Schema] = field(default_factory=dict)

    def add(self, uid, spec, *inputs, output=None, by=None, parallelism=None, sides=None):
        """An input `"bids#late"` is the side output "late" of "bids"."""
        output = output if output is not None else self.outputs[inputs[0]]
        operator = specs.Operator(
            uid=Uid(uid),
            name=uid,
            spec=spec,
            output=output,
            side_outputs=tuple(specs.SideOutput(name=name, schema=schema) for name, schema in (sides or {}).items()),
            place=f"prog.py:{len(self.nodes)}",
        )
        self.nodes.append(LogicalNode(operator=operator, parallelism=parallelism))
        self.edges += [
            LogicalEdge(
                source=Uid(source),
                target=Uid(uid),
                port=port,
                partitioning=by or specs.Forward(),
                output=side,
            )
            for port, (source, _, side) in enumerate(name.partition("#") for name in inputs)
        ]
        self.outputs |= {uid: output, **{f"{uid}#{name}": schema for name, schema in (sides or {}).items()}}
        return uid

    def source(self, uid="bids", *columns, parallelism=None, event_time=None):
        spec = specs.Source(connector=specs.Connector(kind="table"), event_time=event_time)
        return self.add(uid, spec, output=fields(*(columns or TYPES)), parallelism=parallelism)

    def filter(self, uid, source, expr=None, **options):
        predicate = expression("predicate", expr if expr is not None else pl.col("price") > 1)
        return self.add(uid, specs.Filter(predicate=predicate), source, **options)

    def select(self, uid, source, *columns, **made):
        types = {each.name: each.type for each in self.outputs[source]}
        expressions = [expression(name, pl.col(name)) for name in columns]
        expressions += [expression(name, expr) for name, expr in made.items()]
        output = tuple(Field(each.name, types.get(each.name, "Int64")) for each in expressions)
        return self.add(uid, specs.Select(expressions=tuple(expressions)), source, output=output)

    def with_columns(self, uid, source, **made):
        expressions = tuple(expression(name, expr) for name, expr in made.items())
        types = {each.name: each.type for each in (*self.outputs[source], *fields(*made))}
        output = tuple(Field(name, kind) for name, kind in types.items())
        return self.add(uid, specs.WithColumns(expressions=expressions), source, output=output)

    def window(self, uid, source, *keys, parallelism=None, event_time=None, processing_time=False):
        output = fields(*keys, window_start="Datetime(us)", window_end="Datetime(us)", top="Int64")
        top = specs.Aggregate(
            name="top", function="max", input=expression("price", pl.col("price")), output_type="Int64"
        )
        time = None if processing_time else event_time or specs.EventTime(column="ts")
        spec = specs.WindowAggregate(
            keys=keys, assigner=specs.Tumbling(size_us=10), aggregates=(top,), event_time=time, output=output
        )
        by = specs.Hash(keys=keys) if keys else None
        return self.add(uid, spec, source, output=output, by=by, parallelism=parallelism)

    def sink(self, uid, source, **options):
        return self.add(uid, specs.Sink(connector=specs.Connector(kind="table")), source, **options)

    def logical(self) -> LogicalGraph:
        return LogicalGraph(name="test", nodes=tuple(self.nodes), edges=tuple(self.edges))

    def plan(self, parallelism=1, max_parallelism=128) -> JobGraph:
        return plan(
            self.logical(),
            parallelism=parallelism,
            max_parallelism=max_parallelism,
            settings=JobSettings(),
            bounded=True,
            versions={"python": "3.11"},
        )


@pytest.fixture
def program() -> Program:
    return Program()


@pytest.fixture(scope="session")
def program_type() -> type[Program]:
    return Program
