"""A bounded program on Spark, from its graph to committed output."""

import re
import uuid
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import polars as pl
from pyspark.errors import PySparkException

from penstock.batch import session as sessions
from penstock.batch.sinks import Sinks
from penstock.batch.translating import Translated, refuse, translate
from penstock.batch.workers import Work
from penstock.graph import JobGraph, LogicalGraph, narrowed
from penstock.model.clocks import Clock, SystemClock
from penstock.model.errors import FatalJobError, PenstockError, UserError
from penstock.model.ids import JobId

_RAISED = re.compile(
    r"^penstock\.[\w.]+: ([PRSC]\d{3} .+?)(?=\n\s*\n|\n? ?SQLSTATE|\n\s+at |\nJVM stacktrace|\Z)",
    re.MULTILINE | re.DOTALL,
)
_NATIVE_ERROR = re.compile(r"\b(R\d{3} .+?)(?=\s*SQLSTATE|\n|\Z)")


@dataclass(frozen=True, slots=True)
class BatchResult:
    """What a run has come to."""

    job: JobId
    seconds: float
    """Without starting Spark."""
    frames: dict[str, pl.DataFrame] = field(default_factory=dict)
    """Rows of collect sinks by uid."""
    operators: dict[str, str] = field(default_factory=dict)
    """How each operator ran: `native`, or why in Python."""

    def collected(self, uid: str | None = None) -> pl.DataFrame:
        """Rows of the collect sink; its uid is needed when there are several."""
        if uid is None and len(self.frames) == 1:
            return next(iter(self.frames.values()))
        if uid is None or uid not in self.frames:
            there = ", ".join(self.frames) or "none: write to ps.collect()"
            raise UserError("P023", f"which collect sink? there are: {there}", fix='result.collected("uid")')
        return self.frames[uid]


def run(
    graph: JobGraph,
    spark: Any = None,
    *,
    master: str | None = None,
    conf: Mapping[str, str] | None = None,
    clock: Clock | None = None,
) -> BatchResult:
    """Run a bounded program; its output is visible when all of it is there.

    `spark`: a session to run beside, with its own settings left alone; None: one is started, at `master`, with `conf`.
    """
    clock = clock or SystemClock()
    program = program_of(graph)
    refuse(program)
    spark = sessions.prepared(spark, conf) if spark is not None else sessions.session(master, conf, name=graph.name)
    started = clock.monotonic()
    job = JobId(f"{graph.name}-{uuid.uuid4().hex[:8]}")  # noqa: TID251 - names staged files; nothing is decided by it
    sinks = Sinks(job)
    made = translated(spark, graph, job)
    try:
        for operator, table in made.sinks:
            work = Work(job=job, operator=operator, settings=graph.settings, max_parallelism=graph.max_parallelism)
            sinks.stage(work, table)
        sinks.commit()
    except PySparkException as error:
        raise failure(error) from error
    finally:
        sinks.clean()
        made.release()
    how = {str(uid): way for uid, way in made.how.items()}
    return BatchResult(job, clock.monotonic() - started, sinks.frames, how)


def explain(
    graph: JobGraph, spark: Any = None, *, master: str | None = None, conf: Mapping[str, str] | None = None
) -> str:
    """How each operator runs, and Spark's plan for each sink."""
    program = program_of(graph)
    refuse(program)
    spark = sessions.prepared(spark, conf) if spark is not None else sessions.session(master, conf, name=graph.name)
    made = translated(spark, graph, JobId("explain"))
    operators = {node.operator.uid: node.operator for node in program.nodes}
    width = max((len(uid) for uid in made.how), default=0)
    lines = ["== operators =="]
    lines += [f"{uid:<{width}}  {how}{_place(operators[uid].place)}" for uid, how in made.how.items()]
    for operator, table in made.sinks:
        lines += ["", f"== {operator.uid} ==", plan_of(table.frame)]
    made.release()
    return "\n".join(lines)


def plan_of(frame: Any) -> str:
    """The physical plan, as Spark shows it."""
    return str(frame._jdf.queryExecution().simpleString()).strip()


def translated(spark: Any, graph: JobGraph, job: JobId) -> Translated:
    """The program as DataFrames."""
    try:
        return translate(
            spark,
            program_of(graph),
            job=job,
            settings=graph.settings,
            max_parallelism=graph.max_parallelism,
        )
    except PySparkException as error:  # rows for all workers are read here already
        raise failure(error) from error


def program_of(graph: JobGraph) -> LogicalGraph:
    """The program as it was written, with the columns that are needed."""
    if graph.program is None:
        raise UserError("P081", f'the graph "{graph.name}" does not hold the program', fix="build it anew")
    if not graph.bounded:
        endless = next(
            (node.operator for node in graph.program.nodes if not _ends(node.operator)),
            graph.program.nodes[0].operator,
        )
        raise UserError(
            "P081",
            f'source "{endless.uid}" never ends, and a batch has an end',
            where=endless.place,
            fix="run it as a stream (without --engine spark), or read what ends: events=, rows=, or files without "
            "watch=True",
        )
    return narrowed(graph.program)


def _ends(operator: Any) -> bool:
    options = getattr(getattr(operator.spec, "connector", None), "options", {})
    kind = getattr(getattr(operator.spec, "connector", None), "kind", "")
    endless = kind in ("nexmark", "generate") and options.get("events", options.get("rows")) is None
    return not (endless or options.get("watch") or kind == "socket-lines")


def failure(error: PySparkException) -> PenstockError:
    """What Spark reports, as the error of whoever can mend it."""
    text = str(error)
    for pattern in (_RAISED, _NATIVE_ERROR):
        if (found := pattern.search(text)) is not None:
            code, _, what = found[1].strip().partition(" ")
            what, _, fix = what.partition("  fix: ") if "  fix: " in what else what.partition("\n  fix: ")
            return UserError(code, what.strip(), fix=fix.strip() or None)
    first = next((line for line in text.splitlines() if line.strip()), "no reason given")
    return FatalJobError("C080", f"Spark: {first.strip()}", fix="Spark's own log says more")


def _place(place: str) -> str:
    return f"   ({place})" if place else ""
