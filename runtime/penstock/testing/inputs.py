"""What a test gives to a stream: rows, and what happens between them.

An input is a list of elements, one after the other: rows, `watermark(...)`, `idle()`, `pause(...)`, `checkpoint()`,
`crash()`. Element n of every input is given out at step n: inputs that are to meet in a certain order are lined up
by position.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Any

import polars as pl

from penstock.api import row_types
from penstock.api.watermarks import Watermark as Strategy
from penstock.api.windows import Duration
from penstock.model.durations import parse_duration
from penstock.model.errors import UserError
from penstock.model.schemas import fields

Time = int | datetime
"""A point of event time: a datetime (without zone: UTC), or a number in the unit of the input's time column."""


_UNITS = {"s": (1_000_000, 1), "ms": (1_000, 1), "us": (1, 1), "ns": (1, 1_000)}


def microseconds(time: Time, unit: str) -> int:
    """A point of event time as the engine counts it."""
    if isinstance(time, int):
        multiplier, divisor = _UNITS[unit]
        return time * multiplier // divisor
    with_zone = time if time.tzinfo is not None else time.replace(tzinfo=UTC)
    return (with_zone - datetime.fromtimestamp(0, UTC)) // timedelta(microseconds=1)


@dataclass(frozen=True, slots=True)
class Watermark:
    """No row at or before this time follows."""

    time: Time


@dataclass(frozen=True, slots=True)
class Idle:
    """Nothing comes for a while; the next row ends it."""


@dataclass(frozen=True, slots=True)
class Pause:
    """Virtual time passes."""

    micros: int


@dataclass(frozen=True, slots=True)
class Checkpoint:
    """A checkpoint completes here, before anything that follows is read."""


@dataclass(frozen=True, slots=True)
class Crash:
    """All slot processes die here, once; the job goes on from its last checkpoint."""

    parallelism: int | None = None


def watermark(time: Time) -> Watermark:
    """No row at or before `time` follows: windows that end up to here fire, event-time timers run."""
    return Watermark(time)


def idle() -> Idle:
    """The input has nothing for now and holds no other input back, until its next row."""
    return Idle()


def pause(duration: Duration = 0) -> Pause:
    """Let virtual time pass: processing-time timers run, TTLs end, look-ups time out. Without duration: one step."""
    return Pause(parse_duration(duration, what="pause"))


def checkpoint() -> Checkpoint:
    """Take a checkpoint and wait until it is complete: what was read before is in it, what follows is not."""
    return Checkpoint()


def crash(*, parallelism: int | None = None) -> Crash:
    """Kill everything; the job restores its last checkpoint, at another `parallelism` if one is given."""
    return Crash(parallelism)


Signal = Watermark | Idle | Pause | Checkpoint | Crash
Rows = pl.DataFrame | Mapping[str, Any] | Sequence[Mapping[str, Any]]
InputElement = Signal | Rows
"""Rows: one as a dict; a batch as a list of dicts or a DataFrame."""


@dataclass(frozen=True, slots=True)
class Input:
    """An input as a test describes it; `source(...)` makes one."""

    splits: tuple[tuple[InputElement, ...], ...]
    schema: pl.Schema | None = None
    event_time: str | None = None
    unit: str | None = None
    time: str | None = None
    max_delay: Duration | None = None
    watermark: Strategy | None = None
    idle_after: Duration | None = None
    align_within: Duration | None = None
    align_group: str | None = None
    batch_rows: int | None = None


def source(
    *splits: Iterable[InputElement] | pl.DataFrame,
    schema: Any = None,
    event_time: str | None = None,
    unit: str | None = None,
    time: str | None = None,
    max_delay: Duration | None = None,
    watermark: Strategy | None = None,
    idle_after: Duration | None = None,
    align_within: Duration | None = None,
    align_group: str | None = None,
    batch_rows: int | None = None,
) -> Input:
    """An input: one list of elements, or several, which are splits that are read side by side.

    What else is named like an option of `flow.read` is just that. Without `max_delay` and `watermark`, event time
    advances by `watermark(...)` alone. Rows that are given one by one make batches of up to `batch_rows`; a list of
    rows or a DataFrame is a batch of its own, cut only if it is longer.
    """
    given = tuple((split,) if isinstance(split, pl.DataFrame) else tuple(split) for split in splits)
    columns = None if schema is None else row_types.schema_of(schema, where="source(schema=)")
    return Input(
        given,
        columns,
        event_time=event_time,
        unit=unit,
        time=time,
        max_delay=max_delay,
        watermark=watermark,
        idle_after=idle_after,
        align_within=align_within,
        align_group=align_group,
        batch_rows=batch_rows,
    )


def as_input(name: str, given: Any) -> Input:
    """What a test gave for an input, whatever its form."""
    if isinstance(given, Input):
        return given
    if isinstance(given, pl.DataFrame) or (isinstance(given, Iterable) and not isinstance(given, str | Mapping)):
        return source(given)
    raise UserError(
        "T001",
        f'run_stream: input "{name}" is a {type(given).__name__}',
        fix="give a list of rows, or testing.source([...], event_time=...)",
    )


# ---------------------------------------------------------------- as a source reads them


Step = Signal | pl.DataFrame


def columns_of(name: str, given: Input, declared: pl.Schema | None) -> pl.Schema:
    """The columns: as given, as the program declares them, or as the rows are."""
    schema = given.schema or declared
    if schema is None:
        rows = [row for split in given.splits for element in split for row in _row_dicts(element)]
        frames = [each for split in given.splits for each in split if isinstance(each, pl.DataFrame)]
        if frames:
            schema = frames[0].schema
        elif rows:
            schema = pl.DataFrame(rows, infer_schema_length=None).schema
        else:
            raise UserError(
                "T001", f'run_stream: the columns of input "{name}" are not known', fix="source(..., schema=Row)"
            )
    fields(schema)
    return schema


def steps_of(name: str, elements: Iterable[InputElement], schema: pl.Schema, batch_rows: int | None) -> list[Step]:
    """Elements as steps: rows gathered into frames of the schema, cut to `batch_rows`."""
    steps: list[Step] = []
    single: list[Mapping[str, Any]] = []

    def gather() -> None:
        if single:
            steps.extend(_cut(_frame(name, single, schema), batch_rows))
            single.clear()

    for element in elements:
        if isinstance(element, Mapping):
            single.append(element)
            continue
        gather()
        if isinstance(element, Signal):
            steps.append(element)
        elif isinstance(element, pl.DataFrame):
            steps.extend(_cut(_cast(name, element, schema), batch_rows))
        else:
            steps.extend(_cut(_frame(name, element, schema), batch_rows))
    gather()
    return steps


def _row_dicts(element: InputElement) -> list[Mapping[str, Any]]:
    if isinstance(element, Mapping):
        return [element]
    return [] if isinstance(element, Signal | pl.DataFrame) else list(element)


def _frame(name: str, rows: Sequence[Mapping[str, Any]], schema: pl.Schema) -> pl.DataFrame:
    unknown = sorted({column for row in rows for column in row} - set(schema))
    if unknown:
        raise UserError(
            "T001",
            f'run_stream: input "{name}" has no column "{unknown[0]}"; it has {", ".join(schema)}',
            fix="correct the row, or the schema",
        )
    try:
        return pl.DataFrame(list(rows), schema=schema)
    except (TypeError, pl.exceptions.PolarsError) as error:
        raise UserError("T001", f'run_stream: a row of input "{name}" does not fit: {error}') from error


def _cast(name: str, frame: pl.DataFrame, schema: pl.Schema) -> pl.DataFrame:
    try:
        return frame.select(pl.col(column).cast(kind) for column, kind in schema.items())
    except pl.exceptions.PolarsError as error:
        raise UserError("T001", f'run_stream: the frame of input "{name}" does not fit: {error}') from error


def _cut(frame: pl.DataFrame, batch_rows: int | None) -> list[pl.DataFrame]:
    if not frame.height:
        return []
    return list(frame.iter_slices(batch_rows)) if batch_rows else [frame]
