"""What users write: functions with state and timers, on one stream or two, with keys or without.

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
from penstock.operators.operator_states import OperatorState
from penstock.operators.user_states import State, ValueState
from penstock.state.value_types import ValueType

CONTEXT = "ctx"
ROW = "row"


class StatefulFunction:
    """What all functions with state have: declared states, timers, a beginning and an end."""

    forms: ClassVar[tuple[tuple[str, str], ...]]
    """Of each input: the method that is called per row, and the one that is called per batch."""

    _declared: ClassVar[dict[str, State[Any] | OperatorState]] = {}

    def __init_subclass__(cls, **options: Any) -> None:
        """Take the states out of the class: an attribute that hides one of the class is slow to read."""
        super().__init_subclass__(**options)
        own = {name: value for name, value in vars(cls).items() if isinstance(value, State | OperatorState)}
        cls._declared = {**cls._declared, **own}
        for name in own:
            delattr(cls, name)

    def __new__(cls, *_arguments: Any, **_named: Any) -> Self:
        """Give each instance states of its own; outside a job they hold their defaults."""
        function = super().__new__(cls)
        for name, state in cls._declared.items():
            setattr(function, name, state.bind())
        return function

    def open(self, ctx: Any) -> None:
        """Called once before the first row, in the process that runs the function. Operator state is there."""

    def on_timer(self, ctx: Any, time: int) -> Any:
        """Event time has reached a timer of `ctx.key`. Returns rows like `process`.

        When all input has ended every timer runs, and `ctx.watermark` is MAX_WATERMARK: a function that always
        sets its next timer here must stop then, or it never ends.
        """

    def on_processing_timer(self, ctx: Any, time: int) -> Any:
        """The wall clock has reached a processing-time timer of `ctx.key`. Returns rows like `process`.

        When all input has ended, those that are not due yet do not run: their time never comes.
        """

    def close(self) -> None:
        """Called once at the end, on failure too."""


_ONE_INPUT = (("process", "process_batch"),)


class KeyedProcessFunction(StatefulFunction):
    """Base of functions with state and timers, called with all rows of a key in order.

    Write either `process(self, ctx, <columns>)`, called per row, or `process_batch(self, ctx, batch)`, called
    with a frame whose rows are sorted by key and which returns a frame or None.
    """

    forms = _ONE_INPUT
    process: ClassVar[Callable[..., Any]]
    process_batch: ClassVar[Callable[..., Any]]


class ProcessFunction(StatefulFunction):
    """Base of functions on rows without keys, with operator state; called with the rows of its subtask in order.

    Write either `process(self, ctx, <columns>)` or `process_batch(self, ctx, batch)`. Timers belong to the subtask;
    after a restore every subtask has those of all, as any of them may now hold the state that they are for.
    """

    forms = _ONE_INPUT
    process: ClassVar[Callable[..., Any]]
    process_batch: ClassVar[Callable[..., Any]]


class CoProcessFunction(StatefulFunction):
    """Base of functions over two streams: `left.connect(right).process(Function())`.

    Write `process_left(self, ctx, <columns>)` and `process_right(self, ctx, <columns>)`, or for either of them
    `process_left_batch(self, ctx, batch)`, `process_right_batch(self, ctx, batch)`. When both streams are keyed, rows
    of both with equal keys share state and timers; when neither is, there is operator state.
    """

    forms = (("process_left", "process_left_batch"), ("process_right", "process_right_batch"))
    process_left: ClassVar[Callable[..., Any]]
    process_left_batch: ClassVar[Callable[..., Any]]
    process_right: ClassVar[Callable[..., Any]]
    process_right_batch: ClassVar[Callable[..., Any]]


class BroadcastProcessFunction(StatefulFunction):
    """Base of functions over a stream and rows that go to every subtask: `a.connect(b.broadcast()).process(...)`.

    Write `process` (or `process_batch`) for rows of the stream, keyed or not, and `process_broadcast` (or
    `process_broadcast_batch`) for rows that every subtask gets. A `BroadcastState` is changed by the latter and read
    by the former. What `process_broadcast` returns is given out by every subtask.
    """

    forms = (*_ONE_INPUT, ("process_broadcast", "process_broadcast_batch"))
    process: ClassVar[Callable[..., Any]]
    process_batch: ClassVar[Callable[..., Any]]
    process_broadcast: ClassVar[Callable[..., Any]]
    process_broadcast_batch: ClassVar[Callable[..., Any]]


@dataclasses.dataclass(frozen=True, slots=True)
class MethodDescription:
    """How a function takes the rows of one of its inputs."""

    method: str
    columns: tuple[str, ...] | None
    """Columns that are passed by name; None: the method takes whole rows or batches."""
    per_batch: bool


@dataclasses.dataclass(frozen=True, slots=True)
class FunctionDescription:
    """What the client needs to know of a function with state."""

    inputs: tuple[MethodDescription, ...]
    states: tuple[StateField, ...]

    @property
    def columns(self) -> tuple[str, ...] | None:
        """Of its first input."""
        return self.inputs[0].columns

    @property
    def per_batch(self) -> bool:
        """Its first input."""
        return self.inputs[0].per_batch


def describe(function: StatefulFunction, *, where: str = "") -> FunctionDescription:
    """Check a function and say what it declares."""
    return FunctionDescription(
        inputs=tuple(_method(function, *forms, where) for forms in function.forms),
        states=(*_state_fields(function, where), *_operator_state_fields(function, where)),
    )


def _method(function: StatefulFunction, per_record: str, per_batch: str, where: str) -> MethodDescription:
    has_record, has_batch = (callable(getattr(function, form, None)) for form in (per_record, per_batch))
    if has_batch == has_record:
        name, has = type(function).__name__, "both" if has_batch else "neither"
        raise UserError(
            "P016",
            f"{name} must have either `{per_record}` or `{per_batch}`, and has {has}",
            where=where,
            fix=f"def {per_record}(self, ctx, <column names>): ...",
        )
    if has_batch:
        return MethodDescription(per_batch, None, per_batch=True)
    names = parameter_names(getattr(function, per_record), where=where)
    return MethodDescription(per_record, needed_columns(names), per_batch=False)


def _state_fields(function: StatefulFunction, where: str) -> Iterator[StateField]:
    for name, state in declared_states(function).items():
        kind = state_type(name, state, where=where)
        yield StateField(
            name=name,
            kind=state.kind,
            type=schemas.type_to_text(kind.dtype),
            default=_shown_default(state, kind) if isinstance(state, ValueState) else None,
            field_defaults=_field_defaults(state.declared),
            ttl_us=state.ttl.duration_us if state.ttl is not None else 0,
            ttl_by_event_time=state.ttl is not None and state.ttl.event_time,
        )


def _operator_state_fields(function: StatefulFunction, where: str) -> Iterator[StateField]:
    for name, state in declared_operator_states(function).items():
        types = state.column_types(f"{where}: state {name}" if where else f"state {name}")
        shown = ", ".join(schemas.type_to_text(kind.dtype) for kind in types.values())
        yield StateField(name=name, kind=state.kind, type=shown)


def _shown_default(state: ValueState[Any], kind: ValueType) -> Any:
    shown = state.default if kind.encode is None or state.default is None else kind.encode(state.default)
    return shown if _is_plain(shown) or isinstance(shown, dict) else None


def _field_defaults(declared: object) -> dict[str, Any]:
    if not (isinstance(declared, type) and dataclasses.is_dataclass(declared)):
        return {}
    return {field.name: field.default for field in dataclasses.fields(declared) if _is_plain(field.default)}


def _is_plain(value: object) -> bool:
    """Whether a default can be shown as JSON; the function itself carries the real one."""
    return isinstance(value, bool | int | float | str | list)


def declared_states(function: StatefulFunction) -> dict[str, State[Any]]:
    """The keyed states of a function's class and its bases, by name, in the order of declaration."""
    return {name: state for name, state in type(function)._declared.items() if isinstance(state, State)}


def declared_operator_states(function: StatefulFunction) -> dict[str, OperatorState]:
    """The states that belong to no key."""
    return {name: state for name, state in type(function)._declared.items() if isinstance(state, OperatorState)}


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
