"""Functions with state, as plain data: see `model.specs`."""

from typing import Any

import msgspec

from penstock.model.spec_base import EventTime, Function, Schema, Spec


class StateField(msgspec.Struct, frozen=True, kw_only=True):
    """A state that a process function declares."""

    name: str
    kind: str = "value"
    """value | list | map | reducing | aggregating, by key; operator list | union list | broadcast, of the operator."""
    type: str
    default: Any = None
    field_defaults: dict[str, Any] = {}
    """Of a dataclass: what its fields are when nothing is said. State of an older version may lack them."""
    ttl_us: int = 0
    """0: lives for ever."""
    ttl_by_event_time: bool = False


class Process(Spec, frozen=True, kw_only=True):
    """A user's KeyedProcessFunction or ProcessFunction, with state and timers."""

    keys: tuple[str, ...]
    """Empty: a function of rows without keys."""
    function: Function
    per_batch: bool = False
    states: tuple[StateField, ...] = ()
    event_time: EventTime | None = None
    output: Schema
    on_error: str = "stop"
    tags: tuple[str, ...] = ()
    """Names of the side outputs that the function may use, also of those that nobody reads."""
    broadcast: bool = False
    """Every subtask gets every row: broadcast state may be written."""


class ProcessInput(msgspec.Struct, frozen=True, kw_only=True):
    """How a function with state takes the rows of one of its inputs."""

    method: str
    per_batch: bool = False
    keys: tuple[str, ...] = ()
    """What its key columns are called; none: rows without keys, or for every subtask."""
    columns: tuple[str, ...] | None = None
    """Columns that are passed by name; None: whole rows or whole batches."""
    event_time: EventTime | None = None


class CoProcess(Spec, frozen=True, kw_only=True):
    """A user's CoProcessFunction or BroadcastProcessFunction: two inputs that share state and timers."""

    inputs: tuple[ProcessInput, ProcessInput]
    broadcast: bool = False
    """Rows of the second input go to every subtask."""
    function: Function
    states: tuple[StateField, ...] = ()
    output: Schema
    on_error: str = "stop"
    tags: tuple[str, ...] = ()

    @property
    def keys(self) -> tuple[str, ...]:
        """What state calls the key columns."""
        return self.inputs[0].keys
