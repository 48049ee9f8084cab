"""Functions over two streams, with rows for every subtask, and without keys: what they see, and what they may do."""

from collections.abc import Iterator
from typing import Any

import polars as pl
import pytest

import penstock as ps
from penstock import testing
from penstock.model.errors import PenstockError
from penstock.model.settings import JobSettings, StateSettings

PAIR = {"key": pl.Int64, "left": pl.Int64, "right": pl.Int64}
ON_ROCKSDB = JobSettings(state=StateSettings(backend="rocksdb"))


class Pairs(ps.CoProcessFunction):
    """Every left row beside every right row of its key, whichever comes first."""

    lefts = ps.ListState(int)
    rights = ps.ListState(int)

    def process_left(self, ctx: ps.KeyedContext, value: int) -> list[tuple[int, int, int]]:
        self.lefts.add(value)
        return [(ctx.key, value, other) for other in self.rights]

    def process_right(self, ctx: ps.KeyedContext, amount: int) -> list[tuple[int, int, int]]:
        self.rights.add(amount)
        return [(ctx.key, other, amount) for other in self.lefts]


def paired(left: ps.DataStream, right: ps.DataStream) -> ps.DataStream:
    return left.key_by("key").connect(right.key_by("id")).process(Pairs(), output=PAIR, uid="pairs")


LEFT = [{"key": n % 3, "value": n} for n in range(12)]
RIGHT = [{"id": n % 3, "amount": 100 + n} for n in range(6)]
EVERY_PAIR = [(n % 3, n, 100 + m) for n in range(12) for m in range(6) if n % 3 == m % 3]


@pytest.mark.parametrize("parallelism", [1, 3])
def test_rows_of_two_keyed_streams_share_state(parallelism: int) -> None:
    result = testing.run_stream(
        paired,
        {"left": testing.source(LEFT, batch_rows=2), "right": testing.source(RIGHT, batch_rows=1)},
        parallelism=parallelism,
        crash_after=(5, 9),
        restore_parallelism=(2, 3),
        checkpoint_every=1,
    )
    testing.assert_rows(result, EVERY_PAIR)


class PairsInBatches(ps.CoProcessFunction):
    """Sums per key of both sides; keys have other names on the right."""

    left = ps.ValueState(int, default=0)
    right = ps.ValueState(int, default=0)

    def process_left_batch(self, ctx: ps.KeyedContext, batch: pl.DataFrame) -> pl.DataFrame:
        sums = batch.group_by("key").agg(pl.col("value").sum())
        self.left.set_many(sums, self.left.get_many(sums) + sums["value"])
        return self.shown(sums, sums["key"])

    def process_right_batch(self, ctx: ps.KeyedContext, batch: pl.DataFrame) -> pl.DataFrame:
        sums = batch.group_by("id").agg(pl.col("amount").sum()).with_columns(key=pl.lit(7))
        self.right.set_many(sums, self.right.get_many(sums) + sums["amount"])
        ctx.set_timers(sums, [5] * sums.height)
        return self.shown(sums, sums["id"])

    def shown(self, keys: pl.DataFrame, column: pl.Series) -> pl.DataFrame:
        return pl.DataFrame({"key": column, "left": self.left.get_many(keys), "right": self.right.get_many(keys)})

    def on_timer(self, ctx: ps.KeyedContext, time: int) -> tuple[int, int, int]:
        return ctx.key, -self.left.value, -self.right.value


def test_batches_of_both_sides_name_keys_as_their_stream_does() -> None:
    def build(left: ps.DataStream, right: ps.DataStream) -> ps.DataStream:
        return left.key_by("key").connect(right.key_by("id")).process(PairsInBatches(), output=PAIR, uid="sums")

    result = testing.run_stream(build, {"left": LEFT, "right": RIGHT})
    totals = {key: (sum(range(key, 12, 3)), sum(range(100 + key, 106, 3))) for key in range(3)}
    fired = [row for row in result.rows() if row[1] < 0]
    assert sorted(fired) == [(key, -left, -right) for key, (left, right) in totals.items()]


class ByTime(ps.CoProcessFunction):
    """The sum of both sides until a timer."""

    total = ps.ValueState(int, default=0)

    def process_left(self, ctx: ps.KeyedContext, value: int) -> None:
        self.total.value += value
        ctx.set_timer((ctx.timestamp or 0) // 10_000_000 * 10_000_000 + 10_000_000)

    def process_right(self, ctx: ps.KeyedContext, value: int) -> None:
        self.process_left(ctx, value)

    def on_timer(self, ctx: ps.KeyedContext, time: int) -> tuple[int, int, int]:
        return ctx.key, time // 1_000_000, self.total.value


def test_timers_wait_for_the_slower_side() -> None:
    def build(left: ps.DataStream, right: ps.DataStream) -> ps.DataStream:
        output = {"key": pl.Int64, "until": pl.Int64, "total": pl.Int64}
        return left.key_by("key").connect(right.key_by("key")).process(ByTime(), output=output, uid="by-time")

    left = [{"key": 1, "ts": 3, "value": 1}, testing.watermark(30), testing.pause("1s")]
    right = [testing.pause("500ms"), {"key": 1, "ts": 4, "value": 10}, testing.watermark(12), testing.pause("2s")]
    streams = {
        "left": testing.source(left, event_time="ts", unit="s"),
        "right": testing.source(right, event_time="ts", unit="s"),
    }
    assert testing.run_stream(build, streams).rows() == [(1, 10, 11)]


def test_a_stream_without_event_time_does_not_hold_back_one_that_has_it() -> None:
    class Until(ps.CoProcessFunction):
        def process_left(self, ctx: ps.KeyedContext, ts: int) -> None:
            ctx.set_timer(ts * 1_000_000)

        def process_right(self, ctx: ps.KeyedContext, value: int) -> tuple[str, int]:
            return "right", ctx.watermark // 1_000_000

        def on_timer(self, ctx: ps.KeyedContext, time: int) -> tuple[str, int]:
            return "timer", time // 1_000_000

    def build(left: ps.DataStream, right: ps.DataStream) -> ps.DataStream:
        output = {"what": pl.String, "at": pl.Int64}
        return left.key_by("key").connect(right.key_by("key")).process(Until(), output=output, uid="until")

    left = testing.source([{"key": 1, "ts": 3}, testing.watermark(7)], event_time="ts", unit="s")
    right = testing.source([testing.pause("5s"), {"key": 1, "value": 1}], schema={"key": int, "value": int})
    rows = testing.run_stream(build, {"left": left, "right": right}).rows()
    assert rows[0] == ("timer", 3)


class Unkeyed(ps.CoProcessFunction):
    """Rows of both sides, in the order they came, kept in a list of the operator until the end."""

    kept = ps.OperatorListState(str)

    def process_left(self, ctx: ps.ProcessContext, value: int) -> None:
        self.keep(ctx, f"left {value}")

    def process_right_batch(self, ctx: ps.ProcessContext, batch: pl.DataFrame) -> None:
        for amount in batch["amount"]:
            self.keep(ctx, f"right {amount}")

    def keep(self, ctx: ps.ProcessContext, text: str) -> None:
        assert ctx.key is None
        self.kept.add(text)
        ctx.set_timer(1)

    def on_timer(self, ctx: ps.ProcessContext, time: int) -> Iterator[tuple[str]]:
        for text in self.kept:
            yield (text,)
        self.kept.clear()


@pytest.mark.parametrize("parallelism", [1, 3])
def test_a_function_of_two_streams_without_keys_has_operator_state(parallelism: int) -> None:
    def build(left: ps.DataStream, right: ps.DataStream) -> ps.DataStream:
        return left.connect(right).process(Unkeyed(), output={"text": pl.String}, uid="both")

    result = testing.run_stream(
        build,
        {"left": testing.source(LEFT, batch_rows=1), "right": testing.source(RIGHT, batch_rows=1)},
        parallelism=parallelism,
        crash_after=(7, 4),
        restore_parallelism=(2, 1),
        checkpoint_every=1,
    )
    expected = [(f"left {row['value']}",) for row in LEFT] + [(f"right {row['amount']}",) for row in RIGHT]
    testing.assert_rows(result, expected)


# ---------------------------------------------------------------- rows for every subtask


class Judge(ps.BroadcastProcessFunction):
    """Every row against every rule, whichever comes first."""

    rules = ps.BroadcastState(str, int)
    rows = ps.ListState(int)
    seen = ps.ValueState(int, default=0)

    def process(self, ctx: ps.KeyedContext, value: int) -> list[tuple[int, int, str]]:
        self.rows.add(value)
        self.seen.value += 1
        return [(ctx.key, value, name) for name, above in self.rules.items() if value > above]

    def process_broadcast(self, ctx: ps.KeyedContext, name: str, above: int) -> None:
        if name in self.rules:
            return
        self.rules[name] = above

        def judge(ctx: ps.KeyedContext) -> Iterator[tuple[int, int, str]]:
            assert self.seen.value == len(self.rows)
            for value in self.rows:
                if value > above:
                    yield ctx.key, value, name

        ctx.for_each_key(self.rows, judge)


JUDGED = {"key": pl.Int64, "value": pl.Int64, "rule": pl.String}
RULES = [{"name": "a", "above": 3}, {"name": "b", "above": 8}, {"name": "a", "above": 0}]
EVERY_RULE = [(n % 3, n, rule) for n in range(12) for rule, above in (("a", 3), ("b", 8)) if n > above]


def judged(left: ps.DataStream, rules: ps.DataStream) -> ps.DataStream:
    return left.key_by("key").connect(rules.broadcast()).process(Judge(), output=JUDGED, uid="judge")


@pytest.mark.parametrize("settings", [JobSettings(), ON_ROCKSDB], ids=["memory", "rocksdb"])
@pytest.mark.parametrize("parallelism", [1, 3])
@pytest.mark.parametrize("seed", range(4))
def test_rules_reach_every_subtask_and_every_key(parallelism: int, settings: JobSettings, seed: int) -> None:
    result = testing.run_stream(
        judged,
        {"left": testing.source(LEFT, batch_rows=2), "rules": testing.source(RULES, batch_rows=1)},
        parallelism=parallelism,
        crash_after=(4, 6),
        restore_parallelism=(3, 2),
        checkpoint_every=1,
        settings=settings,
        seed=seed,
    )
    testing.assert_rows(result, EVERY_RULE)


def run_rules(function: Any, *, keyed: bool = True, rules: list[Any] | None = None, **options: Any) -> Any:
    def build(left: ps.DataStream, rules: ps.DataStream) -> dict[str, ps.DataStream]:
        rows = left.key_by("key") if keyed else left
        on_error = options.get("on_error", "stop")
        made = rows.connect(rules.broadcast()).process(
            function, output={"text": pl.String}, on_error=on_error, uid="f"
        )
        return {"made": made, **({"letters": made.dead_letters()} if on_error == "dead_letter" else {})}

    inputs = {
        "left": [testing.pause("1s"), *LEFT] if options.get("rules_first") else LEFT,
        "rules": RULES if rules is None else rules,
    }
    return testing.run_stream(build, inputs, parallelism=options.get("parallelism", 1))


class WritesOnTheWrongSide(ps.BroadcastProcessFunction):
    rules = ps.BroadcastState(str, int)

    def __init__(self, write: Any) -> None:
        self.write = write

    def process(self, ctx: ps.KeyedContext, value: int) -> None:
        self.write(self.rules)

    def process_broadcast(self, ctx: ps.KeyedContext, name: str, above: int) -> None:
        self.rules[name] = above


@pytest.mark.parametrize(
    "write",
    [
        lambda rules: rules.put("x", 1),
        lambda rules: rules.update({"x": 1}),
        lambda rules: rules.remove("x"),
        lambda rules: rules.clear(),
        lambda rules: rules.__setitem__("x", 1),
        lambda rules: rules.__delitem__("x"),
    ],
)
@pytest.mark.parametrize("keyed", [True, False])
def test_broadcast_state_is_read_only_beside_broadcast_rows(write: Any, keyed: bool) -> None:
    with pytest.raises(PenstockError, match='broadcast state "rules" is read only here') as caught:
        run_rules(WritesOnTheWrongSide(write), keyed=keyed)
    assert caught.value.code == "P046"


class UsesKeys(ps.BroadcastProcessFunction):
    total = ps.ValueState(int, default=0)
    items = ps.ListState(int, ttl="1h")

    def __init__(self, use: Any) -> None:
        self.use = use

    def process(self, ctx: ps.KeyedContext, value: int) -> None:
        self.total.value += value
        self.items.add(value)

    def process_broadcast(self, ctx: ps.KeyedContext, name: str) -> None:
        self.use(self, ctx)


def assign(function: Any, ctx: Any) -> None:
    function.total.value = 3


@pytest.mark.parametrize(
    ("use", "code"),
    [
        (lambda function, ctx: function.total.value, "P046"),
        (assign, "P046"),
        (lambda function, ctx: function.items.add(3), "P046"),
        (lambda function, ctx: len(function.items), "P046"),
        (lambda function, ctx: ctx.set_timer(1), "P016"),
        (lambda function, ctx: ctx.set_processing_timer(1), "P016"),
        (lambda function, ctx: ctx.for_each_key(function.use, print), "P046"),
    ],
)
def test_there_is_no_key_in_process_broadcast(use: Any, code: str) -> None:
    with pytest.raises(PenstockError) as caught:
        run_rules(UsesKeys(use))
    assert caught.value.code == code


def test_all_keys_are_gone_over_only_for_broadcast_rows() -> None:
    class Everywhere(UsesKeys):
        def process(self, ctx: ps.KeyedContext, value: int) -> None:
            ctx.for_each_key(self.total, print)

    with pytest.raises(PenstockError, match="for_each_key goes over all keys"):
        run_rules(Everywhere(lambda function, ctx: None))


class Resets(ps.BroadcastProcessFunction):
    """A rule makes every key tell its total and begin anew, and sets a timer for it."""

    total = ps.ValueState(int, default=0)
    rules = ps.BroadcastState(str, int)

    def process(self, ctx: ps.KeyedContext, value: int) -> None:
        self.total.value += value

    def process_broadcast(self, ctx: ps.KeyedContext, name: str) -> None:
        ctx.for_each_key(self.total, self.reset)

    def reset(self, ctx: ps.KeyedContext) -> tuple[str]:
        total = self.total.value
        self.total.clear()
        ctx.set_timer(1)
        return (f"{ctx.key}: {total}",)

    def on_timer(self, ctx: ps.KeyedContext, time: int) -> tuple[str]:
        return (f"{ctx.key} timer, {self.total.value}",)


@pytest.mark.parametrize("settings", [JobSettings(), ON_ROCKSDB], ids=["memory", "rocksdb"])
def test_a_broadcast_row_may_change_the_state_of_every_key(settings: JobSettings) -> None:
    def build(left: ps.DataStream, rules: ps.DataStream) -> ps.DataStream:
        made = left.key_by("key").connect(rules.broadcast())
        return made.process(Resets(), output={"text": pl.String}, uid="resets")

    rules = testing.source([testing.pause("5s"), {"name": "go"}, {"name": "again"}], schema={"name": str})
    result = testing.run_stream(build, {"left": LEFT, "rules": rules}, parallelism=2, settings=settings)
    totals = [(f"{key}: {sum(range(key, 12, 3))}",) for key in range(3)]
    testing.assert_rows(result, [*totals, *[(f"{key} timer, 0",) for key in range(3)]])


class Fails(ps.BroadcastProcessFunction):
    rules = ps.BroadcastState(str, int)

    def process(self, ctx: Any, value: int) -> tuple[str]:
        if value % 4 == 1:
            raise ValueError(value)
        return (f"{value}",)

    def process_broadcast(self, ctx: Any, name: str, above: int) -> None:
        if above == 0:
            raise KeyError(name)
        self.rules[name] = above


@pytest.mark.parametrize("keyed", [True, False])
def test_a_broadcast_row_that_fails_is_one_dead_letter_at_any_parallelism(keyed: bool) -> None:
    result = run_rules(Fails(), keyed=keyed, on_error="dead_letter", parallelism=3)
    letters = result["letters"].select("function", "error").rows()
    assert sorted(letters) == [("Fails.process", "ValueError")] * 3 + [("Fails.process_broadcast", "KeyError")]
    assert result.counters["f"].bad_rows == 4
    testing.assert_rows(result["made"], [(str(n),) for n in range(12) if n % 4 != 1])


def test_failing_rows_of_both_sides_are_dropped_and_counted() -> None:
    result = run_rules(Fails(), on_error="drop", parallelism=3)
    assert result.counters["f"].bad_rows == 4


def test_one_key_that_fails_for_a_rule_is_told_by_its_own_subtask() -> None:
    class OneKey(UsesKeys):
        def process_broadcast(self, ctx: ps.KeyedContext, name: str) -> None:
            ctx.for_each_key(self.total, self.check)

        def check(self, ctx: ps.KeyedContext) -> None:
            if ctx.key == 2:
                raise ValueError(ctx.key)

    rules = [testing.pause("5s"), {"name": "a", "above": 1}]
    result = run_rules(OneKey(None), on_error="dead_letter", parallelism=3, rules=rules)
    assert result["letters"].get_column("message").to_list() == ["2"]


class ToTheEnd(ps.BroadcastProcessFunction):
    rules = ps.BroadcastState(str, int)

    def process(self, ctx: ps.KeyedContext, value: int, ts: int) -> None:
        ctx.set_timer((ts + 1000) * 1_000_000)

    def process_broadcast_batch(self, ctx: ps.KeyedContext, batch: pl.DataFrame) -> None:
        self.rules.update(dict(batch.select("name", "above").rows()))

    def on_timer(self, ctx: ps.KeyedContext, time: int) -> tuple[int, str]:
        return ctx.timestamp // 1_000_000, " ".join(sorted(self.rules))


def test_the_end_of_time_waits_for_the_last_rule() -> None:
    def build(left: ps.DataStream, rules: ps.DataStream) -> ps.DataStream:
        output = {"ts": pl.Int64, "rules": pl.String}
        made = left.key_by("key").connect(rules.broadcast()).process(ToTheEnd(), output=output, uid="end")
        return made.window(ps.tumbling("1h")).agg(n=ps.count(), rules=ps.max("rules"))

    left = testing.source([{"key": 1, "ts": 1, "value": 1}], event_time="ts", unit="s")
    rules = testing.source([testing.pause("1m"), RULES[0], testing.pause("1m"), RULES[1]])
    result = testing.run_stream(build, {"left": left, "rules": rules})
    assert result.rows() == [(0, 3600, 1, "a b")]
    assert result.late_rows == 0


def test_rules_of_many_senders_come_to_all_subtasks_in_one_order() -> None:
    class Last(ps.BroadcastProcessFunction):
        last = ps.BroadcastState(str, int)

        def process(self, ctx: ps.ProcessContext, value: int) -> tuple[int]:
            return (self.last["rule"],)

        def process_broadcast(self, ctx: ps.ProcessContext, above: int) -> None:
            self.last["rule"] = above

    def build(left: ps.DataStream, rules: ps.DataStream) -> ps.DataStream:
        return left.rebalance().connect(rules.broadcast()).process(Last(), output={"rule": pl.Int64}, uid="last")

    splits = [[{"above": split * 10 + n} for n in range(5)] for split in range(3)]
    for seed in range(10):
        rules = testing.source(*splits, batch_rows=1)
        left = testing.source([testing.pause("1m"), *LEFT], schema={"key": int, "value": int}, batch_rows=1)
        result = testing.run_stream(build, {"left": left, "rules": rules}, parallelism=3, seed=seed)
        assert len(set(result.rows())) == 1
