"""Whatever the rows, batches, watermarks and window: the output is a plain recomputation of the rows in time."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import polars as pl
from hypothesis import given, settings
from hypothesis import strategies as st
from polars.testing import assert_frame_equal

from penstock.model import schemas, specs
from penstock.model.clocks import MAX_WATERMARK, MIN_WATERMARK
from penstock.model.handles import Redistribution
from penstock.model.ids import CheckpointId
from penstock.operators.aggregates import output_type, partial_schema
from penstock.operators.base import Section
from penstock.operators.combine import Combine
from penstock.operators.windows import WindowAggregate
from penstock.state.key_groups import group_range, key_groups, owner, slice_groups

INPUT = pl.Schema({"key": pl.String(), "at": pl.Int64(), "value": pl.Int64()})
GROUPS = 16
EVENT_TIME = specs.EventTime(column="at")


def expression(text: str) -> specs.Expression:
    return specs.Expression(name=text, text=text, polars=pl.col(text).meta.serialize())


def aggregate(name: str, function: str, value: str | None = None, by: str | None = None) -> specs.Aggregate:
    untyped = specs.Aggregate(
        name=name, function=function, input=expression(value) if value else None, by=expression(by) if by else None
    )
    kind = schemas.type_to_text(output_type(untyped, INPUT))
    return specs.Aggregate(name=name, function=function, input=untyped.input, by=untyped.by, output_type=kind)


AGGREGATES = (
    aggregate("rows", "count"),
    aggregate("total", "sum", "value"),
    aggregate("least", "min", "value"),
    aggregate("mean", "mean", "value"),
    aggregate("latest", "max_by", "value", "at"),
)
ORACLE = (
    pl.len().cast(pl.Int64).alias("rows"),
    pl.col("value").sum().alias("total"),
    pl.col("value").min().alias("least"),
    pl.col("value").mean().alias("mean"),
    pl.col("value").filter(pl.col("at") == pl.col("at").max()).min().alias("latest"),
)


def window(assigner: specs.Tumbling | specs.Sliding, *, keyed: bool, partial: bool) -> specs.WindowAggregate:
    times = {"window_start": pl.Int64(), "window_end": pl.Int64()}
    kinds = {made.name: schemas.type_from_text(made.output_type) for made in AGGREGATES}
    return specs.WindowAggregate(
        keys=("key",) if keyed else (),
        assigner=assigner,
        aggregates=AGGREGATES,
        event_time=EVENT_TIME,
        input_is_partial=partial,
        output=schemas.fields(({"key": pl.String()} if keyed else {}) | times | kinds),
    )


@dataclass(frozen=True)
class Batch:
    rows: Sequence[tuple[str | None, int, int | None]]

    @property
    def frame(self) -> pl.DataFrame:
        return pl.DataFrame(self.rows, schema=INPUT, orient="row")


Step = Batch | int
"""Rows, or a watermark."""


def recompute(steps: Sequence[Step], spec: specs.WindowAggregate) -> pl.DataFrame:
    """Each row in each of its windows that had not fired when it came, then one group-by."""
    assigner = spec.assigner
    slide = assigner.slide_us if isinstance(assigner, specs.Sliding) else assigner.size_us
    watermark, counted = MIN_WATERMARK, []
    for step in steps:
        if isinstance(step, int):
            watermark = max(watermark, step)
            continue
        for key, at, value in step.rows:
            start = (at - assigner.offset_us) // slide * slide + assigner.offset_us
            while start + assigner.size_us > at:
                if start + assigner.size_us - 1 > watermark:
                    counted.append((key, at, value, start, start + assigner.size_us))
                start -= slide
    frame = pl.DataFrame(counted, schema={**INPUT, "window_start": pl.Int64, "window_end": pl.Int64}, orient="row")
    columns = [*spec.keys, "window_start", "window_end"]
    return frame.group_by(columns).agg(ORACLE).select(*columns, *(made.name for made in AGGREGATES))


def assert_same_rows(left: pl.DataFrame, right: pl.DataFrame) -> None:
    """In any order. A mean may be rounded differently: Polars does not divide the sum by the count."""
    assert_frame_equal(left.sort(pl.all()), right.sort(pl.all()))


def output_of(collected: object, spec: specs.WindowAggregate) -> pl.DataFrame:
    return pl.concat([schemas.empty_frame(spec.output), *collected.frames])  # type: ignore[attr-defined]


ROWS = st.tuples(st.sampled_from(["a", "b", "c", "d", None]), st.integers(-40, 120), st.integers(-9, 9) | st.none())
BATCHES = st.builds(Batch, st.lists(ROWS, min_size=1, max_size=12))
STEPS = st.lists(BATCHES | st.integers(-50, 130), max_size=14)
OFFSETS = st.integers(-7, 7)
ASSIGNERS = st.builds(specs.Tumbling, size_us=st.integers(1, 40), offset_us=OFFSETS) | st.builds(
    specs.Sliding, size_us=st.integers(1, 40), slide_us=st.integers(1, 40), offset_us=OFFSETS
)


def run(operator: WindowAggregate, steps: Sequence[Step]) -> None:
    for step in steps:
        if isinstance(step, int):
            assert operator.on_watermark(step) == step
        else:
            operator.on_batch(step.frame)


def finish(operator: WindowAggregate) -> None:
    assert operator.on_watermark(MAX_WATERMARK) == MAX_WATERMARK
    operator.on_end()
    assert operator.context.counters.state_rows == 0


@settings(deadline=None)
@given(STEPS, ASSIGNERS, st.booleans())
def test_windows_equal_a_recomputation_of_the_rows_in_time(
    start: Callable[..., object], steps: list[Step], assigner: specs.Tumbling | specs.Sliding, keyed: bool
) -> None:
    spec = window(assigner, keyed=keyed, partial=False)
    operator = WindowAggregate(spec)
    collected = start(operator)
    run(operator, steps)
    finish(operator)
    emitted = output_of(collected, spec)
    assert_same_rows(emitted, recompute(steps, spec))
    ends = [frame["window_end"][0] for frame in collected.frames]  # type: ignore[attr-defined]
    assert len(ends) == len(set(ends))


@settings(deadline=None)
@given(STEPS, ASSIGNERS, st.booleans())
def test_combined_rows_give_the_same_windows(
    start: Callable[..., object], steps: list[Step], assigner: specs.Tumbling | specs.Sliding, keyed: bool
) -> None:
    spec = window(assigner, keyed=keyed, partial=True)
    combine = Combine(specs.Combine(keys=spec.keys, assigner=assigner, aggregates=AGGREGATES, event_time=EVENT_TIME))
    operator = WindowAggregate(spec)
    collected, partials = start(operator), start(combine)
    watermark = MIN_WATERMARK
    for step in [*steps, MAX_WATERMARK]:
        if isinstance(step, int):
            watermark = max(watermark, step)
            combine.on_watermark(watermark)
            for frame in partials.frames:  # type: ignore[attr-defined]
                assert frame.schema == partial_schema(spec.keys, AGGREGATES, INPUT, EVENT_TIME)
                operator.on_batch(frame)
            partials.frames.clear()  # type: ignore[attr-defined]
            operator.on_watermark(watermark)
        else:
            combine.on_batch(step.frame)
    assert_same_rows(output_of(collected, spec), recompute(steps, spec))


def redistribute(written: Sequence[Sequence[Section]], index: int, parallelism: int) -> dict[str, list[pl.DataFrame]]:
    """What a restore gives to one subtask: its key groups of keyed states, all of union states."""
    restored: dict[str, list[pl.DataFrame]] = {}
    for section in (section for sections in written for section in sections):
        frame = section.frame
        if section.redistribution is Redistribution.KEYED:
            assert frame.columns[0] == "key_group"
            assert frame["key_group"].is_sorted()
            frame = slice_groups(frame, group_range(index, parallelism, GROUPS))
        restored.setdefault(section.state, []).append(frame)
    return restored


def own_rows(step: Step, index: int, parallelism: int, keys: Sequence[str]) -> Step:
    if isinstance(step, int):
        return step
    groups = key_groups(step.frame, keys, GROUPS)
    mine = [
        row for row, group in zip(step.rows, groups, strict=True) if owner(int(group), parallelism, GROUPS) == index
    ]
    return Batch(mine)


@settings(deadline=None)
@given(st.lists(st.tuples(STEPS, st.integers(1, 3)), min_size=2, max_size=4), ASSIGNERS, st.booleans())
def test_restores_at_any_parallelism_lose_and_repeat_nothing(
    start: Callable[..., object],
    phases: list[tuple[list[Step], int]],
    assigner: specs.Tumbling | specs.Sliding,
    keyed: bool,
) -> None:
    spec = window(assigner, keyed=keyed, partial=False)
    written: list[Sequence[Section]] = []
    emitted = [schemas.empty_frame(spec.output)]
    for position, (steps, parallelism) in enumerate(phases):
        operators, outputs = [], []
        for index in range(parallelism):
            operator = WindowAggregate(spec)
            outputs.append(start(operator, index=index, parallelism=parallelism))
            if position:
                operator.restore(redistribute(written, index, parallelism))
            mine = [own_rows(step, index, parallelism, spec.keys) for step in steps]
            run(operator, [step for step in mine if isinstance(step, int) or step.rows])
            operators.append(operator)
        snapshots = []
        for operator in operators:
            operator.on_barrier()
            snapshots.append(operator.snapshot(CheckpointId(position)))
        emitted.extend(frame for output in outputs for frame in output.frames)
        for operator in operators:  # what happens after the barrier is lost, and must not show in the snapshot
            operator.on_batch(Batch([("a", 5, 5), ("b", 90, 1)]).frame)
            finish(operator)
        written = [snapshot() for snapshot in snapshots]
    for index in range(2):
        operator = WindowAggregate(spec)
        last = start(operator, index=index, parallelism=2)
        operator.restore(redistribute(written, index, 2))
        finish(operator)
        emitted.extend(last.frames)
    assert_same_rows(pl.concat(emitted), recompute([step for steps, _ in phases for step in steps], spec))


HIGHEST = (
    aggregate("price", "max", "value"),
    aggregate("who", "max_by", "at", "value"),
)


@given(
    st.lists(st.lists(st.tuples(st.integers(0, 60), st.none() | st.integers(-3, 3)), min_size=1), min_size=1),
    st.integers(1, 30),
)
def test_without_keys_only_rows_with_the_extreme_are_kept_and_the_result_is_the_same(
    start: Callable[..., Any], batches: list[list[tuple[int, int | None]]], size: int
) -> None:
    frames = [pl.DataFrame(rows, schema={"at": pl.Int64, "value": pl.Int64}, orient="row") for rows in batches]
    output = {"window_start": pl.Int64(), "window_end": pl.Int64(), "price": pl.Int64(), "who": pl.Int64()}
    spec = specs.WindowAggregate(
        keys=(),
        assigner=specs.Tumbling(size_us=size),
        aggregates=HIGHEST,
        event_time=specs.EventTime(column="at"),
        output=schemas.fields(output),
    )
    operator = WindowAggregate(spec)
    collected = start(operator)
    for frame in frames:
        operator.on_batch(frame)
    operator.on_watermark(MAX_WATERMARK)
    whole = pl.concat(frames)
    expected = (
        whole.group_by(window_start=pl.col("at") // size * size)
        .agg(
            price=pl.col("value").max(),
            who=pl.col("at").filter(pl.col("value") == pl.col("value").max()).min(),
        )
        .select("window_start", (pl.col("window_start") + size).alias("window_end"), "price", "who")
        .sort("window_start")
    )
    assert collected.frame.sort("window_start").rows() == expected.rows()
