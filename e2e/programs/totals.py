"""Totals by user, from numbers at a rate: every state that it can be in follows from how many numbers were read."""

from typing import Any

import penstock as ps

USERS = 500


class Total(ps.KeyedProcessFunction):
    """What a user has come to."""

    total = ps.ValueState(int, default=0)
    count = ps.ValueState(int, default=0)

    def process(self, ctx: ps.KeyedContext, amount: int) -> Any:
        """One number."""
        self.total.value += amount
        self.count.value += 1
        return ctx.key, self.total.value, self.count.value


def totals(flow: ps.Flow) -> None:
    """For ever, 2,000 a second."""
    numbers = flow.read(ps.generate({"n": ps.sequence()}, rows=100_000_000, rate=2_000), uid="numbers")
    users = numbers.select(user=ps.col("n") % USERS, amount=ps.col("n") % 7)
    output = {"user": int, "total": int, "count": int}
    users.key_by("user").process(Total(), output=output, uid="totals").write(ps.discard(), uid="out")
