"""The program of `test_savepoints_on_a_cluster`: totals by user, from numbers at a rate."""

import os
from typing import Any

import penstock as ps

KEYS = 500


class Total(ps.KeyedProcessFunction):
    total = ps.ValueState(int, default=0)
    digits = ps.MapState(int, int)

    def process(self, ctx: ps.KeyedContext, amount: int) -> Any:
        self.total.value += amount
        self.digits[amount] = self.digits.get(amount, 0) + 1
        return ctx.key, self.total.value, self.digits[amount]


def totals(flow: ps.Flow) -> None:
    rows, rate = int(os.environ["SAVEPOINT_ROWS"]), int(os.environ["SAVEPOINT_RATE"])
    numbers = flow.read(ps.generate({"n": ps.sequence()}, rows=rows, rate=rate), uid="numbers")
    users = numbers.select(user=ps.col("n") % KEYS, amount=ps.col("n") % 7)
    output = {"user": int, "total": int, "seen": int}
    results = users.key_by("user").process(Total(), output=output, uid="totals")
    results.write(ps.parquet(os.environ["SAVEPOINT_OUT"]), uid="out")
