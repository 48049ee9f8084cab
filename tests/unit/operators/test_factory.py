"""Every kind of operator can be made from its description, and functions that cannot be opened are told."""

import sys
import types
from typing import Any, get_args

import cloudpickle
import polars as pl
import pytest

from penstock.model import schemas, specs
from penstock.model.clocks import SystemClock
from penstock.model.errors import UserError
from penstock.model.ids import Attempt, JobId, SubtaskId, Uid, VertexId
from penstock.model.settings import JobSettings
from penstock.operators.base import Operator, OperatorContext
from penstock.operators.factory import make_operator
from penstock.operators.user_functions import CoProcessFunction, KeyedProcessFunction

OUTPUT = schemas.fields({"n": pl.Int64()})
TIME = specs.EventTime(column="at")
CONTEXT = OperatorContext(
    job=JobId("job"),
    attempt=Attempt(1),
    uid=Uid("op"),
    subtask=SubtaskId(VertexId("op"), 0),
    parallelism=1,
    max_parallelism=8,
    clock=SystemClock(),
    settings=JobSettings(),
)


def expression() -> specs.Expression:
    return specs.Expression(name="n", text="n", polars=pl.col("n").meta.serialize())


def function(value: Any) -> specs.Function:
    return specs.Function(name="f", pickled=cloudpickle.dumps(value))


class Nothing(KeyedProcessFunction):
    def process(self, ctx: Any) -> None: ...


class NothingOfTwo(CoProcessFunction):
    def process_left(self, ctx: Any) -> None: ...

    def process_right(self, ctx: Any) -> None: ...


TUMBLING = specs.Tumbling(size_us=10)
COUNT = specs.Aggregate(name="n", function="count", output_type="Int64")
SPECS: list[specs.OperatorSpec] = [
    specs.Source(connector=specs.Connector(kind="csv", options={"schema": [["n", "Int64"]], "files": []})),
    specs.Sink(connector=specs.Connector(kind="discard")),
    specs.Select(expressions=(expression(),)),
    specs.WithColumns(expressions=(expression(),)),
    specs.Filter(predicate=expression()),
    specs.Explode(columns=("n",)),
    specs.Fused(steps=(specs.Explode(columns=("n",)),)),
    specs.Union(columns=("n",)),
    specs.Map(function=function(lambda n: n), output=OUTPUT),
    specs.MapBatches(function=function(lambda frame: frame), output=OUTPUT),
    specs.MapAsync(function=function(lambda n: n), output=OUTPUT, capacity=1, timeout_us=1, ordered=True),
    specs.WindowAggregate(keys=("n",), assigner=TUMBLING, aggregates=(COUNT,), event_time=TIME, output=OUTPUT),
    specs.BufferedWindow(
        keys=("n",),
        assigner=specs.GlobalWindow(),
        trigger=specs.Trigger(kind="count", count=3),
        aggregates=(COUNT,),
        event_time=TIME,
        output=OUTPUT,
    ),
    specs.SessionAggregate(keys=("n",), gap_us=5, aggregates=(COUNT,), event_time=TIME, output=OUTPUT),
    specs.ApplyResults(keys=("n",), function=function(lambda rows: rows), made=(), output=OUTPUT),
    specs.Combine(keys=("n",), assigner=TUMBLING, aggregates=(COUNT,), event_time=TIME),
    specs.Process(keys=("n",), function=function(Nothing()), output=OUTPUT),
    specs.CoProcess(
        inputs=(
            specs.ProcessInput(method="process_left", keys=("n",)),
            specs.ProcessInput(method="process_right", keys=("n",)),
        ),
        function=function(NothingOfTwo()),
        output=OUTPUT,
    ),
    specs.Retract(keys=("n",)),
    specs.RunningAggregate(keys=("n",), aggregates=(COUNT,), output=OUTPUT),
    specs.LoopHead(columns=("n",)),
    specs.LoopTail(head=Uid("loop"), columns=("n",)),
    specs.Join(left_on=("n",), right_on=("n",), how="inner", match=specs.EverMatch(), columns=(), output=OUTPUT),
    specs.Lookup(
        on=("n",),
        how="left",
        columns=(),
        function=function(lambda n: n),
        made=OUTPUT,
        capacity=1,
        cache_rows=1,
        output=OUTPUT,
    ),
    specs.CoGroup(
        join=specs.Join(
            left_on=("n",),
            right_on=("n",),
            how="full",
            match=specs.WindowMatch(assigner=TUMBLING),
            columns=(),
            left_time=TIME,
            right_time=TIME,
            output=OUTPUT,
        ),
        left=OUTPUT,
        right=OUTPUT,
        function=function(lambda left, right: left),
        made=OUTPUT,
        output=OUTPUT,
    ),
    specs.Deduplicate(keys=("n",), keep="first"),
    specs.TopN(keys=("n",), n=1, by=("n",), descending=(True,), output=OUTPUT),
]


def made(spec: specs.OperatorSpec) -> Operator:
    return make_operator(specs.Operator(uid=Uid("op"), name="op", spec=spec, output=OUTPUT), CONTEXT)


@pytest.mark.parametrize("spec", SPECS, ids=lambda spec: type(spec).__name__)
def test_every_spec_makes_an_operator(spec: specs.OperatorSpec) -> None:
    assert isinstance(made(spec), Operator)


def test_all_kinds_of_specs_are_covered() -> None:
    assert {type(spec) for spec in SPECS} == set(get_args(specs.OperatorSpec))


def test_a_module_that_is_missing_in_the_slot_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    module = types.ModuleType("only_at_the_client")
    exec("def double(n): return 2 * n", module.__dict__)
    with monkeypatch.context() as at_the_client:
        at_the_client.setitem(sys.modules, module.__name__, module)
        pickled = function(module.double)
    with pytest.raises(UserError, match=r"P001 op\[0\]: f needs a module .*only_at_the_client"):
        made(specs.Map(function=pickled, output=OUTPUT))


def test_bytes_that_cannot_be_opened_are_told() -> None:
    broken = specs.Function(name="f", pickled=b"\x80\x05nonsense")
    with pytest.raises(UserError, match=r"P001 op\[0\]: f cannot be opened here"):
        made(specs.Map(function=broken, output=OUTPUT))
