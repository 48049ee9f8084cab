"""Aggregates in pieces: any mixture of folding, lifting and merging gives what one group-by gives."""

import math
from typing import Any

import numpy as np
import polars as pl
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from penstock.model import schemas, specs
from penstock.model.errors import UserError
from penstock.operators.aggregates import PANE, Aggregation, output_type, partial_schema

KEY, AT, VALUE, BY = pl.col("key"), pl.col("at"), pl.col("value"), pl.col("by")

EXPECTED: dict[str, pl.Expr] = {
    "count": VALUE.count().cast(pl.Int64),
    "sum": VALUE.sum(),
    "min": VALUE.min(),
    "max": VALUE.max(),
    "mean": VALUE.mean(),
    "var": VALUE.var(),
    "std": VALUE.std(),
    "first": VALUE.sort_by(AT, maintain_order=True).first(),
    "last": VALUE.sort_by(AT, maintain_order=True).last(),
    "min_by": VALUE.filter(BY.min() == BY).min(),
    "max_by": VALUE.filter(BY.max() == BY).min(),
    "count_distinct": VALUE.drop_nulls().n_unique().cast(pl.Int64),
    "collect_list": VALUE.sort_by(AT, maintain_order=True).drop_nulls(),
    "quantile": VALUE.cast(pl.Float64).quantile(0.5, "linear"),
}
ROWS = st.lists(
    st.tuples(
        st.sampled_from(["a", "b"]), st.integers(0, 3), st.integers(-50, 50) | st.none(), st.integers(0, 3) | st.none()
    ),
    min_size=1,
    max_size=30,
)
KINDS = st.sampled_from([pl.Int8(), pl.Int64(), pl.Float32(), pl.Float64(), pl.Decimal(10, 2), pl.UInt32()])


def expression(text: str, made: pl.Expr | None = None) -> specs.Expression:
    return specs.Expression(name=text, text=text, polars=(pl.col(text) if made is None else made).meta.serialize())


def aggregate(function: str, schema: pl.Schema, *, value: str | None = "value") -> specs.Aggregate:
    by = expression("by") if function.endswith("_by") else None
    made = specs.Aggregate(name="out", function=function, input=expression(value) if value else None, by=by)
    kind = schemas.type_to_text(output_type(made, schema))
    return specs.Aggregate(name="out", function=function, input=made.input, by=by, output_type=kind)


def in_pieces(
    frame: pl.DataFrame, made: specs.Aggregate, keys: list[str], cuts: list[tuple[int, str]]
) -> pl.DataFrame:
    """Cut the rows, fold or lift each piece, merging everything so far whenever a cut says so."""
    aggregation = Aggregation(keys, [made])
    partials: list[pl.DataFrame] = []
    for length, how in [*cuts, (frame.height, "fold")]:
        rows, frame = frame.head(length), frame.slice(length)
        if rows.is_empty():
            continue
        prepared = aggregation.prepare(rows, rows["at"].to_numpy(), "uid")
        partials.append(aggregation.lift(prepared) if how == "lift" else aggregation.fold([prepared])[0])
        if how == "merge":
            partials = aggregation.merge([pl.concat(partials)])
    (merged,) = aggregation.merge([pl.concat(partials)])
    assert set(merged.columns) == {*keys, *aggregation.partial_columns}
    return merged.select(*keys, *aggregation.finish)


def same(left: Any, right: Any) -> bool:
    if isinstance(left, float) and isinstance(right, float):
        return math.isclose(left, right, rel_tol=1e-5, abs_tol=1e-9)
    return bool(left == right)


@settings(deadline=None)
@given(
    ROWS,
    st.sampled_from(sorted(EXPECTED)),
    KINDS,
    st.lists(st.tuples(st.integers(1, 9), st.sampled_from(["fold", "lift", "merge"])), max_size=6),
)
def test_pieces_give_what_polars_gives_at_once(
    rows: list[tuple[Any, ...]], function: str, kind: pl.DataType, cuts: list[tuple[int, str]]
) -> None:
    if kind == pl.UInt32:
        rows = [(key, at, value and abs(value), by) for key, at, value, by in rows]
    loose = pl.DataFrame(rows, schema=["key", "at", "value", "by"], orient="row", infer_schema_length=None)
    frame = loose.cast({"at": pl.Int64, "value": pl.Int64, "by": pl.Int64}).cast({"value": kind})
    made = aggregate(function, frame.schema)
    pieces = in_pieces(frame, made, ["key"], cuts).sort("key")
    whole = frame.group_by("key").agg(EXPECTED[function].alias("out")).sort("key")
    assert pieces.schema["out"] == output_type(made, frame.schema)
    assert pieces["key"].equals(whole["key"])
    assert all(
        same(left, right) for left, right in zip(*(each["out"].to_list() for each in (pieces, whole)), strict=True)
    ), (
        pieces,
        whole,
    )


@pytest.mark.parametrize("how", ["fold", "lift", "merge"])
def test_any_and_all_leave_nulls_out(how: str) -> None:
    rows = [("yes", 0, True), ("no", 0, False), ("both", 0, True), ("both", 1, False), ("none", 0, None)]
    frame = pl.DataFrame(rows, schema={"key": pl.String, "at": pl.Int64, "value": pl.Boolean}, orient="row")
    found = {
        function: dict(in_pieces(frame, aggregate(function, frame.schema), ["key"], [(1, how), (2, how)]).rows())
        for function in ("any", "all")
    }
    assert found["any"] == {"yes": True, "no": False, "both": True, "none": False}
    assert found["all"] == {"yes": True, "no": False, "both": False, "none": True}


@pytest.mark.parametrize("function", sorted(EXPECTED))
def test_a_lifted_row_is_a_result_of_its_own(function: str) -> None:
    rows = [("a", 0, 7, 1), ("b", 0, None, 1), ("c", 0, 7, None)]
    frame = pl.DataFrame(rows, schema=["key", "at", "value", "by"], orient="row")
    aggregation = Aggregation(["key"], [aggregate(function, frame.schema)])
    lifted = aggregation.lift(aggregation.prepare(frame, frame["at"].to_numpy(), "uid"))
    expected = frame.group_by("key").agg(EXPECTED[function].alias("out"))
    assert dict(lifted.select("key", *aggregation.finish).rows()) == dict(expected.rows())


def test_count_without_a_column_counts_rows_even_without_keys() -> None:
    frame = pl.DataFrame({"at": [1, 2, 3], "value": [None, 1, 2]})
    counted = in_pieces(frame, aggregate("count", frame.schema, value=None), [], [(1, "fold")])
    assert counted.rows() == [(3,)]


def test_a_constant_input_without_keys_counts_once_per_row() -> None:
    one = specs.Aggregate(name="out", function="sum", input=expression("one", pl.lit(1)), output_type="Int64")
    frame = pl.DataFrame({"at": [1, 2, 3]})
    assert in_pieces(frame, one, [], [(2, "fold")]).rows() == [(3,)]


def test_variance_of_pieces_is_sound_far_from_zero() -> None:
    values = 1e9 + np.random.default_rng(7).normal(size=10_000)
    frame = pl.DataFrame({"at": np.arange(10_000), "value": values})
    found = in_pieces(frame, aggregate("var", frame.schema), [], [(100, "merge")] * 99).item()
    assert math.isclose(found, float(np.var(values, ddof=1)), rel_tol=1e-6)


def test_integer_sums_and_counts_are_64_bit() -> None:
    schema = pl.Schema({"at": pl.Int64(), "value": pl.Int8()})
    assert output_type(aggregate("sum", schema), schema) == pl.Int64
    assert output_type(aggregate("count", schema), schema) == pl.Int64
    frame = pl.DataFrame({"at": [0] * 300, "value": pl.Series([127] * 300, dtype=pl.Int8)})
    assert in_pieces(frame, aggregate("sum", schema), [], [(100, "fold")]).item() == 38_100


def test_partial_columns_are_known_before_any_row() -> None:
    schema = pl.Schema({"key": pl.String(), "at": pl.Int64(), "value": pl.Int32()})
    made = specs.Aggregate(name="average", function="mean", input=expression("value"))
    expected = {"key": pl.String(), PANE: pl.Int64(), "__average.sum": pl.Float64(), "__average.count": pl.Int64()}
    assert partial_schema(["key"], [made], schema) == expected


@pytest.mark.parametrize(
    ("function", "kind"),
    [("sum", pl.String()), ("mean", pl.Date()), ("any", pl.Int64()), ("max", pl.List(pl.Int64()))],
)
def test_an_aggregate_refuses_a_type_it_cannot_take(function: str, kind: pl.DataType) -> None:
    schema = pl.Schema({"value": kind})
    with pytest.raises(UserError, match="P020") as caught:
        aggregate(function, schema)
    assert f"{function}(value)" in caught.value.what


def test_an_input_that_cannot_be_computed_names_its_expression() -> None:
    cast = expression("price", pl.col("text").cast(pl.Int64))
    made = specs.Aggregate(name="out", function="sum", input=cast, output_type="Int64")
    frame = pl.DataFrame({"key": ["a"], "text": ["x"]})
    with pytest.raises(UserError, match="R005") as caught:
        Aggregation(["key"], [made]).prepare(frame, np.zeros(1, np.int64), "totals")
    assert caught.value.where == 'operator "totals"'
    assert caught.value.what.startswith("price: ")
