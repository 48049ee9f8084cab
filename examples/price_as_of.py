"""Trades in the currency of the house, at the rate that was valid when each was made.

Rates change all day and arrive on their own way; a trade that comes late still gets the rate of its own time.
"""

import polars as pl

import penstock as ps
from penstock import col

TRADE = {"trade": pl.Int64, "currency": pl.String, "amount": pl.Float64, "ts": pl.Int64}
RATE = {"currency": pl.String, "rate": pl.Float64, "ts": pl.Int64}


def price_as_of(flow: ps.Flow) -> None:
    trades = flow.read(ps.csv("trades", schema=TRADE), event_time="ts", unit="s", max_delay="30s", uid="trades")
    rates = flow.read(ps.csv("rates", schema=RATE), event_time="ts", unit="s", max_delay="30s", uid="rates")
    priced = trades.join(rates, on="currency", within=ps.as_of(max_age="1d"), how="left", uid="as-of")
    priced.select("trade", "currency", euros=col("amount") * col("rate")).write(ps.parquet("priced"), uid="priced")
