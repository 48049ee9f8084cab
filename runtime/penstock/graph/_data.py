"""The three graphs as plain data.

logical  what the user wrote, one node per verb                      (built by `api`)
job      expressions fused, forward edges chained, columns pushed    (built by `plan`, what a client submits)
execution  subtasks x channels for given slots                       (built by the JobManager)
"""

import msgspec

from penstock.model.ids import SubtaskId, Uid, VertexId
from penstock.model.settings import JobSettings
from penstock.model.specs import MAIN_OUTPUT, Feedback, Operator, Partitioning
from penstock.model.tasks import ChainLink, Task


class LogicalEdge(msgspec.Struct, frozen=True, kw_only=True):
    """Rows of one node into a port of another."""

    source: Uid
    target: Uid
    port: int = 0
    output: str = MAIN_OUTPUT
    """Which output of the source."""
    partitioning: Partitioning


class LogicalNode(msgspec.Struct, frozen=True, kw_only=True):
    """One verb of the program."""

    operator: Operator
    parallelism: int | None = None
    """None: the job's."""


class LogicalGraph(msgspec.Struct, frozen=True, kw_only=True):
    """The program as written. Nodes are in the order in which they were made: inputs come first."""

    name: str
    nodes: tuple[LogicalNode, ...]
    edges: tuple[LogicalEdge, ...]


class Vertex(msgspec.Struct, frozen=True, kw_only=True):
    """A chain of operators that run in one task."""

    id: VertexId
    chain: tuple[ChainLink, ...]
    parallelism: int


class Edge(msgspec.Struct, frozen=True, kw_only=True):
    """Rows of one operator of a chain into a port of another vertex."""

    source: VertexId
    producer: int
    """Index of the producing operator in the source's chain."""
    output: str = MAIN_OUTPUT
    """Which of its outputs."""
    target: VertexId
    port: int = 0
    partitioning: Partitioning
    loop: Uid | None = None
    """The head of the loop that it is part of. `Feedback` edges close a loop; all others lead forward."""

    @property
    def is_feedback(self) -> bool:
        """It leads back, to a vertex that comes earlier."""
        return isinstance(self.partitioning, Feedback)


class JobGraph(msgspec.Struct, frozen=True, kw_only=True):
    """What is submitted. JSON; user code only as opaque bytes inside operator specs."""

    name: str
    vertices: tuple[Vertex, ...]
    edges: tuple[Edge, ...]
    max_parallelism: int = 128
    bounded: bool
    """All sources end by themselves."""
    settings: JobSettings = JobSettings()
    versions: dict[str, str] = {}
    """python, penstock, polars of the client that built it."""
    warnings: tuple[str, ...] = ()
    parallelism: int = 0
    """Of operators that name none; 0: it was made without a program."""
    program: LogicalGraph | None = None
    """As it was written: another parallelism may need another plan. None: it stays as it is."""


class Region(msgspec.Struct, frozen=True, kw_only=True):
    """Subtasks that are connected by channels: they start together and fail together."""

    index: int
    tasks: tuple[Task, ...]
    """Not yet placed: `slot` and `address` of channels are filled in when slots are known."""
    subtasks: tuple[SubtaskId, ...]
