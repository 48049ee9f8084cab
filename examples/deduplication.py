"""Orders that a shop sends more than once, passed on once.

    penstock run examples/deduplication.py

The first order with an id passes; whatever follows with the same id within a day of event time does not. After that
the id is forgotten, so state stays small.
"""

from pathlib import Path

import polars as pl

import penstock as ps

ORDERS = Path(__file__).parent / "data" / "orders.jsonl"
ORDER = {"order": pl.String, "customer": pl.String, "euros": pl.Float64, "ts": pl.Int64}


def deduplication(flow: ps.Flow) -> None:
    orders = flow.read(ps.json_lines(ORDERS, schema=ORDER), event_time="ts", unit="s", max_delay="10m", uid="orders")
    orders.deduplicate("order", ttl="1d", uid="once").write(ps.print(), uid="out")
