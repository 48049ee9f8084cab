"""Revenue per customer since ever: one result for each, which changes with every order.

    penstock run examples/running_totals.py

Results that change are an updating stream. Here each change is printed as a row; a table that keeps the newest row for
each customer would have the totals.
"""

import polars as pl

import penstock as ps

ORDER = {"customer": pl.String, "euros": pl.Float64}
ORDERS = [("ann", 20.0), ("bob", 9.5), ("ann", 7.0), ("cleo", 130.0), ("bob", 31.0), ("ann", 2.5)]


def running_totals(flow: ps.Flow) -> None:
    orders = flow.read(ps.items(ORDERS, schema=ORDER, batch_rows=1), uid="orders")
    totals = orders.key_by("customer").agg(
        orders=ps.count(), euros=ps.sum("euros"), best=ps.max("euros"), uid="totals"
    )
    totals.as_changelog().write(ps.print(), uid="changes")
