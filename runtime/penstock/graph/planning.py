"""From the program as written to the job graph that is submitted. Pure: the same program gives the same graph."""

from collections.abc import Mapping

from penstock.graph._data import JobGraph, LogicalEdge, LogicalGraph, LogicalNode
from penstock.graph._draft import draft
from penstock.graph.chaining import chain
from penstock.graph.columns import narrow_exchanges, push_down
from penstock.graph.combining import insert_combines
from penstock.graph.filters import show_filters
from penstock.graph.fusing import fuse
from penstock.graph.validation import validate
from penstock.model.settings import JobSettings


def plan(
    logical: LogicalGraph,
    *,
    parallelism: int,
    max_parallelism: int,
    settings: JobSettings,
    bounded: bool,
    versions: Mapping[str, str],
) -> JobGraph:
    """The job graph, or a UserError that says what is wrong with the program."""
    validate(logical, parallelism=parallelism, max_parallelism=max_parallelism)
    narrow = show_filters(push_down(draft(logical, parallelism=parallelism)))
    vertices, edges = chain(fuse(narrow_exchanges(insert_combines(narrow))))
    return JobGraph(
        name=logical.name,
        vertices=vertices,
        edges=edges,
        max_parallelism=max_parallelism,
        bounded=bounded,
        settings=settings,
        versions=dict(versions),
        parallelism=parallelism,
        program=logical,
    )


def narrowed(logical: LogicalGraph) -> LogicalGraph:
    """The program with only the columns and outputs that somebody reads, for engines that do the rest themselves."""
    nodes = narrow_exchanges(push_down(draft(logical, parallelism=1))).nodes.values()
    return LogicalGraph(
        name=logical.name,
        nodes=tuple(LogicalNode(operator=node.operator) for node in nodes),
        edges=tuple(
            LogicalEdge(
                source=input_.source,
                target=node.operator.uid,
                port=input_.port,
                output=input_.output,
                partitioning=input_.partitioning,
            )
            for node in nodes
            for input_ in node.inputs
        ),
    )
