"""A source whose splits are lists, and its operator run by hand."""

from collections.abc import Sequence
from typing import Any

import polars as pl

from penstock.connectors.base import ReadResult, SourceContext, Split
from penstock.model import specs
from penstock.model.ids import Attempt, JobId, SubtaskId, Uid, VertexId
from penstock.model.settings import JobSettings, SourceSettings
from penstock.operators.base import OperatorContext
from penstock.operators.factory import load_function
from penstock.operators.sources import PollResult, SourceOperator

NOW_US = 1_700_000_000_000_000
PAUSE = None
"""In a split's items: no row this time."""


class ManualClock:
    def __init__(self) -> None:
        self.seconds = 0.0

    def now_us(self) -> int:
        return NOW_US + round(self.seconds * 1_000_000)

    def monotonic(self) -> float:
        return self.seconds


class ListReader:
    def __init__(self, items: Sequence[Any], start: int, dtype: pl.DataType) -> None:
        self.items, self.at, self.dtype = items, start, dtype
        self.closed = False

    def read(self, max_rows: int) -> ReadResult:
        rows: list[Any] = []
        while self.at < len(self.items) and self.items[self.at] is not PAUSE and len(rows) < max_rows:
            rows.append(self.items[self.at])
            self.at += 1
        if not rows and self.at < len(self.items):
            self.at += 1
            return ReadResult(wait_us=5_000)
        frame = pl.DataFrame({"at": pl.Series([row if row != "null" else None for row in rows], dtype=self.dtype)})
        return ReadResult(frame=frame if rows else None, ended=self.at >= len(self.items))

    def position(self) -> dict[str, Any]:
        return {"item": self.at}

    def close(self) -> None:
        self.closed = True


class ListSource:
    """Splits by name; `later` are discovered by subtask 0 when they are put there."""

    def __init__(
        self, splits: dict[str, list[Any]], *, sequential: bool = False, dtype: pl.DataType | None = None
    ) -> None:
        self.items, self.sequential, self.dtype = dict(splits), sequential, dtype or pl.Int64()
        self.listed = list(splits)
        self.later: dict[str, list[Any]] | None = None
        self.readers: list[ListReader] = []

    @property
    def discovers(self) -> bool:
        return self.later is not None

    def splits(self) -> Sequence[Split]:
        return [Split(id=name, options={"name": name}) for name in self.listed]

    def discover(self, seen: frozenset[str], context: SourceContext) -> Sequence[Split]:
        new = {name: items for name, items in (self.later or {}).items() if name not in seen}
        self.items |= new
        return [Split(id=name, options={"name": name}) for name in new] if context.subtask_index == 0 else []

    def open(self, split: Split, position: dict[str, Any] | None, context: SourceContext) -> ListReader:
        items = (self.items | (self.later or {}))[split.options["name"]]
        reader = ListReader(items, position["item"] if position else 0, self.dtype)
        self.readers.append(reader)
        return reader


class Collected:
    def __init__(self) -> None:
        self.frames: list[pl.DataFrame] = []

    def emit(self, frame: pl.DataFrame) -> None:
        if frame.height:
            self.frames.append(frame)

    def values(self) -> list[Any]:
        return [value for frame in self.frames for value in frame["at"].to_list()]


def start(
    source: ListSource,
    *,
    subtask: int = 0,
    parallelism: int = 1,
    batch_rows: int = 1,
    on_bad_record: str = "stop",
    unit: str = "us",
    **spec: Any,
) -> tuple[SourceOperator, Collected, ManualClock]:
    clock, collected = ManualClock(), Collected()
    event_time = specs.EventTime(column="at", unit=unit)
    described = {"event_time": event_time, "time_kind": "event", **spec}
    operator = SourceOperator(specs.Source(connector=specs.Connector(kind="list"), **described), source, load_function)
    operator.open(
        OperatorContext(
            job=JobId("job"),
            attempt=Attempt(1),
            uid=Uid("bids"),
            subtask=SubtaskId(VertexId("bids"), subtask),
            parallelism=parallelism,
            max_parallelism=8,
            clock=clock,
            settings=JobSettings(source=SourceSettings(batch_rows=batch_rows, on_bad_record=on_bad_record)),
        ),
        collected,
    )
    return operator, collected, clock


def poll_to_end(operator: SourceOperator) -> list[PollResult]:
    results = [operator.poll()]
    while not results[-1].ended:
        results.append(operator.poll())
        assert len(results) < 1_000
    return results
