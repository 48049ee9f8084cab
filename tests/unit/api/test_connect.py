"""Two streams for one function, and functions without keys: what programs may say, and what is refused where."""

import dataclasses
from pathlib import Path
from typing import Any

import polars as pl
import pytest

import penstock as ps
from penstock import col
from penstock.api import DataStream, Flow
from penstock.graph import as_text
from penstock.model import specs
from penstock.model.errors import UserError

OUTPUT = {"text": pl.String}


@dataclasses.dataclass
class Row:
    number: int


class Pair(ps.CoProcessFunction):
    def process_left(self, ctx: Any, price: int) -> None: ...

    def process_right(self, ctx: Any, name: str) -> None: ...


class Judge(ps.BroadcastProcessFunction):
    rules = ps.BroadcastState(str, int)

    def process(self, ctx: Any, price: int) -> None: ...

    def process_broadcast(self, ctx: Any, name: str) -> None: ...


class Numbers(ps.ProcessFunction):
    last = ps.UnionListState(int)

    def process(self, ctx: ps.ProcessContext, price: int) -> None: ...


@pytest.fixture
def people(flow: Flow, table: Any) -> DataStream:
    schema = pl.Schema({"id": pl.Int64, "name": pl.String, "born": pl.Datetime("us"), "town": pl.String})
    return flow.read(table(schema=schema), event_time="born", uid="people")


def spec_of(flow: Flow, uid: str) -> Any:
    return next(each.operator.spec for each in flow._builder.logical().nodes if each.operator.uid == uid)


def refused(code: str, match: str) -> Any:
    return pytest.raises(UserError, match=rf"(?s)^{code} .*{Path(__file__).name}.*{match}")


def test_both_inputs_are_described_and_read_only_what_the_methods_name(
    flow: Flow, table: Any, bids: DataStream, people: DataStream
) -> None:
    made = bids.key_by("bidder").connect(people.key_by("id")).process(Pair(), output=OUTPUT, uid="pair")
    made.write(table())
    spec = spec_of(flow, "pair")
    assert [(each.method, each.keys, each.columns) for each in spec.inputs] == [
        ("process_left", ("bidder",), ("price",)),
        ("process_right", ("id",), ("name",)),
    ]
    graph = flow.plan(parallelism=2)
    assert {edge.partitioning for edge in graph.edges} >= {specs.Hash(keys=("bidder",)), specs.Hash(keys=("id",))}
    read = {link.operator.uid: link.operator.spec for vertex in graph.vertices for link in vertex.chain}
    assert read["people"].columns == ("id", "name", "born")
    assert "process Pair(price and name) by bidder" in as_text(graph)


def test_a_dead_letter_needs_the_whole_row_of_either_side(
    flow: Flow, table: Any, bids: DataStream, people: DataStream
) -> None:
    both = bids.key_by("bidder").connect(people.key_by("id"))
    made = both.process(Pair(), output=OUTPUT, uid="pair", on_error="dead_letter")
    made.write(table())
    made.dead_letters().write(table())
    graph = flow.plan(parallelism=2)
    read = {link.operator.uid: link.operator.spec for vertex in graph.vertices for link in vertex.chain}
    assert read["people"].columns is None


def test_rules_go_through_one_subtask_to_all(flow: Flow, table: Any, bids: DataStream, people: DataStream) -> None:
    bids.key_by("bidder").connect(people.broadcast()).process(Judge(), output=OUTPUT, uid="judge").write(table())
    graph = flow.plan(parallelism=4)
    (edge,) = [edge for edge in graph.edges if isinstance(edge.partitioning, specs.Broadcast)]
    assert next(vertex for vertex in graph.vertices if vertex.id == edge.source).parallelism == 1
    assert "process Judge(price with broadcast name) by bidder" in as_text(graph)


def test_without_keys_nothing_is_moved(flow: Flow, table: Any, bids: DataStream) -> None:
    bids.process(Numbers(), output=OUTPUT, uid="numbers").write(table())
    graph = flow.plan(parallelism=2)
    assert len(graph.vertices) == 1
    assert "process Numbers(price)\n" in as_text(graph)
    (state,) = spec_of(flow, "numbers").states
    assert (state.name, state.kind, state.type) == ("last", "union list", "Int64")


def test_only_functions_with_state_miss_a_uid(flow: Flow, table: Any, bids: DataStream) -> None:
    class Plain(ps.ProcessFunction):
        def process(self, ctx: ps.ProcessContext, price: int) -> None: ...

    bids.process(Plain(), output=OUTPUT).process(Texts(), output=OUTPUT).write(table(), uid="out")
    (warning,) = flow.plan(parallelism=1).warnings
    assert "Texts" in warning
    assert "Plain" not in warning


class Texts(ps.ProcessFunction):
    kept = ps.OperatorListState(str)

    def process(self, ctx: ps.ProcessContext, text: str) -> None: ...


def test_event_time_goes_on_when_the_output_has_it(bids: DataStream, people: DataStream) -> None:
    output = {"price": pl.Int64, "ts": pl.Datetime("us")}
    by_key = bids.key_by("bidder")
    assert by_key.connect(people.key_by("id")).process(Pair(), output=output, uid="a").event_time == bids.event_time
    untimed = bids.with_columns(ts=col("ts").dt.offset_by("1h"))
    assert untimed.event_time is None
    born = {"born": pl.Datetime("us")}
    late = untimed.key_by("bidder").connect(people.key_by("id")).process(Pair(), output=born, uid="b")
    assert late.event_time == people.event_time
    rules = untimed.key_by("bidder").connect(people.broadcast()).process(Judge(), output=born, uid="c")
    assert rules.event_time is None


def test_streams_that_do_not_belong_together(bids: DataStream, people: DataStream, table: Any) -> None:
    with refused("P045", "the first stream has keys, and the other has none.*broadcast"):
        bids.key_by("bidder").connect(people)
    with refused("P045", "the second stream has keys"):
        bids.connect(people.key_by("id"))
    with refused("P045", "different keys: bidder Int64, and name String"):
        bids.key_by("bidder").connect(people.key_by("name"))
    with refused("P045", "different keys: bidder Int64, and id Int64, name String"):
        bids.key_by("bidder").connect(people.key_by("id", "name"))
    with refused("P045", "rows of the first stream would go to every subtask"):
        bids.broadcast().connect(people)
    with refused("P045", "different flows"):
        bids.connect(Flow("other").read(table(schema=pl.Schema({"n": pl.Int64}))))
    with refused("P030", "connect"):
        bids.key_by("bidder").connect(people.key_by("id").agg(n=ps.count()))


def test_functions_of_another_kind(bids: DataStream, people: DataStream) -> None:
    keyed = bids.key_by("bidder")
    with refused("P016", "Judge is not a CoProcessFunction"):
        keyed.connect(people.key_by("id")).process(Judge(), output=OUTPUT)
    with refused("P016", "Pair is not a BroadcastProcessFunction"):
        keyed.connect(people.broadcast()).process(Pair(), output=OUTPUT)
    with refused("P016", "Pair is not a KeyedProcessFunction"):
        keyed.process(Pair, output=OUTPUT)
    with refused("P016", "Numbers is not a KeyedProcessFunction"):
        keyed.process(Numbers(), output=OUTPUT)
    with refused("P016", "Judge is not a ProcessFunction"):
        bids.process(Judge(), output=OUTPUT)


def test_methods_that_are_missing_or_ask_for_columns_that_are_not_there(bids: DataStream, people: DataStream) -> None:
    class Half(ps.CoProcessFunction):
        def process_left(self, ctx: Any, price: int) -> None: ...

    class Both(Pair):
        def process_right_batch(self, ctx: Any, batch: pl.DataFrame) -> None: ...

    class Wrong(Pair):
        def process_right(self, ctx: Any, nmae: str) -> None: ...

    connected = bids.connect(people)
    with refused("P016", "Half must have either `process_right` or `process_right_batch`, and has neither"):
        connected.process(Half(), output=OUTPUT)
    with refused("P016", "and has both"):
        connected.process(Both(), output=OUTPUT)
    with refused("P020", "Wrong.process_right.*nmae"):
        connected.process(Wrong(), output=OUTPUT)


def test_states_that_cannot_be_there(bids: DataStream, people: DataStream) -> None:
    class Counts(Pair):
        seen = ps.ValueState(int, default=0)

    class Knows(Pair):
        rules = ps.BroadcastState(str, int)

    class Expires(Judge):
        seen = ps.ValueState(int, ttl=ps.ttl("1h", time="event"))

    with refused("P046", 'state "seen" is kept by key'):
        bids.connect(people).process(Counts(), output=OUTPUT)
    with refused("P046", 'state "rules" is the same in every subtask'):
        bids.connect(people).process(Knows(), output=OUTPUT)
    untimed = bids.select("bidder", "price").key_by("bidder")
    with refused("P021", 'state "seen" lives by event time'):
        untimed.connect(people.broadcast()).process(Expires(), output=OUTPUT)


def test_the_output_may_be_told_by_either_method(flow: Flow, bids: DataStream, people: DataStream) -> None:
    class Told(Pair):
        def process_right(self, ctx: Any, name: str) -> list[Row]: ...

    assert bids.connect(people).process(Told(), uid="told").schema == {"number": pl.Int64}
    with refused("P016", "which columns .* gives is not known"):
        bids.connect(people).process(Pair())
