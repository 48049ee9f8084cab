"""Aggregates that can be computed in pieces: rows -> partial results -> fewer partial results -> the result.

For every function there is one set of partial columns, and four ways to make them or use them: `fold` groups rows,
`lift` gives each row its own partial result without grouping, `merge` groups partial results, `finish` makes the
output column. Whatever mixture of fold, lift and merge the rows went through, the result is the same.

Nulls are left out, and a group of only nulls gives what Polars gives: 0 for sum and count, false for any, true for
all, null for the rest. Counts and sums of integers are Int64. Names of partial columns begin with `__`.
"""

from collections.abc import Mapping, Sequence

import msgspec
import numpy as np
import numpy.typing as npt
import polars as pl
from polars.exceptions import PolarsError

from penstock.model import specs
from penstock.model.errors import UserError
from penstock.model.frames import contiguous, stacked
from penstock.model.schemas import type_from_text, type_to_text
from penstock.operators import dense_counts, extremes, list_aggregates, sketches
from penstock.operators.aggregate_parts import TIME, Parts
from penstock.operators.expressions import Column, computed, expression_error

PANE = "__pane"
"""Start of a partial result's pane, in microseconds."""

_GROUP = "__group"

_BY_TIME = ("first", "last", "collect_list")

_SHARED_ROWS = 8_192
"""Groups of fewer rows, on average, are reduced together."""
_FEW_GROUPS = 8


class Aggregation:
    """All aggregates of one window. Without keys there is one group."""

    def __init__(self, keys: Sequence[str], aggregates: Sequence[specs.Aggregate], *, negated: bool = False) -> None:
        """`negated`: some partial results take others back, so that a key may be there with a count of zero."""
        self.keys = list(keys)
        self._inputs: dict[bytes, Column] = {}
        self._sketched: dict[str, str] = {}
        """Column of sketch entries -> the input that they are of."""
        parts = [self._parts(aggregate) for aggregate in aggregates]
        self._needs_time = any(aggregate.function in _BY_TIME for aggregate in aggregates)
        self._fold = [expression for part in parts for expression in part.fold]
        lifts = [part.lift for part in parts if part.lift is not None]
        self._lift = [expression for lift in lifts for expression in lift] if len(lifts) == len(parts) else None
        self._negate = [expression for part in parts for expression in part.negate or ()]
        self._merge = [expression for part in parts for expression in part.merge]
        self.finish = [part.finish for part in parts]
        self._renamed = _renamed(aggregates, self.finish)
        self.partial_columns = [expression.meta.output_name() for expression in self._merge]
        self._deciding = None if keys else self._extremes(aggregates, parts)
        self._row_count = self.partial_columns[0] if _only_counts_rows(keys, aggregates) and not negated else None

    def prepare(self, frame: pl.DataFrame, times: npt.NDArray[np.int64], uid: str) -> pl.DataFrame:
        """Only what the aggregates need of each row: keys and inputs."""
        rows = self._taken(frame, times, uid)
        if not self._sketched:
            return rows
        return rows.hstack([sketches.entries(rows.get_column(of), name) for name, of in self._sketched.items()])

    def _taken(self, frame: pl.DataFrame, times: npt.NDArray[np.int64], uid: str) -> pl.DataFrame:
        inputs = self._inputs.values()
        # Without keys and inputs, or with constants alone, only the times have as many rows as the batch.
        times_column = [pl.Series(TIME, times)] if self._needs_time or not self.keys else []
        if all(column.source for column in inputs):
            taken = [frame.get_column(column.source or "").alias(column.name) for column in inputs]
            return pl.DataFrame([*(frame.get_column(key) for key in self.keys), *taken, *times_column])
        try:
            made = computed(frame, [*inputs])
            return pl.DataFrame([*map(frame.get_column, self.keys), *made, *times_column])
        except PolarsError as error:
            raise expression_error(error, frame, list(inputs), uid) from error

    @property
    def prepared_columns(self) -> list[str]:
        """What `prepare` gives."""
        times = [TIME] if self._needs_time or not self.keys else []
        return [*self.keys, *(column.name for column in self._inputs.values()), *times, *self._sketched]

    def negated(self, partials: pl.DataFrame) -> pl.DataFrame:
        """Partial results that, merged with others, take these back. Only sums of any kind can be."""
        return partials.with_columns(self._negate)

    def relevant(self, parts: Sequence[tuple[int, pl.DataFrame]]) -> Sequence[tuple[int, pl.DataFrame]]:
        """Prepared rows by pane, without those that cannot change the result."""
        if self._deciding is None or not parts:
            return parts
        panes, rows = zip(*parts, strict=True)
        return list(zip(panes, self._deciding[0].deciding(rows), strict=True))

    def fold(self, groups: Sequence[pl.DataFrame]) -> list[pl.DataFrame]:
        """Partial results of each group of prepared rows, each key once."""
        return self._reduce(groups, dense_counts.count, self._deciding and self._deciding[0], self._fold)

    @property
    def can_lift(self) -> bool:
        """Whether `lift` costs less than to fold."""
        return self._lift is not None

    def lift(self, rows: pl.DataFrame) -> pl.DataFrame:
        """Prepared rows as partial results, row by row: cheaper than `fold` when hardly a key comes twice."""
        if self._lift is not None:
            return rows.select(*self.keys, *self._lift)
        alone = rows.with_row_index(_GROUP).group_by([_GROUP, *self.keys], maintain_order=True).agg(self._fold)
        return alone[[*self.keys, *self.partial_columns]]

    def merge(self, groups: Sequence[pl.DataFrame]) -> list[pl.DataFrame]:
        """Fewer partial results of each group, each key once. Of equal times, earlier rows count as earlier."""
        return self._reduce(groups, dense_counts.add_up, self._deciding and self._deciding[1], self._merge)

    def merge_windows(self, windows: Sequence[Sequence[pl.DataFrame]]) -> tuple[pl.DataFrame, dense_counts.Lengths]:
        """The partial results of windows, all in one frame, each key once in each; and how long each is."""
        if all(len(frames) == 1 for frames in windows):
            merged = [frames[0] for frames in windows]
        else:
            summed = dense_counts.add_up(windows, self.keys[0], self._row_count) if self._row_count else None
            if summed is not None:
                return summed
            merged = self.merge([stacked(frames) for frames in windows])
        lengths = np.array([frame.height for frame in merged])
        return contiguous(stacked(merged)), lengths

    def results(self, partials: pl.DataFrame) -> list[pl.Series]:
        """The output columns. Most are a partial column as it is, and windows are small: a query costs more."""
        if self._renamed is None:
            return partials.select(self.finish).get_columns()
        return [partials.get_column(source).cast(kind).alias(name) for name, source, kind in self._renamed]

    def _reduce(
        self,
        groups: Sequence[pl.DataFrame],
        count: dense_counts.Count,
        deciding: extremes.Extremes | None,
        expressions: Sequence[pl.Expr],
    ) -> list[pl.DataFrame]:
        """Small groups share the calls, which cost as much as some thousand rows; large ones stay in the cache."""
        if len(groups) > 1 and sum(group.height for group in groups) > _SHARED_ROWS * len(groups):
            return [reduced for group in groups for reduced in self._reduce([group], count, deciding, expressions)]
        counted = count([[group] for group in groups], self.keys[0], self._row_count) if self._row_count else None
        if counted is not None:
            return _cut(*counted)
        if deciding and len(groups) <= _FEW_GROUPS:
            decided = [deciding.partial(group) for group in groups]
            if (known := [partial for partial in decided if partial is not None]) and len(known) == len(groups):
                return known
        if len(groups) == 1:
            return [self._group(groups[0], expressions)]
        numbers = np.repeat(np.arange(len(groups), dtype=np.uint32), [group.height for group in groups])
        rows = stacked(groups).hstack([pl.Series(_GROUP, numbers)])
        made = rows.group_by([_GROUP, *self.keys], maintain_order=True).agg(expressions)
        lengths = np.bincount(made.get_column(_GROUP).to_numpy(), minlength=len(groups))
        return _cut(made[[*self.keys, *self.partial_columns]], lengths)

    def _group(self, frame: pl.DataFrame, expressions: Sequence[pl.Expr]) -> pl.DataFrame:
        return frame.group_by(self.keys).agg(expressions) if self.keys else frame.select(expressions)

    def _extremes(
        self, aggregates: Sequence[specs.Aggregate], parts: Sequence[Parts]
    ) -> tuple[extremes.Extremes, extremes.Extremes] | None:
        """What decides everything, in rows and in partial results; None: some aggregate needs every row."""
        rows, partials = list[extremes.Decided](), list[extremes.Decided]()
        for aggregate, part in zip(aggregates, parts, strict=True):
            found = extremes.bound_of(aggregate)
            if found is None or aggregate.input is None:
                return None
            expression, largest = found
            *value, by = (expression.meta.output_name() for expression in part.merge)
            in_rows = extremes.Bound(self._inputs[expression].name, largest)
            in_partials = extremes.Bound(by, largest)
            rows += [extremes.Decided(name, self._inputs[aggregate.input.polars].name, in_rows) for name in value]
            rows.append(extremes.Decided(by, in_rows.column, in_rows))
            partials += [extremes.Decided(name, name, in_partials) for name in (*value, by)]
        return extremes.Extremes(rows), extremes.Extremes(partials)

    def _input(self, expression: specs.Expression) -> pl.Expr:
        """The prepared column of an input; one for all aggregates that read the same."""
        if expression.polars not in self._inputs:
            self._inputs[expression.polars] = Column.of(expression, name=f"__in{len(self._inputs)}")
        return pl.col(self._inputs[expression.polars].name)

    def _parts(self, aggregate: specs.Aggregate) -> Parts:
        if aggregate.custom is not None and aggregate.input is not None:
            return self._custom_parts(aggregate, aggregate.input, aggregate.custom)
        value = self._input(aggregate.input) if aggregate.input else None
        by = self._input(aggregate.by) if aggregate.by else None
        if aggregate.function == "approx_count_distinct" and value is not None:
            source = value.meta.output_name()
            self._sketched[f"{source}.entry"] = source
            value = pl.col(f"{source}.entry")
        if aggregate.function in list_aggregates.FUNCTIONS and value is not None:
            return list_aggregates.parts(aggregate, value)
        kind = type_from_text(aggregate.output_type) if aggregate.output_type else None
        return _parts(aggregate, value, by, kind)

    def _custom_parts(self, aggregate: specs.Aggregate, value: specs.Expression, custom: specs.CustomParts) -> Parts:
        # The user's expressions name their input: two aggregates over the same column have a copy each.
        self._inputs[custom.input.encode()] = Column.of(value, name=custom.input)
        fold, merge = (tuple(Column.of(each).expression for each in side) for side in (custom.fold, custom.merge))
        return Parts(fold=fold, lift=None, merge=merge, finish=Column.of(custom.finish).expression)


def _cut(frame: pl.DataFrame, lengths: dense_counts.Lengths) -> list[pl.DataFrame]:
    starts = np.cumsum(lengths) - lengths
    return [frame.slice(start, length) for start, length in zip(starts.tolist(), lengths.tolist(), strict=True)]


def _only_counts_rows(keys: Sequence[str], aggregates: Sequence[specs.Aggregate]) -> bool:
    match aggregates:
        case [specs.Aggregate(function="count", input=None)]:
            return len(keys) == 1
    return False


def _renamed(
    aggregates: Sequence[specs.Aggregate], finish: Sequence[pl.Expr]
) -> list[tuple[str, str, pl.DataType]] | None:
    """Name, partial column and type of each result, when each is a partial column as it is."""
    renamed = []
    for aggregate, expression in zip(aggregates, finish, strict=True):
        sources, kind = expression.meta.root_names(), type_from_text(aggregate.output_type)
        if len(sources) != 1 or not expression.meta.eq(pl.col(sources[0]).cast(kind).alias(aggregate.name)):
            return None
        renamed.append((aggregate.name, sources[0], kind))
    return renamed


def _parts(aggregate: specs.Aggregate, value: pl.Expr | None, by: pl.Expr | None, kind: pl.DataType | None) -> Parts:
    def part(suffix: str) -> tuple[str, pl.Expr]:
        name = f"__{aggregate.name}.{suffix}"
        return name, pl.col(name)

    def finished(expression: pl.Expr) -> pl.Expr:
        return (expression if kind is None else expression.cast(kind)).alias(aggregate.name)

    if aggregate.function == "count":
        name, count = part("count")
        return Parts(
            fold=((pl.len() if value is None else value.count()).cast(pl.Int64).alias(name),),
            lift=((pl.lit(1, pl.Int64) if value is None else value.is_not_null().cast(pl.Int64)).alias(name),),
            merge=(count.sum(),),
            finish=finished(count),
            negate=(-count,),
        )
    assert value is not None, f"{aggregate.function} needs an input"
    match aggregate.function:
        case "sum":
            name, total = part("sum")
            typed = value if kind is None else value.cast(kind)
            zero = typed.fill_null(strategy="zero")
            # Nothing less itself twice: unsigned numbers have no minus, but go round.
            negative = (total - total - total,)
            return Parts((typed.sum().alias(name),), (zero.alias(name),), (total.sum(),), finished(total), negative)
        case "min":
            name, least = part("min")
            return Parts((value.min().alias(name),), (value.alias(name),), (least.min(),), finished(least))
        case "max":
            name, most = part("max")
            return Parts((value.max().alias(name),), (value.alias(name),), (most.max(),), finished(most))
        case "any":
            name, some = part("any")
            lift = value.fill_null(False).alias(name)
            return Parts((value.any().alias(name),), (lift,), (some.any(),), finished(some))
        case "all":
            name, every = part("all")
            lift = value.fill_null(True).alias(name)
            return Parts((value.all().alias(name),), (lift,), (every.all(),), finished(every))
        case "mean":
            (sum_name, total), (count_name, count) = part("sum"), part("count")
            number = value.cast(pl.Float64)
            return Parts(
                fold=(number.sum().alias(sum_name), value.count().cast(pl.Int64).alias(count_name)),
                lift=(number.fill_null(0.0).alias(sum_name), value.is_not_null().cast(pl.Int64).alias(count_name)),
                merge=(total.sum(), count.sum()),
                finish=finished(pl.when(count > 0).then(total / count)),
                negate=(-total, -count),
            )
        case "var" | "std":
            (count_name, count), (mean_name, mean), (m2_name, m2) = part("count"), part("mean"), part("m2")
            number = value.cast(pl.Float64)
            # Chan: the squares around the common mean are those around each mean, plus those of the means.
            common = (count * mean).sum() / count.sum().clip(lower_bound=1)
            # Rounding may leave less than nothing where rows were taken back.
            variance = pl.when(count > 1).then(m2.clip(lower_bound=0.0) / (count - 1))
            return Parts(
                fold=(
                    value.count().cast(pl.Int64).alias(count_name),
                    number.mean().fill_null(0.0).alias(mean_name),
                    (number.var(ddof=0) * number.count()).fill_null(0.0).alias(m2_name),
                ),
                lift=(
                    value.is_not_null().cast(pl.Int64).alias(count_name),
                    number.fill_null(0.0).alias(mean_name),
                    (number * 0.0).fill_null(0.0).alias(m2_name),
                ),
                merge=(
                    count.sum(),
                    common.alias(mean_name),
                    (m2.sum() + (count * (mean - common) ** 2).sum()).alias(m2_name),
                ),
                negate=(-count, -m2),
                finish=finished(variance if aggregate.function == "var" else variance.sqrt()),
            )
        case "first":
            (value_name, chosen), (time_name, chosen_at) = part("value"), part("time")
            at = pl.col(TIME)
            return Parts(
                fold=(value.get(at.arg_min()).alias(value_name), at.min().alias(time_name)),
                lift=(value.alias(value_name), at.alias(time_name)),
                merge=(chosen.get(chosen_at.arg_min()), chosen_at.min()),
                finish=finished(chosen),
            )
        case "last":
            (value_name, chosen), (time_name, chosen_at) = part("value"), part("time")
            at = pl.col(TIME)
            return Parts(
                fold=(value.filter(at == at.max()).last().alias(value_name), at.max().alias(time_name)),
                lift=(value.alias(value_name), at.alias(time_name)),
                merge=(chosen.filter(chosen_at == chosen_at.max()).last(), chosen_at.max()),
                finish=finished(chosen),
            )
        case "min_by" | "max_by":
            assert by is not None, f"{aggregate.function} needs something to compare by"
            (value_name, chosen), (by_name, bound) = part("value"), part("by")

            def extreme(column: pl.Expr) -> pl.Expr:
                return column.min() if aggregate.function == "min_by" else column.max()

            # Of several rows with the extreme the smallest value wins, so that order does not matter.
            return Parts(
                fold=(value.filter(by == extreme(by)).min().alias(value_name), extreme(by).alias(by_name)),
                lift=(pl.when(by.is_not_null()).then(value).alias(value_name), by.alias(by_name)),
                merge=(chosen.filter(bound == extreme(bound)).min(), extreme(bound)),
                finish=finished(chosen),
            )
    raise ValueError(f"no aggregate {aggregate.function}")


def partial_schema(
    keys: Sequence[str],
    aggregates: Sequence[specs.Aggregate],
    input_schema: Mapping[str, pl.DataType],
    event_time: specs.EventTime | None = None,
) -> pl.Schema:
    """Columns of partial results on their way from Combine to WindowAggregate: keys, pane, partial columns."""
    typed = [
        aggregate
        if aggregate.output_type
        else msgspec.structs.replace(aggregate, output_type=type_to_text(output_type(aggregate, input_schema)))
        for aggregate in aggregates
    ]
    aggregation = Aggregation(keys, typed)
    empty = pl.DataFrame(schema=input_schema)
    (partial,) = aggregation.fold([aggregation.prepare(empty, np.empty(0, np.int64), uid="schema")])
    schema = {key: partial.schema[key] for key in keys} | {PANE: pl.Int64()}
    return pl.Schema(schema | {name: partial.schema[name] for name in aggregation.partial_columns})


def output_type(aggregate: specs.Aggregate, input_schema: Mapping[str, pl.DataType]) -> pl.DataType:
    """Type of the aggregate's column. Raises a UserError when the function cannot take its input."""
    if aggregate.function == "count":
        return pl.Int64()
    assert aggregate.input is not None, f"{aggregate.function} needs an input"
    kind = _type_of(aggregate.input, input_schema)
    match aggregate.function:
        case "sum":
            if kind.is_integer() or kind == pl.Boolean:
                return pl.UInt64() if kind == pl.UInt64 else pl.Int64()
            if isinstance(kind, pl.Decimal):
                return pl.Decimal(38, kind.scale)
            if kind.is_float() or isinstance(kind, pl.Duration):
                return kind
            raise _refused(aggregate, kind, "numbers and durations")
        case "mean" | "var" | "std":
            if not (kind.is_numeric() or kind == pl.Boolean):
                raise _refused(aggregate, kind, "numbers")
            return pl.Float32() if kind == pl.Float32 else pl.Float64()
        case "any" | "all":
            if kind != pl.Boolean:
                raise _refused(aggregate, kind, "booleans")
            return kind
        case "min" | "max":
            return _ordered(aggregate, kind)
        case "min_by" | "max_by":
            assert aggregate.by is not None, f"{aggregate.function} needs something to compare by"
            _ordered(aggregate, _type_of(aggregate.by, input_schema))
            return _ordered(aggregate, kind)
        case "first" | "last":
            return kind
        case "count_distinct":
            return pl.Int64()
        case "approx_count_distinct":
            if kind.is_nested() or kind == pl.Null:
                raise _refused(aggregate, kind, "columns that could be keys")
            return pl.Int64()
        case "collect_list":
            return pl.List(kind)
        case "quantile":
            if not kind.is_numeric():
                raise _refused(aggregate, kind, "numbers")
            return pl.Float64()
    raise ValueError(f"no aggregate {aggregate.function}")


def _type_of(expression: specs.Expression, schema: Mapping[str, pl.DataType]) -> pl.DataType:
    return pl.DataFrame(schema=schema).select(Column.of(expression).expression).dtypes[0]


def _ordered(aggregate: specs.Aggregate, kind: pl.DataType) -> pl.DataType:
    if kind.is_nested() or kind == pl.Null:
        raise _refused(aggregate, kind, "columns that have an order")
    return kind


def _refused(aggregate: specs.Aggregate, kind: pl.DataType, takes: str) -> UserError:
    text = aggregate.input.text if aggregate.input else ""
    return UserError(
        "P020",
        f'"{aggregate.name}": {aggregate.function}({text}) takes {takes}, and this is {kind}',
        fix="cast the column, or use another aggregate",
    )
