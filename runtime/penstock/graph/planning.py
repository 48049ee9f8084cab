"""From the program as written to the job graph that is submitted. Pure: the same program gives the same graph."""

from collections.abc import Mapping

from penstock.graph._data import JobGraph, LogicalGraph
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
