"""The logical graph while a program is being built: nodes as verbs are called, with their uids.

A stateful operator is found again by its uid. One that the user did not name gets a uid from its place in the
graph: its verb and the stateful operators it hangs under. Line numbers, and selects or filters that come and go
in between, do not change it.
"""

import hashlib
import itertools
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, TypedDict, TypeVar

import narwhals as nw
import polars as pl

from penstock.api import checks
from penstock.api.aggregates import AggregateCall
from penstock.graph import LogicalEdge, LogicalGraph, LogicalNode
from penstock.model import schemas, specs
from penstock.model.errors import UserError
from penstock.model.ids import Uid

Given = TypeVar("Given")

_STATEFUL = (
    specs.Source,
    specs.Sink,
    specs.WindowAggregate,
    specs.MapAsync,
    specs.Process,
    specs.CoProcess,
    specs.Retract,
    specs.RunningAggregate,
    specs.Join,
    specs.CoGroup,
    specs.Deduplicate,
    specs.TopN,
    specs.SessionAggregate,
    specs.LoopHead,
    specs.BufferedWindow,
)


class OperatorOptions(TypedDict, total=False):
    """What every verb takes by keyword."""

    uid: str | None
    name: str | None
    parallelism: int | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Options:
    """What every operator may carry."""

    uid: str | None = None
    name: str | None = None
    parallelism: int | None = None


def options_or_columns(named: dict[str, Given], uid: Any, name: Any, parallelism: Any) -> Options:
    """An expression given for `uid`, `name` or `parallelism` is a column of that name: `select(name=col("n"))`."""
    given = {"uid": uid, "name": name, "parallelism": parallelism}
    for option, value in list(given.items()):
        if isinstance(value, nw.Expr | pl.Expr | AggregateCall):
            named[option] = given.pop(option)
    return Options(**given)


@dataclass(frozen=True, slots=True, kw_only=True)
class Input:
    """Rows of one operator, and how they are to be spread over the next."""

    uid: Uid
    partitioning: specs.Partitioning
    output: str = specs.MAIN_OUTPUT


@dataclass(slots=True)
class GraphBuilder:
    """Collects operators and edges. Inputs always come before what reads them, so there are no cycles."""

    name: str
    warnings: list[str] = field(default_factory=list)
    _nodes: dict[Uid, LogicalNode] = field(default_factory=dict)
    _edges: list[LogicalEdge] = field(default_factory=list)
    _anchors: dict[Uid, tuple[Uid, ...]] = field(default_factory=dict)
    """Stateful operators that a node hangs under, over any number of stateless ones; itself if it is one."""
    _counters: Counter[str] = field(default_factory=Counter)
    _unnamed: list[Uid] = field(default_factory=list)

    def add(
        self,
        verb: str,
        spec: specs.OperatorSpec,
        inputs: Sequence[Input],
        output: pl.Schema,
        options: Options,
        *,
        where: str,
        default_name: str = "",
        identity: str = "",
        sides: Mapping[str, pl.Schema] | None = None,
        changes: specs.Changes | None = None,
    ) -> Uid:
        """Add an operator; `identity` tells apart what has the same place in the graph, such as two sources."""
        checks.require_parallelism(options.parallelism, where=where)
        stateful = isinstance(spec, _STATEFUL)
        above = tuple(dict.fromkeys(itertools.chain(*(self._anchors[input_.uid] for input_ in inputs))))
        if options.uid is not None:
            uid = self._explicit_uid(options.uid, where)
        elif stateful:
            uid = self._uid_from_place(verb, above, identity)
            if not _forgets(spec):
                self._unnamed.append(uid)
        else:
            uid = self._next_uid(verb)
        self._anchors[uid] = (uid,) if stateful else above
        operator = specs.Operator(
            uid=uid,
            name=options.name or options.uid or default_name or verb,
            spec=spec,
            output=schemas.fields(output),
            changes=changes,
            side_outputs=tuple(
                specs.SideOutput(name=name, schema=schemas.fields(side)) for name, side in (sides or {}).items()
            ),
            place=where,
        )
        self._nodes[uid] = LogicalNode(operator=operator, parallelism=options.parallelism)
        self._edges += [
            LogicalEdge(
                source=input_.uid, target=uid, port=port, partitioning=input_.partitioning, output=input_.output
            )
            for port, input_ in enumerate(inputs)
        ]
        return uid

    def leads_to(self, start: Uid, end: Uid) -> bool:
        """Whether rows of one operator come to the other."""
        reached = {start}
        for edge in self._edges:  # in the order of their targets: inputs come first
            if edge.source in reached:
                reached.add(edge.target)
        return end in reached

    def next_name(self, verb: str, options: Options) -> str:
        """How messages call an operator that is about to be added."""
        return options.name or options.uid or f"{verb}-{self._counters[verb] + 1}"

    def logical(self) -> LogicalGraph:
        """All that was built so far."""
        return LogicalGraph(name=self.name, nodes=tuple(self._nodes.values()), edges=tuple(self._edges))

    def collected_warnings(self) -> tuple[str, ...]:
        """What the user should know, though the program runs."""
        if not self._unnamed:
            return tuple(self.warnings)
        unnamed = ", ".join(
            f"{self._nodes[uid].operator.name} ({self._nodes[uid].operator.place})" for uid in self._unnamed
        )
        return (
            *self.warnings,
            f"stateful operators without uid: {unnamed}; their state is found by their place in the graph. "
            'Give each a uid="..." so that it is still found when the program changes',
        )

    def _explicit_uid(self, wanted: str, where: str) -> Uid:
        uid = Uid(wanted)
        if not wanted or not wanted.isprintable() or any(char in wanted for char in "/\\#"):
            raise UserError("P003", f"uid {wanted!r} cannot be used", where=where, fix=r"any text without / \ and #")
        if uid in self._nodes:
            raise UserError(
                "P003",
                f'uid "{uid}" used by 2 operators: here and at {self._nodes[uid].operator.place}',
                where=where,
                fix="state is found by uid: give each operator its own",
            )
        return uid

    def _next_uid(self, verb: str) -> Uid:
        while True:
            self._counters[verb] += 1
            uid = Uid(f"{verb}-{self._counters[verb]}")
            if uid not in self._nodes:
                return uid

    def _uid_from_place(self, verb: str, above: Sequence[Uid], identity: str) -> Uid:
        for ordinal in itertools.count():
            place = "\n".join((verb, identity, str(ordinal), *above))
            uid = Uid(f"{verb}-{hashlib.sha256(place.encode()).hexdigest()[:8]}")
            if uid not in self._nodes:
                return uid
        raise AssertionError("unreachable")


def _forgets(spec: specs.OperatorSpec) -> bool:
    """Sinks and functions that have nothing to go on from: no uid is missed."""
    if isinstance(spec, specs.Process | specs.CoProcess):
        return not spec.keys and not spec.states
    return isinstance(spec, specs.Sink) and spec.connector.kind in ("print", "discard")
