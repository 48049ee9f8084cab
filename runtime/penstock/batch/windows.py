"""Windows, running aggregates, deduplication and top-n as native plans."""

import math
from collections.abc import Mapping, Sequence

import polars as pl
from pyspark.sql import Column, DataFrame, Window
from pyspark.sql import functions as F  # noqa: N812 - as everybody calls it

from penstock.batch import aggregates
from penstock.batch.expressions import NotNative
from penstock.batch.tables import Table, floored, named, quoted, time_column
from penstock.model import specs
from penstock.model.schemas import type_from_text

_START, _END, _PANE, _RANK, _TIME, _SESSION = "__start", "__end", "__pane", "__rank", "__time", "__session"
_ARRIVAL = "__arrival"

Assigner = specs.Tumbling | specs.Sliding


def window_aggregate(table: Table, spec: specs.WindowAggregate, output: pl.Schema) -> Table:
    """Tumbling and sliding windows."""
    assert spec.event_time is not None, "windows by the clock are refused before"
    time = table.time_us(spec.event_time)
    made = aggregates.aggregation(table, spec.aggregates, F.col(_TIME))
    rows = _prepared(table, spec.keys, made, time)
    if isinstance(spec.assigner, specs.Tumbling):
        cut = rows.withColumn(_START, floored(F.col(_TIME), spec.assigner.size_us, spec.assigner.offset_us))
        grouped = cut.groupBy(*quoted(spec.keys), F.col(_START)).agg(*_aliased(made.results))
    else:
        grouped = _sliding(rows, spec, spec.assigner, made)
    size = spec.assigner.size_us
    bounds = {"window_start": F.col(_START), "window_end": F.col(_START) + F.lit(size)}
    return _with_bounds(grouped, bounds, output, spec.event_time.unit)


def _sliding(
    rows: DataFrame, spec: specs.WindowAggregate, assigner: specs.Sliding, made: aggregates.Aggregation
) -> DataFrame:
    keys = quoted(spec.keys)
    if {each.function for each in spec.aggregates} <= aggregates.MERGED:
        # Each row counts in one pane; only their results, which are fewer, go into every window.
        length = math.gcd(assigner.size_us, assigner.slide_us)
        cut = rows.withColumn(_PANE, floored(F.col(_TIME), length, assigner.offset_us))
        panes = cut.groupBy(*keys, F.col(_PANE)).agg(*_aliased(made.results))
        spread = panes.withColumn(_START, F.explode(window_starts(F.col(_PANE), assigner)))
        kinds = {each.name: type_from_text(each.output_type) for each in spec.aggregates}
        merged = {each.name: aggregates.merged(each, kinds[each.name]) for each in spec.aggregates}
        return spread.groupBy(*keys, F.col(_START)).agg(*_aliased(merged))
    spread = rows.withColumn(_START, F.explode(window_starts(F.col(_TIME), assigner)))
    return spread.groupBy(*keys, F.col(_START)).agg(*_aliased(made.results))


def window_starts(time: Column, assigner: Assigner) -> Column:
    """Starts of the windows that a time is in, as a list."""
    if isinstance(assigner, specs.Tumbling):
        return F.array(floored(time, assigner.size_us, assigner.offset_us))
    last = floored(time, assigner.slide_us, assigner.offset_us)
    count = -(-assigner.size_us // assigner.slide_us)
    starts = F.array(*(last - F.lit(number * assigner.slide_us) for number in range(count)))
    if assigner.size_us % assigner.slide_us:
        return F.filter(starts, lambda start: start > time - F.lit(assigner.size_us))
    return starts


def session_aggregate(table: Table, spec: specs.SessionAggregate, output: pl.Schema) -> Table:
    """Sessions: a row begins one when it is later than the end of every one before it. Those that touch are one."""
    assert spec.event_time is not None, "windows by the clock are refused before"
    if spec.gap is not None:
        raise NotNative("a gap for each row")
    made = aggregates.aggregation(table, spec.aggregates, F.col(_TIME))
    rows = _prepared(table, spec.keys, made, table.time_us(spec.event_time))
    in_time = Window.partitionBy(*quoted(spec.keys)).orderBy(_TIME)
    before = F.lag(_TIME).over(in_time)
    begins = F.when(F.col(_TIME) - before <= F.lit(spec.gap_us), F.lit(0)).otherwise(F.lit(1))
    flagged = rows.withColumn("__begins", begins)
    so_far = in_time.rowsBetween(Window.unboundedPreceding, Window.currentRow)
    numbered = flagged.withColumn(_SESSION, F.sum("__begins").over(so_far))
    bounds = {_START: F.min(_TIME), _END: F.max(_TIME) + F.lit(spec.gap_us)}
    grouped = numbered.groupBy(*quoted(spec.keys), F.col(_SESSION)).agg(*_aliased({**bounds, **made.results}))
    shown = {"window_start": F.col(_START), "window_end": F.col(_END)}
    return _with_bounds(grouped, shown, output, spec.event_time.unit)


def running_aggregate(table: Table, spec: specs.RunningAggregate, output: pl.Schema) -> Table:
    """What the results have come to at the end of the input."""
    time = table.time_us(spec.event_time) if spec.event_time is not None else None
    made = aggregates.aggregation(table, spec.aggregates, F.col(_TIME) if time is not None else None)
    rows = _prepared(table, spec.keys, made, time)
    if spec.keys:
        grouped = rows.groupBy(*quoted(spec.keys)).agg(*_aliased(made.results))
    else:
        # Of no rows there is no result.
        grouped = rows.agg(F.count(F.lit(1)).alias("__rows"), *_aliased(made.results)).where(F.col("__rows") > 0)
    return Table(grouped.select(*quoted(list(output))), output)


def deduplicate(table: Table, spec: specs.Deduplicate, output: pl.Schema) -> Table:
    """One row per key, by event time where it is known."""
    last = spec.keep == "last"
    ordered, order = _in_time(table, spec.event_time, last=last)
    ranked = ordered.withColumn(_RANK, F.row_number().over(Window.partitionBy(*quoted(spec.keys)).orderBy(*order)))
    return Table(ranked.where(F.col(_RANK) == 1).select(*quoted(list(output))), output)


def top_n(table: Table, spec: specs.TopN, output: pl.Schema) -> Table:
    """The first rows of each key, or of each key and window."""
    parts = quoted(spec.keys)
    frame, earlier = _in_time(table, spec.event_time, last=False)
    if spec.within is not None:
        frame = frame.withColumn(_START, F.explode(window_starts(F.col(_TIME), spec.within)))
        parts = [*parts, F.col(_START)]
    order = [
        named(name).desc_nulls_last() if descending else named(name).asc_nulls_last()
        for name, descending in zip(spec.by, spec.descending, strict=True)
    ]
    order += earlier  # of equal rows the earlier one is first
    place = F.row_number().over((Window.partitionBy(*parts) if parts else Window).orderBy(*order))
    ranked = frame.withColumn(_RANK, place).where(F.col(_RANK) <= spec.n)
    made = {name: named(name) for name in output if name in table.schema}
    if spec.rank is not None:
        made[spec.rank] = F.col(_RANK).cast("bigint")
    if spec.within is not None and spec.event_time is not None:
        bounds = {"window_start": F.col(_START), "window_end": F.col(_START) + F.lit(spec.within.size_us)}
        made |= {name: time_column(at, output[name], spec.event_time.unit) for name, at in bounds.items()}
    return Table(ranked.select(*(made[name].alias(name) for name in output)), output)


def _in_time(table: Table, event_time: specs.EventTime | None, *, last: bool) -> tuple[DataFrame, list[Column]]:
    """Rows with what tells earlier ones from later ones: their time, then their place in the input."""
    frame = table.frame.withColumn(_ARRIVAL, F.monotonically_increasing_id())
    names = [_ARRIVAL]
    if event_time is not None:
        frame, names = frame.withColumn(_TIME, table.time_us(event_time)), [_TIME, _ARRIVAL]
    return frame, [F.col(name).desc() if last else F.col(name).asc() for name in names]


def _prepared(table: Table, keys: Sequence[str], made: aggregates.Aggregation, time: Column | None) -> DataFrame:
    """Only what the aggregates need of each row."""
    times = [time.alias(_TIME)] if time is not None else []
    return table.frame.select(*quoted(keys), *times, *(column.alias(name) for name, column in made.inputs.items()))


def _with_bounds(frame: DataFrame, bounds: Mapping[str, Column], output: pl.Schema, unit: str) -> Table:
    made = {name: time_column(bounds[name], kind, unit) if name in bounds else named(name)
            for name, kind in output.items()}  # fmt: skip
    return Table(frame.select(*(column.alias(name) for name, column in made.items())), output)


def _aliased(columns: Mapping[str, Column]) -> list[Column]:
    return [column.alias(name) for name, column in columns.items()]
