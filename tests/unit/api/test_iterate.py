"""Loops in a program: what they become, and what is refused."""

import pytest

from penstock import col
from penstock.api import DataStream, Flow, tumbling
from penstock.graph import as_svg, as_text
from penstock.model import specs
from penstock.model.errors import UserError


def halved(stream: DataStream) -> tuple[DataStream, DataStream]:
    small = stream.filter(col("price") <= 1)
    return stream.filter(col("price") > 1).with_columns(price=col("price") // 2), small


def test_a_loop_has_a_head_a_tail_and_a_feedback_edge(flow: Flow, bids: DataStream, table: type) -> None:
    bids.iterate(halved, uid="halving").write(table())
    graph = flow.plan(parallelism=1)
    head = next(vertex for vertex in graph.vertices if vertex.id == "halving")
    assert isinstance(head.chain[0].operator.spec, specs.LoopHead)
    [back] = [edge for edge in graph.edges if edge.is_feedback]
    assert (back.source, back.target, back.port, back.loop) == ("halving", "halving", 1, "halving")
    assert isinstance(head.chain[back.producer].operator.spec, specs.LoopTail)
    assert "feedback from halving / halving-tail" in as_text(graph)
    assert "edge back" in as_svg(graph)


def test_edges_inside_a_loop_know_it_and_others_do_not(flow: Flow, bids: DataStream, table: type) -> None:
    def body(stream: DataStream) -> tuple[DataStream, DataStream]:
        keyed = stream.key_by("bidder").with_columns(price=col("price") - 1, uid="less")
        return keyed.filter(col("price") > 0), keyed.filter(col("price") <= 0)

    bids.iterate(body, uid="loop").key_by("auction").filter(col("price") < 5, uid="after").write(table())
    graph = flow.plan(parallelism=2)
    loops = {(edge.source, edge.target): edge.loop for edge in graph.edges}
    assert loops[("loop", "less")] == "loop"
    assert loops[("less", "after")] is None
    assert [loop for (source, target), loop in loops.items() if target == "loop" and source != "less"] == [None]


def test_no_column_is_dropped_on_the_way_round(flow: Flow, bids: DataStream, table: type) -> None:
    bids.iterate(halved, uid="halving").select("price").write(table())
    graph = flow.plan(parallelism=2)
    source = graph.vertices[0].chain[0].operator
    assert [field.name for field in source.output] == bids.columns


def test_there_is_no_event_time_inside_or_behind(bids: DataStream) -> None:
    with pytest.raises(UserError, match="a row may come round at any time"):
        bids.iterate(halved).window(tumbling("1s"))


@pytest.mark.parametrize(
    ("body", "what"),
    [
        (lambda stream: stream, "not two streams"),
        (lambda stream: (stream, 1), "not two streams"),
        (lambda stream: (stream.select("price"), stream), 'the feedback: there is no column "auction"'),
        (lambda stream: (stream.with_columns(more=col("price")), stream), 'the feedback has a column "more" more'),
        (lambda stream: (stream.with_columns(price=col("price") * 0.5), stream), 'column "price" is Int64 here'),
    ],
)
def test_a_body_that_does_not_fit_is_refused(bids: DataStream, body: object, what: str) -> None:
    with pytest.raises(UserError, match=what):
        bids.iterate(body)  # type: ignore[arg-type]


def test_a_broadcast_stream_does_not_go_round(bids: DataStream) -> None:
    with pytest.raises(UserError, match="every subtask would send every row round"):
        bids.broadcast().iterate(halved)


def test_the_feedback_comes_from_the_loop(bids: DataStream) -> None:
    with pytest.raises(UserError, match="does not come from the loop"):
        bids.iterate(lambda stream: (bids, stream))


def test_a_loop_inside_another_is_refused(flow: Flow, bids: DataStream, table: type) -> None:
    def outer(stream: DataStream) -> tuple[DataStream, DataStream]:
        inner = stream.iterate(halved, uid="inner")
        return inner.filter(col("price") > 3), inner.filter(col("price") <= 3)

    bids.iterate(outer, uid="outer").write(table())
    with pytest.raises(UserError, match="a loop cannot be inside another") as caught:
        flow.plan(parallelism=2)
    assert caught.value.code == "P025"
