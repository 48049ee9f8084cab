"""Expressions over the columns of a batch: select, with_columns, filter, explode, alone or fused; and union.

Expressions are opened once; then each batch is one eager Polars call per column that is made. What Polars cannot
compute (a cast, a comparison of types) is the user's error R005, and names the expression.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TypeAlias

import polars as pl
from polars.exceptions import PolarsError

from penstock.model import specs
from penstock.model.errors import UserError
from penstock.operators.base import Operator

Step: TypeAlias = specs.Select | specs.WithColumns | specs.Filter | specs.Explode


@dataclass(frozen=True, slots=True)
class Column:
    """An expression that is ready to run."""

    name: str
    text: str
    expression: pl.Expr
    source: str | None = None
    """The column that this is, when it is one as it stands."""

    @classmethod
    def of(cls, spec: specs.Expression, name: str = "") -> "Column":
        """Open a serialised expression, under its own name or another."""
        expression = pl.Expr.deserialize(spec.polars)
        source = expression.meta.output_name() if expression.meta.is_column() else None
        return cls(name or spec.name, spec.text, expression.alias(name or spec.name), source)


class Expressions(Operator):
    """Runs the steps of one Select, WithColumns, Filter, Explode or Fused."""

    def __init__(self, spec: Step | specs.Fused) -> None:
        steps = spec.steps if isinstance(spec, specs.Fused) else (spec,)
        self._steps = [_compile(step) for step in _joined(steps)]

    def on_batch(self, frame: pl.DataFrame, port: int = 0) -> None:
        """Run every step, as long as rows are left."""
        for run, columns in self._steps:
            try:
                frame = run(frame)
            except PolarsError as error:
                raise expression_error(error, frame, columns, self.context.uid) from error
            if frame.is_empty():
                return
        self.output.emit(frame)


class Union(Operator):
    """Rows of all inputs as they come, in one column order."""

    def __init__(self, spec: specs.Union) -> None:
        self._columns = list(spec.columns)

    def on_batch(self, frame: pl.DataFrame, port: int = 0) -> None:
        """Pass the rows on."""
        self.output.emit(frame if frame.columns == self._columns else frame.select(self._columns))


def expression_error(error: Exception, frame: pl.DataFrame, columns: Sequence[Column], uid: str) -> UserError:
    """The user's error for what Polars refused; finds which of the expressions it was."""
    culprit, reason = (columns[0].text if len(columns) == 1 else "", error)
    for column in columns:
        try:
            frame.with_columns(column.expression)
        except PolarsError as same:
            culprit, reason = column.text, same
            break
    said = str(reason).partition("\n")[0]  # what follows is Polars' own drawing of the expression
    what = f"{culprit}: {said}" if culprit else said
    return UserError(
        "R005",
        what,
        where=f'operator "{uid}"',
        fix="filter out the rows that it cannot compute, or cast with strict=False to get null for them",
    )


_Run: TypeAlias = Callable[[pl.DataFrame], pl.DataFrame]


def _compile(step: Step) -> tuple[_Run, list[Column]]:
    match step:
        case specs.Select():
            columns = [Column.of(expression) for expression in step.expressions]
            return _selecting(columns), columns
        case specs.WithColumns():
            columns = [Column.of(expression) for expression in step.expressions]
            return _adding(columns), columns
        case specs.Filter():
            predicate = Column.of(step.predicate)
            return _filtering(predicate), [predicate]
        case specs.Explode():
            names = list(step.columns)
            exploded = Column(", ".join(names), f"explode({', '.join(names)})", pl.col(names))
            return lambda frame: frame.explode(names), [exploded]


def computed(frame: pl.DataFrame, columns: Sequence[Column]) -> list[pl.Series]:
    """These columns, each as long as the frame.

    One call for each: a call for several is handed to the thread pool of Polars (see `model.frames`), and takes as
    much time of a core.
    """
    made = []
    for column in columns:
        if column.source is not None:
            made.append(frame.get_column(column.source).alias(column.name))
            continue
        values = frame.select(column.expression).to_series()
        if len(values) != frame.height:
            # A constant or a total is one value; a stream has one for each row that came.
            values = frame.with_columns(column.expression).get_column(column.name)
        made.append(values)
    return made


def _selecting(columns: Sequence[Column]) -> _Run:
    expressions, names = [column.expression for column in columns], [column.name for column in columns]
    if not _one_by_one(columns):
        return lambda frame: frame.select(expressions)
    if shares_work(expressions):
        # A lazy query computes once what several columns need; starting it costs more than most expressions.
        return lambda frame: frame.lazy().with_columns(expressions).select(names).collect()
    return lambda frame: pl.DataFrame(computed(frame, columns))


def _adding(columns: Sequence[Column]) -> _Run:
    if not _one_by_one(columns):
        expressions = [column.expression for column in columns]
        return lambda frame: frame.with_columns(expressions)

    def add(frame: pl.DataFrame) -> pl.DataFrame:
        made = {values.name: values for values in (*frame.get_columns(), *computed(frame, columns))}
        return pl.DataFrame(list(made.values()))

    return add


def _filtering(predicate: Column) -> _Run:
    def keep(frame: pl.DataFrame) -> pl.DataFrame:
        (mask,) = computed(frame, [predicate])
        return pl.DataFrame([column.filter(mask) for column in frame.get_columns()])

    return keep


def _one_by_one(columns: Sequence[Column]) -> bool:
    return not any(column.expression.meta.has_multiple_outputs() for column in columns)


def shares_work(expressions: Sequence[pl.Expr]) -> bool:
    """Whether a computation is part of more than one of them, or twice part of one."""
    seen: set[bytes] = set()
    waiting = list(expressions)
    while waiting:
        expression = waiting.pop().meta.undo_aliases()
        inputs = expression.meta.pop()
        if not inputs:
            continue  # a column or a constant
        if (computed := expression.meta.serialize()) in seen:
            return True
        seen.add(computed)
        waiting += inputs
    return False


def _joined(steps: Sequence[Step]) -> list[Step]:
    """Steps with neighbouring WithColumns made one where the later does not read what the earlier makes."""
    joined: list[Step] = []
    for step in steps:
        last = joined[-1] if joined else None
        if isinstance(last, specs.WithColumns) and isinstance(step, specs.WithColumns) and _independent(last, step):
            joined[-1] = specs.WithColumns(expressions=last.expressions + step.expressions)
        else:
            joined.append(step)
    return joined


def _independent(earlier: specs.WithColumns, later: specs.WithColumns) -> bool:
    made = {expression.name for expression in earlier.expressions}
    for expression in later.expressions:
        opened = pl.Expr.deserialize(expression.polars)
        if opened.meta.has_multiple_outputs() or made & {expression.name, *opened.meta.root_names()}:
            return False
    return True
