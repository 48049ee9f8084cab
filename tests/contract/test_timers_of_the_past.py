"""A timer whose time has passed when it is set waits until time goes on; that a crash makes sources tell the time
again changes nothing."""

import polars as pl
import pytest

import penstock as ps
from penstock import testing
from penstock.model.settings import JobSettings, StateSettings

SECOND = 1_000_000
STATES = {
    "memory": JobSettings(),
    "rocksdb": JobSettings(state=StateSettings(backend="rocksdb", memory_budget=1)),
}


class CountUntilTold(ps.KeyedProcessFunction):
    """The first row of a count sets a timer for five seconds after it; the timer begins a new count."""

    seen = ps.ValueState(int, default=0)

    def process(self, ctx: ps.KeyedContext, ts: int) -> tuple[int, int]:
        self.seen.value += 1
        if self.seen.value == 1:
            ctx.set_timer((ts + 5) * SECOND)
        return ctx.key, self.seen.value

    def on_timer(self, ctx: ps.KeyedContext, time: int) -> None:
        self.seen.clear()


def program(rows: ps.DataStream) -> ps.DataStream:
    return rows.key_by("key").process(CountUntilTold(), output={"key": pl.Int64, "seen": pl.Int64}, uid="count")


@pytest.mark.parametrize("state", STATES)
@pytest.mark.parametrize("parallelism", [1, 3])
@pytest.mark.parametrize("later", [1, 2, 3])
@pytest.mark.parametrize("seed", range(2))
def test_telling_the_time_again_is_not_time_going_on(state: str, parallelism: int, later: int, seed: int) -> None:
    late = [{"key": key, "ts": 15} for key in range(4)]
    rest = [{"key": key, "ts": 20} for _ in range(4) for key in range(4)]
    result = testing.run_stream(
        program,
        {
            "rows": testing.source(
                [testing.watermark(20), *late, *rest],
                schema={"key": int, "ts": int},
                event_time="ts",
                unit="s",
                batch_rows=1,
            )
        },
        parallelism=parallelism,
        settings=STATES[state],
        crash_after=[later, later + 7],
        restore_parallelism=[later],
        checkpoint_every=1,
        seed=seed,
    )
    testing.assert_rows(result, [(key, seen) for key in range(4) for seen in range(1, 6)])
