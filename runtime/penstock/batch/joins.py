"""Joins as native plans."""

import polars as pl
from pyspark.sql import Column, DataFrame, Window
from pyspark.sql import functions as F  # noqa: N812 - as everybody calls it

from penstock.batch.columns import spark_type
from penstock.batch.expressions import NotNative
from penstock.batch.tables import Table, time_column
from penstock.batch.windows import window_starts
from penstock.model import specs

_TIME, _START = "time", "start"
_HOW = {
    "inner": "inner", "left": "left", "right": "right", "full": "full_outer", "semi": "left_semi", "anti": "left_anti",
}  # fmt: skip


def join(left: Table, right: Table, spec: specs.Join, output: pl.Schema) -> Table:
    """Rows of two tables with equal keys that match in time. A null equals nothing."""
    sides = (_Side("l", left, spec.left_on, spec.left_time), _Side("r", right, spec.right_on, spec.right_time))
    match spec.match:
        case specs.AsOfMatch() as match:
            return _as_of(sides, spec, match, output)
        case specs.WindowMatch(assigner=assigner):
            frames = [side.in_windows(assigner) for side in sides]
            also = F.col("l_start") == F.col("r_start")
            joined = _joined(frames, sides, spec, also)
            start = (
                F.coalesce(F.col("l_start"), F.col("r_start")) if spec.how in ("right", "full") else F.col("l_start")
            )
            bounds = {"window_start": start, "window_end": start + F.lit(assigner.size_us)}
            return _result(joined, sides, spec, output, bounds)
        case specs.IntervalMatch(lower_us=lower, upper_us=upper):
            ahead = F.col("r_time") - F.col("l_time")
            near = (ahead >= F.lit(lower)) & (ahead <= F.lit(upper))
            return _result(_joined([side.frame() for side in sides], sides, spec, near), sides, spec, output, {})
        case specs.EverMatch():
            return _result(_joined([side.frame() for side in sides], sides, spec, None), sides, spec, output, {})
        case specs.BroadcastMatch():
            frames = [sides[0].frame(), F.broadcast(sides[1].frame())]
            return _result(_joined(frames, sides, spec, None), sides, spec, output, {})


class _Side:
    """One input, its columns under names that the other has not."""

    def __init__(self, mark: str, table: Table, on: tuple[str, ...], time: specs.EventTime | None) -> None:
        self._mark, self._table, self._on, self._event_time = mark, table, on, time
        self._numbers = {name: number for number, name in enumerate(table.schema)}

    def own(self, what: str) -> str:
        return f"{self._mark}_{what}"

    def column(self, name: str) -> Column:
        return F.col(self.own(str(self._numbers[name])))

    @property
    def keys(self) -> list[Column]:
        return [self.column(name) for name in self._on]

    def kind(self, name: str) -> pl.DataType:
        return self._table.schema[name]

    def frame(self) -> DataFrame:
        made = [self._table.column(name).alias(self.own(str(number))) for name, number in self._numbers.items()]
        if self._event_time is not None:
            made.append(self._table.time_us(self._event_time).alias(self.own(_TIME)))
        return self._table.frame.select(*made)

    def in_windows(self, assigner: specs.Tumbling | specs.Sliding) -> DataFrame:
        starts = window_starts(F.col(self.own(_TIME)), assigner)
        return self.frame().withColumn(self.own(_START), F.explode(starts))


def _joined(frames: list[DataFrame], sides: tuple[_Side, _Side], spec: specs.Join, also: Column | None) -> DataFrame:
    condition = also
    for one, other in zip(sides[0].keys, sides[1].keys, strict=True):
        condition = one == other if condition is None else condition & (one == other)
    if condition is None:
        raise NotNative("a join without keys")
    return frames[0].join(frames[1], condition, _HOW[spec.how])


def _result(
    joined: DataFrame, sides: tuple[_Side, _Side], spec: specs.Join, output: pl.Schema, bounds: dict[str, Column]
) -> Table:
    left, right = sides
    alone = spec.how in ("semi", "anti")
    made: dict[str, Column] = {}
    for column in spec.columns:
        if column.left is not None and column.right is not None and not alone:
            made[column.name] = F.coalesce(left.column(column.left), right.column(column.right))
        elif column.left is not None:
            made[column.name] = left.column(column.left)
        elif column.right is not None:
            made[column.name] = right.column(column.right)
    for name, at in bounds.items():
        if name in output and name not in made:
            unit = spec.left_time.unit if spec.left_time is not None else "us"
            made[name] = time_column(at, output[name], unit)
    return Table(joined.select(*(made[name].alias(name) for name in output)), output)


def _as_of(sides: tuple[_Side, _Side], spec: specs.Join, match: specs.AsOfMatch, output: pl.Schema) -> Table:
    """Both sides in one order, versions before the rows of the same time; each row takes the last version."""
    left, right = sides
    versions = right.frame()
    for key in right.keys:
        versions = versions.where(key.isNotNull())
    kinds = [spark_type(left.kind(name)) for name in spec.left_on]
    keys = [f"__key{number}" for number in range(len(spec.left_on))]
    held, given = versions.columns, left.frame().columns
    one = left.frame().select(
        *(key.cast(kind).alias(name) for key, kind, name in zip(left.keys, kinds, keys, strict=True)),
        F.col("l_time").alias("__time"),
        F.lit(1).alias("__row"),
        F.struct(*given).alias("__left"),
    )
    other = versions.select(
        *(key.cast(kind).alias(name) for key, kind, name in zip(right.keys, kinds, keys, strict=True)),
        F.col("r_time").alias("__time"),
        F.lit(0).alias("__row"),
        F.struct(*held).alias("__right"),
    )
    both = one.unionByName(other, allowMissingColumns=True)
    order = Window.partitionBy(*keys).orderBy("__time", "__row").rowsBetween(Window.unboundedPreceding, 0)
    found = both.withColumn("__version", F.last("__right", ignorenulls=True).over(order)).where(F.col("__row") == 1)
    version = F.col("__version")
    if match.max_age_us is not None:
        young = F.col("__version.r_time") >= F.col("__time") - F.lit(match.max_age_us)
        version = F.when(young, version)
    # A key that is null equals nothing, also not another null; those rows met no version above.
    chosen = found.withColumn("__version", version)
    if spec.how == "inner":
        chosen = chosen.where(F.col("__version").isNotNull())
    flat = chosen.select(
        *(F.col(f"__left.{name}").alias(name) for name in given),
        *(F.col(f"__version.{name}").alias(name) for name in held),
    )
    return _result(flat, sides, spec, output, {})
