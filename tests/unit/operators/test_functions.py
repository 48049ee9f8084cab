"""Functions without state, per row and per batch."""

import sys
from collections.abc import Callable, Iterator
from typing import Any

import polars as pl
import pytest

from penstock.model import schemas, specs
from penstock.model.errors import UserError
from penstock.operators.contexts import Context
from penstock.operators.functions import MapBatchesOperator, MapOperator
from penstock.operators.user_errors import FunctionFailed, describe_stuck

ROWS = pl.DataFrame({"name": ["a", "b", None], "n": [1, 2, 3], "other": [0.5, 1.5, 2.5]})
ONE = {"n": pl.Int64()}
TWO = {"name": pl.String(), "n": pl.Int64()}


def a_function(function: Callable[..., Any]) -> specs.Function:
    return specs.Function(name=function.__name__, pickled=b"")


def map_rows(start: Any, function: Callable[..., Any], output: dict[str, Any], *, flat: bool = False) -> Any:
    spec = specs.Map(function=a_function(function), flat=flat, output=schemas.fields(output))
    operator = MapOperator(spec, function)
    collected = start(operator)
    operator.on_watermark(77)
    operator.on_batch(ROWS)
    return collected.frames


def test_map_passes_the_columns_that_are_named(start: Any) -> None:
    def double(n: int, name: str | None, factor: int = 2) -> tuple[str | None, int]:
        return name, n * factor

    [frame] = map_rows(start, double, TWO)
    assert frame.equals(pl.DataFrame({"name": ["a", "b", None], "n": [2, 4, 6]}))
    assert frame.schema == TWO


def test_map_gives_bare_values_nulls_dicts_context_and_whole_rows(start: Any) -> None:
    assert map_rows(start, lambda n: None if n == 2 else n, ONE)[0]["n"].to_list() == [1, None, 3]
    assert map_rows(start, lambda row: {"n": len(row)}, ONE)[0]["n"].to_list() == [3, 3, 3]

    def at(ctx: Context, n: int) -> int:
        return ctx.watermark + n

    assert map_rows(start, at, ONE)[0]["n"].to_list() == [78, 79, 80]


def test_flat_map_gives_any_number_of_rows(start: Any) -> None:
    def repeat(name: str, n: int) -> Iterator[tuple[str, int]]:
        for index in range(n - 1):
            yield name, index

    [frame] = map_rows(start, repeat, TWO, flat=True)
    assert frame.rows() == [("b", 0), (None, 0), (None, 1)]
    [frame] = map_rows(start, lambda n: None if n == 1 else [n] * n, ONE, flat=True)
    assert frame["n"].to_list() == [2, 2, 3, 3, 3]
    assert map_rows(start, lambda n: (), ONE, flat=True) == []


@pytest.mark.parametrize("flat", [False, True])
def test_an_exception_names_the_row(start: Any, flat: bool) -> None:
    def picky(n: int) -> list[int]:
        if n == 2:
            raise ValueError("not two")
        return [n]

    with pytest.raises(
        FunctionFailed, match=r"(?s)P007 the-operator\[0\]: picky raised ValueError.*not two.*n=2"
    ) as told:
        map_rows(start, picky, ONE, flat=flat)
    assert "functions.py" not in str(told.value).replace("test_functions.py", "")


def test_an_exception_inside_a_generator_names_its_row(start: Any) -> None:
    def picky(n: int) -> Iterator[int]:
        yield n
        if n == 3:
            raise ValueError("not three")

    with pytest.raises(FunctionFailed, match=r"(?s)picky raised ValueError.*n=3"):
        map_rows(start, picky, ONE, flat=True)


@pytest.mark.parametrize("result", ["text", {"n": 1}, 5])
def test_a_flat_function_must_return_rows_in_something_to_iterate(start: Any, result: object) -> None:
    with pytest.raises(UserError, match=r"P014 .*must return rows in a list"):
        map_rows(start, lambda n: result, ONE, flat=True)


def test_a_wrong_value_is_named(start: Any) -> None:
    with pytest.raises(UserError, match=r'P014 the-operator\[0\]: .*column "n" is wrong, \'x\' \(str\)'):
        map_rows(start, lambda n: "x" if n == 3 else n, ONE)


def map_batches(start: Any, function: Callable[[pl.DataFrame], Any], output: dict[str, Any]) -> pl.DataFrame:
    operator = MapBatchesOperator(
        specs.MapBatches(function=a_function(function), output=schemas.fields(output)), function
    )
    collected = start(operator)
    operator.on_batch(ROWS)
    frame: pl.DataFrame = collected.frame
    return frame


def test_map_batches_casts_without_loss_and_orders_columns(start: Any) -> None:
    made = map_batches(start, lambda frame: frame.select(pl.col("n").cast(pl.Int8), "name"), TWO)
    assert made.schema == TWO
    assert made["n"].to_list() == [1, 2, 3]
    assert map_batches(start, lambda frame: frame.select(n=pl.lit(None)), ONE)["n"].to_list() == [None]


@pytest.mark.parametrize(
    ("function", "message"),
    [
        (lambda frame: frame.select("n"), "without name\n.*name String, n Int64"),
        (lambda frame: frame, "with other"),
        (lambda frame: frame.select("other"), "without name, n and with other"),
        (lambda frame: frame.select("name", n="other"), 'column "n" as Float64, declared is Int64'),
        (lambda frame: frame.select("name", n=pl.lit("1")), 'column "n" as String'),
        (lambda frame: 5, "must return a polars DataFrame: 5"),
    ],
)
def test_a_frame_that_is_not_as_declared_is_told(start: Any, function: Any, message: str) -> None:
    with pytest.raises(UserError, match=f"P014 the-operator\\[0\\]: <lambda> .*{message}"):
        map_batches(start, function, TWO)


def test_an_exception_in_a_batch_is_told(start: Any) -> None:
    with pytest.raises(FunctionFailed, match=r"(?s)P007 .*ColumnNotFoundError.*rows=3"):
        map_batches(start, lambda frame: frame.select("nope"), TWO)


def test_code_that_does_not_return_is_told_from_the_first_line_of_the_user_on(start: Any) -> None:
    told: list[str] = []

    def inner() -> None:
        told.append(describe_stuck(sys._getframe()))

    def spin(n: int) -> int:
        inner()
        return n

    map_rows(start, spin, ONE)
    first, *stack = told[0].splitlines()
    assert first == 'in operator "the-operator", here:'
    assert [line.rpartition(" in ")[2] for line in stack if line.startswith("  File ")] == ["spin", "inner"]
