"""Sketches and aggregates of the user's own: what no single expression of Polars gives."""

import math

import numpy as np
import polars as pl
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import penstock as ps
from penstock.model import specs
from penstock.model.errors import UserError
from penstock.operators.aggregates import Aggregation

DISTINCT = specs.Aggregate(
    name="about",
    function="approx_count_distinct",
    input=specs.Expression(name="value", text="value", polars=pl.col("value").meta.serialize()),
    output_type="Int64",
)
SCHEMA = pl.Schema({"key": pl.String(), "price": pl.Int64()})


def in_pieces(aggregation: Aggregation, frame: pl.DataFrame, size: int, *, lift: bool = False) -> pl.DataFrame:
    partials = []
    for piece in frame.iter_slices(size):
        rows = aggregation.prepare(piece, np.zeros(piece.height, np.int64), "uid")
        partials.append(aggregation.lift(rows) if lift else aggregation.fold([rows])[0])
    (merged,) = aggregation.merge([pl.concat(partials)])
    return merged.select(*aggregation.keys, *aggregation.finish)


@pytest.mark.parametrize("distinct", [0, 1, 10, 1_000, 5_000, 20_000, 300_000])
@pytest.mark.parametrize("make", [lambda n: n, lambda n: f"user-{n}", lambda n: n / 3], ids=["int", "text", "float"])
def test_the_sketch_is_within_five_percent(distinct, make):
    values = [make(n) for n in range(distinct)] + [make(n) for n in range(0, distinct, 3)] + [None]
    frame = pl.DataFrame({"value": pl.Series(values, dtype=pl.Int64 if distinct == 0 else None)})
    (about,) = in_pieces(Aggregation([], [DISTINCT]), frame, 70_000)["about"]
    assert abs(about - distinct) <= max(0.05 * distinct, 1 if distinct < 100 else 0)


def test_a_sketch_does_not_grow_with_what_it_has_seen():
    aggregation = Aggregation([], [DISTINCT])
    rows = aggregation.prepare(pl.DataFrame({"value": range(500_000)}), np.zeros(500_000, np.int64), "uid")
    (partial,) = aggregation.fold([rows])
    assert partial[aggregation.partial_columns[0]].list.len().item() <= 4096


@settings(deadline=None, max_examples=40)
@given(st.lists(st.tuples(st.sampled_from("ab"), st.integers(0, 9) | st.none()), min_size=1), st.integers(1, 9))
def test_few_values_are_counted_exactly_however_they_are_cut(rows, size):
    frame = pl.DataFrame(rows, schema={"key": pl.String, "value": pl.Int64}, orient="row")
    expected = frame.group_by("key").agg(pl.col("value").drop_nulls().n_unique()).sort("key").rows()
    for lift in (False, True):
        made = in_pieces(Aggregation(["key"], [DISTINCT]), frame, size, lift=lift)
        assert made.sort("key").rows() == expected


class GeometricMean(ps.MergeableAggregate):
    """By logarithms."""

    def fold(self, value):
        return {"logs": value.log().sum(), "rows": value.count()}

    def merge(self, logs, rows):
        return {"logs": logs.sum(), "rows": rows.sum()}

    def finish(self, logs, rows):
        return (logs / rows).exp()


@settings(deadline=None, max_examples=40)
@given(st.lists(st.tuples(st.sampled_from("ab"), st.integers(1, 99)), min_size=1), st.integers(1, 9))
def test_an_aggregate_of_ones_own_runs_in_pieces(rows, size):
    frame = pl.DataFrame(rows, schema=SCHEMA, orient="row")
    aggregate, kind = GeometricMean("price").resolve("geo", SCHEMA, where="here")
    total = specs.Aggregate(name="n", function="sum", input=aggregate.input, output_type="Int64")
    assert kind == pl.Float64()
    for lift in (False, True):
        made = in_pieces(Aggregation(["key"], [aggregate, total]), frame, size, lift=lift)
        for key, geo, n in made.rows():
            values = [value for other, value in rows if other == key]
            assert n == sum(values)
            assert math.isclose(geo, math.exp(sum(map(math.log, values)) / len(values)), rel_tol=1e-9)


def test_an_aggregate_of_ones_own_must_merge_to_what_it_folds():
    class Forgetful(GeometricMean):
        def merge(self, logs, rows):
            return {"logs": logs.sum()}

    class Changing(GeometricMean):
        def merge(self, logs, rows):
            return {"logs": logs.sum(), "rows": rows.mean()}

    with pytest.raises(UserError, match="merge gives logs; expected logs, rows"):
        Forgetful("price").resolve("geo", SCHEMA, where="here")
    with pytest.raises(UserError, match=r"rows: UInt32, and merge gives .* rows: Float64"):
        Changing("price").resolve("geo", SCHEMA, where="here")
    with pytest.raises(UserError, match='did you mean "price"'):
        GeometricMean("prize").resolve("geo", SCHEMA, where="here")


def test_a_share_is_from_zero_to_one():
    with pytest.raises(UserError, match="from 0 to 1; got 95"):
        ps.quantile("price", 95)
