"""Assertions about what came out of a stream. Each failure says which rows are missing and which are too many."""

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import polars as pl

from penstock.model.errors import UserError
from penstock.testing.inputs import Watermark, microseconds
from penstock.testing.streams import StreamResult, run_stream

ExpectedRows = pl.DataFrame | Sequence[Mapping[str, Any] | Sequence[Any]]
"""Dicts (only the columns that they name are compared), tuples of all columns, or a frame."""

_SHOWN = 10


def assert_rows(
    found: StreamResult | pl.DataFrame,
    expected: ExpectedRows,
    *,
    name: str | None = None,
    ignore_order: bool = True,
) -> None:
    """The rows of a sink (`name`, if there are several) are these, no more and no less."""
    frame = _frame(found, name)
    rows, wanted = _comparable(frame, expected)
    if not ignore_order and rows != wanted:
        first = next(
            (index for index, (row, want) in enumerate(zip(rows, wanted, strict=False)) if row != want),
            min(len(rows), len(wanted)),
        )
        if Counter(map(_key, rows)) == Counter(map(_key, wanted)):
            raise AssertionError(f"the rows are right, but not their order: row {first} is {_at(rows, first)}")
    missing, extra = _difference(rows, wanted)
    if missing or extra:
        raise AssertionError(_explain(missing, extra, len(rows), len(wanted)))


def assert_late(
    result: StreamResult, rows: int | ExpectedRows, *, name: str = "late", operator: str | None = None
) -> None:
    """So many rows came too late for their window; given rows: these went to the output `name`."""
    if not isinstance(rows, int):
        assert_rows(result, rows, name=name)
        return
    if operator is not None and operator not in result.counters:
        raise UserError("T002", f'no operator "{operator}"; there are: {", ".join(result.counters)}')
    found = result.late_rows if operator is None else result.counters[operator].late_rows
    if found != rows:
        by_operator = {uid: each.late_rows for uid, each in result.counters.items() if each.late_rows}
        raise AssertionError(f"{found} rows were late, not {rows}: {by_operator or 'none at any operator'}")


def assert_events(
    result: StreamResult, expected: Sequence[ExpectedRows | Watermark], *, name: str | None = None, unit: str = "us"
) -> None:
    """Rows between watermarks: each list of rows came after the watermark before it and before the one after it.

    Watermarks that are not named are left out; `unit` is that of the named ones' integers.
    """
    named = [microseconds(each.time, unit) for each in expected if isinstance(each, Watermark)]
    groups: list[list[pl.DataFrame]] = [[]]
    passed = []
    for event in result.events(name):
        if isinstance(event, pl.DataFrame):
            groups[-1].append(event)
        elif event in named:
            passed.append(event)
            groups.append([])
    if passed != named:
        raise AssertionError(f"watermarks {named} were expected in this order; there were {result.watermarks(name)}")
    wanted: list[list[Any]] = [[]]
    for each in expected:
        if isinstance(each, Watermark):
            wanted.append([])
        else:
            wanted[-1].extend(each.rows() if isinstance(each, pl.DataFrame) else each)
    empty = _frame(result, name).clear()
    for number, (group, rows) in enumerate(zip(groups, wanted, strict=True)):
        place = f"after watermark {named[number - 1]}" if number else "before the first watermark"
        try:
            assert_rows(pl.concat([empty, *group]), rows)
        except AssertionError as error:
            raise AssertionError(f"{place}: {error}") from None


def assert_survives(
    program: str | Callable[..., Any],
    inputs: Mapping[str, Any],
    *,
    crash_after: Sequence[int] = (1, 2, 3, 5, 8),
    parallelisms: Sequence[tuple[int, int]] = ((1, 1), (1, 3), (3, 1)),
    **options: Any,
) -> StreamResult:
    """Crashes change nothing: with each crash point and each change of parallelism, all sinks have the same rows.

    `parallelisms`: before and after the crash. The result is that of the calm run.
    """
    calm = run_stream(program, inputs, **options)
    for before, after in parallelisms:
        for rows in crash_after:
            shaken = run_stream(
                program, inputs, parallelism=before, crash_after=rows, restore_parallelism=after, **options
            )
            for name, frame in calm.frames.items():
                try:
                    assert_rows(shaken[name], frame)
                except AssertionError as error:
                    where = f"{name}, parallelism {before}, a crash after {rows} rows, then parallelism {after}"
                    raise AssertionError(f"{where}: {error}") from None
    return calm


# ---------------------------------------------------------------- inside


def _frame(found: StreamResult | pl.DataFrame, name: str | None) -> pl.DataFrame:
    if isinstance(found, pl.DataFrame):
        return found
    return found.frame if name is None else found[name]


def _comparable(frame: pl.DataFrame, expected: ExpectedRows) -> tuple[list[Any], list[Any]]:
    """Both as lists of tuples of the same columns."""
    if isinstance(expected, pl.DataFrame):
        _require(frame, expected.columns)
        return frame.select(expected.columns).rows(), expected.rows()
    first = next(iter(expected), None)
    if isinstance(first, Mapping):
        columns = list(first)
        _require(frame, columns)
        wanted = []
        for row in expected:
            if not isinstance(row, Mapping) or set(row) != set(columns):
                raise UserError("T002", f"expected rows differ in their columns: {first} and {row}")
            wanted.append(tuple(row[column] for column in columns))
        return frame.select(columns).rows(), wanted
    return frame.rows(), [tuple(row) if isinstance(row, Sequence) else row for row in expected]


def _require(frame: pl.DataFrame, columns: Sequence[str]) -> None:
    unknown = [column for column in columns if column not in frame.columns]
    if unknown:
        raise AssertionError(f"there is no column {unknown[0]!r}; there are {', '.join(frame.columns)}")


def _difference(rows: list[Any], wanted: list[Any]) -> tuple[list[Any], list[Any]]:
    found, expected = Counter(map(_key, rows)), Counter(map(_key, wanted))
    by_key = {_key(row): row for row in (*rows, *wanted)}
    missing = [by_key[key] for key in (expected - found).elements()]
    return missing, [by_key[key] for key in (found - expected).elements()]


def _key(value: Any) -> Any:
    """Something that can be counted; lists and dicts in a row cannot."""
    match value:
        case tuple() | list():
            return ("sequence", *map(_key, value))
        case Mapping():
            return ("mapping", *((name, _key(each)) for name, each in value.items()))
        case float() if value != value:
            return "NaN"
    return value


def _explain(missing: list[Any], extra: list[Any], found: int, wanted: int) -> str:
    lines = [f"{found} rows, {wanted} expected"]
    for title, rows in (("missing", missing), ("unexpected", extra)):
        lines += [f"  {title}: {row}" for row in rows[:_SHOWN]]
        if len(rows) > _SHOWN:
            lines.append(f"  ... and {len(rows) - _SHOWN} more {title}")
    return "\n".join(lines)


def _at(rows: list[Any], index: int) -> Any:
    return rows[index] if index < len(rows) else "not there"
