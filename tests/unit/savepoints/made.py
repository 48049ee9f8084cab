"""Savepoints of small jobs, made by the engine itself in virtual time, for the tests of this folder."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import polars as pl
import pytest

import penstock as ps
from penstock import testing
from penstock.graph import JobGraph
from penstock.model.settings import JobSettings, StateSettings
from penstock.savepoints import Savepoint
from penstock.savepoints.manifest import SavepointManifest
from penstock.testing import runs

ROWS = [{"user": f"u{number % 7}", "amount": number, "ts": number} for number in range(40)]
OUTPUT = {"user": str, "total": int, "names": int, "seen": int}


class Account(ps.KeyedProcessFunction):
    """A state of every kind, and timers."""

    total = ps.ValueState(int, default=0)
    names = ps.MapState(str, int)
    seen = ps.ListState(int, ttl="1h")
    most = ps.ReducingState(max, int)

    def process(self, ctx: ps.KeyedContext, amount: int) -> Any:
        self.total.value += amount
        self.names[f"n{amount % 3}"] = amount
        self.seen.add(amount)
        self.most.add(amount)
        ctx.set_timer(ctx.timestamp + 1_000_000_000)
        return ctx.key, self.total.value, len(self.names), len(self.seen)

    def on_timer(self, ctx: ps.KeyedContext, time: int) -> Any:
        return ctx.key, -self.total.value, self.names.get("n0", 0), self.most.get() or 0


def accounts(rows: ps.DataStream) -> dict[str, ps.DataStream]:
    keyed = rows.key_by("user")
    return {
        "accounts": keyed.process(Account(), output=OUTPUT, uid="account"),
        "counts": keyed.window(ps.tumbling("10s")).agg(n=ps.count(), top=ps.max("amount"), uid="counts"),
    }


@dataclass(frozen=True, slots=True)
class Taken:
    """A savepoint as it was taken, the graph that it is for, and what came out of the job."""

    savepoint: Savepoint
    graph: JobGraph
    result: testing.StreamResult


def take(
    program: Callable[..., Any] = accounts,
    *,
    rows: list[dict[str, Any]] | None = None,
    parallelism: int = 3,
    restored_at: int = 2,
    after: int = 20,
    backend: str = "memory",
) -> Taken:
    """Run `program` until it is stopped with a savepoint, and on to its end."""
    found: list[tuple[Any, SavepointManifest]] = []
    graphs: list[JobGraph] = []
    adopt, submit = runs.adopt, runs.Run._submit

    def watched(store: Any, manifest: SavepointManifest, *given: Any, **options: Any) -> Any:
        found.append((store, manifest))
        return adopt(store, manifest, *given, **options)

    def watched_submit(run: Any, graph: JobGraph, before: Any) -> None:
        graphs.append(graph)
        submit(run, graph, before)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(runs, "adopt", watched)
        patch.setattr(runs.Run, "_submit", watched_submit)
        result = testing.run_stream(
            program,
            {"rows": testing.source(rows or ROWS, event_time="ts", unit="s", batch_rows=2)},
            parallelism=parallelism,
            savepoint_after=after,
            restore_parallelism=restored_at,
            settings=JobSettings(state=StateSettings(backend=backend, memory_budget=1)),
        )
    ((store, manifest),) = found
    return Taken(Savepoint(store, manifest), graphs[0], result)


def calm(program: Callable[..., Any] = accounts) -> testing.StreamResult:
    """The same without any interruption."""
    return testing.run_stream(program, {"rows": testing.source(ROWS, event_time="ts", unit="s", batch_rows=2)})


def plain(frame: pl.DataFrame) -> list[tuple[Any, ...]]:
    return sorted(frame.rows())
