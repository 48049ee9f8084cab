"""From what users write (Narwhals, Polars, column names, plain values) to serialized Polars expressions.

A Narwhals expression is turned into its native Polars form once, here, when the program is built: calling
Narwhals for every batch would cost several times as much. The two lines that reach into Narwhals are
`_narwhals_to_polars`; a test pins them to the installed version.

Every expression is resolved against the schema it will meet, without running it.
"""

import io
import pickle
import re
from collections.abc import Iterable, Mapping
from typing import Any

import narwhals as nw
import polars as pl
from narwhals.exceptions import NarwhalsError

from penstock.api import checks, pickling, places
from penstock.model.errors import UserError
from penstock.model.specs import Expression

IntoExpression = Any
"""A Narwhals or Polars expression, the name of a column, or a number or other plain value; `lit("text")` is a text."""

_PYTHON = "python_udf"
"""What Polars calls Python functions in an expression."""


def native(value: IntoExpression) -> pl.Expr:
    """The Polars form of anything that can stand for an expression."""
    if isinstance(value, nw.Expr):
        return _narwhals_to_polars(value)
    if isinstance(value, pl.Expr):
        return value
    if isinstance(value, str):
        return pl.col(value)
    return pl.lit(value)


def resolve(
    positional: Iterable[IntoExpression],
    named: Mapping[str, IntoExpression],
    schema: pl.Schema,
    *,
    what: str,
    where: str,
) -> tuple[tuple[Expression, ...], pl.Schema]:
    """The columns that a `select` of these would make: one expression for each, and their types."""
    for value in named.values():
        if isinstance(value, str) and value not in schema:
            raise checks.unknown_column(value, schema, what=what, where=where, or_text=True)
    try:
        written = [native(value) for value in _flattened(positional)]
        written += [native(value).alias(name) for name, value in named.items()]
    except (NarwhalsError, TypeError, ValueError) as error:
        raise UserError("P020", f"{what}: {_first_line(error)}", where=where) from None
    made: dict[str, pl.DataType] = {}
    expressions: list[Expression] = []
    for expr in written:
        types = output_types(expr, schema, what=what, where=where)
        for name, single in _single_outputs(expr, types):
            if name in made:
                raise UserError(
                    "P020", f'{what}: column "{name}" is made twice', where=where,
                    fix='give one of them another name: total=col("price").sum() or .alias("total")',
                )  # fmt: skip
            made[name] = types[name]
            expressions.append(serialize(name, single))
    return tuple(expressions), pl.Schema(made)


def predicate(conditions: Iterable[IntoExpression], schema: pl.Schema, *, where: str) -> Expression:
    """All of the conditions, as one boolean expression."""
    exprs = [native(condition) for condition in _flattened(conditions)]
    if not exprs:
        raise UserError("P020", "filter: no condition given", where=where, fix='filter(col("price") > 100)')
    for expr in exprs:
        for name, kind in output_types(expr, schema, what="filter", where=where).items():
            if kind != pl.Boolean():
                raise UserError(
                    "P020",
                    f'filter: the condition "{text(expr)}" gives {kind} ({name}), not Boolean',
                    where=where,
                    fix='compare it with something, as in col("price") > 100',
                )
    condition = exprs[0] if len(exprs) == 1 else pl.all_horizontal(exprs)
    return serialize("predicate", condition)


def output_types(expr: pl.Expr, schema: pl.Schema, *, what: str, where: str, aggregates: bool = False) -> pl.Schema:
    """Names and types that the expression gives on columns of `schema`; a mistake in it is a UserError."""
    unknown = [name for name in expr.meta.root_names() if name not in schema]
    if unknown:
        raise checks.unknown_column(unknown[0], schema, what=what, where=where)
    try:
        types = schema.to_frame(eager=False).select(expr).collect_schema()
        if _PYTHON not in str(expr):  # functions of the user are not called before there are rows
            # The plan alone does not tell that a text is compared with a number, or that a number has no `.str`.
            schema.to_frame().select(expr)
    except pl.exceptions.ColumnNotFoundError as error:
        raise UserError(
            "P020", f"{what}: {_first_line(error)}; the columns are {checks.listing(schema)}", where=where
        ) from None
    except (pl.exceptions.PolarsError, TypeError, ValueError) as error:
        raise UserError(
            "P020",
            f'{what}: "{text(expr)}": {_first_line(error)}',
            where=where,
            fix=f"the column types are {', '.join(f'{name}: {kind}' for name, kind in schema.items())}",
        ) from None
    if not aggregates and not _is_row_wise(expr):
        raise UserError(
            "P020",
            f'{what}: "{text(expr)}" looks at other rows than its own; a batch is not the whole stream',
            where=where,
            fix="aggregate in a window: key_by(...).window(ps.tumbling(...)).agg(...)",
        )
    return types


def with_rows(made: tuple[Expression, ...]) -> tuple[Expression, ...]:
    """Expressions that give one value per row even when none of them looks at a column."""
    exprs = [deserialize(expression) for expression in made]
    if any(expr.meta.root_names() or expr.meta.has_multiple_outputs() for expr in exprs):
        return made
    return tuple(
        serialize(expression.name, pl.repeat(expr, pl.len()).alias(expression.name))
        for expression, expr in zip(made, exprs, strict=True)
    )


def renamed_column(expression: Expression) -> str | None:
    """The column that the expression passes on unchanged, under its own name or another."""
    expr = deserialize(expression)
    if expr.meta.has_multiple_outputs():
        return None
    bare = expr.meta.undo_aliases()
    return bare.meta.output_name() if bare.meta.is_column() else None


def deserialize(expression: Expression) -> pl.Expr:
    """The expression that `serialize` wrote."""
    return pl.Expr.deserialize(io.BytesIO(expression.polars))


def serialize(name: str, expr: pl.Expr) -> Expression:
    """Plain data that a slot turns back into the expression."""
    shown = text(expr.meta.undo_aliases())
    try:
        with pickling.program_by_value():  # an expression may hold functions: map_elements, map_batches
            return Expression(name=name, text=shown, polars=expr.meta.serialize())
    except (pl.exceptions.PolarsError, TypeError, AttributeError, pickle.PicklingError) as error:
        raise UserError(
            "P004",
            f'expression "{shown}" captures something non-serialisable ({_first_line(error)})',
            where=places.caller(),
            fix="use expressions only, or map_batches with what it needs made inside the function",
        ) from None


def text(expr: pl.Expr) -> str:
    """The expression as people read it, without the brackets that Polars puts around everything."""
    shown = re.sub(r'col\("([^"]*)"\)|dyn (?:int|float): ', r"\1", str(expr))
    return _without_needless_brackets(shown.replace("[", "(").replace("]", ")"))


def _narwhals_to_polars(expression: "nw.Expr") -> pl.Expr:
    namespace: Any = nw.from_native(pl.LazyFrame())._compliant_frame.__narwhals_namespace__()
    compliant: Any = expression._to_compliant_expr(namespace)
    native_expression: pl.Expr = compliant.native
    return native_expression


def _flattened(values: Iterable[IntoExpression]) -> Iterable[IntoExpression]:
    for value in values:
        if isinstance(value, list | tuple):
            yield from value
        else:
            yield value


def _single_outputs(expr: pl.Expr, types: pl.Schema) -> Iterable[tuple[str, pl.Expr]]:
    """One expression for each column that `expr` makes."""
    if not expr.meta.has_multiple_outputs():
        return [(name, expr) for name in types]
    if expr.meta.is_column_selection():
        return [(name, pl.col(name)) for name in types]
    return [(name, pl.struct(expr).struct.field(name)) for name in types]


def _is_row_wise(expr: pl.Expr) -> bool:
    try:
        return expr.meta.is_row_separable()
    except pl.exceptions.PolarsError:
        # Polars cannot tell without the columns: selections of several columns, functions of the user.
        return True


def _without_needless_brackets(shown: str) -> str:
    """Drop brackets around single words, doubled brackets, and those around the whole."""
    opened: list[int] = []
    closing: dict[int, int] = {}
    for index, char in enumerate(shown):
        if char == "(":
            opened.append(index)
        elif char == ")" and opened:
            closing[opened.pop()] = index
    dropped: set[int] = set()
    for start, end in closing.items():
        is_call = start > 0 and (shown[start - 1].isalnum() or shown[start - 1] == "_")
        is_doubled = closing.get(start + 1) == end - 1
        is_whole = start == 0 and end == len(shown) - 1
        is_word = re.fullmatch(r"[\w.]+", shown[start + 1 : end]) is not None and not is_call
        if is_doubled or is_whole or is_word:
            dropped |= {start, end}
    plain = "".join(char for index, char in enumerate(shown) if index not in dropped)
    return plain if plain == shown else _without_needless_brackets(plain)


def _first_line(error: Exception) -> str:
    return str(error).strip().splitlines()[0] if str(error).strip() else type(error).__name__
