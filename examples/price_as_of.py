"""Trades in the currency of the house, each at the rate that was valid when it was made.

    penstock run examples/price_as_of.py

Rates change all day and arrive on their own way; a trade that comes late still gets the rate of its own time. For the
yen there is no rate, and trades in it get none.
"""

from pathlib import Path

import polars as pl

import penstock as ps
from penstock import col

DATA = Path(__file__).parent / "data"
TRADE = {"trade": pl.Int64, "currency": pl.String, "amount": pl.Float64, "ts": pl.Int64}
RATE = {"currency": pl.String, "rate": pl.Float64, "ts": pl.Int64}


def price_as_of(flow: ps.Flow) -> None:
    timed = {"event_time": "ts", "unit": "s", "max_delay": "30s"}
    trades = flow.read(ps.csv(DATA / "trades.csv", schema=TRADE), uid="trades", **timed)
    rates = flow.read(ps.csv(DATA / "rates.csv", schema=RATE), uid="rates", **timed)
    priced = trades.join(rates, on="currency", within=ps.as_of(max_age="1d"), how="left", uid="as-of")
    priced.select("trade", "currency", euros=col("amount") * col("rate")).write(ps.print(), uid="priced")
