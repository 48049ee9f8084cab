"""User functions: which columns they ask for, what they give, and their bytes for the slots.

The names of a function's parameters are columns (`operators.user_functions` has the rules).
"""

import collections.abc
import inspect
import types
import typing
from collections.abc import Callable
from typing import Any

import polars as pl

from penstock.api import checks, pickling, row_types
from penstock.model import specs
from penstock.model.errors import UserError
from penstock.operators import user_functions

_ITERABLES = (
    list, tuple, collections.abc.Iterator, collections.abc.Iterable, collections.abc.Generator,
    collections.abc.Sequence,
)  # fmt: skip


def per_record(function: Callable[..., Any], schema: pl.Schema, *, name: str, where: str) -> specs.Function:
    """A function that is called with columns of one row."""
    _require_callable(function, name, where)
    columns = _declared_columns(function, schema, name=name, where=where)
    return specs.Function(
        name=_readable_name(function), pickled=pickling.dump(function, name=name, where=where), columns=columns
    )


def per_batch(function: Callable[..., Any], *, name: str, where: str) -> specs.Function:
    """A function that is called with a DataFrame."""
    _require_callable(function, name, where)
    return specs.Function(
        name=_readable_name(function), pickled=pickling.dump(function, name=name, where=where), columns=None
    )


def instance(thing: object, *, name: str, where: str) -> specs.Function:
    """An object with methods that a slot calls: a trigger or an assigner of the user's own."""
    return specs.Function(name=type(thing).__qualname__, pickled=pickling.dump(thing, name=name, where=where))


def tells_output(function: Callable[..., Any]) -> bool:
    """Whether a function is annotated to return rows of known columns."""
    return row_types.is_row_type(_element(_without_none(_return_annotation(function))))


def output_schema(function: Callable[..., Any], output: Any, *, many: bool, name: str, where: str) -> pl.Schema:
    """The columns that a function gives: from `output=`, or from what it is annotated to return."""
    if output is not None:
        return row_types.schema_of(output, where=where)
    annotation = _without_none(_return_annotation(function))
    if many:
        annotation = _element(annotation)
    if row_types.is_row_type(annotation):
        return row_types.schema_of(annotation, where=where)
    shown = "nothing" if annotation is None else getattr(annotation, "__name__", str(annotation))
    wanted = "Iterator[Row]" if many else "Row"
    raise UserError(
        "P016",
        f'operator "{name}": which columns {_readable_name(function)} gives is not known; '
        f"it is annotated to return {shown}",
        where=where,
        fix=f'give output={{"column": pl.Int64, ...}}, or annotate the function "-> {wanted}" '
        "with Row a dataclass, a TypedDict or a pydantic model",
    )


def _declared_columns(
    function: Callable[..., Any], schema: pl.Schema, *, name: str, where: str
) -> tuple[str, ...] | None:
    names = user_functions.parameter_names(function, where=where)
    columns = [column for column in names if column not in (user_functions.ROW, user_functions.CONTEXT)]
    checks.require_columns(columns, schema, what=f'operator "{name}", {_readable_name(function)}', where=where)
    return user_functions.needed_columns(names)


def _return_annotation(function: Callable[..., Any]) -> Any:
    target = function if inspect.isroutine(function) else getattr(type(function), "__call__", function)  # noqa: B004
    try:
        return typing.get_type_hints(target).get("return")
    except (NameError, TypeError):
        return getattr(target, "__annotations__", {}).get("return")


def _element(annotation: Any) -> Any:
    """The row type inside `Iterator[Row]`, `list[Row]` and the like."""
    origin, arguments = typing.get_origin(annotation), typing.get_args(annotation)
    return _without_none(arguments[0]) if origin in _ITERABLES and arguments else annotation


def _without_none(annotation: Any) -> Any:
    """`Row` of `Row | None`: None is no row."""
    rows = [kind for kind in typing.get_args(annotation) if kind is not type(None)]
    is_union = typing.get_origin(annotation) in (typing.Union, types.UnionType)
    return rows[0] if is_union and len(rows) == 1 else annotation


def _readable_name(function: Callable[..., Any]) -> str:
    return getattr(function, "__qualname__", None) or type(function).__qualname__


def _require_callable(function: object, name: str, where: str) -> None:
    if not callable(function):
        raise UserError(
            "P016", f'operator "{name}": {function!r} is not a function', where=where, fix="give a function"
        )
