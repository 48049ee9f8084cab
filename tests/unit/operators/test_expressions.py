"""Expression operators, batch by batch."""

from collections.abc import Callable
from typing import Any

import polars as pl
import pytest

from penstock.model import specs
from penstock.model.errors import UserError
from penstock.operators.expressions import Expressions, Union, shares_work

col = pl.col
FRAME = pl.DataFrame({"a": [1, 2, 3], "b": [10, 20, 30], "tags": [["x"], [], ["y", "z"]]})


def expression(name: str, made: pl.Expr) -> specs.Expression:
    return specs.Expression(name=name, text=f"<{name}>", polars=made.meta.serialize())


def with_columns(**made: pl.Expr) -> specs.WithColumns:
    return specs.WithColumns(expressions=tuple(expression(name, expr) for name, expr in made.items()))


def select(**made: pl.Expr) -> specs.Select:
    return specs.Select(expressions=tuple(expression(name, expr) for name, expr in made.items()))


def where(predicate: pl.Expr) -> specs.Filter:
    return specs.Filter(predicate=expression("predicate", predicate))


@pytest.fixture
def run(start: Callable[..., Any]) -> Callable[..., Any]:
    def ran(spec: Any, *frames: pl.DataFrame) -> Any:
        operator = Expressions(spec)
        collected = start(operator)
        for frame in frames or (FRAME,):
            operator.on_batch(frame)
        collected.counters = operator.context.counters
        return collected

    return ran


def test_select_names_its_columns(run: Callable[..., Any]) -> None:
    assert run(select(total=col("a") + col("b"), a=col("a"))).frame.to_dict(as_series=False) == {
        "total": [11, 22, 33],
        "a": [1, 2, 3],
    }


def test_select_of_constants_has_one_for_each_row(run: Callable[..., Any]) -> None:
    assert run(select(one=pl.lit(1), two=pl.lit("x"))).frame.rows() == [(1, "x")] * 3


def test_what_several_columns_need_is_computed_once(run: Callable[..., Any]) -> None:
    parts = col("words").str.split("-")
    made = {f"part{n}": parts.list.get(n) for n in (0, 1)}
    assert shares_work(list(made.values()))
    assert shares_work([(col("a") + 1) * (col("a") + 1)])
    assert not shares_work([col("a"), col("a").alias("b"), col("a") * 2, col("b") + 1, pl.lit(1)])
    rows = run(select(**made, words=col("words")), pl.DataFrame({"words": ["x-y", "z-w"]})).frame.rows()
    assert rows == [("x", "y", "x-y"), ("z", "w", "z-w")]


def test_with_columns_adds_and_replaces(run: Callable[..., Any]) -> None:
    result = run(with_columns(b=col("b") * 2, c=col("a") - 1)).frame
    assert result.columns == ["a", "b", "tags", "c"]
    assert result["b"].to_list() == [20, 40, 60]


def test_filter_keeps_rows_that_are_true(run: Callable[..., Any]) -> None:
    collected = run(where(col("a") != 2), FRAME, FRAME)
    assert collected.frame["a"].to_list() == [1, 3, 1, 3]


def test_a_batch_without_rows_left_is_not_passed_on(run: Callable[..., Any]) -> None:
    failing = with_columns(c=col("a").cast(pl.Date).dt.year())
    assert run(specs.Fused(steps=(where(col("a") > 9), failing))).frames == []


def test_explode_gives_one_row_per_element(run: Callable[..., Any]) -> None:
    assert run(specs.Explode(columns=("tags",))).frame.select("a", "tags").rows() == [(1, "x"), (3, "y"), (3, "z")]


def test_fused_steps_run_in_order(run: Callable[..., Any]) -> None:
    steps = (
        with_columns(c=col("a") + 1),
        with_columns(d=col("c") * 10),
        where(col("d") > 20),
        specs.Explode(columns=("tags",)),
        select(tag=col("tags"), d=col("d")),
    )
    assert run(specs.Fused(steps=steps)).frame.rows() == [("y", 40), ("z", 40)]


@pytest.mark.parametrize(
    ("later", "expected"),
    [
        (with_columns(d=col("b") + 1), [1, 10, 2, 11]),
        (with_columns(c=col("b")), [1, 10, 10]),
        (with_columns(a=col("c") * 7), [14, 10, 2]),
        (with_columns(b=col("a"), a=col("b")), [10, 1, 2]),
    ],
)
def test_joining_neighbours_changes_no_result(
    run: Callable[..., Any], later: specs.WithColumns, expected: list[int]
) -> None:
    steps = (with_columns(c=col("a") + 1), later)
    assert list(run(specs.Fused(steps=steps)).frame.drop("tags").row(0)) == expected


def test_an_expression_that_fails_is_named(run: Callable[..., Any]) -> None:
    frame = pl.DataFrame({"text": ["1", "x"]})
    spec = with_columns(fine=col("text").str.len_chars(), number=col("text").cast(pl.Int64))
    with pytest.raises(UserError) as caught:
        run(spec, frame)
    assert caught.value.code == "R005"
    assert caught.value.where == 'operator "the-operator"'
    assert caught.value.what.startswith("<number>: ")


def test_union_brings_columns_in_one_order(start: Callable[..., Any]) -> None:
    operator = Union(specs.Union(columns=("a", "b")))
    collected = start(operator)
    operator.on_batch(pl.DataFrame({"a": [1], "b": [2]}), 0)
    operator.on_batch(pl.DataFrame({"b": [4], "a": [3]}), 1)
    assert collected.frame.rows() == [(1, 2), (3, 4)]
