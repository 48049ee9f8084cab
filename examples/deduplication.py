"""Orders that a shop sends more than once, passed on once.

The first order with an id passes; whatever follows with the same id within a day of event time does not. After that
the id is forgotten, so state stays small.
"""

import polars as pl

import penstock as ps

ORDER = {"order": pl.String, "euros": pl.Float64, "ts": pl.Int64}


class First(ps.KeyedProcessFunction):
    seen = ps.ValueState(bool, default=False, ttl=ps.ttl("1d", time="event"))

    def process(self, ctx: ps.KeyedContext, euros: float, ts: int) -> tuple[str, float, int] | None:
        if self.seen.value:
            return None
        self.seen.value = True
        return ctx.key, euros, ts


def deduplication(flow: ps.Flow) -> None:
    orders = flow.read(ps.json_lines("orders", schema=ORDER), event_time="ts", unit="s", max_delay="10m", uid="orders")
    once = orders.key_by("order").process(First(), output=ORDER, uid="first")
    once.write(ps.parquet("orders-once"), uid="once")
