"""Expressions over the columns of a batch: select, with_columns, filter, explode, alone or fused; and union.

Expressions are opened once; then each batch is one eager Polars call per step. What Polars cannot compute (a cast,
a comparison of types) is the user's error R005, and names the expression.
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
    what = f"{culprit}: {reason}" if culprit else str(reason)
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
            expressions = [column.expression for column in columns]
            return lambda frame: frame.with_columns(expressions), columns
        case specs.Filter():
            predicate = Column.of(step.predicate)
            return lambda frame: frame.filter(predicate.expression), [predicate]
        case specs.Explode():
            names = list(step.columns)
            exploded = Column(", ".join(names), f"explode({', '.join(names)})", pl.col(names))
            return lambda frame: frame.explode(names), [exploded]


def _selecting(columns: Sequence[Column]) -> _Run:
    expressions, names = [column.expression for column in columns], [column.name for column in columns]

    def select(frame: pl.DataFrame) -> pl.DataFrame:
        selected = frame.select(expressions)
        if selected.height == frame.height:
            return selected
        # Only constants: Polars selects one row of them, a stream has one for each row that came.
        return frame.with_columns(expressions).select(names)

    return select


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
