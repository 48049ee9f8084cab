"""Revenue per customer since ever: one result for each, which changes with every batch of orders.

Results that change are an updating stream; Parquet keeps every row, so it gets the changes as rows.
"""

import polars as pl

import penstock as ps

ORDER = {"customer": pl.String, "euros": pl.Float64}


def running_totals(flow: ps.Flow) -> None:
    orders = flow.read(ps.json_lines("orders", schema=ORDER), uid="orders")
    totals = orders.key_by("customer").agg(
        orders=ps.count(), euros=ps.sum("euros"), best=ps.max("euros"), uid="totals"
    )
    totals.as_changelog().write(ps.parquet("totals"), uid="changes")
