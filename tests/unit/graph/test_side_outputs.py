"""Side outputs keep their way through planning: columns, chaining, exchanges, subtasks, drawings."""

import pytest

from penstock.graph import as_svg, as_text, execution
from penstock.model import specs
from penstock.model.errors import UserError
from penstock.model.specs import Field

LATE = (Field("auction", "Int64"), Field("price", "Int64"), Field("why", "String"))


@pytest.fixture
def sorted_out(program):
    """Rows of "sort" leave by its main output and by "late"."""
    program.source("bids", "auction", "price")
    function = specs.Function(name="f", pickled=b"")
    spec = specs.MapBatches(function=function, output=program.outputs["bids"])
    program.add("sort", spec, "bids", sides={"late": LATE, "unread": LATE})
    return program


def links(graph, vertex):
    chain = next(each.chain for each in graph.vertices if each.id == vertex)
    return [(link.operator.uid, link.parent, link.output) for link in chain]


def test_what_reads_a_side_output_in_place_is_chained_to_it(sorted_out):
    sorted_out.sink("out", "sort")
    sorted_out.sink("late", "sort#late")
    graph = sorted_out.plan()
    assert links(graph, "bids") == [("bids", None, ""), ("sort", 0, ""), ("out", 1, ""), ("late", 1, "late")]
    assert graph.vertices[0].chain[3].operator.output == LATE


def test_a_side_output_that_nobody_reads_is_left_out(sorted_out):
    sorted_out.sink("out", "sort")
    sorted_out.sink("late", "sort#late")
    sort = sorted_out.plan().vertices[0].chain[1].operator
    assert [side.name for side in sort.side_outputs] == ["late"]


def test_an_exchange_of_a_side_output_carries_its_columns(sorted_out):
    sorted_out.sink("out", "sort")
    function = specs.Function(name="g", pickled=b"", columns=("auction", "why"))
    shown = specs.Map(function=function, output=LATE)
    sorted_out.add("why", shown, "sort#late", output=LATE, by=specs.Hash(keys=("auction",)))
    sorted_out.sink("late", "why")
    graph = sorted_out.plan(parallelism=2)
    assert ("why-columns-0", 1, "late") in links(graph, "bids")
    (region,) = execution(graph)
    edges = [edge for task in region.tasks for edge in task.outputs]
    assert {(tuple(field.name for field in edge.schema), edge.output) for edge in edges} == {(("auction", "why"), "")}


def test_an_edge_names_the_side_output_that_it_reads(sorted_out):
    sorted_out.sink("out", "sort")
    sorted_out.sink("late", "sort#late", by=specs.Rebalance())
    graph = sorted_out.plan(parallelism=2)
    (edge,) = graph.edges
    assert (edge.source, edge.producer, edge.output) == ("bids", 1, "late")
    (region,) = execution(graph)
    leaving = {(edge.output, edge.schema) for task in region.tasks for edge in task.outputs}
    assert leaving == {("late", LATE)}
    assert '<- rebalance from bids / sort side output "late"' in as_text(graph)
    assert "late: rebalance" in as_svg(graph)


def test_expressions_behind_a_side_output_are_not_fused_across_it(sorted_out):
    sorted_out.filter("dear", "sort#late")
    sorted_out.select("two", "dear", "auction", "why")
    sorted_out.sink("late", "two")
    graph = sorted_out.plan()
    assert links(graph, "bids") == [("bids", None, ""), ("sort", 0, ""), ("dear", 1, "late"), ("late", 2, "")]
    assert 'of side output "late":' in as_text(graph)
    assert "of side output" in as_svg(graph)


def test_an_unknown_side_output_is_refused(sorted_out):
    sorted_out.outputs["sort#other"] = LATE
    sorted_out.sink("out", "sort#other")
    with pytest.raises(UserError, match='"sort" has no side output "other"'):
        sorted_out.plan()
