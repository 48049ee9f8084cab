"""The program of `test_rescaling_on_a_cluster`: every number with how many of its key came before it."""

import os
from typing import Any

import penstock as ps

KEYS = 500


class Count(ps.KeyedProcessFunction):
    seen = ps.ValueState(int, default=0)

    def process(self, ctx: ps.KeyedContext, n: int) -> Any:
        self.seen.value += 1
        return ctx.key, n, self.seen.value


def counted(flow: ps.Flow) -> None:
    numbers = flow.read(ps.generate({"n": ps.sequence()}, rate=4_000), uid="numbers")
    keyed = numbers.select("n", key=ps.col("n") % KEYS).key_by("key")
    results = keyed.process(Count(), output={"key": int, "n": int, "seen": int}, uid="counted")
    results.write(ps.parquet(os.environ["RESCALING_OUT"]), uid="out")
