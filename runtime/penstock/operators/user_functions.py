"""What users write and see: keyed process functions, their state and their context.

A function names the columns it needs by its parameters; only those become Python objects. Two names are special:
`ctx` is the context, `row` the whole row as a dict. Parameters with a default are the function's own.

A returned row is a tuple in the order of the output columns, a dict, a dataclass, or, when the output has one
column, the bare value. `None` is no row, a list is several rows; a generator yields them one by one.
"""

import dataclasses
import inspect
from collections.abc import Callable, Iterator, Sequence
from typing import Any, ClassVar, Self

from penstock.model import schemas
from penstock.model.errors import UserError
from penstock.model.specs import StateField
from penstock.operators.contexts import KeyedContext
from penstock.operators.user_states import State, ValueState
from penstock.state.value_types import ValueType

CONTEXT = "ctx"
ROW = "row"


class KeyedFunction:
    """What all functions on keyed streams have: states, timers, a beginning and an end."""

    _declared: ClassVar[dict[str, State[Any]]] = {}

    def __init_subclass__(cls, **options: Any) -> None:
        """Take the states out of the class: an attribute that hides one of the class is slow to read."""
        super().__init_subclass__(**options)
        own = {name: value for name, value in vars(cls).items() if isinstance(value, State)}
        cls._declared = {**cls._declared, **own}
        for name in own:
            delattr(cls, name)

    def __new__(cls, *_arguments: Any, **_named: Any) -> Self:
        """Give each instance states of its own; outside a job they hold their defaults."""
        function = super().__new__(cls)
        for name, state in cls._declared.items():
            setattr(function, name, state.bind())
        return function

    def open(self, ctx: KeyedContext) -> None:
        """Called once before the first row, in the process that runs the function."""

    def on_timer(self, ctx: KeyedContext, time: int) -> Any:
        """Event time has reached a timer of `ctx.key`. Returns rows like `process`.

        When all input has ended every timer runs, and `ctx.watermark` is MAX_WATERMARK: a function that always
        sets its next timer here must stop then, or it never ends.
        """

    def on_processing_timer(self, ctx: KeyedContext, time: int) -> Any:
        """The wall clock has reached a processing-time timer of `ctx.key`. Returns rows like `process`.

        When all input has ended, those that are not due yet do not run: their time never comes.
        """

    def close(self) -> None:
        """Called once at the end, on failure too."""


class KeyedProcessFunction(KeyedFunction):
    """Base of functions with state and timers, called with all rows of a key in order.

    Write either `process(self, ctx, <columns>)`, called per row, or `process_batch(self, ctx, batch)`, called
    with a frame whose rows are sorted by key and which returns a frame or None.
    """

    process: ClassVar[Callable[..., Any]]
    process_batch: ClassVar[Callable[..., Any]]


@dataclasses.dataclass(frozen=True, slots=True)
class FunctionDescription:
    """What the client needs to know of a process function."""

    columns: tuple[str, ...] | None
    """Columns that are passed by name; None: the function takes whole rows or batches."""
    per_batch: bool
    states: tuple[StateField, ...]


def describe(function: KeyedProcessFunction, *, where: str = "") -> FunctionDescription:
    """Check a process function and say what it declares."""
    name = type(function).__name__
    per_batch, per_record = (callable(getattr(function, form, None)) for form in ("process_batch", "process"))
    if per_batch == per_record:
        raise UserError(
            "P016",
            f"{name} must have either `process` or `process_batch`, and has {'both' if per_batch else 'neither'}",
            where=where,
            fix="def process(self, ctx, <column names>): ...",
        )
    return FunctionDescription(
        columns=None if per_batch else needed_columns(parameter_names(function.process, where=where)),
        per_batch=per_batch,
        states=tuple(_state_fields(function, where)),
    )


def _state_fields(function: KeyedFunction, where: str) -> Iterator[StateField]:
    for name, state in declared_states(function).items():
        kind = state_type(name, state, where=where)
        yield StateField(
            name=name,
            kind=state.kind,
            type=schemas.type_to_text(kind.dtype),
            default=_shown_default(state, kind) if isinstance(state, ValueState) else None,
            ttl_us=state.ttl.duration_us if state.ttl is not None else 0,
            ttl_by_event_time=state.ttl is not None and state.ttl.event_time,
        )


def _shown_default(state: ValueState[Any], kind: ValueType) -> Any:
    shown = state.default if kind.encode is None or state.default is None else kind.encode(state.default)
    return shown if _is_plain(shown) or isinstance(shown, dict) else None


def _is_plain(value: object) -> bool:
    """Whether a default can be shown as JSON; the function itself carries the real one."""
    return isinstance(value, bool | int | float | str | list)


def declared_states(function: KeyedFunction) -> dict[str, State[Any]]:
    """The states of a function's class and its bases, by name, in the order of declaration."""
    return type(function)._declared


def state_type(name: str, state: State[Any], *, where: str) -> ValueType:
    """How the values of a state are stored."""
    return state.value_type(f"{where}: state {name}" if where else f"state {name}")


def parameter_names(function: Callable[..., Any], *, where: str = "") -> tuple[str, ...]:
    """The names by which a function asks for columns, `ctx` or `row`."""
    try:
        parameters = list(inspect.signature(function).parameters.values())
    except (TypeError, ValueError):  # written in C, without a signature
        parameters = []
    by_position = (inspect.Parameter.POSITIONAL_ONLY, inspect.Parameter.POSITIONAL_OR_KEYWORD)
    required = [each.name for each in parameters if each.kind in by_position and each.default is each.empty]
    if not required or any(each.kind is each.VAR_POSITIONAL for each in parameters):
        raise UserError(
            "P016",
            f"{getattr(function, '__qualname__', function)!s} does not name the columns it takes",
            where=where,
            fix="give it one parameter per column, named like the column, or one called `row`",
        )
    return tuple(required)


def needed_columns(names: Sequence[str]) -> tuple[str, ...] | None:
    """The columns that these parameters stand for; None: all."""
    return None if ROW in names else tuple(name for name in names if name != CONTEXT)
