"""The loop around a per-record function with state, generated for its number of columns, states and results.

Written out for every shape, since this is the one place where our own Python runs once per row: unpacking
arguments with `*`, or a loop over states or output columns, would cost more than the call of the function itself.
For one column, one state and rows of two values the source is:

    for key, a0 in rows:
        context.key = key
        l0 = s0.value = f0[key]
        result = call(context, a0)
        v0 = s0.value
        if v0 is not l0:
            if v0 is None: d0(key)
            else: f0[key] = v0
        if result.__class__ is usual:
            try: r0, r1 = result
            except ValueError: keep(result)
            else: p0(r0); p1(r1)
        elif result is not None: keep(result)
"""

import inspect
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from penstock.operators.contexts import ProcessContext
from penstock.operators.rows import RowBuilder
from penstock.operators.user_states import ValueState
from penstock.state.values import ValueTable

FILE = "<penstock loop>"


@dataclass(frozen=True, slots=True)
class BoundState:
    """A state that the loop loads and stores: what the function sees, and where the values are."""

    handle: ValueState[Any]
    table: ValueTable

    @property
    def changes_in_place(self) -> bool:
        """Values can be changed without being replaced, so that each one seen must be stored."""
        return self.table.kind.copy is not None


class Loop:
    """Calls a function per record, with the state of the record's key before and after."""

    def __init__(
        self,
        function: Callable[..., Any],
        arguments: str,
        columns: Sequence[str],
        states: Sequence[BoundState],
        rows: RowBuilder,
        *,
        keyed: bool = True,
    ) -> None:
        """`columns` are the names of what is iterated beside the key; `arguments` is what is passed, in order.

        Not `keyed`: whatever is iterated in place of the key is not looked at.
        """
        self._function, self._states, self._rows = function, states, rows
        source = "\n".join(_source(function, arguments, columns, states, rows, keyed))
        namespace: dict[str, Any] = {}
        exec(compile(source, FILE, "exec"), namespace)
        self._run: Callable[..., None] = namespace["run"]

    def run(self, context: ProcessContext, records: Iterable[Any], made: Sequence[list[Any]]) -> None:
        """Add to the output columns. `records` gives (key, *columns), or the key alone when there are no columns.

        When the function raises, the loop can go on with what is left of an iterator.
        """
        states: list[Any] = []
        for state in self._states:
            values = state.table.values
            states += state.handle, values.front, values.clear

        def keep(result: Any) -> None:
            self._rows.keep(result, made)

        add = [column.append for column in made]
        self._run(self._function, context, records, self._rows.usual_kind, keep, *add, *states)


def _source(
    function: Callable[..., Any],
    arguments: str,
    columns: Sequence[str],
    states: Sequence[BoundState],
    rows: RowBuilder,
    keyed: bool,
) -> Iterator[str]:
    numbers = range(len(states))
    adds = [f"p{n}" for n in range(rows.width)]
    bound = [name for n in numbers for name in (f"s{n}", f"f{n}", f"d{n}")]
    yield f"def run({', '.join(['call', 'context', 'records', 'usual', 'keep', *adds, *bound])}):"
    yield f"    for {', '.join(['key', *columns])} in records:"
    if keyed:
        yield "        context.key = key"
    for n in numbers:
        yield f"        l{n} = s{n}.value = f{n}[key]"
    if inspect.isgeneratorfunction(function):
        yield f"        for result in call({arguments}):"
        yield from _keep_result(rows, " " * 12)
        yield from _store_states(states)
    else:
        yield f"        result = call({arguments})"
        yield from _store_states(states)
        yield from _keep_result(rows, " " * 8)


def _store_states(states: Sequence[BoundState]) -> Iterator[str]:
    for n, state in enumerate(states):
        yield f"        v{n} = s{n}.value"
        if state.changes_in_place:
            yield f"        if v{n} is not None: f{n}[key] = v{n}"
            yield f"        elif l{n} is not None: d{n}(key)"
        else:
            # What was not replaced is not stored, so a key whose default was only looked at takes no room.
            yield f"        if v{n} is not l{n}:"
            yield f"            if v{n} is None: d{n}(key)"
            yield f"            else: f{n}[key] = v{n}"


def _keep_result(rows: RowBuilder, indent: str) -> Iterator[str]:
    yield f"{indent}if result.__class__ is usual:"
    if rows.usual_kind is tuple:
        values = [f"r{n}" for n in range(rows.width)]
        yield f"{indent}    try: {', '.join(values)}, = result"
        yield f"{indent}    except ValueError: keep(result)"
        yield f"{indent}    else: {'; '.join(f'p{n}(r{n})' for n in range(rows.width))}"
    else:
        yield f"{indent}    p0(result)"
    yield f"{indent}elif result is not None: keep(result)"
