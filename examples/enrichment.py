"""Orders enriched with what another service knows about their customers.

    penstock run examples/enrichment.py

The service is asked about many customers at once, while rows keep their order; answers are remembered for ten minutes.
Here it is a dictionary that takes its time; in earnest `profile_of` would await an HTTP or database client.
"""

import asyncio
from pathlib import Path

import polars as pl

import penstock as ps
from penstock import col

ORDERS = Path(__file__).parent / "data" / "orders.jsonl"
ORDER = {"order": pl.String, "customer": pl.String, "euros": pl.Float64, "ts": pl.Int64}
PROFILE = {"city": pl.String, "discount": pl.Float64}
CUSTOMERS = {"ann": ("Delft", 0.1), "bob": ("Ghent", 0.0)}


async def profile_of(customer: str) -> tuple[str, float] | None:
    """City and discount; None for somebody whom the service does not know."""
    await asyncio.sleep(0.05)
    return CUSTOMERS.get(customer)


def enrichment(flow: ps.Flow) -> None:
    orders = flow.read(ps.json_lines(ORDERS, schema=ORDER), event_time="ts", unit="s", uid="orders")
    profiles = ps.lookup(profile_of, output=PROFILE, capacity=50, cache="10m")
    known = orders.join(profiles, on="customer", how="left", uid="profiles")
    to_pay = col("euros") * (1 - ps.coalesce(col("discount"), ps.lit(0.0)))
    known.select("order", "customer", "city", to_pay=to_pay).write(ps.print(), uid="bills")
