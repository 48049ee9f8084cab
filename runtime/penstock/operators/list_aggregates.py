"""Aggregates whose partial result is a list: what was seen, so far as it matters.

`count_distinct` keeps each value once and `quantile` keeps them all: both are exact, and cost what they keep.
`approx_count_distinct` keeps a HyperLogLog sketch: at most 4,096 numbers, whatever the count. `collect_list` keeps the
values in order of time; those of equal times in the order they came.
"""

import polars as pl

from penstock.model import specs
from penstock.operators import sketches
from penstock.operators.aggregate_parts import TIME, Parts

FUNCTIONS = ("count_distinct", "approx_count_distinct", "collect_list", "quantile")


def parts(aggregate: specs.Aggregate, value: pl.Expr) -> Parts:
    """The partial columns; `value` is the prepared input, for a sketch its entries."""
    name = f"__{aggregate.name}.seen"
    seen = pl.col(name)
    single = pl.concat_list(value).list.drop_nulls()
    every = seen.explode().drop_nulls()
    match aggregate.function:
        case "count_distinct":
            return Parts(
                fold=(value.drop_nulls().unique().implode().alias(name),),
                lift=(single.alias(name),),
                merge=(every.unique().implode().alias(name),),
                finish=seen.list.len().cast(pl.Int64).alias(aggregate.name),
            )
        case "approx_count_distinct":
            return Parts(
                fold=(sketches.pruned(value.drop_nulls()).implode().alias(name),),
                lift=(single.alias(name),),
                merge=(sketches.pruned(every).implode().alias(name),),
                finish=sketches.estimate(seen).alias(aggregate.name),
            )
        case "quantile":
            number = value.cast(pl.Float64)
            share = pl.element().quantile(aggregate.share, "linear")
            return Parts(
                fold=(number.drop_nulls().implode().alias(name),),
                lift=(pl.concat_list(number).list.drop_nulls().alias(name),),
                merge=(every.implode().alias(name),),
                finish=seen.list.eval(share).list.first().alias(aggregate.name),
            )
    times_name = f"__{aggregate.name}.times"
    times, there, at = pl.col(times_name), value.is_not_null(), pl.col(TIME)
    when = times.explode().drop_nulls()
    return Parts(
        fold=(
            value.sort_by(at, maintain_order=True).drop_nulls().implode().alias(name),
            at.filter(there).sort().implode().alias(times_name),
        ),
        lift=(single.alias(name), pl.concat_list(pl.when(there).then(at)).list.drop_nulls().alias(times_name)),
        merge=(
            every.sort_by(when, maintain_order=True).implode().alias(name),
            when.sort().implode().alias(times_name),
        ),
        finish=seen.alias(aggregate.name),
    )
