"""The program of the savepoints in `tests/golden`. It may be added to; what it has must stay as it is."""

from typing import Any

import penstock as ps

ROWS = [{"user": f"u{number % 5}", "amount": number * 7 % 40, "ts": number} for number in range(60)]
OUTPUT = {"user": str, "total": int, "names": int, "seen": int}


class Account(ps.KeyedProcessFunction):
    """A state of every kind, and timers."""

    total = ps.ValueState(int, default=0)
    names = ps.MapState(str, int)
    seen = ps.ListState(int, ttl="1h")
    most = ps.ReducingState(max, int)

    def process(self, ctx: ps.KeyedContext, amount: int) -> Any:
        self.total.value += amount
        self.names[f"n{amount % 3}"] = amount
        self.seen.add(amount)
        self.most.add(amount)
        ctx.set_timer(ctx.timestamp + 30_000_000)
        return ctx.key, self.total.value, len(self.names), len(self.seen)

    def on_timer(self, ctx: ps.KeyedContext, time: int) -> Any:
        return ctx.key, -self.total.value, self.names.get("n0", 0), self.most.get() or 0


def format_1(rows: ps.DataStream) -> dict[str, ps.DataStream]:
    """What the savepoint `savepoint-format-1` was taken of."""
    keyed = rows.key_by("user")
    tumbling = keyed.window(ps.tumbling("40s"))
    other = rows.select("user", "ts", other=ps.col("amount") + 1)
    near = rows.join(other, on="user", within=ps.interval("-10s", "10s"), uid="near")
    same = rows.join(other, on="user", within=ps.tumbling("15s"), how="full", uid="same")
    valid = rows.join(other, on="user", within=ps.as_of(), uid="valid")
    return {
        "accounts": keyed.process(Account(), output=OUTPUT, uid="account"),
        "counts": tumbling.agg(n=ps.count(), mean=ps.mean("amount"), last=ps.last("amount"), uid="counts"),
        "sessions": keyed.window(ps.session("20s")).agg(total=ps.sum("amount"), uid="sessions"),
        "fives": keyed.window(ps.count_window(5)).agg(total=ps.sum("amount"), uid="fives"),
        "firsts": rows.key_by("amount").deduplicate(uid="firsts"),
        "best": keyed.top_n(2, by="amount", within=ps.tumbling("40s"), uid="best"),
        "near": near.select("user", "amount", "other"),
        "same": same.select("amount", "other"),
        "valid": valid.select("user", "amount", "other"),
        "ever": rows.join(other, on="user", how="inner", uid="ever").select("user", "amount", "other"),
    }
