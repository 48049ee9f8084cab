"""Rows that decide an extreme: found for many groups at once as for each alone."""

import polars as pl
from hypothesis import given
from hypothesis import strategies as st

from penstock.operators.extremes import Bound, Decided, Extremes

ROWS = st.tuples(st.integers(-3, 3) | st.none(), st.integers(-3, 3), st.integers(0, 9))


def asked(*bounds: Bound) -> Extremes:
    return Extremes([Decided(f"p{number}", "value", bound) for number, bound in enumerate(bounds)])


@given(
    st.lists(st.lists(ROWS, min_size=1, max_size=5), min_size=1, max_size=8),
    st.lists(st.builds(Bound, st.sampled_from("ab"), st.booleans()), min_size=1, max_size=2, unique=True),
    st.booleans(),
)
def test_only_rows_with_a_bound_are_left_of_each_group(
    groups: list[list[tuple[int | None, int, int]]], bounds: list[Bound], nulls: bool
) -> None:
    frames = [
        pl.DataFrame(rows, {"a": pl.Int64, "b": pl.Int32, "value": pl.Int64}, orient="row").with_columns(
            pl.col("a") if nulls else pl.col("a").fill_null(0)
        )
        for rows in groups
    ]
    for frame, left in zip(frames, asked(*bounds).deciding(frames), strict=True):
        wanted = [frame[bound.column].max() if bound.largest else frame[bound.column].min() for bound in bounds]
        if None in wanted:
            assert left.equals(frame)
        else:
            hits = pl.any_horizontal(pl.col(bound.column) == at for bound, at in zip(bounds, wanted, strict=True))
            assert left.equals(frame.filter(hits))
